# SPDX-License-Identifier: BSD-2-Clause
"""The arithmetic of reports, figures.py. No root, no network, no gnuplot."""

import math

import figures
import pytest
from sample_rows import HIGHER, LOWER, cell, contender, failed, row


# --- samples ---

@pytest.mark.parametrize("values, median", [
    ([3], 3), ([9, 1, 5], 5), ([4, 1, 3, 2], 2.5), ([0, 0, 0], 0)])
def test_median(values, median):
    assert figures.median(values) == median


@pytest.mark.parametrize("histograms, merged", [
    ([[[20, 1], [10, 2]], [[10, 3], [15, 4]]], [[10, 5], [15, 4], [20, 1]]),
    ([], []), ([[[10, 0]]], [])])
def test_merge_adds_and_sorts(histograms, merged):
    assert figures.merge_histograms(histograms) == merged


FEW, MANY = [[1, 50], [2, 49], [3, 1]], [[10, 999]]


@pytest.mark.parametrize("histogram, percent, bound", [
    # the bound of the bucket that the rank is in
    (FEW, 50, 1), (FEW, 50.5, 2), (FEW, 99, 2), ([[1, 98], [2, 1], [3, 1]], 98.5, 2),
    # 99.9 % of 1,000 is 999; in floating point it is a little more, which would be rank 1,000
    ([[1, 999], [1000, 1]], 99.9, 1),
    # it is not known without a sample beyond
    (MANY, 99, 10), (MANY, 99.9, None), ([], 50, None), ([[10, 1]], 0, 10)])
def test_percentile(histogram, percent, bound):
    assert figures.percentile(histogram, percent) == bound


# --- cells ---

def test_failed_and_wrong_cells_do_not_count():
    one = contender("auto", cells=[cell(1, 10), failed(2, "refused"), cell(3, 99, wrong=2)])
    assert list(figures.usable_cells(one)) == [1]
    assert figures.unusable_cells(one) == [(2, "refused"), (3, "wrong payload (2 times)")]
    assert figures.summary_of(one, HIGHER).count == 1


@pytest.mark.parametrize("work_unit, work, unit, value", [
    ("request", 1000, "\u00b5s/request", 3000), ("GB", 12, "s/GB", 0.25)])
def test_cpu_per_unit(work_unit, work, unit, value):
    measure = figures.cpu_measure(row("a", work_unit=work_unit))
    assert measure.unit == unit
    assert measure.of(cell(1, 0, cpu_seconds=3.0, work=work)) == value


def test_relay_costs():
    one = cell(1, 0, work=10, relay_cpu_seconds=0.001, relay_syscalls=25, relay_switches=0)
    assert figures.relay_cpu_measure(row("a")).of(one) == pytest.approx(100)
    assert figures.syscalls_measure(row("a")).of(one) == 2.5
    assert figures.switches_measure(row("a")).of(one) == 0
    assert figures.syscalls_measure(row("a")).of(cell(1, 0)) is None


def test_totals_peaks_and_carriers():
    one = contender("auto", cells=[
        cell(1, 1, errors=2, kernel_peak_bytes=5, carriers={"copy": 10, "sockmap": 30}),
        failed(2), cell(3, 1, errors=1, kernel_peak_bytes=9,
                        carriers={"copy": 0, "sockmap": 40})])
    assert figures.total_of(one, "errors") == 3
    assert figures.peak_of(one, "kernel_peak_bytes") == 9
    assert figures.carrier_shares(one) == {"copy": 0.125, "sockmap": 0.875}
    assert figures.carrier_shares(contender("auto", 1)) == {}
    assert figures.peak_of(contender("auto", 1), "kernel_peak_bytes") is None
    assert figures.total_of(contender("auto", None), "errors") is None


def test_percentiles_of_all_rounds_together():
    one = contender("auto", cells=[cell(1, 1, histogram=[[10, 90]]),
                                   cell(2, 1, histogram=[[50, 10]]), failed(3)])
    assert figures.contender_percentile(one, 90) == 10
    assert figures.contender_percentile(one, 95) == 50


# --- ratios ---

def ratio_of(first, second, measure=HIGHER):
    """The ratio of two contenders with these values in the rounds 1, 2 ..."""
    return figures.ratio_within_rounds(contender("a", *first), contender("b", *second), measure)


def test_within_rounds_and_not_of_medians():
    # the machine became ten times faster; within each round the first is twice as fast
    assert ratio_of((2, 20, 200), (1, 10, 100)).by_round == {1: 2, 2: 2, 3: 2}
    # medians: 10 / 10 = 1, but the median of the ratios is 10
    assert ratio_of((10, 10, 100), (1, 100, 10)).summary.median == 10


def test_turned_where_less_is_better():
    assert ratio_of((50,), (200,), LOWER).summary.median == 4


def test_rounds_that_failed_are_left_out_and_counted():
    ratio = ratio_of((2, None, 6, 8), (1, 1, None, 2))
    assert ratio.by_round == {1: 2, 4: 4}
    assert ratio.left_out == ((2, "a: no answer"), (3, "b: no answer"))


@pytest.mark.parametrize("measure, by_round, left_out", [(HIGHER, {1: 0}, 2), (LOWER, {2: 0}, 1)])
def test_zero(measure, by_round, left_out):
    ratio = ratio_of((0, 3), (5, 0), measure)
    assert ratio.by_round == by_round
    assert [number for number, _why in ratio.left_out] == [left_out]


@pytest.mark.parametrize("ratio, deviation, scatter", [
    (ratio_of((4, 2, 0.5), (1, 1, 1)), math.log(2), math.log(2)),
    (ratio_of((0.5, 1, 2), (1, 1, 1)), 0, math.log(2)), (figures.Ratio({}, ()), 0, 0)])
def test_deviation_and_scatter(ratio, deviation, scatter):
    assert (ratio.deviation, ratio.scatter) == pytest.approx((deviation, scatter))


def test_deviation_of_nothing():
    assert figures.Ratio({1: 0}, ()).deviation == math.inf


# --- intervals ---

def test_ranks_of_the_sign_test():
    # as in printed tables of the sign test at 5 %, two-sided
    for count, rank in ((1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4),
                        (17, 5), (20, 6), (25, 8), (100, 40)):
        assert figures.sign_test_rank(count) == rank, count


NINE = [5, 1, 9, 7, 3, 2, 8, 4, 6]


@pytest.mark.parametrize("values, of_ratios, interval", [
    (NINE, False, (2, 8)), (NINE, True, (2, 8)), (range(6), False, (0, 5)),  # by order
    # Student's of few: of the values, and of their logarithms
    ([10, 11, 12], False, (11 - 4.303 / math.sqrt(3), 11 + 4.303 / math.sqrt(3))),
    ([0.5, 2], True, (2 ** -12.706, 2 ** 12.706))])
def test_interval(values, of_ratios, interval):
    found = figures.median_interval(values, of_ratios=of_ratios)
    assert (found.low, found.high) == pytest.approx(interval)


@pytest.mark.parametrize("by, wider", [(1.1, (0.95, 1.3)), (1.25, (0.88, 1.375))])
def test_widened(by, wider):
    found = figures.Interval(0.95, 1.3).widened(1.1, math.log(by))
    assert (found.low, found.high) == pytest.approx(wider)


# --- ordinary rounds ---

ROW = {**row("x", contender("auto", 1, 2, 3, 4), contender("copy", 1, 2)),
       "ordinary_rounds": 2, "decisive": ["auto"]}


def test_rounds_that_all_took_part_in():
    ordinary = figures.ordinary_row(ROW)
    assert [len(one["cells"]) for one in ordinary["contenders"]] == [2, 2]
    assert len(ROW["contenders"][0]["cells"]) == 4
    assert figures.ordinary_rounds(ROW) == 2
