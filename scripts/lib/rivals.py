# SPDX-License-Identifier: BSD-2-Clause
"""The rivals of auto in a row: those of its verdict, and those of its decisive rounds.

Pure functions over a row of the results.

The best engine (or peer) of a row is the one that the median of auto's ratios within the rounds is
lowest to: the same ratio that the verdict is about. Where auto was not measured it is the one with
the best median.

Decisive rounds are rounds after the ordinary ones, with only those that decide a verdict: auto, its
control, the best engine and the best peer. The next best engine (or peer) takes part as well if it
might as easily have been the best: if the medians of auto's ratios to the two differ by less than
5 %, or by less than auto and its control do in a typical round of the row. Where there are such
rounds, a verdict against others is of them alone: the rounds that chose a rival flatter it.
"""

import math

import figures

SUBJECT = "auto"
# The subject once more, under a name of its own.
CONTROL = "auto-again"
# With --against: the same engine of the other program.
OTHERS = {"auto": "auto-other", "copy": "copy-other"}
# The engines that auto chooses from.
SINGLE_ENGINES = ("graft", "sockmap", "splice", "copy")
# The lag (as a logarithm) behind the best with which the second best still takes part.
NEAR = math.log(1.05)
# Rows that have decisive rounds: of auto against others, and of auto (and its control) alone. Those
# with a control; the memory of idle sessions varies too little to need more rounds.
AGAINST_OTHERS = frozenset((
    "bulk-1", "bulk-down", "bulk-8", "bulk-both", "bulk-both-8", "iperf3-1", "iperf3-8", "rr-64x64",
    "rr-1Kx512", "rr-16Kx64", "wrk", "crr"))
BY_ITSELF = frozenset(("mixed", "mixed-0"))
UDP = frozenset(("udp-rr-1", "udp-rr-64", "udp-rr-1200", "udp-new", "udp-dns", "udp-one-way",
                 "udp-iperf3"))
CONTROLLED = AGAINST_OTHERS | BY_ITSELF | UDP | {"idle"}
# (contender, rival, least ratio of the median, rows; None: all).
TARGETS = (
    ("auto", "direct", 0.85, ("crr-1",)),
    ("auto", "direct", 0.9, ("crr", "crr-64")),
    ("auto", "nft-dnat", 1.05, ("crr", "crr-64")),
    ("auto", "direct", 0.9, ("udp-rr-64", "udp-rr-1200")),
    ("auto", "nft-dnat", 1.15, ("udp-rr-64", "udp-rr-1200")),
    ("auto", "nginx", 2.5, ("udp-rr-64", "udp-rr-1200")),
    ("auto", "direct", 0.95, ("udp-dns",)),
    ("auto", "direct", 0.7, ("udp-new",)),
    ("auto", "nginx", 1.5, ("udp-new",)),
    ("auto", "direct", 0.8, ("udp-one-way",)),
    ("copy", "nginx", 1.3, sorted(UDP)),
    ("copy", "socat", 1.0, sorted(UDP)),
    ("copy", "rinetd", 1.0, sorted(UDP)),
    *((ours, theirs, 0.97, None) for ours, theirs in OTHERS.items()),
)


def control_ratio(row, measure):
    """The Ratio of the subject to its control, which is the same; of no rounds without them."""
    subject, control = figures.find_contender(row, SUBJECT), figures.find_contender(row, CONTROL)
    if subject is None or control is None:
        return figures.Ratio({}, ())
    return figures.ratio_within_rounds(subject, control, measure)


def fresh(row, ratio):
    """RATIO in the decisive rounds alone, all of it if there are none.

    The rounds before chose the rivals; a rival that was lucky there gains nothing by that.
    """
    last = figures.ordinary_rounds(row) if row.get("decisive") else 0
    by_round = {number: value for number, value in ratio.by_round.items() if number > last}
    left_out = tuple(entry for entry in ratio.left_out if entry[0] > last)
    return figures.Ratio(by_round, left_out) if by_round else ratio


def against_subject(row, rivals, measure):
    """[(rival, Ratio of the subject to it), ...], the best rival first, the first of equals."""
    subject = figures.find_contender(row, SUBJECT)
    if subject is None:
        return []
    found = [(rival, figures.ratio_within_rounds(subject, rival, measure)) for rival in rivals]
    return sorted((entry for entry in found if entry[1].by_round),
                  key=lambda entry: entry[1].summary.median)


def _best_median(rivals, measure):
    best, best_median = None, None
    for rival in rivals:
        summary = figures.summary_of(rival, measure)
        if summary is None:
            continue
        ours = summary.median if measure.better == "higher" else -summary.median
        if best is None or ours > best_median:
            best, best_median = rival, ours
    return best


def best_of(row, rivals, measure):
    """Of RIVALS, contenders of ROW, the one that the subject's median ratio to is lowest.

    If some took part in the decisive rounds, then one of these, which the ordinary rounds chose; of
    two, all rounds tell which. The best median where there is no subject to compare with. None if
    none has any figure.
    """
    ranking = against_subject(row, rivals, measure)
    decisive = row.get("decisive") or ()
    chosen = [rival for rival, _ratio in ranking if rival["name"] in decisive]
    if ranking:
        return chosen[0] if chosen else ranking[0][0]
    return _best_median(rivals, measure)


def aims(row):
    """[(contender, rival, least ratio, Ratio), ...] of the targets of ROW that were measured."""
    measure, found = figures.value_measure(row), []
    for name, rival, least, rows in TARGETS:
        sides = [figures.find_contender(row, one) for one in (name, rival)]
        if (rows is None or row["name"] in rows) and all(sides):
            found.append((name, rival, least, figures.ratio_within_rounds(*sides, measure)))
    return found


def single_engines(row):
    return [one for one in row["contenders"] if one["name"] in SINGLE_ENGINES]


def peers(row):
    return [one for one in row["contenders"] if one["family"] == "peer"]


def best_engine(row, measure=None):
    """The best single culvert engine of ROW, or None."""
    return best_of(row, single_engines(row), measure or figures.value_measure(row))


def best_peer(row, measure=None):
    """The best peer of ROW, or None."""
    return best_of(row, peers(row), measure or figures.value_measure(row))


def _front(row, rivals, measure, near):
    """The names of the best of RIVALS, and of the next if it is as near."""
    ranking = [(rival["name"], ratio.summary.median)
               for rival, ratio in against_subject(row, rivals, measure)[:2]]
    if len(ranking) == 2:
        (_best, lowest), (_next, second) = ranking
        if lowest <= 0 or math.log(second / lowest) > near:
            ranking.pop()
    return [name for name, _median in ranking]


def deciders(row, rivals_too=True):
    """The names of the contenders in the decisive rounds of ROW; [] if there is no verdict.

    RIVALS_TOO: the verdict is about others than auto itself.
    """
    measure = figures.value_measure(row)
    subject = figures.find_contender(row, SUBJECT)
    if subject is None or not figures.usable_cells(subject):
        return []
    near = max(NEAR, control_ratio(row, measure).scatter)
    rivals = [name for group in (single_engines(row), peers(row)) if rivals_too
              for name in _front(row, group, measure, near)]
    if rivals_too and not rivals:
        return []
    control = figures.find_contender(row, CONTROL)
    with_control = control is not None and figures.usable_cells(control)
    return [SUBJECT, *([CONTROL] if with_control else []), *rivals]
