# SPDX-License-Identifier: BSD-2-Clause
"""The arithmetic of the benchmark's results: pure functions, no input and no output.

Definitions, which the reports repeat:

  median, quartiles   by linear interpolation between the order statistics (position (n - 1) p of
                      the sorted sample; R's type 7, "inclusive" in Python's statistics). Of three
                      to five rounds the quartiles say little, so spread is minimum to maximum.
  ratio               taken within each round, then the median of these; never a ratio of medians.
                      Where less is better it is turned, so that more than 1 always means "better
                      for the first". A round in which one side failed is left out, and counted; one
                      in which one side did not take part has no ratio.
  interval            of the median of the rounds, with a confidence of 95 %: between the order
                      statistics of rank k and n + 1 - k, k the greatest for which so few of n
                      values lie below the true median with a probability of 2.5 % at most (the
                      sign test turned round). Nothing is assumed of how the values are
                      distributed. Fewer than six have no such k: then it is Student's interval of
                      the mean (of ratios: of their logarithms), at least minimum to maximum. One
                      round has none.
  control             a second contender that is the same as the subject. The distance from 1 of
                      the median of the subject's ratios to it is noise: a narrower interval is
                      widened to it.
  percentile          the upper bound of the histogram bucket in which the sample of that rank lies
                      (the smallest rank r with r / n >= p). With less than one sample expected
                      beyond it, a percentile is not known.
  CPU per unit        CPU time of the whole machine, divided by the units of work done meanwhile.

A cell (one measurement of one contender in one round) counts if it did not fail and delivered no
wrong byte; the speed of wrong bytes is of no interest.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Callable


# ---- samples ------------------------------------------------------------------------------------


def quantile(values, fraction):
    """The quantile at FRACTION (0 to 1) of VALUES, which must not be empty."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * fraction
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values):
    return quantile(values, 0.5)


@dataclass(frozen=True)
class Summary:
    """A few rounds of one quantity."""

    median: float
    low: float
    high: float
    first_quartile: float
    third_quartile: float
    count: int

    @property
    def has_spread(self):
        """False for a single round: its variation is not known."""
        return self.count > 1


def summarise(values):
    """A Summary of VALUES; None if there are none."""
    values = list(values)
    if not values:
        return None
    return Summary(median(values), min(values), max(values), quantile(values, 0.25),
                   quantile(values, 0.75), len(values))


# Two-sided 5 % points of Student's t, by the number of values.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
DOUBT = 0.05


@dataclass(frozen=True)
class Interval:
    """The range of the true median, as far as the rounds tell."""

    low: float
    high: float

    def widened(self, center, deviation):
        """The Interval, widened to CENTER / e^DEVIATION and CENTER e^DEVIATION."""
        return Interval(min(self.low, center * math.exp(-deviation)),
                        max(self.high, center * math.exp(deviation)))


def sign_test_rank(count):
    """The rank of the order statistic that bounds the interval of COUNT values; 0: none does."""
    rank, tail = 0, 0
    while True:
        tail += math.comb(count, rank)
        if 2 * tail > DOUBT * 2 ** count:
            return rank
        rank += 1


def _student_interval(values):
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    reach = STUDENT[len(values)] * math.sqrt(variance / len(values))
    return Interval(mean - reach, mean + reach)


def median_interval(values, of_ratios=False):
    """The Interval of the median of VALUES; None if there are fewer than two."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return None
    if rank := sign_test_rank(len(ordered)):
        return Interval(ordered[rank - 1], ordered[-rank])
    if of_ratios and ordered[0] > 0:
        logarithms = _student_interval([math.log(value) for value in ordered])
        # e^700 is about as much as a number can hold.
        found = Interval(math.exp(max(logarithms.low, -700)), math.exp(min(logarithms.high, 700)))
    else:
        found = _student_interval(ordered)
    return Interval(min(found.low, ordered[0]), max(found.high, ordered[-1]))


# ---- histograms ---------------------------------------------------------------------------------


def merge_histograms(histograms):
    """One histogram, [[upper bound, count], ...] in rising order, of several."""
    counts = {}
    for histogram in histograms:
        for bound, count in histogram:
            counts[bound] = counts.get(bound, 0) + count
    return [[bound, counts[bound]] for bound in sorted(counts) if counts[bound]]


def sample_count(histogram):
    return sum(count for _bound, count in histogram)


@functools.lru_cache(maxsize=1024)
def _exact_fraction(percent):
    """PERCENT as (part, whole): in floating point 99.9 % of 1,000 would be more than 999."""
    return (Fraction(str(percent)) / 100).as_integer_ratio()


def percentiles(histogram, wanted):
    """The percentiles WANTED (0 <= p < 100, rising) of a sorted HISTOGRAM; None: not known."""
    total = sample_count(histogram)
    answers, seen, buckets, bound = [], 0, iter(histogram), None
    for percent in wanted:
        part, whole = _exact_fraction(percent)
        if total * (whole - part) < whole:
            answers.append(None)
            continue
        rank = max(1, -(-total * part // whole))
        while seen < rank:
            bound, count = next(buckets)
            seen += count
        answers.append(bound)
    return answers


def percentile(histogram, percent):
    return percentiles(histogram, [percent])[0]


# ---- cells and contenders -----------------------------------------------------------------------


def why_unusable(cell):
    """Why CELL does not count; None if it does."""
    if "failed" in cell:
        return cell["failed"]
    if cell["wrong"]:
        return f"wrong payload ({cell['wrong']:,} times)"
    return None


def usable_cells(contender):
    """{round: cell} of those that count."""
    return {cell["round"]: cell for cell in contender["cells"] if why_unusable(cell) is None}


def unusable_cells(contender):
    """[(round, why)] of those that do not."""
    return [(cell["round"], why_unusable(cell)) for cell in contender["cells"]
            if why_unusable(cell) is not None]


def find_contender(row, name):
    return next((one for one in row["contenders"] if one["name"] == name), None)


def ordinary_rounds(row):
    """The number of the last round that all contenders of ROW took part in."""
    return row.get("ordinary_rounds") or max(
        (cell["round"] for one in row["contenders"] for cell in one["cells"]), default=0)


def ordinary_row(row):
    """ROW with only the rounds in which all took part: medians of these can be compared."""
    last = ordinary_rounds(row)
    return {**row, "contenders": [
        {**one, "cells": [cell for cell in one["cells"] if cell["round"] <= last]}
        for one in row["contenders"]]}


# ---- quantities ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A quantity that a cell has (or has not: then OF answers None)."""

    name: str
    unit: str
    better: str  # "higher" or "lower"
    of: Callable[[dict], float | None]


def per_work(field, scale=1.0):
    """A function of a cell: FIELD per unit of work done, times SCALE."""
    def of(cell):
        amount, work = cell.get(field), cell.get("work")
        if amount is None or not work:
            return None
        return amount * scale / work
    return of


def value_measure(row):
    return Measure("value", row["unit"], row["better"], lambda cell: cell["value"])


def cpu_scale(row):
    """Seconds for a gigabyte, microseconds for the smaller units."""
    return (1.0, "s") if row["work_unit"] == "GB" else (1e6, "\u00b5s")


def cpu_measure(row):
    scale, unit = cpu_scale(row)
    return Measure("CPU", f"{unit}/{row['work_unit']}", "lower", per_work("cpu_seconds", scale))


def relay_cpu_measure(row):
    scale, unit = cpu_scale(row)
    return Measure("relay's CPU", f"{unit}/{row['work_unit']}", "lower",
                   per_work("relay_cpu_seconds", scale))


def syscalls_measure(row):
    return Measure("relay's system calls", f"1/{row['work_unit']}", "lower",
                   per_work("relay_syscalls"))


def switches_measure(row):
    return Measure("relay's context switches", f"1/{row['work_unit']}", "lower",
                   per_work("relay_switches"))




# Percentiles that load generators without a histogram report by themselves.
REPORTED = {50: "p50", 90: "p90", 99: "p99", 99.9: "p99_9"}


def cell_percentile(cell, percent):
    """In microseconds: from the histogram if there is one, else as the load generator said."""
    if cell.get("histogram"):
        return percentile(merge_histograms([cell["histogram"]]), percent)
    return (cell.get("latency_us") or {}).get(REPORTED.get(percent))


def latency_measure(percent):
    return Measure(f"p{percent:g} latency", "\u00b5s", "lower",
                   lambda cell: cell_percentile(cell, percent))


def figures_by_round(contender, measure):
    """{round: figure} of the cells that count and have the figure."""
    figures = {number: measure.of(cell) for number, cell in usable_cells(contender).items()}
    return {number: figure for number, figure in figures.items() if figure is not None}


def summary_of(contender, measure, rounds=None):
    """The Summary of MEASURE, over ROUNDS only if they are given."""
    return summarise(figure for number, figure in figures_by_round(contender, measure).items()
                     if rounds is None or number in rounds)


def merged_histogram(contender):
    """One histogram of all rounds that count; [] if there is none."""
    return merge_histograms(cell["histogram"] for cell in usable_cells(contender).values()
                            if cell.get("histogram"))


def contender_percentile(contender, percent):
    """The percentile of the merged histograms; without these, the median of the reports."""
    histogram = merged_histogram(contender)
    if histogram:
        return percentile(histogram, percent)
    summary = summary_of(contender, latency_measure(percent))
    return summary.median if summary else None


def total_of(contender, field):
    """The sum of FIELD over the cells that did not fail, wrong ones too; None if none has it."""
    amounts = [cell[field] for cell in contender["cells"]
               if "failed" not in cell and cell.get(field) is not None]
    return sum(amounts) if amounts else None


def peak_of(contender, field):
    """The highest FIELD of all rounds that count; None if none has it."""
    amounts = [cell[field] for cell in usable_cells(contender).values()
               if cell.get(field) is not None]
    return max(amounts) if amounts else None


def carrier_shares(contender):
    """{carrier: share of the bytes, 0 to 1} over all rounds that count; {} if not known."""
    totals = {}
    for cell in usable_cells(contender).values():
        for carrier, amount in (cell.get("carriers") or {}).items():
            totals[carrier] = totals.get(carrier, 0) + amount
    whole = sum(totals.values())
    return {carrier: amount / whole for carrier, amount in totals.items()} if whole else {}


# ---- ratios -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """One contender against another, round by round."""

    by_round: dict
    left_out: tuple  # of (round, why)

    @property
    def summary(self):
        return summarise(self.by_round.values())

    @property
    def interval(self):
        """The Interval of the median; None for a single round."""
        return median_interval(self.by_round.values(), of_ratios=True)

    @property
    def deviation(self):
        """The distance of the median from 1, as a logarithm; 0 if not known."""
        return abs(_logarithm(self.summary.median)) if self.by_round else 0.0

    @property
    def scatter(self):
        """The median of the rounds' distances from 1, as a logarithm; 0 if not known."""
        return median(abs(_logarithm(ratio)) for ratio in self.by_round.values()) \
            if self.by_round else 0.0


def _logarithm(ratio):
    return math.log(ratio) if ratio > 0 else -math.inf


def _why_missing(contender, number):
    cell = next(cell for cell in contender["cells"] if cell["round"] == number)
    return f"{contender['name']}: {why_unusable(cell) or 'the figure was not taken'}"


def common_rounds(first, second):
    """The rounds that both took part in, whether they failed or not."""
    return sorted({cell["round"] for cell in first["cells"]}
                  & {cell["round"] for cell in second["cells"]})


def ratio_within_rounds(first, second, measure, other_measure=None):
    """FIRST against SECOND in MEASURE; more than 1: FIRST is better.

    OTHER_MEASURE reads SECOND if it belongs to another row. Zero (and what is less: memory can be
    given back) has no ratio: such a round is left out like one that failed.
    """
    ours = figures_by_round(first, measure)
    theirs = figures_by_round(second, other_measure or measure)
    ratios, left_out = {}, []
    for number in common_rounds(first, second):
        sides = ((first, ours), (second, theirs))
        missing = [one for one, figures in sides if number not in figures]
        if missing:
            left_out.append((number, _why_missing(missing[0], number)))
            continue
        over, under = (ours, theirs) if measure.better == "higher" else (theirs, ours)
        divisor = second if measure.better == "higher" else first
        if under[number] <= 0 or over[number] < 0:
            left_out.append((number, f"{divisor['name']}: no ratio of {over[number]:g} to "
                                     f"{under[number]:g}"))
            continue
        ratios[number] = over[number] / under[number]
    return Ratio(ratios, tuple(left_out))
