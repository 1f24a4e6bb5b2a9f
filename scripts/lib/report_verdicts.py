# SPDX-License-Identifier: BSD-2-Clause
"""The tables of a report that judge: targets, the control, who is behind whom."""

import math

import figures
import report_style as style
import rivals
import targets
from report_blocks import Cell, Column, Table
from report_tables import DASH, drop_empty, name_cell
from rivals import CONTROL, SUBJECT

INTERVAL = "95 % interval"

VERDICT_TONES = {targets.HELD: "held", targets.MISSED: "missed", targets.ABOVE: "doubt",
                 targets.BELOW: "doubt", targets.NOT_MEASURED: "unknown"}


def _titled_once(entries):
    """[(title, rest), ...] of which each title stands only in the first of its lines."""
    previous, lines = None, []
    for title, rest in entries:
        lines.append([Cell(title if title != previous else ""), *rest])
        previous = title
    return lines


def _target_cells(outcome):
    write = style.ratio if outcome.unit == "ratio" else style.byte_size
    measured = style.spread(outcome.summary, write) if outcome.summary else outcome.why
    rounds = f"{outcome.rounds_met} of {outcome.summary.count}" if outcome.summary else DASH
    if outcome.left_out:
        rounds += f", {len(outcome.left_out)} left out"
    return [Cell(outcome.quantity), Cell(outcome.verdict, VERDICT_TONES[outcome.verdict]),
            Cell(outcome.required), Cell(measured), Cell(style.interval(outcome.interval, write)),
            Cell(rounds)]


def target_table(outcomes):
    rows = _titled_once((outcome.title, _target_cells(outcome)) for outcome in outcomes)
    return Table((Column("row", numeric=False, width="broad"),
                  Column("quantity", numeric=False, width="broad"),
                  Column("verdict", numeric=False), Column("required"), Column("measured"),
                  Column(INTERVAL), Column("rounds that reach it")), rows)


def _per_cent(logarithm):
    return style.share(math.expm1(logarithm)) if math.isfinite(logarithm) else DASH


def control_table(results):
    """What auto's ratio to itself came out at, row by row; None without a control."""
    rows = []
    for row in results["rows"]:
        ratio = rivals.control_ratio(row, figures.value_measure(row))
        if ratio.summary:
            rows.append([Cell(row["title"]), Cell(style.spread(ratio.summary, style.ratio)),
                         Cell(style.interval(ratio.interval, style.ratio)),
                         Cell(_per_cent(ratio.deviation)), Cell(_per_cent(ratio.scatter)),
                         Cell(f"{ratio.summary.count}")])
    if not rows:
        return None
    return Table((Column("row", numeric=False, width="broad"), Column(f"{SUBJECT} / {CONTROL}"),
                  Column(INTERVAL), Column("the median is off by"),
                  Column("half of the rounds are off by more than"), Column("rounds")), rows)


def contest_table(row):
    """auto against its control and those of the decisive rounds, over all rounds of ROW."""
    measure = figures.value_measure(row)
    subject, lines = figures.find_contender(row, SUBJECT), []
    deviation = rivals.control_ratio(row, measure).deviation
    names = [CONTROL, *(name for name in row.get("decisive") or () if name != CONTROL)]
    for name in names if subject else ():
        rival = figures.find_contender(row, name)
        if rival is None or rival is subject:
            continue
        ratio = figures.ratio_within_rounds(subject, rival, measure)
        if ratio.summary:
            lines.append([name_cell(rival), Cell(style.spread(ratio.summary, style.ratio)),
                          Cell(style.interval(ratio.interval if name == CONTROL
                                              else targets.widened(ratio, deviation),
                                              style.ratio)),
                          Cell(f"{ratio.summary.count}")])
    if not lines:
        return None
    return Table((Column("against", numeric=False), Column(f"ratio, {SUBJECT} against it"),
                  Column(INTERVAL), Column("rounds")), lines)


# ---- who is behind ------------------------------------------------------------------------------


def _groups(comparisons):
    """Lists of comparisons in the same measure of the same row."""
    groups = {}
    for one in comparisons:
        groups.setdefault((one.row["name"], one.measure.name), []).append(one)
    return list(groups.values())


def _measure_name(comparison):
    """Of a row's value: what kind of value that is."""
    measure = comparison.measure
    return comparison.row["kind"] if measure.name == "value" else measure.name


def _figure(contender, comparison):
    """The median over the rounds of the ratio."""
    measure, rounds = comparison.measure, comparison.ratio.by_round
    value = figures.summary_of(contender, measure, rounds).median
    write = style.writer_for(measure.unit)
    return write(value) if write is not style.number else f"{write(value)} {measure.unit}"


def defeat_table(comparisons, loser_name):
    """Where LOSER_NAME is behind: the rival that is furthest ahead, and who else is. None if it
    is nowhere."""
    entries = []
    for group in _groups(one for one in comparisons if one.is_behind):
        worst, *others = sorted(group, key=lambda one: one.ratio.summary.median)
        entries.append((worst.row["title"], [
            Cell(_measure_name(worst)), Cell(_figure(worst.loser, worst)),
            name_cell(worst.winner), Cell(_figure(worst.winner, worst)),
            Cell(style.spread(worst.ratio.summary, style.ratio)),
            Cell(style.interval(worst.interval, style.ratio)),
            Cell(f"{worst.ratio.summary.count}"),
            Cell(", ".join(f"{one.winner['name']} {style.ratio(one.ratio.summary.median)}"
                           for one in others) or DASH)]))
    if not entries:
        return None
    return Table(*drop_empty(
        (Column("row", numeric=False, width="broad"), Column("measure", numeric=False),
         Column(loser_name), Column("furthest ahead", numeric=False), Column("with"),
         Column("ratio within the rounds"), Column(INTERVAL), Column("rounds"),
         Column("also ahead", numeric=False, width="wraps")), _titled_once(entries)))


# More rows than this are counted, not named.
LEVEL_NAMED = 4


def level_sentence(comparisons):
    """Where the median is below 1 but the interval is not; "" if nowhere."""
    measures = {}
    for group in _groups(comparisons):
        if not any(one.is_behind for one in group):
            measures.setdefault(_measure_name(group[0]), []).append(
                f"\u201c{group[0].row['title']}\u201d")
    if not measures:
        return ""
    is_short = sum(map(len, measures.values())) <= LEVEL_NAMED
    return "Median below 1, but this run cannot tell whether behind: " + "; ".join(
        f"{name} on {style.listing(titles) if is_short else style.count(len(titles), 'row')}"
        for name, titles in measures.items()) + "."
