# SPDX-License-Identifier: BSD-2-Clause
"""What a report says: every sentence of it is computed from the results."""

import datetime

import figures
import report_plots
import report_style as style
import report_tables as tables
import report_verdicts as verdicts
import report_words as words
import rivals
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
    measured = [one for one in outcomes if one.verdict != targets.NOT_MEASURED]
    missed = [one for one in outcomes if one.verdict == targets.MISSED]
    held = sum(one.verdict == targets.HELD for one in outcomes)
    text = (f"Of {style.count(len(outcomes), 'target')}, {held} held, {len(missed)} missed, "
            f"{sum(one.is_undecided for one in outcomes)} cannot be told by this run, "
            f"{len(outcomes) - len(measured)} not measured.")
    if any(one.is_undecided for one in outcomes):
        text += (f" By the medians alone it would be {sum(one.meets_by_median for one in measured)}"
                 f" held, {sum(not one.meets_by_median for one in measured)} missed.")
    if not missed:
        return [text]
    if len(missed) > MISSED_NAMED:
        return [text[:-1] + "; the table below has each."]
    return [text, "Missed: " + "; ".join(
        f"{one.title}, {one.quantity}: "
        f"{(style.ratio if one.unit == 'ratio' else style.byte_size)(one.summary.median)} "
        f"(required {one.required})" for one in missed) + "."]


# Peers are configured for something else there, or not tried in all their configurations.
UNTUNED = ("mixed", "slow")


def _best_ratios(results, find_best):
    """[(row, best, Ratio of auto to it, its interval), ...] of the rows that have both."""
    found = []
    for row in results["rows"]:
        subject, best = figures.find_contender(row, SUBJECT), find_best(row)
        if subject is None or best is None or row["group"] in UNTUNED:
            continue
        measure = figures.value_measure(row)
        ratio = figures.ratio_within_rounds(subject, best, measure)
        if ratio.summary:
            found.append((row, best, ratio, targets.widened(
                ratio, rivals.control_ratio(row, measure).deviation)))
    return sorted(found, key=lambda entry: entry[2].summary.median)


def _best_sentence(results, find_best, kind):
    ratios = _best_ratios(results, find_best)
    if not ratios:
        return f"{SUBJECT} against the {kind}: not measured."
    aside = ", but for those with peers that are not tuned for it (groups " \
        f"{style.listing(UNTUNED)})" if any(row["group"] in UNTUNED for row in results["rows"]) \
        else ""
    intervals = [interval for *_others, interval in ratios if interval]
    ahead = sum(interval.low > 1 for interval in intervals)
    behind = sum(interval.high < 1 for interval in intervals)

    def describe(entry):
        row, best, ratio, _interval = entry
        return (f"{style.spread(ratio.summary, style.ratio)} on \u201c{row['title']}\u201d "
                f"(against {best['name']})")

    text = (f"{SUBJECT} against the {kind} of each row{aside}: ahead on {ahead} of "
            f"{style.count(len(ratios), 'row')}, behind on {behind}, and not told apart from it on "
            f"{len(ratios) - ahead - behind}; ")
    if len(ratios) == 1:
        return text + f"the ratio is {describe(ratios[0])}."
    return text + f"from {describe(ratios[0])} to {describe(ratios[-1])}."


def _engine_sentence(results):
    """Which single engine is the best where."""
    rows = {}
    for row in results["rows"]:
        if sum(figures.summary_of(one, figures.value_measure(row)) is not None
               for one in rivals.single_engines(row)) > 1:
            rows.setdefault(rivals.best_engine(row)["name"], []).append(row["title"])
    if not rows:
        return "The single engines were not compared."
    ranking = sorted(rows.items(), key=lambda item: -len(item[1]))
    # The most frequent by number, the exceptions by name.
    first, titles = ranking[0]
    parts = [f"{first} on {style.count(len(titles), 'row')}"]
    parts += [f"{name} on " + style.listing(f"\u201c{title}\u201d" for title in titles)
              for name, titles in ranking[1:]]
    return ("The best single engine, by the medians of auto\u2019s ratios to them: "
            + "; ".join(parts) + ".")


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
                     _best_sentence(results, rivals.best_engine, "best single engine"),
                     _best_sentence(results, rivals.best_peer, "best peer"),
                     _engine_sentence(results), _cell_sentence(results)))]
    if report_plots.headline_plot(results):
        blocks += [WideFigure("headline", "headline-narrow",
                              "auto relative to each of its rivals, row by row"),
                   Paragraph(_headline_note(results), "note")]
    return blocks


def _headline_note(results):
    shown = [row for row, _ratios in report_plots.headline_rows(results)]
    text = f"Each point is the median of {SUBJECT}\u2019s ratios to one rival, taken within the " \
           "rounds; its line goes from the lowest to the highest of them."
    if any(row.get("decisive") for row in shown):
        text += " Where a row has decisive rounds, only these count; the direct path takes no " \
                "part in them, so ratios to it are in the tables of the rows."
    absent = [row["title"] for row in results["rows"] if row not in shown]
    without = [row["title"] for row in shown if not row.get("decisive")]
    if without and len(without) < len(shown):
        text += f" Without decisive rounds: {_quoted(without)}."
    if absent:
        text += " Not shown, being no speed, or for want of rivals that were measured as often: " \
                f"{_quoted(absent)}."
    return text


def _quoted(titles):
    return style.listing(f"\u201c{title}\u201d" for title in titles)


# ---- targets and defeats ------------------------------------------------------------------------


VERDICTS = (
    "Each ratio is taken within a round; of these ratios the table gives the median with minimum "
    "and maximum, and the interval in which, with a confidence of 95 %, the median of very many "
    "such rounds would lie (order statistics, as in the sign test; with fewer than six rounds "
    "Student\u2019s interval of the logarithms, at least minimum to maximum).",
    f"{targets.CONTROL} is {SUBJECT} once more: where the median of the ratio of the two is "
    "further from 1 than the interval reaches, the interval is widened by as much.",
    "A target is held if the interval lies entirely on its right side, missed if it lies entirely "
    "on the other, and else this run cannot tell; then the verdict says on which side of the bound "
    "the median is, because the targets are set for medians.",
)


def _targets(outcomes):
    shown = [one for one in outcomes if not one.is_without_row]
    absent = dict.fromkeys(one.title for one in outcomes if one.is_without_row)
    blocks = [Heading(2, "Targets", "targets"), Items(VERDICTS),
            Paragraph("The best engine and the best peer of a row are those that the median of "
                      f"{SUBJECT}\u2019s ratios is lowest to. Where a row has decisive rounds, the "
                      "ordinary rounds before them chose who takes part, and the verdict against "
                      "others, with its interval and its control, is of the decisive rounds alone; "
                      "where two of a kind took part, all rounds tell which is the better. Where "
                      "there are none, the rounds that chose the best also judge it, so it looks "
                      "rather better than it is. Other tables are of all rounds. Single engines "
                      "are sockmap, splice and copy with their default settings. 1 kB is 1,000 "
                      "bytes.", "note")]
    if shown:
        blocks.append(verdicts.target_table(shown))
    if absent:
        blocks.append(Paragraph("Not measured, because this run does not have their rows: the "
                                f"targets of {style.listing(absent)}.", "note"))
    return blocks


def _control(results):
    table = verdicts.control_table(results)
    blocks = [Heading(2, "How much a difference means", "noise")]
    if table is None:
        return [*blocks, Paragraph(f"This run has no control ({SUBJECT} a second time), so it does "
                                   "not show how much two relays that are the same would differ.")]
    return [*blocks, Paragraph(
        f"{targets.CONTROL} is a second, identical {SUBJECT}, with an instance and ports of its "
        "own. Its ratio would be 1 if rounds did not scatter; what it is instead is the noise of "
        "the row, and no smaller difference between two others means anything."), table]


def _defeat_section(title, anchor, comparisons, loser, none):
    """NONE: what to say if there are none."""
    blocks = [Heading(3, title, anchor)]
    table, level = verdicts.defeat_table(comparisons, loser), verdicts.level_sentence(comparisons)
    blocks.append(table or Paragraph(none))
    return [*blocks, Paragraph(level)] if level else blocks


def _has(results, name, is_rival):
    """Whether NAME was measured in a row together with a rival."""
    return any(figures.find_contender(row, name)
               and figures.usable_cells(figures.find_contender(row, name))
               and any(is_rival(one) and figures.usable_cells(one) for one in row["contenders"])
               for row in results["rows"])


DEFEATS = (
    "A contender is behind where the whole interval of the ratio is below 1 (see the targets). The "
    "ratio is taken within each round, and its median is not the ratio of the two medians beside "
    "it, which are of the same rounds. Tail latency is p99 of each round, CPU that of the whole "
    "machine per unit of work; where less is better the ratio is turned. Each interval is for one "
    "comparison, and nothing is corrected for their number: of a hundred comparisons of two that "
    "are level, up to two or three would stand here by chance.")


def _defeats(results):
    blocks = [Heading(2, "Where sockmap does not win", "defeats"), Paragraph(DEFEATS)]

    def section(title, anchor, comparisons, loser, is_rival, who):
        none = (f"Nowhere that both were measured is {loser} behind {who}."
                if _has(results, loser, is_rival) else f"Not measured: {loser} against {who}.")
        blocks.extend(_defeat_section(title, anchor, comparisons, loser, none))

    section("sockmap behind copy or splice", "sockmap-behind", targets.sockmap_defeats(results),
            "sockmap", targets.is_copy_or_splice, "copy or splice")
    section("auto behind a peer", "auto-behind-peer", targets.peer_defeats(results), SUBJECT,
            targets.is_peer, "a peer")
    section("auto behind another engine or buffer of culvert", "auto-behind-engine",
            targets.engine_defeats(results), SUBJECT, targets.is_other_engine,
            "another engine or buffer of culvert")
    return blocks


def _carriers(results):
    table = tables.carrier_table(results)
    if table is None:
        return []
    return [Heading(2, "What carried the payload", "carriers"),
            Paragraph("Shares of the bytes, over all rounds, as culvert has counted them. An "
                      "engine is what was asked for, and not always what carried: a flow in the "
                      "kernel whose source is faster than its target is passed to user space. The "
                      "other contenders are in the tables of the rows."), table]


# ---- rows ---------------------------------------------------------------------------------------


def _row(results, row):
    blocks = [Heading(3, row["title"], row_anchor(row))]
    titles = {one["name"]: one["title"] for one in results["rows"]}
    blocks += [Paragraph(text) for text in words.notes_of(row, titles)]
    blocks.append(Paragraph(" ".join(tables.row_notes(row)), "note"))
    plots = report_plots.row_plots(row)
    if plots:
        blocks.append(Figures(tuple(plot.name for plot in plots)))
    blocks.append(tables.row_table(row))
    contest = verdicts.contest_table(row)
    return [*blocks, contest] if contest else blocks


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
            Paragraph("Before the rounds, these contenders ran in several configurations, those "
                      "near the best twice; the best of each row was used."), table]


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
    "The relay's system calls and context switches are counted in a single run of their own for "
    "each row and contender (n = 1, so that no spread is known), per unit of the work done in it.",
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
    if results.get("decisive_rounds"):
        run += (" Rows with a target have up to "
                f"{style.count(results['decisive_rounds'], 'decisive round')} more, of "
                f"{SUBJECT}, {targets.CONTROL}, the best engine and the best peer, and the next "
                f"best of each if the median of {SUBJECT}\u2019s ratios to it was within 5 % of "
                "that to the best, or within what a typical round of the control was off by.")
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
    for part in (_summary(results, outcomes), _targets(outcomes), _control(results),
                 _carriers(results), _defeats(results), _rows(results), _sweep(results),
                 _left_out(results), _calibration(results), _method(results), _machine(results)):
        blocks += part
    return Document("culvert benchmark", subtitle(results), blocks)
