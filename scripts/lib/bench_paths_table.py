# SPDX-License-Identifier: BSD-2-Clause
"""The results of a matrix of paths as a table of text."""

import figures
import rivals

COLUMNS = ("path and load", "auto", "unit", "best engine", "auto / best", "auto / copy",
           "copy / direct", "auto / direct")


def ratio_text(row, first, second):
    """"median [min-max]" of the ratios within rounds; "-" where there is none."""
    ours, theirs = (figures.find_contender(row, name) if name else None
                    for name in (first, second))
    if not ours or not theirs:
        return "-"
    summary = figures.ratio_within_rounds(ours, theirs, figures.value_measure(row)).summary
    return f"{summary.median:.2f} [{summary.low:.2f}-{summary.high:.2f}]" if summary else "-"


def value_text(row, name):
    found = figures.find_contender(row, name)
    summary = found and figures.summary_of(found, figures.value_measure(row))
    return f"{summary.median:,.4g}" if summary else "-"


def best_engine(row):
    found = figures.find_contender(row, rivals.SUBJECT) and rivals.best_engine(row)
    return found["name"] if found else None


def line_of(row):
    best = best_engine(row)
    return (row["title"], value_text(row, "auto"), row["unit"], best or "-",
            ratio_text(row, "auto", best), ratio_text(row, "auto", "copy"),
            ratio_text(row, "copy", "direct"), ratio_text(row, "auto", "direct"))


def overall(rows, first, second):
    """The Summary of the rows' medians of the ratio of FIRST to SECOND; None if there is none."""
    medians = []
    for row in rows:
        ours, theirs = (figures.find_contender(row, name) for name in (first, second))
        ratio = ours and theirs and figures.ratio_within_rounds(ours, theirs,
                                                                figures.value_measure(row))
        if ratio and ratio.summary:
            medians.append(ratio.summary.median)
    return figures.summarise(medians)


def speeds(row):
    """The medians of all contenders, in a line."""
    return ", ".join(f"{one['name']} {value_text(row, one['name'])}" for one in row["contenders"])


def aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip()
            for line in lines]


def failures(rows):
    return [f"{row['title']}: {one['name']}, round {number}: {why}" for row in rows
            for one in row["contenders"] for number, why in figures.unusable_cells(one)]


def text_of(results):
    rows = [row for row in results["rows"] if row["contenders"]]
    lines = [f"the relay's own congestion control: {results['relay_congestion']}", "",
             *aligned([COLUMNS, *map(line_of, rows)]), ""]
    for first, second in (("auto", "copy"), ("copy", "direct"), ("auto", "direct")):
        summary = overall(rows, first, second)
        if summary:
            lines.append(f"{first} / {second}: median of {summary.count} rows {summary.median:.2f}"
                         f" [{summary.low:.2f}-{summary.high:.2f}]")
    lines += ["", *aligned([("path and load", "medians of all"),
                            *((row["title"], speeds(row)) for row in rows)])]
    lines += ["", *failures(rows)] if failures(rows) else []
    return "\n".join(lines) + "\n"
