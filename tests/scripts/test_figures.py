# SPDX-License-Identifier: BSD-2-Clause
"""The arithmetic of reports, figures.py. No root, no network, no gnuplot."""

import math
import unittest

import figures
from sample_rows import HIGHER, LOWER, cell, contender, failed, row


class Samples(unittest.TestCase):
    def test_median(self):
        self.assertEqual(figures.median([3]), 3)
        self.assertEqual(figures.median([9, 1, 5]), 5)
        self.assertEqual(figures.median([4, 1, 3, 2]), 2.5)
        self.assertEqual(figures.median([0, 0, 0]), 0)

    def test_merge_adds_and_sorts(self):
        self.assertEqual(figures.merge_histograms([[[20, 1], [10, 2]], [[10, 3], [15, 4]]]),
                         [[10, 5], [15, 4], [20, 1]])
        self.assertEqual(figures.merge_histograms([]), [])
        self.assertEqual(figures.merge_histograms([[[10, 0]]]), [])

    def test_percentile_is_the_bound_of_the_ranks_bucket(self):
        histogram = [[1, 50], [2, 49], [3, 1]]
        self.assertEqual(figures.percentile(histogram, 50), 1)
        self.assertEqual(figures.percentile(histogram, 50.5), 2)
        self.assertEqual(figures.percentile(histogram, 99), 2)
        self.assertEqual(figures.percentile([[1, 98], [2, 1], [3, 1]], 98.5), 2)

    def test_rank_is_exact(self):
        # 99.9 % of 1,000 is 999; in floating point it is a little more, which would be rank 1,000
        self.assertEqual(figures.percentile([[1, 999], [1000, 1]], 99.9), 1)

    def test_not_known_without_a_sample_beyond(self):
        histogram = [[10, 999]]
        self.assertEqual(figures.percentile(histogram, 99), 10)
        self.assertIsNone(figures.percentile(histogram, 99.9))
        self.assertIsNone(figures.percentile([], 50))
        self.assertEqual(figures.percentile([[10, 1]], 0), 10)


class Cells(unittest.TestCase):
    def test_failed_and_wrong_cells_do_not_count(self):
        one = contender("auto", cells=[cell(1, 10), failed(2, "refused"), cell(3, 99, wrong=2)])
        self.assertEqual(list(figures.usable_cells(one)), [1])
        self.assertEqual(figures.unusable_cells(one),
                         [(2, "refused"), (3, "wrong payload (2 times)")])
        self.assertEqual(figures.summary_of(one, HIGHER).count, 1)

    def test_cpu_per_unit(self):
        of_request = figures.cpu_measure(row("a"))
        self.assertEqual(of_request.unit, "\u00b5s/request")
        self.assertEqual(of_request.of(cell(1, 0, cpu_seconds=3.0, work=1000)), 3000)
        of_bytes = figures.cpu_measure(row("a", work_unit="GB"))
        self.assertEqual(of_bytes.unit, "s/GB")
        self.assertEqual(of_bytes.of(cell(1, 0, cpu_seconds=3.0, work=12)), 0.25)

    def test_relay_costs(self):
        one = cell(1, 0, work=10, relay_cpu_seconds=0.001, relay_syscalls=25, relay_switches=0)
        self.assertAlmostEqual(figures.relay_cpu_measure(row("a")).of(one), 100)
        self.assertEqual(figures.syscalls_measure(row("a")).of(one), 2.5)
        self.assertEqual(figures.switches_measure(row("a")).of(one), 0)
        self.assertIsNone(figures.syscalls_measure(row("a")).of(cell(1, 0)))

    def test_totals_peaks_and_carriers(self):
        one = contender("auto", cells=[
            cell(1, 1, errors=2, kernel_peak_bytes=5, carriers={"copy": 10, "sockmap": 30}),
            failed(2), cell(3, 1, errors=1, kernel_peak_bytes=9,
                            carriers={"copy": 0, "sockmap": 40})])
        self.assertEqual(figures.total_of(one, "errors"), 3)
        self.assertEqual(figures.peak_of(one, "kernel_peak_bytes"), 9)
        self.assertEqual(figures.carrier_shares(one), {"copy": 0.125, "sockmap": 0.875})
        self.assertEqual(figures.carrier_shares(contender("auto", 1)), {})
        self.assertIsNone(figures.peak_of(contender("auto", 1), "kernel_peak_bytes"))
        self.assertIsNone(figures.total_of(contender("auto", None), "errors"))

    def test_percentiles_of_all_rounds_together(self):
        one = contender("auto", cells=[cell(1, 1, histogram=[[10, 90]]),
                                       cell(2, 1, histogram=[[50, 10]]), failed(3)])
        self.assertEqual(figures.contender_percentile(one, 90), 10)
        self.assertEqual(figures.contender_percentile(one, 95), 50)


class Ratios(unittest.TestCase):
    def test_within_rounds_and_not_of_medians(self):
        # the machine became ten times faster; within each round the first is twice as fast
        first, second = contender("a", 2, 20, 200), contender("b", 1, 10, 100)
        ratio = figures.ratio_within_rounds(first, second, HIGHER)
        self.assertEqual(ratio.by_round, {1: 2, 2: 2, 3: 2})
        # medians: 10 / 10 = 1, but the median of the ratios is 10
        first, second = contender("a", 10, 10, 100), contender("b", 1, 100, 10)
        self.assertEqual(figures.ratio_within_rounds(first, second, HIGHER).summary.median, 10)

    def test_turned_where_less_is_better(self):
        ratio = figures.ratio_within_rounds(contender("a", 50), contender("b", 200), LOWER)
        self.assertEqual(ratio.summary.median, 4)

    def test_rounds_that_failed_are_left_out_and_counted(self):
        ratio = figures.ratio_within_rounds(contender("a", 2, None, 6, 8),
                                            contender("b", 1, 1, None, 2), HIGHER)
        self.assertEqual(ratio.by_round, {1: 2, 4: 4})
        self.assertEqual(ratio.left_out, ((2, "a: no answer"), (3, "b: no answer")))

    def test_zero(self):
        ratio = figures.ratio_within_rounds(contender("a", 0, 3), contender("b", 5, 0), HIGHER)
        self.assertEqual(ratio.by_round, {1: 0})
        self.assertEqual([number for number, _why in ratio.left_out], [2])
        ratio = figures.ratio_within_rounds(contender("a", 0, 3), contender("b", 5, 0), LOWER)
        self.assertEqual(ratio.by_round, {2: 0})
        self.assertEqual([number for number, _why in ratio.left_out], [1])

    def test_deviation_and_scatter(self):
        ratio = figures.ratio_within_rounds(contender("a", 4, 2, 0.5), contender("b", 1, 1, 1),
                                            HIGHER)
        self.assertAlmostEqual(ratio.deviation, math.log(2))
        self.assertAlmostEqual(ratio.scatter, math.log(2))
        ratio = figures.ratio_within_rounds(contender("a", 0.5, 1, 2), contender("b", 1, 1, 1),
                                            HIGHER)
        self.assertEqual(ratio.deviation, 0)
        self.assertAlmostEqual(ratio.scatter, math.log(2))
        self.assertEqual((figures.Ratio({}, ()).deviation, figures.Ratio({}, ()).scatter), (0, 0))
        self.assertEqual(figures.Ratio({1: 0}, ()).deviation, math.inf)


class Intervals(unittest.TestCase):
    def test_ranks_of_the_sign_test(self):
        # as in printed tables of the sign test at 5 %, two-sided
        for count, rank in ((1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4),
                            (17, 5), (20, 6), (25, 8), (100, 40)):
            self.assertEqual(figures.sign_test_rank(count), rank, count)

    def test_order_statistics(self):
        values = [5, 1, 9, 7, 3, 2, 8, 4, 6]
        self.assertEqual(figures.median_interval(values), figures.Interval(2, 8))
        self.assertEqual(figures.median_interval(values, of_ratios=True), figures.Interval(2, 8))
        self.assertEqual(figures.median_interval(range(6)), figures.Interval(0, 5))

    def test_students_for_few(self):
        found = figures.median_interval([10, 11, 12])
        self.assertAlmostEqual(found.low, 11 - 4.303 / math.sqrt(3))
        self.assertAlmostEqual(found.high, 11 + 4.303 / math.sqrt(3))

    def test_students_of_logarithms_for_ratios(self):
        found = figures.median_interval([0.5, 2], of_ratios=True)
        self.assertAlmostEqual(math.log(found.high), 12.706 * math.log(2))
        self.assertAlmostEqual(found.low * found.high, 1)

    def test_widened(self):
        interval = figures.Interval(0.95, 1.3)
        wider = interval.widened(1.1, math.log(1.1))
        self.assertEqual((wider.low, wider.high), (0.95, 1.3))
        wider = interval.widened(1.1, math.log(1.25))
        self.assertAlmostEqual(wider.low, 0.88)
        self.assertAlmostEqual(wider.high, 1.375)


class OrdinaryRounds(unittest.TestCase):
    ROW = {**row("x", contender("auto", 1, 2, 3, 4), contender("copy", 1, 2)),
           "ordinary_rounds": 2, "decisive": ["auto"]}

    def test_rounds_that_all_took_part_in(self):
        ordinary = figures.ordinary_row(self.ROW)
        self.assertEqual([len(one["cells"]) for one in ordinary["contenders"]], [2, 2])
        self.assertEqual(len(self.ROW["contenders"][0]["cells"]), 4)
        self.assertEqual(figures.ordinary_rounds(self.ROW), 2)
