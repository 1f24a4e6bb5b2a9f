# SPDX-License-Identifier: BSD-2-Clause
"""What auto is to reach, row by row, and whether it did: pure functions over the results.

Ratios are medians of ratios within a round: against others, of the decisive rounds alone where
there are any (see rivals.py). What the interval of a median is, see figures.py. A target is held if
the interval lies entirely on its right side and missed if it lies entirely on the other; else the
run cannot tell, and the verdict says on which side the median is. 1 KB is 1,000 bytes here.
"""

from dataclasses import dataclass

import figures
import rivals
from rivals import CONTROL, SUBJECT

HELD, MISSED, NOT_MEASURED = "held", "missed", "not measured"
ABOVE, BELOW = "cannot tell (median above)", "cannot tell (median below)"
UNDECIDED = (ABOVE, BELOW)
NO_ROW = "this run does not have the row"

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

# The rows that have a control; and what is decided in decisive rounds: against others, or by the
# subject (and its control) alone. The memory of idle sessions varies too little to need any.
AGAINST_OTHERS = frozenset(name for name, *_bounds in RATIO_TARGETS)
BY_ITSELF = frozenset((LOADED_ROW, UNLOADED_ROW))
CONTROLLED = AGAINST_OTHERS | BY_ITSELF | {IDLE_ROW}


@dataclass(frozen=True)
class Outcome:
    """One line of the target table."""

    title: str  # of the row
    quantity: str  # what is compared with what
    required: str
    summary: figures.Summary | None
    interval: figures.Interval | None  # None: a single round
    unit: str  # "ratio" or "B"
    rounds_met: int
    left_out: tuple  # of (round, why)
    why: str  # nothing was measured; or ""
    verdict: str

    @property
    def is_without_row(self):
        return self.why == NO_ROW

    @property
    def is_undecided(self):
        return self.verdict in UNDECIDED

    @property
    def meets_by_median(self):
        """What the verdict would be if there were no doubt."""
        return self.verdict in (HELD, ABOVE if self.unit == "ratio" else BELOW)


def _not_measured(title, quantity, required, unit, why, left_out=()):
    return Outcome(title, quantity, required, None, None, unit, 0, tuple(left_out), why,
                   NOT_MEASURED)


def verdict_at_least(bound, median, interval):
    if interval and interval.low >= bound:
        return HELD
    if interval and interval.high < bound:
        return MISSED
    return ABOVE if median >= bound else BELOW


def verdict_at_most(bound, median, interval):
    if interval and interval.high <= bound:
        return HELD
    if interval and interval.low > bound:
        return MISSED
    return ABOVE if median > bound else BELOW


def judge_ratio(title, quantity, bound, ratio, deviation=0.0):
    """The Outcome of a Ratio that is to be at least BOUND. DEVIATION: the control's."""
    required = f"\u2265 {bound:.2f}"
    summary = ratio.summary
    if summary is None:
        return _not_measured(title, quantity, required, "ratio",
                             "no round in which both sides were measured", ratio.left_out)
    interval = widened(ratio, deviation)
    return Outcome(title, quantity, required, summary, interval, "ratio",
                   ratio.rounds_at_least(bound), ratio.left_out, "",
                   verdict_at_least(bound, summary.median, interval))


def widened(ratio, deviation):
    """The interval of RATIO, no narrower than what the control shows; None if it has none."""
    interval = ratio.interval
    return interval and interval.widened(ratio.summary.median, deviation)


def judge_limit(title, quantity, bound, contender, measure):
    """The Outcome of a quantity in bytes that is to be at most BOUND."""
    required = f"\u2264 {bound:,} B"
    by_round = figures.figures_by_round(contender, measure)
    left_out = tuple((cell["round"], figures.why_unusable(cell) or "the figure was not taken")
                     for cell in contender["cells"] if cell["round"] not in by_round)
    summary = figures.summarise(by_round.values())
    if summary is None:
        return _not_measured(title, quantity, required, "B", "no round has this figure", left_out)
    interval = figures.median_interval(by_round.values())
    met = sum(value <= bound for value in by_round.values())
    return Outcome(title, quantity, required, summary, interval, "B", met, left_out, "",
                   verdict_at_most(bound, summary.median, interval))


def _against_best(row, kind, bound):
    title = row["title"]
    best = (rivals.best_engine if kind is ENGINE else rivals.best_peer)(row)
    subject = figures.find_contender(row, SUBJECT)
    against = f"{kind} ({best['name']})" if best else kind
    # Turned like the ratio, where less is better.
    quantity = f"{SUBJECT} / {against}" if row["better"] == "higher" else f"{against} / {SUBJECT}"
    missing = [] if subject and figures.usable_cells(subject) else [SUBJECT]
    missing += [] if best else [kind]
    if missing:
        return _not_measured(title, quantity, f"\u2265 {bound:.2f}", "ratio",
                             f"{' and '.join(missing)}: nothing was measured")
    measure = figures.value_measure(row)
    ratio = rivals.fresh(row, figures.ratio_within_rounds(subject, best, measure))
    return judge_ratio(title, quantity, bound, ratio,
                       rivals.fresh(row, rivals.control_ratio(row, measure)).deviation)


def _without_row(name, quantities):
    return [_not_measured(name, quantity, required, unit, NO_ROW)
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
    daemon = "daemon's marginal memory a session"
    kernel = "marginal kernel memory a session, beyond its two sockets"
    row = figures.find_row(results, IDLE_ROW)
    subject = row and figures.find_contender(row, SUBJECT)
    if not subject:
        return _without_row(row["title"] if row else IDLE_ROW, (
            (daemon, f"\u2264 {IDLE_DAEMON_BYTES:,} B", "B"),
            (kernel, f"\u2264 {IDLE_KERNEL_BYTES:,} B", "B"),
            (f"{PEER} / {SUBJECT}", f"\u2265 {IDLE_PEER_RATIO:.2f}", "ratio")))
    total = figures.summary_of(subject, figures.TOTAL_MEMORY_EACH)
    with_base = f" ({total.median:,.0f} B with its base)" if total else ""
    return [
        judge_limit(row["title"], f"{SUBJECT}: {daemon}{with_base}", IDLE_DAEMON_BYTES, subject,
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
            why = NO_ROW if rows[0] is None else (
                f"this run does not have {SUBJECT + ' in ' + name if row else 'row ' + name}")
            return _not_measured(title, quantity, f"\u2265 {LOADED_RATIO:.2f}", "ratio", why)
    ratio = figures.ratio_within_rounds(subjects[0], subjects[1], figures.value_measure(rows[0]),
                                        figures.value_measure(rows[1]))
    deviation = max(rivals.control_ratio(row, figures.value_measure(row)).deviation
                    for row in rows)
    return judge_ratio(title, quantity, LOADED_RATIO, ratio, deviation)


def evaluate(results):
    """The Outcome of every target, in the order of the table."""
    return [*_ratio_outcomes(results), *_idle_outcomes(results), _loaded_outcome(results)]


# ---- who wins where -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A contender against a rival, in one measure of a row."""

    row: dict
    measure: figures.Measure
    loser: dict
    winner: dict
    ratio: figures.Ratio  # of the loser against the winner
    interval: figures.Interval | None  # no narrower than what the control shows

    @property
    def is_behind(self):
        """Not only by the median: the whole interval is below 1."""
        return self.interval is not None and self.interval.high < 1


def measures_of(row):
    """What contenders of ROW are compared in: the row's value, its tail, what it costs."""
    if row["kind"] == "memory":  # CPU there is that of filling and draining, not of the payload
        return (figures.value_measure(row),)
    return (figures.value_measure(row), figures.latency_measure(99), figures.cpu_measure(row))


def comparisons(results, loser_name, is_rival, measures=measures_of):
    """Every Comparison of LOSER_NAME with a contender for which IS_RIVAL answers true, in which
    it is behind by the median of the ratios."""
    found = []
    for row in results["rows"]:
        loser = figures.find_contender(row, loser_name)
        if loser is None:
            continue
        for measure in measures(row):
            deviation = rivals.control_ratio(row, measure).deviation
            for rival in filter(is_rival, row["contenders"]):
                ratio = figures.ratio_within_rounds(loser, rival, measure)
                if ratio.summary and ratio.summary.median < 1:
                    found.append(Comparison(row, measure, loser, rival, ratio,
                                            widened(ratio, deviation)))
    return found


def is_other_engine(rival):
    """Whether it is an engine or buffer of culvert, but neither auto nor its control."""
    return rival["family"] == "culvert" and rival["name"] not in (SUBJECT, CONTROL)


def is_peer(rival):
    return rival["family"] == "peer"


def is_copy_or_splice(rival):
    return rival["name"] in ("copy", "splice")


def sockmap_defeats(results):
    """Where copy or splice is better than sockmap."""
    return comparisons(results, "sockmap", is_copy_or_splice)


def peer_defeats(results):
    """Where a peer is better than auto."""
    return comparisons(results, SUBJECT, is_peer)


def engine_defeats(results):
    """Where another engine or buffer of culvert is better than auto, in the row's value alone."""
    return comparisons(results, SUBJECT, is_other_engine,
                       lambda row: (figures.value_measure(row),))
