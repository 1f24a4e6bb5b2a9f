# SPDX-License-Identifier: BSD-2-Clause
"""The arithmetic of reports: figures.py and targets.py. No root, no network, no gnuplot."""

import math
import os
import random
import statistics
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts", "lib"))

import figures  # noqa: E402 (the path comes first)
import targets  # noqa: E402

HIGHER = figures.Measure("value", "requests/s", "higher", lambda cell: cell["value"])
LOWER = figures.Measure("value", "bytes", "lower", lambda cell: cell["value"])


def cell(number, value, **more):
    return {"round": number, "value": value, "cpu_seconds": 2.0, "work": 4.0, "errors": 0,
            "wrong": 0, **more}


def failed(number, why="no answer"):
    return {"round": number, "failed": why}


def contender(name, *values, family=None, cells=None):
    """Of the values of rounds 1, 2 ...; None for a round that failed."""
    families = {"direct": "direct", "haproxy": "peer", "nginx": "peer", "socat": "peer"}
    return {"name": name, "family": family or families.get(name, "culvert"), "config": "",
            "cells": cells if cells is not None else
            [failed(number) if value is None else cell(number, value)
             for number, value in enumerate(values, 1)]}


def row(name, *contenders, better="higher", kind="rate", unit="requests/s", work_unit="request"):
    return {"name": name, "title": f"title of {name}", "group": "conversation", "kind": kind,
            "unit": unit, "better": better, "work_unit": work_unit, "note": "",
            "contenders": list(contenders)}


class Samples(unittest.TestCase):
    def test_median(self):
        self.assertEqual(figures.median([3]), 3)
        self.assertEqual(figures.median([9, 1, 5]), 5)
        self.assertEqual(figures.median([4, 1, 3, 2]), 2.5)
        self.assertEqual(figures.median([0, 0, 0]), 0)

    def test_quartiles_as_defined(self):
        summary = figures.summarise([1, 2, 3, 4, 5])
        self.assertEqual((summary.first_quartile, summary.third_quartile), (2, 4))
        self.assertEqual(summary.interquartile_range, 2)
        summary = figures.summarise([10, 20, 40])
        self.assertEqual((summary.first_quartile, summary.third_quartile), (15, 30))

    def test_quantiles_agree_with_the_library(self):
        source = random.Random(3)
        for size in range(2, 30):
            values = [source.gauss(0, 1) for _ in range(size)]
            expected = statistics.quantiles(values, n=4, method="inclusive")
            for fraction, wanted in zip((0.25, 0.5, 0.75), expected):
                self.assertAlmostEqual(figures.quantile(values, fraction), wanted)

    def test_summary(self):
        summary = figures.summarise([5, 1, 3])
        self.assertEqual((summary.median, summary.low, summary.high, summary.count), (3, 1, 5, 3))
        self.assertTrue(summary.has_spread)

    def test_one_round_has_no_spread(self):
        summary = figures.summarise([7])
        self.assertEqual((summary.median, summary.low, summary.high), (7, 7, 7))
        self.assertFalse(summary.has_spread)

    def test_nothing_has_no_summary(self):
        self.assertIsNone(figures.summarise([]))
        self.assertIsNone(figures.summarise(iter(())))


class Histograms(unittest.TestCase):
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

    def test_every_percentile_of_known_samples(self):
        source = random.Random(5)
        samples = sorted(source.randrange(1, 500) for _ in range(5000))
        histogram = figures.merge_histograms([[[sample, 1] for sample in samples]])
        for percent in (0, 1, 50, 75, 90, 99, 99.9, 99.98):
            rank = max(1, math.ceil(round(percent * 5000 / 100, 6)))
            self.assertEqual(figures.percentile(histogram, percent), samples[rank - 1], percent)

    def test_rank_is_exact(self):
        # 99.9 % of 1,000 is 999; in floating point it is a little more, which would be rank 1,000
        self.assertEqual(figures.percentile([[1, 999], [1000, 1]], 99.9), 1)

    def test_not_known_without_a_sample_beyond(self):
        histogram = [[10, 999]]
        self.assertEqual(figures.percentile(histogram, 99), 10)
        self.assertIsNone(figures.percentile(histogram, 99.9))
        self.assertIsNone(figures.percentile([], 50))
        self.assertEqual(figures.percentile([[10, 1]], 0), 10)

    def test_several_at_once(self):
        histogram = [[1, 900], [2, 90], [3, 9], [4, 1]]
        self.assertEqual(figures.percentiles(histogram, [50, 90, 99, 99.9, 99.99]),
                         [1, 1, 2, 3, None])

    def test_tail_axis(self):
        for percent, place in ((90, 1), (99, 2), (99.9, 3), (99.99, 4)):
            self.assertAlmostEqual(figures.tail_position(percent), place)

    def test_curve_ends_where_the_samples_do(self):
        full = figures.percentile_curve([[1, 50000], [2, 49000], [3, 1000]])
        self.assertAlmostEqual(full[0][0], figures.tail_position(50))
        self.assertAlmostEqual(full[-1][0], 4)
        self.assertEqual((full[0][1], full[-1][1]), (1, 3))
        self.assertEqual([value for _place, value in full],
                         sorted(value for _place, value in full))
        short = figures.percentile_curve([[1, 1000]])
        self.assertLessEqual(short[-1][0], 3 + 1e-6)
        self.assertGreater(short[-1][0], 2.9)
        self.assertEqual(figures.percentile_curve([]), [])


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

    def test_cost_of_no_work_is_not_known(self):
        measure = figures.cpu_measure(row("a"))
        self.assertIsNone(measure.of(cell(1, 0, work=0)))
        self.assertIsNone(measure.of(cell(1, 0, work=None)))
        self.assertIsNone(measure.of(cell(1, 0, cpu_seconds=None)))
        self.assertEqual(measure.of(cell(1, 0, cpu_seconds=0)), 0)

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

    def test_wrong_cells_are_in_the_totals(self):
        self.assertEqual(figures.total_of(contender("a", cells=[cell(1, 1, wrong=4)]), "wrong"), 4)

    def test_percentiles_of_all_rounds_together(self):
        one = contender("auto", cells=[cell(1, 1, histogram=[[10, 90]]),
                                       cell(2, 1, histogram=[[50, 10]]), failed(3)])
        self.assertEqual(figures.contender_percentile(one, 90), 10)
        self.assertEqual(figures.contender_percentile(one, 95), 50)

    def test_reported_percentiles_where_there_is_no_histogram(self):
        one = contender("auto", cells=[cell(number, 1, latency_us={"p99": value, "p99_9": None})
                                       for number, value in enumerate((30, 10, 20), 1)])
        self.assertEqual(figures.contender_percentile(one, 99), 20)
        self.assertIsNone(figures.contender_percentile(one, 99.9))
        self.assertIsNone(figures.contender_percentile(one, 42))
        self.assertIsNone(figures.contender_percentile(contender("auto", 1), 99))
        ((place, value),) = figures.contender_curve(one)
        self.assertEqual((round(place, 9), value), (2, 20))

    def test_extras(self):
        measure = figures.extra_measure("depth", "B")
        self.assertEqual(measure.of(cell(1, 1, extra={"depth": 3})), 3)
        self.assertIsNone(measure.of(cell(1, 1, extra=None)))
        self.assertIsNone(measure.of(cell(1, 1)))


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

    def test_rounds_that_one_side_never_had(self):
        ratio = figures.ratio_within_rounds(contender("a", 2, 4), contender("b", 1), HIGHER)
        self.assertEqual(ratio.by_round, {1: 2})
        self.assertEqual(ratio.left_out, ((2, "b: not run"),))

    def test_figures_that_were_not_taken(self):
        measure = figures.cpu_measure(row("x"))
        ratio = figures.ratio_within_rounds(
            contender("a", 1), contender("b", cells=[cell(1, 1, cpu_seconds=None)]), measure)
        self.assertEqual(ratio.left_out, ((1, "b: the figure was not taken"),))

    def test_zero(self):
        ratio = figures.ratio_within_rounds(contender("a", 0, 3), contender("b", 5, 0), HIGHER)
        self.assertEqual(ratio.by_round, {1: 0})
        self.assertEqual([number for number, _why in ratio.left_out], [2])
        ratio = figures.ratio_within_rounds(contender("a", 0, 3), contender("b", 5, 0), LOWER)
        self.assertEqual(ratio.by_round, {2: 0})
        self.assertEqual([number for number, _why in ratio.left_out], [1])

    def test_less_than_zero(self):
        for first, second in ((-1, 5), (5, -1), (-1, -1)):
            ratio = figures.ratio_within_rounds(contender("a", first), contender("b", second),
                                                LOWER)
            self.assertEqual((ratio.by_round, len(ratio.left_out)), ({}, 1))

    def test_no_round_in_common(self):
        ratio = figures.ratio_within_rounds(contender("a", None, 1), contender("b", 1, None),
                                            HIGHER)
        self.assertIsNone(ratio.summary)
        self.assertEqual(len(ratio.left_out), 2)
        self.assertFalse(ratio.is_clear)

    def test_single_round(self):
        ratio = figures.ratio_within_rounds(contender("a", 3), contender("b", 2), HIGHER)
        self.assertEqual(ratio.summary.median, 1.5)
        self.assertFalse(ratio.summary.has_spread)
        self.assertFalse(ratio.is_clear)

    def test_clear_if_all_rounds_agree(self):
        def clear(*values):
            ones = contender("b", *[1] * len(values))
            return figures.ratio_within_rounds(contender("a", *values), ones, HIGHER).is_clear
        self.assertTrue(clear(2, 3))
        self.assertTrue(clear(0.9, 0.5))
        self.assertFalse(clear(0.9, 1.1))
        self.assertFalse(clear(0.9, 1))

    def test_rounds_that_reach_a_bound(self):
        ratio = figures.ratio_within_rounds(contender("a", 1, 2, 3), contender("b", 1, 1, 1),
                                            HIGHER)
        self.assertEqual(ratio.rounds_at_least(2), 2)


class Best(unittest.TestCase):
    def test_by_median(self):
        one = row("x", contender("auto", 99), contender("sockmap", 1, 50, 100),
                  contender("splice", 40, 60, 60), contender("copy", 55, 55, 55))
        self.assertEqual(figures.best_engine(one)["name"], "splice")

    def test_less_is_better(self):
        one = row("x", contender("haproxy", 3300), contender("nginx", 9700), better="lower")
        self.assertEqual(figures.best_peer(one)["name"], "haproxy")

    def test_neither_auto_nor_other_buffers_are_single_engines(self):
        one = row("x", contender("auto", 9), contender("copy-256K", 8), contender("copy", 1))
        self.assertEqual(figures.best_engine(one)["name"], "copy")

    def test_failed_and_missing(self):
        self.assertIsNone(figures.best_engine(row("x", contender("sockmap", None, None))))
        self.assertIsNone(figures.best_peer(row("x", contender("auto", 1))))
        one = row("x", contender("haproxy", None), contender("nginx", 1),
                  contender("socat", cells=[]))
        self.assertEqual(figures.best_peer(one)["name"], "nginx")

    def test_first_of_equals(self):
        one = row("x", contender("nginx", 5), contender("haproxy", 5))
        self.assertEqual(figures.best_peer(one)["name"], "nginx")

    def test_by_another_measure(self):
        one = row("x", contender("nginx", cells=[cell(1, 9, cpu_seconds=9)]),
                  contender("haproxy", cells=[cell(1, 1, cpu_seconds=1)]))
        self.assertEqual(figures.best_peer(one, figures.cpu_measure(one))["name"], "haproxy")


def outcomes_of(*rows):
    return targets.evaluate({"rows": list(rows)})


def outcome(found, title, text):
    """The one for the row titled TITLE whose quantity has TEXT in it."""
    matching = [one for one in found if one.title == title and text in one.quantity]
    assert len(matching) == 1, matching
    return matching[0]


class Targets(unittest.TestCase):
    def rr(self, *autos):
        return row("rr-64x64", contender("auto", *autos), contender("sockmap", 100, 100, 100),
                   contender("copy", 50, 50, 50), contender("haproxy", 80, 80, 80))

    def test_held(self):
        found = outcomes_of(self.rr(97, 99, 90))
        one = outcome(found, "title of rr-64x64", "best single engine (sockmap)")
        self.assertEqual((one.verdict, one.rounds_met, one.summary.count), (targets.HELD, 2, 3))
        self.assertEqual(one.summary.median, 0.97)

    def test_missed(self):
        found = outcomes_of(self.rr(87, 99, 80))
        self.assertEqual(outcome(found, "title of rr-64x64", "engine").verdict, targets.MISSED)
        one = outcome(found, "title of rr-64x64", "best peer (haproxy)")
        self.assertEqual((one.verdict, one.required), (targets.MISSED, "\u2265 1.10"))

    def test_not_rounded_up(self):
        found = outcomes_of(self.rr(96.99, 96.99, 96.99))
        self.assertEqual(outcome(found, "title of rr-64x64", "engine").verdict, targets.MISSED)

    def test_not_measured(self):
        one = outcome(outcomes_of(), "crr", "best peer")
        self.assertEqual((one.verdict, one.why),
                         (targets.NOT_MEASURED, "this run does not have the row"))
        found = outcomes_of(row("crr", contender("auto", 1), contender("copy", None)))
        for kind in ("engine", "peer"):
            self.assertEqual(outcome(found, "title of crr", kind).verdict, targets.NOT_MEASURED)
        found = outcomes_of(row("crr", contender("auto", None), contender("copy", None)))
        self.assertEqual(outcome(found, "title of crr", "engine").why,
                         "auto and best single engine: nothing was measured")
        found = outcomes_of(row("crr", contender("copy", 1)))
        self.assertIn("auto", outcome(found, "title of crr", "engine").why)

    def test_no_round_in_common(self):
        found = outcomes_of(row("crr", contender("auto", 1, None), contender("copy", None, 1)))
        one = outcome(found, "title of crr", "engine")
        self.assertEqual((one.verdict, len(one.left_out)), (targets.NOT_MEASURED, 2))

    def idle(self, memory, kernel, peer):
        cells = [cell(number, value, extra={targets.IDLE_KERNEL_NAME: kernel})
                 for number, value in enumerate(memory, 1)]
        return row("idle", contender("auto", cells=cells), contender("haproxy", *peer),
                   better="lower", kind="memory", unit="bytes/session", work_unit="session")

    def test_idle_memory(self):
        found = outcomes_of(self.idle([400, 500, 600], 4001, [1500, 1500, 1800]))
        daemon = outcome(found, "title of idle", "daemon's memory")
        self.assertEqual((daemon.verdict, daemon.rounds_met), (targets.HELD, 2))
        self.assertEqual(outcome(found, "title of idle", "kernel memory").verdict, targets.MISSED)
        peer = outcome(found, "title of idle", "best peer (haproxy) / auto")
        self.assertEqual((peer.verdict, peer.summary.median), (targets.HELD, 3.0))

    def test_idle_memory_without_the_kernels(self):
        one = outcome(outcomes_of(self.idle([400], None, [1])), "title of idle", "kernel memory")
        self.assertEqual((one.verdict, one.why), (targets.NOT_MEASURED, "no round has this figure"))
        self.assertEqual(one.left_out, ((1, "the figure was not taken"),))

    def test_nothing_is_within_any_limit(self):
        found = outcomes_of(self.idle([0], 0, [100]))
        self.assertEqual(outcome(found, "title of idle", "daemon's memory").verdict, targets.HELD)
        self.assertEqual(outcome(found, "title of idle", "best peer").verdict,
                         targets.NOT_MEASURED)

    def test_beside_idle_sessions(self):
        found = outcomes_of(row("mixed", contender("auto", 95, 90, 99)),
                            row("mixed-0", contender("auto", 100, 100, 100)))
        one = outcome(found, "title of mixed", "idle sessions open")
        self.assertEqual((one.verdict, one.summary.median), (targets.HELD, 0.95))
        one = outcome(outcomes_of(row("mixed", contender("auto", 1))), "title of mixed", "idle")
        self.assertIn("mixed-0", one.why)

    def test_each_target_has_one_line(self):
        found = outcomes_of()
        self.assertEqual(len(found), 2 * len(targets.RATIO_TARGETS) + 4)
        self.assertEqual({one.verdict for one in found}, {targets.NOT_MEASURED})


class Defeats(unittest.TestCase):
    def test_sockmap_behind(self):
        results = {"rows": [row("bulk-1", contender("sockmap", 10, 10), contender("copy", 20, 20),
                                contender("splice", 5, 5), contender("auto", 99, 99))]}
        found = [one for one in targets.sockmap_defeats(results) if one.measure.name == "value"]
        self.assertEqual([(one.winner["name"], one.ratio.summary.median) for one in found],
                         [("copy", 0.5)])

    def test_in_cpu_and_tail_too(self):
        def relay(name, cpu, bound):
            return contender(name, cells=[cell(1, 10, cpu_seconds=cpu, histogram=[[bound, 1000]])])
        results = {"rows": [row("a", relay("auto", 2, 30), relay("haproxy", 1, 10))]}
        self.assertEqual([one.measure.name for one in targets.peer_defeats(results)],
                         ["p99 latency", "CPU"])

    def test_engines_in_value_alone(self):
        results = {"rows": [row("a", contender("auto", 1), contender("copy-64K", 2),
                                contender("haproxy", 9))]}
        found = targets.engine_defeats(results)
        self.assertEqual([one.winner["name"] for one in found], ["copy-64K"])

    def test_level_is_no_defeat(self):
        results = {"rows": [row("a", contender("auto", 1), contender("nginx", 1))]}
        self.assertEqual(targets.peer_defeats(results), [])

    def test_absent(self):
        self.assertEqual(targets.sockmap_defeats({"rows": [row("a", contender("copy", 1))]}), [])


if __name__ == "__main__":
    unittest.main()
