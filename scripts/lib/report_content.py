# SPDX-License-Identifier: BSD-2-Clause
"""What a report says: every sentence of it is computed from the results."""

import datetime

import figures
import report_plots
import report_style as style
import report_tables as tables
import targets
from report_blocks import Document, Figures, Heading, Items, Links, Paragraph, WideFigure

SUBJECT = targets.SUBJECT


def row_anchor(row):
    return f"row-{row['name']}"


def duration(seconds):
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def day(started):
    """The time as people write it; as it is if it is no ISO-8601."""
    try:
        return datetime.datetime.fromisoformat(started).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return started


def subtitle(results):
    culvert, machine = results["culvert"], results["machine"]
    return (f"culvert {culvert['version']} ({culvert['commit'][:12]}), {machine['kernel']}, "
            f"{style.count(machine['cpus'], 'CPU')}; {day(results['started'])}")


# ---- warnings -----------------------------------------------------------------------------------


def _all_cells(results):
    return [(row, one, cell) for row in results["rows"] for one in row["contenders"]
            for cell in one["cells"]]


def warnings(results):
    """What a reader must know before any figure."""
    found = []
    if not results["complete"]:
        found.append("This run is not complete: it was interrupted or failed, and the report "
                     "shows what had been measured until then.")
    wrong = [(row, one) for row, one, cell in _all_cells(results) if cell.get("wrong")]
    if wrong:
        where = {f"{one['name']} in \u201c{row['title']}\u201d": None for row, one in wrong}
        found.append("Wrong payload was delivered by " + style.listing(where) +
                     ". The cells do not count.")
    if results["quick"]:
        found.append("This is a quick run: short cells and few rounds. It shows orders of "
                     "magnitude; small differences mean nothing.")
    if results["rounds"] == 1:
        found.append("There was a single round: no figure has a known spread.")
    if results["culvert"]["dirty"]:
        found.append(f"culvert was built from commit {results['culvert']['commit'][:12]} with "
                     "uncommitted changes.")
    return found


# ---- summary ------------------------------------------------------------------------------------


# More missed targets than this are a table, not a sentence.
MISSED_NAMED = 5


def _target_sentences(outcomes):
    by_verdict = {verdict: [one for one in outcomes if one.verdict == verdict]
                  for verdict in (targets.HELD, targets.MISSED, targets.NOT_MEASURED)}
    text = (f"Of {style.count(len(outcomes), 'target')}, {len(by_verdict[targets.HELD])} held, "
            f"{len(by_verdict[targets.MISSED])} missed, "
            f"{len(by_verdict[targets.NOT_MEASURED])} not measured.")
    if not by_verdict[targets.MISSED]:
        return [text]
    if len(by_verdict[targets.MISSED]) > MISSED_NAMED:
        return [text[:-1] + "; the table below has each."]
    return [text, "Missed: " + "; ".join(
        f"{one.title}, {one.quantity}: "
        f"{(style.ratio if one.unit == 'ratio' else style.byte_size)(one.summary.median)} "
        f"(required {one.required})" for one in by_verdict[targets.MISSED]) + "."]


def _best_ratios(results, find_best):
    """[(row, best, Ratio of auto to it), ...] of the rows that have both."""
    found = []
    for row in results["rows"]:
        subject, best = figures.find_contender(row, SUBJECT), find_best(row)
        if subject is None or best is None:
            continue
        ratio = figures.ratio_within_rounds(subject, best, figures.value_measure(row))
        if ratio.summary:
            found.append((row, best, ratio))
    return found


def _best_sentence(results, find_best, kind):
    ratios = _best_ratios(results, find_best)
    if not ratios:
        return f"{SUBJECT} against the {kind}: not measured."
    ahead = [ratio for _row, _best, ratio in ratios if ratio.summary.median >= 1]
    ratios.sort(key=lambda entry: entry[2].summary.median)

    def describe(entry):
        row, best, ratio = entry
        return (f"{style.spread(ratio.summary, style.ratio)} on \u201c{row['title']}\u201d "
                f"(against {best['name']})")

    text = (f"{SUBJECT} against the {kind} of each row: level or ahead on {len(ahead)} of "
            f"{style.count(len(ratios), 'row')}; ")
    if len(ratios) == 1:
        return text + f"the ratio is {describe(ratios[0])}."
    return text + f"from {describe(ratios[0])} to {describe(ratios[-1])}."


def _engine_sentence(results):
    """Which single engine is the best where."""
    rows = {}
    for row in results["rows"]:
        if sum(figures.summary_of(one, figures.value_measure(row)) is not None
               for one in figures.single_engines(row)) > 1:
            rows.setdefault(figures.best_engine(row)["name"], []).append(row["title"])
    if not rows:
        return "The single engines were not compared."
    ranking = sorted(rows.items(), key=lambda item: -len(item[1]))
    # The most frequent by number, the exceptions by name.
    first, titles = ranking[0]
    parts = [f"{first} on {style.count(len(titles), 'row')}"]
    parts += [f"{name} on " + style.listing(f"\u201c{title}\u201d" for title in titles)
              for name, titles in ranking[1:]]
    return "The best single engine, by median: " + "; ".join(parts) + "."


def _cell_sentence(results):
    cells = [cell for _row, _one, cell in _all_cells(results)]
    failed = sum("failed" in cell for cell in cells)
    wrong = sum(cell.get("wrong", 0) for cell in cells)
    errors = sum(cell.get("errors", 0) for cell in cells)
    return (f"{style.count(len(cells), 'cell')} ran, {failed:,} failed; "
            f"{style.count(errors, 'error')} of connections were counted, and "
            f"{style.count(wrong, 'wrong message or byte', 'wrong messages or bytes')}.")


def _summary(results, outcomes):
    blocks = [Heading(2, "Summary", "summary"),
              Items((*_target_sentences(outcomes),
                     _best_sentence(results, figures.best_engine, "best single engine"),
                     _best_sentence(results, figures.best_peer, "best peer"),
                     _engine_sentence(results), _cell_sentence(results)))]
    if report_plots.headline_plot(results):
        blocks += [WideFigure("headline", "headline-narrow",
                              "auto and each peer relative to the direct path, row by row"),
                   Paragraph(_headline_note(results), "note")]
    return blocks


def _headline_note(results):
    shown = {row["name"] for row, _direct, _ratios in report_plots.headline_rows(results)}
    absent = [row["title"] for row in results["rows"] if row["name"] not in shown]
    text = "Each point is the median of the ratios taken within the rounds; its line goes from " \
           "the lowest to the highest of them. Direct is the routed path without any relay."
    if absent:
        text += " Not shown, being no speed, or for want of figures to compare: " + style.listing(
            f"\u201c{title}\u201d" for title in absent) + "."
    return text


# ---- targets and defeats ------------------------------------------------------------------------


def _targets(outcomes):
    return [Heading(2, "Targets", "targets"),
            Paragraph("Medians of ratios within a round; a verdict goes by the median. The best "
                      "engine and the best peer of a row are those with the best median value; "
                      "single engines are sockmap, splice and copy with their default settings. "
                      "1 kB is 1,000 bytes."),
            tables.target_table(outcomes)]


def _defeat_section(title, anchor, defeats, loser, none, intro):
    if not defeats:
        return [Heading(3, title, anchor), Paragraph(none)]
    return [Heading(3, title, anchor), Paragraph(intro), tables.defeat_table(defeats, loser)]


def _has(results, name, is_rival):
    """Whether NAME was measured in a row together with a rival."""
    return any(figures.find_contender(row, name)
               and figures.usable_cells(figures.find_contender(row, name))
               and any(is_rival(one) and figures.usable_cells(one) for one in row["contenders"])
               for row in results["rows"])


def _defeats(results):
    blocks = [Heading(2, "Where sockmap does not win", "defeats"),
              Paragraph("Ratios are medians of ratios within a round; below 1 the contender is "
                        "behind. \u201cWithin the spread\u201d: not every round agrees, so the two "
                        "are as good as level. Tail latency is p99 of each round, CPU that of the "
                        "whole machine per unit of work.")]

    def section(title, anchor, defeats, loser, is_rival, rivals):
        none = (f"Nowhere that both were measured did {rivals} do better than {loser}."
                if _has(results, loser, is_rival) else f"Not measured: {loser} against {rivals}.")
        blocks.extend(_defeat_section(title, anchor, defeats, loser, none,
                                      f"Where {rivals} did better than {loser}:"))

    section("sockmap behind copy or splice", "sockmap-behind", targets.sockmap_defeats(results),
            "sockmap", lambda one: one["name"] in ("copy", "splice"), "copy or splice")
    section("auto behind a peer", "auto-behind-peer", targets.peer_defeats(results), SUBJECT,
            lambda one: one["family"] == "peer", "a peer")
    section("auto behind another engine or buffer of culvert", "auto-behind-engine",
            targets.engine_defeats(results), SUBJECT,
            lambda one: one["family"] == "culvert" and one["name"] != SUBJECT,
            "another engine or buffer of culvert")
    return blocks


# ---- rows ---------------------------------------------------------------------------------------


def _row(results, row):
    blocks = [Heading(3, row["title"], row_anchor(row))]
    blocks += [Paragraph(text) for text in (row.get("note") or "").split("\n") if text.strip()]
    blocks.append(Paragraph(" ".join(tables.row_notes(row)), "note"))
    plots = report_plots.row_plots(row)
    if plots:
        blocks.append(Figures(tuple(plot.name for plot in plots)))
    blocks.append(tables.row_table(row))
    return blocks


def _rows(results):
    blocks = [Heading(2, "Row by row", "rows")]
    if not results["rows"]:
        return [*blocks, Paragraph("No row was measured.")]
    blocks.append(Links(tuple((row["title"], row_anchor(row)) for row in results["rows"])))
    for row in results["rows"]:
        blocks += _row(results, row)
    return blocks


def _sweep(results):
    found = report_plots.sweeps(results)
    if not found:
        return []
    blocks = [Heading(2, "The size of copy's buffer", "sweep")]
    if report_plots.sweep_plot(results):
        blocks.append(WideFigure("sweep", "", "copy with each buffer relative to the smallest"))
    return [*blocks, tables.sweep_table(found)]


# ---- the rest -----------------------------------------------------------------------------------


def _left_out(results):
    table = tables.left_out_table(results)
    blocks = [Heading(2, "What was left out, and why", "left-out")]
    if not results["complete"]:
        blocks.append(Paragraph("The run is not complete: the rows and rounds that it did not "
                                "reach are not listed here."))
    if table is None:
        return [*blocks, Paragraph("Of what ran, nothing: each row has all contenders, and no "
                                   "cell failed.")]
    return [*blocks, Paragraph("A cell that failed, or delivered wrong payload, counts in no "
                               "figure; a ratio leaves out the round in which either side "
                               "failed."), table]


def _calibration(results):
    table = tables.calibration_table(results)
    if table is None:
        return []
    return [Heading(2, "How the configurations were chosen", "calibration"),
            Paragraph("Before the rounds, these contenders ran in several configurations; the "
                      "best of each row was used."), table]


LABS = {"veth": "three network namespaces (client, relay, server) joined by veth pairs",
        "loopback": "one network namespace, all parts over its loopback device"}

METHOD = (
    "Spread is minimum to maximum, written [min\u2013max]. With a single round there is none.",
    "A ratio is taken within each round, and the median of these ratios is shown with their "
    "minimum and maximum; it is never a ratio of medians. Where less is better it is turned, so "
    "that more than 1 always means better for the contender that is named first.",
    "Latency percentiles are of the histograms of all rounds together: the upper bound of the "
    "bucket that holds the sample of that rank. One beyond which less than one sample can be "
    "expected is not shown.",
    "CPU is the busy time of the whole machine (client, relay, server and the kernel's work for "
    "all of them) divided by the work done meanwhile; the relay's part is what its processes were "
    "charged, with the interrupts that were served on top of them, and not what the kernel does "
    "for its connections elsewhere. Costs are medians over the rounds.",
    "Peak kernel memory is that of the whole machine (client, relay and server) beyond what it was "
    "before the cell, the highest of all rounds. 1 kB is 1,000 bytes, 1 GB is 10\u2079 bytes.",
    "Wherever wrong payload was seen, the cell does not count; a row says so if its payload is not "
    "verified.",
)


def _method(results):
    lab = LABS.get(results["lab"], results["lab"])
    run = (f"{style.count(results['rounds'], 'round')} (some rows say fewer), "
           f"{results['cell_seconds']:g} s a cell; the rounds are interleaved: in each, one "
           "contender of a row follows the other, so that a drift of the machine meets all alike.")
    methods = (results["machine"].get("methods") or {}).items()
    return [Heading(2, "How it was measured", "method"),
            Items((f"Lab: {lab}.", run, f"The run took {duration(results['seconds'])}.", *METHOD,
                   *(f"{what}: {how}." for what, how in methods)))]


def _machine(results):
    return [Heading(2, "Machine", "machine"), tables.machine_table(results)]


def compose(results):
    """The Document of RESULTS."""
    outcomes = targets.evaluate(results)
    blocks = [Paragraph(text, "warning") for text in warnings(results)]
    for part in (_summary(results, outcomes), _targets(outcomes), _defeats(results),
                 _rows(results), _sweep(results), _left_out(results), _calibration(results),
                 _method(results), _machine(results)):
        blocks += part
    return Document("culvert benchmark", subtitle(results), blocks)
