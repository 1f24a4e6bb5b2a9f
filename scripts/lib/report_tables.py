# SPDX-License-Identifier: BSD-2-Clause
"""The tables of a report."""

import figures
import report_style as style
import report_words as words
import targets
from report_blocks import Cell, Column, Table
from report_style import in_order, style_of
from rivals import CONTROL

DASH = "\u2013"
CARRIERS = ("sockmap", "splice", "copy")


def name_cell(contender):
    return Cell(contender["name"], color=style_of(contender).color)


def drop_empty(columns, rows):
    """Without the columns in which no row has anything to say."""
    keep = [index for index in range(len(columns))
            if index == 0 or any(row[index].text not in ("", DASH) for row in rows)]
    return (tuple(columns[index] for index in keep),
            [[row[index] for index in keep] for row in rows])


# ---- one row of the matrix ----------------------------------------------------------------------


def value_cell(row, contender):
    """The value's median and spread."""
    summary = figures.summary_of(contender, figures.value_measure(row))
    if summary is None:
        return Cell("failed" if contender["cells"] else "not run", "bad")
    return Cell(style.spread(summary, style.writer_for(row["unit"])))


def rounds_cell(row, contender):
    """How many of the row's rounds count, of how many if not all."""
    usable, rounds = len(figures.usable_cells(contender)), figures.ordinary_rounds(row)
    return Cell(f"{rounds}" if usable == rounds else f"{usable} of {rounds}")


def _direct_cell(row, contender):
    direct = figures.find_contender(row, "direct")
    if direct is None or contender is direct:
        return Cell(DASH)
    ratio = figures.ratio_within_rounds(contender, direct, figures.value_measure(row))
    return Cell(style.spread(ratio.summary, style.ratio))


def _median_cell(contender, measure, write=style.number):
    summary = figures.summary_of(contender, measure)
    return Cell(write(summary.median) if summary else DASH)


def _error_cell(contender):
    errors = figures.total_of(contender, "errors")
    wrong = figures.total_of(contender, "wrong") or 0
    if errors is None:
        return Cell(DASH)
    text = f"{errors:,}" + (f"; {wrong:,} wrong" if wrong else "")
    return Cell(text, "bad" if errors or wrong else "")


def _carrier_cells(contender):
    """The share of each of CARRIERS; a row of idle sessions counts no bytes."""
    if contender["family"] != "culvert":
        return [Cell(DASH) for _name in CARRIERS]
    shares = figures.carrier_shares(contender)
    return [Cell(style.share(shares.get(name, 0)) if shares else "n/a") for name in CARRIERS]


def _extra_names(row):
    """What the cells say besides, if it is not nought everywhere."""
    names = {name: None for contender in row["contenders"]
             for cell in figures.usable_cells(contender).values()
             for name, value in (cell.get("extra") or {}).items() if value}
    return list(names)


def row_table(row):
    """All that was measured of ROW, a line for each contender: of the rounds that all took part
    in, so that medians can be compared."""
    row = figures.ordinary_row(row)
    unit = row["work_unit"]
    measures = ((figures.cpu_measure(row), "CPU, {}"),
                (figures.relay_cpu_measure(row), "of it the relay, {}"),
                (figures.syscalls_measure(row), "relay's system calls per {unit}, n = 1"),
                (figures.switches_measure(row), "relay's context switches per {unit}, n = 1"))
    totals = ((figures.TOTAL_MEMORY_EACH, "the same with the base"),
              (figures.TOTAL_MEMORY, "the relay's memory in all"))
    extras = _extra_names(row)
    is_marginal = any(figures.summary_of(one, figures.TOTAL_MEMORY) for one in row["contenders"])
    columns = [Column("contender", numeric=False),
               Column("marginal " * is_marginal + row["unit"]),
               *(Column(title) for _measure, title in totals), Column("rounds"),
               Column("to direct"), *(Column(f"by {name}") for name in CARRIERS),
               *(Column(f"p{percent:g}") for percent in (50, 99, 99.9)),
               *(Column(title.format(measure.unit, unit=unit)) for measure, title in measures),
               Column("peak kernel memory"), *(Column(words.extra_title(name)) for name in extras),
               Column("errors"), Column("configuration", numeric=False, width="long")]
    contenders = in_order(row["contenders"])
    rows = [[name_cell(one), value_cell(row, one),
             *(_median_cell(one, measure, style.byte_size) for measure, _title in totals),
             rounds_cell(row, one), _direct_cell(row, one), *_carrier_cells(one),
             *(Cell(style.latency(figures.contender_percentile(one, percent)))
               for percent in (50, 99, 99.9)),
             *(_median_cell(one, measure) for measure, _title in measures),
             Cell(style.byte_size(figures.peak_of(one, "kernel_peak_bytes"))),
             *(_median_cell(one, figures.extra_measure(name, ""), words.extra_writer(name))
               for name in extras),
             _error_cell(one), Cell(one.get("config") or DASH)]
            for one in contenders]
    accented = frozenset(index for index, one in enumerate(contenders)
                         if one["name"] == targets.SUBJECT)
    return Table(*drop_empty(columns, rows), accented)


def _rounds_sentences(row):
    rounds = figures.ordinary_rounds(row)
    text = f"{style.count(rounds, 'round')}."
    if not row.get("decisive"):
        return [text]
    more = max((cell["round"] for one in row["contenders"] for cell in one["cells"]),
               default=0) - rounds
    return [text, f"{style.count(more, 'decisive round')} after them, of "
            f"{style.listing(row['decisive'])} alone; plots and the table of all contenders leave "
            "them out, the ratios below them are of all rounds."]


def row_notes(row):
    """What a reader must know of the figures of ROW, as sentences."""
    notes = _rounds_sentences(row)
    row = figures.ordinary_row(row)
    summaries = [figures.summary_of(one, figures.value_measure(row)) for one in row["contenders"]]
    counts = {summary.count for summary in summaries if summary}
    if counts == {1}:
        notes.append("Each figure is of one round: no spread is known.")
    elif 1 in counts:
        notes.append("Figures marked \u201cone round\u201d have no known spread.")
    if row["better"] == "lower":
        notes.append("Less is better here; ratios are turned, so that more than 1 is better.")
    reported = [one["name"] for one in row["contenders"]
                if not figures.merged_histogram(one)
                and figures.contender_percentile(one, 50) is not None]
    if reported:
        notes.append("Without a histogram, the latencies are the median over the rounds of what "
                     f"the load generator reported: {style.listing(reported)}.")
    return notes


# ---- carriers -----------------------------------------------------------------------------------


# Whose carriers are not known from their names.
MIXED_CARRIERS = (targets.SUBJECT, "sockmap")


def carrier_table(results):
    """A line for each row: what carried the bytes of the engines that change the carrier, over all
    rounds. None if there are none."""
    rows = []
    for row in results["rows"]:
        found = [figures.find_contender(row, name) for name in MIXED_CARRIERS]
        if any(found):
            rows.append([Cell(row["title"]),
                         *(cell for one in found for cell in
                           (_carrier_cells(one) if one else [Cell(DASH)] * len(CARRIERS)))])
    if not rows:
        return None
    return Table((Column("row", numeric=False, width="broad"),
                  *(Column(f"{engine}: by {name}") for engine in MIXED_CARRIERS
                    for name in CARRIERS)), rows)


# ---- buffers -------------------------------------------------------------------------------------


def sweep_table(sweeps):
    """A line for each row: the value with each buffer."""
    sizes = sorted({size for sweep in sweeps for size, _one in sweep.steps})
    rows = []
    for sweep in sweeps:
        measure, steps = figures.value_measure(sweep.row), dict(sweep.steps)
        rows.append([Cell(f"{sweep.row['title']}, {sweep.row['unit']}"),
                     *(Cell(style.spread(figures.summary_of(steps[size], measure))
                            if size in steps else DASH) for size in sizes)])
    return Table((Column("row", numeric=False, width="broad"),
                  *(Column(style.memory_size(size)) for size in sizes)), rows)


# ---- what was left out, settings, machine -------------------------------------------------------


def left_out_table(results):
    """Every cell that does not count, and every contender that a row has not; None if none."""
    # The copies by buffer have rows of their own, which the others have no part in; the control is
    # only where there is a target.
    everyone = list({one["name"]: None for row in results["rows"] for one in row["contenders"]
                     if not style.buffer_bytes(one["name"]) and one["name"] != CONTROL})
    rows = [[Cell("all"), Cell(entry["contender"]), Cell("all"), Cell(entry["why"])]
            for entry in results.get("left_out") or []]
    for row in results["rows"]:
        for one in row["contenders"]:
            reasons = {}
            for number, why in figures.unusable_cells(one):
                reasons.setdefault(why, []).append(f"{number}")
            rows += [[Cell(row["title"]), name_cell(one), Cell(", ".join(numbers)), Cell(why)]
                     for why, numbers in reasons.items()]
            if not one["cells"]:
                rows.append([Cell(row["title"]), name_cell(one), Cell("all"), Cell("not run")])
        missing = [name for name in everyone if figures.find_contender(row, name) is None
                   and row["group"] != "sweep"]
        if missing:
            rows.append([Cell(row["title"]), Cell(style.listing(missing)), Cell("all"),
                         Cell("not a part of this row in this run")])
    if not rows:
        return None
    return Table((Column("row", numeric=False, width="broad"),
                  Column("contender", numeric=False, width="wraps"), Column("round"),
                  Column("why", numeric=False, width="broad")), rows)


def calibration_table(results):
    entries = results.get("calibration") or []
    if not entries:
        return None
    titles = {row["name"]: row["title"] for row in results["rows"]}
    rows = [[Cell(titles.get(entry["row"], entry["row"])), Cell(entry["contender"]),
             Cell(entry["chosen"]),
             Cell("; ".join(f"{tried['config']}: {style.number(tried.get('value'))}"
                            for tried in entry["tried"]))] for entry in entries]
    return Table((Column("row", numeric=False, width="broad"), Column("contender", numeric=False),
                  Column("chosen", numeric=False, width="wraps"),
                  Column("tried, with what it reached", numeric=False, width="wraps")), rows)


def machine_table(results):
    machine, culvert = results["machine"], results["culvert"]
    dirty = ", with uncommitted changes" if culvert["dirty"] else ""
    facts = [("kernel", machine["kernel"]), ("processor", machine["cpu"]),
             ("CPUs", f"{machine['cpus']}"), ("memory", style.memory_size(machine["memory_bytes"])),
             ("virtualization", machine.get("virtualization") or "none seen"),
             ("culvert", f"{culvert['version']}, commit {culvert['commit']}{dirty}")]
    facts += [(f"{name}", version)
              for name, version in sorted((machine.get("packages") or {}).items())]
    facts += [(name, " ".join(str(value).split()))
              for name, value in sorted((machine.get("sysctls") or {}).items())]
    return Table((Column("what", numeric=False), Column("value", numeric=False, width="wraps")),
                 [[Cell(name), Cell(value)] for name, value in facts])
