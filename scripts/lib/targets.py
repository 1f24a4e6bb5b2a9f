# SPDX-License-Identifier: BSD-2-Clause
"""What auto is to reach, row by row, and whether it did: pure functions over the results.

Ratios are medians of ratios within a round (see figures.py). 1 KB is 1,000 bytes here.
"""

from dataclasses import dataclass

import figures

SUBJECT = "auto"
HELD, MISSED, NOT_MEASURED = "held", "missed", "not measured"

ENGINE, PEER = "best single engine", "best peer"

# (row, against the best single engine, against the best peer): at least.
RATIO_TARGETS = (
    ("bulk-1", 0.97, 1.20),
    ("bulk-down", 0.97, 1.20),
    ("bulk-8", 0.97, 1.20),
    ("bulk-both", 0.97, 1.20),
    ("bulk-both-8", 0.97, 1.20),
    ("iperf3-1", 0.97, 1.20),
    ("iperf3-8", 0.97, 1.20),
    ("rr-64x64", 0.97, 1.10),
    ("rr-1Kx512", 0.97, 1.10),
    ("rr-16Kx64", 0.97, 1.10),
    ("wrk", 0.97, 1.05),
    ("crr", 0.97, 1.05),
)

IDLE_ROW = "idle"
IDLE_DAEMON_BYTES = 500
IDLE_KERNEL_BYTES = 4000
# In the cells' "extra": kernel memory a session beyond that of its two sockets, in bytes.
IDLE_KERNEL_NAME = "kernel_bytes_beyond_sockets"
IDLE_PEER_RATIO = 3.0

# (row with idle sessions open, the same relay moments before without them, at least)
LOADED_ROW, UNLOADED_ROW, LOADED_RATIO = "mixed", "mixed-0", 0.95


@dataclass(frozen=True)
class Outcome:
    """One line of the target table."""

    title: str  # of the row
    quantity: str  # what is compared with what
    required: str
    summary: figures.Summary | None
    unit: str  # "ratio" or "B"
    rounds_met: int
    left_out: tuple  # of (round, why)
    why: str  # nothing was measured; or ""
    verdict: str


def _not_measured(title, quantity, required, unit, why, left_out=()):
    return Outcome(title, quantity, required, None, unit, 0, tuple(left_out), why, NOT_MEASURED)


def judge_ratio(title, quantity, bound, ratio):
    """The Outcome of a Ratio that is to be at least BOUND."""
    required = f"\u2265 {bound:.2f}"
    if ratio.summary is None:
        return _not_measured(title, quantity, required, "ratio",
                             "no round in which both sides were measured", ratio.left_out)
    verdict = HELD if ratio.summary.median >= bound else MISSED
    return Outcome(title, quantity, required, ratio.summary, "ratio",
                   ratio.rounds_at_least(bound), ratio.left_out, "", verdict)


def judge_limit(title, quantity, bound, contender, measure):
    """The Outcome of a quantity in bytes that is to be at most BOUND."""
    required = f"\u2264 {bound:,} B"
    by_round = figures.figures_by_round(contender, measure)
    left_out = tuple((cell["round"], figures.why_unusable(cell) or "the figure was not taken")
                     for cell in contender["cells"] if cell["round"] not in by_round)
    summary = figures.summarise(by_round.values())
    if summary is None:
        return _not_measured(title, quantity, required, "B", "no round has this figure", left_out)
    verdict = HELD if summary.median <= bound else MISSED
    met = sum(value <= bound for value in by_round.values())
    return Outcome(title, quantity, required, summary, "B", met, left_out, "", verdict)


def _against_best(row, kind, bound):
    title = row["title"]
    best = (figures.best_engine if kind is ENGINE else figures.best_peer)(row)
    subject = figures.find_contender(row, SUBJECT)
    against = f"{kind} ({best['name']})" if best else kind
    # Turned like the ratio, where less is better.
    quantity = f"{SUBJECT} / {against}" if row["better"] == "higher" else f"{against} / {SUBJECT}"
    missing = [] if subject and figures.usable_cells(subject) else [SUBJECT]
    missing += [] if best else [kind]
    if missing:
        return _not_measured(title, quantity, f"\u2265 {bound:.2f}", "ratio",
                             f"{' and '.join(missing)}: nothing was measured")
    ratio = figures.ratio_within_rounds(subject, best, figures.value_measure(row))
    return judge_ratio(title, quantity, bound, ratio)


def _without_row(name, quantities):
    return [_not_measured(name, quantity, required, unit, "this run does not have the row")
            for quantity, required, unit in quantities]


def _ratio_outcomes(results):
    outcomes = []
    for name, engine_bound, peer_bound in RATIO_TARGETS:
        row = figures.find_row(results, name)
        if row is None:
            outcomes += _without_row(name, (
                (f"{SUBJECT} / {ENGINE}", f"\u2265 {engine_bound:.2f}", "ratio"),
                (f"{SUBJECT} / {PEER}", f"\u2265 {peer_bound:.2f}", "ratio")))
            continue
        outcomes += [_against_best(row, ENGINE, engine_bound),
                     _against_best(row, PEER, peer_bound)]
    return outcomes


def _idle_outcomes(results):
    daemon, kernel = "daemon's memory a session", "kernel memory a session, beyond its two sockets"
    row = figures.find_row(results, IDLE_ROW)
    subject = row and figures.find_contender(row, SUBJECT)
    if not subject:
        return _without_row(row["title"] if row else IDLE_ROW, (
            (daemon, f"\u2264 {IDLE_DAEMON_BYTES:,} B", "B"),
            (kernel, f"\u2264 {IDLE_KERNEL_BYTES:,} B", "B"),
            (f"{PEER} / {SUBJECT}", f"\u2265 {IDLE_PEER_RATIO:.2f}", "ratio")))
    return [
        judge_limit(row["title"], f"{SUBJECT}: {daemon}", IDLE_DAEMON_BYTES, subject,
                    figures.value_measure(row)),
        judge_limit(row["title"], f"{SUBJECT}: {kernel}", IDLE_KERNEL_BYTES, subject,
                    figures.extra_measure(IDLE_KERNEL_NAME, "B")),
        _against_best(row, PEER, IDLE_PEER_RATIO),
    ]


def _loaded_outcome(results):
    rows = [figures.find_row(results, name) for name in (LOADED_ROW, UNLOADED_ROW)]
    subjects = [row and figures.find_contender(row, SUBJECT) for row in rows]
    quantity = f"{SUBJECT}: rate with idle sessions open / rate without"
    title = rows[0]["title"] if rows[0] else LOADED_ROW
    for name, row, subject in zip((LOADED_ROW, UNLOADED_ROW), rows, subjects):
        if not subject:
            why = f"this run does not have {'row ' + name if not row else SUBJECT + ' in ' + name}"
            return _not_measured(title, quantity, f"\u2265 {LOADED_RATIO:.2f}", "ratio", why)
    ratio = figures.ratio_within_rounds(subjects[0], subjects[1], figures.value_measure(rows[0]),
                                        figures.value_measure(rows[1]))
    return judge_ratio(title, quantity, LOADED_RATIO, ratio)


def evaluate(results):
    """The Outcome of every target, in the order of the table."""
    return [*_ratio_outcomes(results), *_idle_outcomes(results), _loaded_outcome(results)]


# ---- who wins where -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Defeat:
    """A rival is better than the contender in question, by the median of the ratios."""

    row: dict
    measure: figures.Measure
    loser: dict
    winner: dict
    ratio: figures.Ratio  # of the loser against the winner: below 1


def measures_of(row):
    """What contenders of ROW are compared in: the row's value, its tail, what it costs."""
    return (figures.value_measure(row), figures.latency_measure(99), figures.cpu_measure(row))


def defeats(results, loser_name, is_rival, measures=measures_of):
    """Every Defeat of LOSER_NAME by a contender for which IS_RIVAL answers true."""
    found = []
    for row in results["rows"]:
        loser = figures.find_contender(row, loser_name)
        if loser is None:
            continue
        for measure in measures(row):
            for rival in filter(is_rival, row["contenders"]):
                ratio = figures.ratio_within_rounds(loser, rival, measure)
                if ratio.summary and ratio.summary.median < 1:
                    found.append(Defeat(row, measure, loser, rival, ratio))
    return found


def sockmap_defeats(results):
    """Where copy or splice is better than sockmap."""
    return defeats(results, "sockmap", lambda rival: rival["name"] in ("copy", "splice"))


def peer_defeats(results):
    """Where a peer is better than auto."""
    return defeats(results, SUBJECT, lambda rival: rival["family"] == "peer")


def engine_defeats(results):
    """Where another engine or buffer of culvert is better than auto, in the row's value alone."""
    return defeats(results, SUBJECT, lambda rival: rival["family"] == "culvert"
                   and rival["name"] != SUBJECT,
                   lambda row: (figures.value_measure(row),))
