#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Makes a report of a benchmark's results: report.html, self-contained, or the plot alone.

Every figure is computed from the results by figures.py, whose definitions the report repeats.
"""

import argparse
import gzip
import html
import json
import math
import os
import sys

import figures
import plot
import plot_paths
import rivals

FORMAT = 1
CONTROL = rivals.CONTROL
CSS = """body { max-width: 80rem; margin: auto; padding: 1rem 2rem 4rem; color: #1d2125;
font: 16px/1.5 system-ui, sans-serif } p, li { max-width: 50rem } svg { max-width: 100% }
div { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem;
font-variant-numeric: tabular-nums } th { border-bottom: 1px solid #999; vertical-align: bottom }
td, th { padding: .15rem .7rem; text-align: right } td:first-child, th:first-child, td.text {
text-align: left } tr:hover { background: #f1f2f4 } .note { color: #5f6670; font-size: .9rem }
.warning { border-left: 4px solid #c2410c; padding-left: 1rem }"""
DEFINITIONS = (
    "A ratio is taken within each round, then the median of these; more than 1 means that auto is "
    "better, also where less is better. The interval is that of this median with a confidence of "
    "95 % (order statistics; with fewer than six rounds Student's interval of the logarithms, at "
    "least minimum to maximum).",
    f"{CONTROL} is auto once more, a second instance: its ratio would be 1 without noise. An "
    "interval is widened to what the control shows, and a difference counts only if the whole "
    "interval is on one side of 1.",
    "The best engine and the best peer of a row are those that the median of auto's ratios is "
    "lowest to. Where a row has decisive rounds, the ordinary rounds chose who takes part in them, "
    "and only the decisive ones count in the summary. In the plot all rounds count that the direct "
    "path took part in.",
    "Peers run in the best of the configurations that were tried for the row; culvert runs with "
    "its defaults. CPU is that of the whole machine per unit of work: client, relay and server.",
    "A cell that failed or delivered a wrong byte does not count, and is named.",
)


class ReportError(Exception):
    """The results cannot be read, or have nothing to draw; the text says why."""


def load(path):
    """The results in PATH, which may be compressed."""
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
            results = json.load(file)
    except (OSError, ValueError, EOFError) as error:
        raise ReportError(f"{path}: {error}") from None
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ReportError(f"{path}: not results of scripts/bench in format {FORMAT}")
    return results


# ---- figures as text ----------------------------------------------------------------------------


def number(value):
    """Three significant digits, thousands set apart."""
    if value is None:
        return "\u2013"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def spread(summary, write=number):
    """"median [min\u2013max]", or the part of it that is known."""
    if summary is None:
        return "\u2013"
    if not summary.has_spread:
        return f"{write(summary.median)} (one round)"
    return f"{write(summary.median)} [{write(summary.low)}\u2013{write(summary.high)}]"


def share(fraction):
    """Never 100 % for less than all, nor 0 % for more than nothing."""
    if 0.999 <= fraction < 1:
        return "> 99.9 %"
    return "< 0.1 %" if 0 < fraction < 0.001 else f"{fraction * 100:.3g} %"


def shares(contender):
    found = figures.carrier_shares(contender)
    return ", ".join(f"{name} {share(part)}" for name, part in found.items() if part) or "\u2013"


# ---- comparisons --------------------------------------------------------------------------------


def compare(row, rival, fresh=True):
    """The Ratio of auto to RIVAL and its interval, no narrower than that of the control."""
    subject = figures.find_contender(row, rivals.SUBJECT)
    if subject is None or rival is None:
        return None, None
    measure = figures.value_measure(row)
    pick = rivals.fresh if fresh else lambda _row, found: found
    ratio = pick(row, figures.ratio_within_rounds(subject, rival, measure))
    if ratio.summary is None:
        return None, None
    deviation = pick(row, rivals.control_ratio(row, measure)).deviation
    return ratio, ratio.interval and ratio.interval.widened(ratio.summary.median, deviation)


def compare_text(row, rival, fresh=True):
    ratio, interval = compare(row, rival, fresh)
    if ratio is None:
        return "\u2013"
    write = "{:.3f}".format
    within = f" ({write(interval.low)}\u2013{write(interval.high)})" if interval else ""
    return f"{write(ratio.summary.median)}{within}"


def verdict(row, rival):
    _ratio, interval = compare(row, rival)
    if interval is None:
        return "not known"
    return "ahead" if interval.low > 1 else "behind" if interval.high < 1 else "not told apart"


def compared_rows(results):
    """The rows in which auto is compared with others."""
    return [row for row in results["rows"] if figures.find_contender(row, rivals.SUBJECT)]


# ---- tables -------------------------------------------------------------------------------------


def text(value):
    return html.escape(str(value))


def table(columns, rows):
    head = "".join(f"<th>{text(name)}</th>" for name in columns)
    body = "\n".join("<tr>" + "".join(
        f"<td{' class=text' if len(str(cell)) > 40 else ''}>{text(cell)}</td>" for cell in row)
        + "</tr>" for row in rows)
    return f"<div><table><tr>{head}</tr>\n{body}</table></div>"


def summary_table(results):
    rows = []
    for row in compared_rows(results):
        subject = figures.find_contender(row, rivals.SUBJECT)
        cells = [row["title"], f"{spread(figures.summary_of(subject, figures.value_measure(row)))} "
                 f"{row['unit']}"]
        for rival in (rivals.best_engine(row), rivals.best_peer(row)):
            cells += [rival["name"], compare_text(row, rival), verdict(row, rival)] if rival else \
                ["\u2013"] * 3
        rows.append([*cells, compare_text(row, figures.find_contender(row, CONTROL)),
                     shares(subject)])
    return table(("row", "auto: median [min\u2013max]", "best engine", "auto to it", "verdict",
                  "best peer", "auto to it", "verdict", f"{CONTROL}", "auto was carried by"), rows)


def target_table(results):
    """Empty without targets."""
    rows = []
    for row in results["rows"]:
        for name, rival, least, ratio in rivals.aims(row):
            median = ratio.summary.median if ratio.summary else None
            rows.append((row["title"], f"{name} / {rival}", f"{least:g}",
                         spread(ratio.summary, "{:.3f}".format),
                         "not known" if median is None else
                         "reached" if median >= least else "MISSED"))
    return "<h2>Targets</h2>" + table(
        ("row", "ratio", "at least", "median [min\u2013max]", ""), rows) if rows else ""


def row_table(row):
    whole, rows = figures.ordinary_row(row), []
    for one in whole["contenders"]:
        def of(measure, contender=one):
            summary = figures.summary_of(contender, measure)
            return number(summary.median) if summary else "\u2013"

        scale, unit = figures.cpu_scale(row)
        peak = figures.peak_of(one, "kernel_peak_bytes")
        rows.append((
            one["name"], spread(figures.summary_of(one, figures.value_measure(row))),
            compare_text(whole, one, fresh=False) if one["name"] != rivals.SUBJECT else "",
            number(figures.contender_percentile(one, 50)),
            number(figures.contender_percentile(one, 99)),
            of(figures.cpu_measure(row)), of(figures.relay_cpu_measure(row)),
            of(figures.syscalls_measure(row)), of(figures.switches_measure(row)),
            number(peak / 1e6) if peak else "\u2013",
            f"{figures.total_of(one, 'errors') or 0:,}", shares(one), one.get("config") or ""))
    return table(("contender", f"{row['unit']}: median [min\u2013max]", "auto to it",
                  "p50 \u00b5s", "p99 \u00b5s", f"CPU {unit}/{row['work_unit']}", "of the relay",
                  "system calls", "switches", "kernel peak MB", "errors", "carried by",
                  "configuration"), rows)


def failed_cells(row):
    return [f"{one['name']}, round {number_}: {why}" for one in row["contenders"]
            for number_, why in figures.unusable_cells(one)]


# ---- the page -----------------------------------------------------------------------------------


def warnings(results):
    if not results["complete"]:
        yield "This run is not complete: the report shows what had been measured until then."
    if results["quick"]:
        yield "This is a quick run: it shows orders of magnitude; small differences mean nothing."
    if results["rounds"] == 1:
        yield "There was a single round: no figure has a known spread."
    if results["culvert"]["dirty"]:
        yield "culvert was built from a tree with changes that no commit has."
    if any(cell.get("wrong") for row in results["rows"] for one in row["contenders"]
           for cell in one["cells"]):
        yield "Wrong payload was delivered: see the rows. Such cells do not count."


def page(results):
    culvert, machine = results["culvert"], results["machine"]
    yield (f"<!doctype html><html lang=en><meta charset=utf-8><title>culvert: benchmark</title>"
           f"<meta name=viewport content='width=device-width'><style>{CSS}</style>")
    yield (f"<h1>culvert: benchmark</h1><p class=note>culvert {text(culvert['version'])} (commit "
           f"{text(culvert['commit'][:12])}), {text(results['started'])}; {results['rounds']} "
           f"rounds and {results.get('decisive_rounds') or 0} decisive ones, cells of "
           f"{results['cell_seconds']:g} s, {results['seconds'] / 60:.0f} minutes</p>")
    yield from (f"<p class=warning>{text(one)}</p>" for one in warnings(results))
    yield "<h2>Summary</h2>" + summary_table(results)
    yield target_table(results)
    yield plot.draw(results) or plot_paths.draw(results) or ""
    yield "<ul class=note>" + "".join(f"<li>{text(one)}</li>" for one in DEFINITIONS) + "</ul>"
    yield "<h2>Row by row</h2><p class=note>All rounds in which every contender took part.</p>"
    for row in results["rows"]:
        yield f"<h3 id='{text(row['name'])}'>{text(row['title'])}</h3>"
        if row.get("note"):
            yield f"<p class=note>{text(row['note'])}</p>"
        yield row_table(row)
        yield from (f"<p class=warning>{text(one)}</p>" for one in failed_cells(row))
    yield "<h2>The machine</h2>" + table(("", ""), [
        (name, json.dumps(value) if isinstance(value, (dict, list)) else value)
        for name, value in machine.items()])
    if results.get("calibration"):
        yield "<h2>What was tried for the peers</h2>" + table(
            ("row", "contender", "tried", "chosen"),
            [(one["row"], one["contender"], "; ".join(
                f"{tried['config']}: {number(tried.get('value'))}" for tried in one["tried"]),
              one["chosen"]) for one in results["calibration"]])
    for one in results.get("left_out") or ():
        yield f"<p class=note>Left out: {text(one['contender'])}: {text(one['why'])}</p>"


def write_text(path, content):
    """All or nothing: a reader of PATH meanwhile sees the old file or the new one."""
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(f"{path}.partial", path)


def make_report(results, folder):
    """Writes the report of RESULTS to FOLDER; returns its path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "report.html")
    write_text(path, "\n".join(page(results)) + "\n")
    return path


def make_plot(results, path):
    """Writes the plot of RESULTS to PATH, which it returns."""
    drawing = plot.draw(results) or plot_paths.draw(results)
    if not drawing:
        raise ReportError("the results have no row of the plot")
    write_text(path, drawing)
    return path


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="scripts/report", description="Makes report.html, one self-contained file, of the "
        "results of scripts/bench; or the plot of README.md.")
    parser.add_argument("results", metavar="RESULTS.json", help="may be compressed with gzip")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: beside the results)")
    parser.add_argument("--plot", metavar="FILE.svg", help="write only the plot, to this file")
    options = parser.parse_args(arguments)
    folder = options.out or os.path.dirname(options.results) or "."
    try:
        results = load(options.results)
        written = make_plot(results, options.plot) if options.plot else \
            make_report(results, folder)
    except (ReportError, KeyError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"report: {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"report   {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
