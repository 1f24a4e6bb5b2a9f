# SPDX-License-Identifier: BSD-2-Clause
"""Verdicts: rivals.py and targets.py. No root, no network, no gnuplot."""

import os
import sys
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TOP, "scripts", "lib"), os.path.dirname(os.path.abspath(__file__))]

import figures  # noqa: E402 (the paths come first)
import rivals  # noqa: E402
import targets  # noqa: E402
from sample_rows import cell, contender, row  # noqa: E402


class Best(unittest.TestCase):
    def test_by_ratios_within_the_rounds(self):
        # splice has the better median, but auto's ratio to copy is lower in most rounds
        one = row("x", contender("auto", 10, 100, 1000), contender("splice", 9, 300, 900),
                  contender("copy", 20, 200, 100))
        self.assertEqual(rivals.best_engine(one)["name"], "copy")

    def test_by_median_without_auto(self):
        one = row("x", contender("sockmap", 1, 50, 100), contender("splice", 40, 60, 60),
                  contender("copy", 55, 55, 55))
        self.assertEqual(rivals.best_engine(one)["name"], "splice")

    def test_less_is_better(self):
        for others in ([], [contender("auto", 400)]):
            one = row("x", *others, contender("nginx", 9700), contender("haproxy", 3300),
                      better="lower")
            self.assertEqual(rivals.best_peer(one)["name"], "haproxy")

    def test_neither_auto_nor_its_control_nor_other_buffers_are_single_engines(self):
        one = row("x", contender("auto", 9), contender("auto-again", 9),
                  contender("copy-256K", 8), contender("copy", 1))
        self.assertEqual(rivals.best_engine(one)["name"], "copy")

    def test_failed_and_missing(self):
        self.assertIsNone(rivals.best_engine(row("x", contender("sockmap", None, None))))
        self.assertIsNone(rivals.best_peer(row("x", contender("auto", 1))))
        one = row("x", contender("haproxy", None), contender("nginx", 1),
                  contender("socat", cells=[]))
        self.assertEqual(rivals.best_peer(one)["name"], "nginx")

    def test_first_of_equals(self):
        for others in ([], [contender("auto", 4)]):
            one = row("x", *others, contender("nginx", 5), contender("haproxy", 5))
            self.assertEqual(rivals.best_peer(one)["name"], "nginx")

    def test_by_another_measure(self):
        one = row("x", contender("nginx", cells=[cell(1, 9, cpu_seconds=9)]),
                  contender("haproxy", cells=[cell(1, 1, cpu_seconds=1)]))
        self.assertEqual(rivals.best_peer(one, figures.cpu_measure(one))["name"], "haproxy")

    def test_of_those_in_the_decisive_rounds(self):
        one = row("x", contender("auto", 10, 10, 10), contender("nginx", 12),
                  contender("haproxy", 11, 11, 11))
        self.assertEqual(rivals.best_peer(one)["name"], "nginx")
        one["decisive"] = ["auto", "haproxy"]
        self.assertEqual(rivals.best_peer(one)["name"], "haproxy")


class Deciders(unittest.TestCase):
    def of(self, *contenders, **options):
        return rivals.deciders(row("x", *contenders), **options)

    def test_subject_control_and_the_best(self):
        self.assertEqual(self.of(
            contender("direct", 99), contender("auto", 10), contender("auto-again", 10),
            contender("sockmap", 5), contender("copy", 8), contender("haproxy", 4),
            contender("nginx", 9)), ["auto", "auto-again", "copy", "nginx"])

    def test_runner_up_within_five_per_cent(self):
        self.assertEqual(self.of(contender("auto", 100), contender("copy", 100),
                                 contender("splice", 96), contender("sockmap", 95.5),
                                 contender("haproxy", 100), contender("nginx", 95)),
                         ["auto", "copy", "splice", "haproxy"])

    def test_runner_up_within_the_noise(self):
        contenders = (contender("auto", 100, 100), contender("copy", 100, 100),
                      contender("splice", 85, 85))
        self.assertEqual(self.of(*contenders), ["auto", "copy"])
        self.assertEqual(self.of(*contenders, contender("auto-again", 80, 125)),
                         ["auto", "auto-again", "copy", "splice"])

    def test_nothing_to_decide(self):
        self.assertEqual(self.of(contender("copy", 1)), [])
        self.assertEqual(self.of(contender("auto", None), contender("copy", 1)), [])
        self.assertEqual(self.of(contender("auto", 1), contender("copy", None)), [])

    def test_a_control_that_failed(self):
        self.assertEqual(self.of(contender("auto", 1), contender("auto-again", None),
                                 contender("copy", 1)), ["auto", "copy"])

    def test_auto_by_itself(self):
        self.assertEqual(self.of(contender("auto", 1), contender("auto-again", 1),
                                 contender("copy", 1), rivals_too=False), ["auto", "auto-again"])


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

    def engine(self, *autos):
        return outcome(outcomes_of(self.rr(*autos)), "title of rr-64x64",
                       "best single engine (sockmap)")

    def test_held(self):
        one = self.engine(99, 99, 98)
        self.assertEqual((one.verdict, one.rounds_met, one.summary.count), (targets.HELD, 3, 3))
        self.assertTrue(one.meets_by_median)

    def test_held_at_the_bound(self):
        self.assertEqual(self.engine(97, 97, 97).verdict, targets.HELD)

    def test_missed(self):
        found = outcomes_of(self.rr(87, 86, 86))
        self.assertEqual(outcome(found, "title of rr-64x64", "engine").verdict, targets.MISSED)
        found = outcomes_of(self.rr(70, 71, 70))
        one = outcome(found, "title of rr-64x64", "best peer (haproxy)")
        self.assertEqual((one.verdict, one.required), (targets.MISSED, "\u2265 1.10"))
        self.assertFalse(one.meets_by_median)

    def test_cannot_tell(self):
        one = self.engine(97, 99, 90)
        self.assertEqual((one.verdict, one.rounds_met, one.summary.median),
                         (targets.ABOVE, 2, 0.97))
        self.assertTrue(one.is_undecided and one.meets_by_median)
        one = self.engine(87, 99, 80)
        self.assertEqual(one.verdict, targets.BELOW)
        self.assertTrue(one.is_undecided and not one.meets_by_median)

    def test_a_single_round_decides_nothing(self):
        self.assertEqual(self.engine(200).verdict, targets.ABOVE)

    def test_the_control_widens_the_interval(self):
        def verdict(*control):
            one = row("wrk", contender("auto", 100, 100, 100), contender("copy", 99, 99, 99),
                      contender("auto-again", *control))
            return outcome(outcomes_of(one), "title of wrk", "engine").verdict
        self.assertEqual(verdict(100, 100, 100), targets.HELD)
        self.assertEqual(verdict(102, 102, 102), targets.HELD)
        self.assertEqual(verdict(110, 110, 110), targets.ABOVE)
        self.assertEqual(verdict(90, 90, 90), targets.ABOVE)

    def test_of_decisive_rounds_those_alone_count(self):
        """The ordinary one, which chose the rival, would miss the target."""
        one = row("wrk", contender("auto", *[100] * 10), contender("copy", 300, *[99] * 9),
                  contender("auto-again", 50, *[100] * 9), contender("splice", 150))
        one.update(ordinary_rounds=1, decisive=["auto", "auto-again", "copy"])
        found = outcome(outcomes_of(one), "title of wrk", "best single engine (copy)")
        self.assertEqual((found.verdict, found.summary.count, found.rounds_met),
                         (targets.HELD, 9, 9))
        self.assertAlmostEqual(found.summary.low, 100 / 99)
        self.assertAlmostEqual(found.interval.low, 100 / 99)

    def test_ordinary_rounds_count_where_no_decisive_one_ran(self):
        one = row("wrk", contender("auto", 100, 100), contender("copy", 99, 99))
        one.update(ordinary_rounds=2, decisive=["auto", "copy"])
        found = outcome(outcomes_of(one), "title of wrk", "best single engine (copy)")
        self.assertEqual(found.summary.count, 2)

    def test_a_round_that_failed_before_the_decisive_ones_is_not_left_out_of_them(self):
        one = row("wrk", contender("auto", 100, None, 100, None), contender("copy", *[99] * 4))
        one.update(ordinary_rounds=2, decisive=["auto", "copy"])
        found = outcome(outcomes_of(one), "title of wrk", "best single engine (copy)")
        self.assertEqual([number for number, _why in found.left_out], [4])

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
        found = outcomes_of(self.idle([400, 401, 402], 4001, [1200, 1203, 1206]))
        daemon = outcome(found, "title of idle", "daemon's marginal memory")
        self.assertEqual((daemon.verdict, daemon.rounds_met), (targets.HELD, 3))
        self.assertEqual(outcome(found, "title of idle", "kernel memory").verdict, targets.MISSED)
        peer = outcome(found, "title of idle", "best peer (haproxy) / auto")
        self.assertEqual((peer.verdict, peer.summary.median), (targets.HELD, 3.0))

    def test_idle_memory_that_varies(self):
        found = outcomes_of(self.idle([400, 500, 600], 3999, [1]))
        daemon = outcome(found, "title of idle", "daemon's marginal memory")
        self.assertEqual((daemon.verdict, daemon.rounds_met, daemon.meets_by_median),
                         (targets.BELOW, 2, True))

    def test_idle_memory_without_the_kernels(self):
        one = outcome(outcomes_of(self.idle([400], None, [1])), "title of idle", "kernel memory")
        self.assertEqual((one.verdict, one.why), (targets.NOT_MEASURED, "no round has this figure"))
        self.assertEqual(one.left_out, ((1, "the figure was not taken"),))

    def test_nothing_is_within_any_limit(self):
        found = outcomes_of(self.idle([0, 0], 0, [100, 100]))
        daemon = outcome(found, "title of idle", "daemon's marginal memory")
        self.assertEqual(daemon.verdict, targets.HELD)
        self.assertEqual(outcome(found, "title of idle", "best peer").verdict,
                         targets.NOT_MEASURED)

    def test_beside_idle_sessions(self):
        found = outcomes_of(row("mixed", contender("auto", 95, 95, 95)),
                            row("mixed-0", contender("auto", 100, 100, 100)))
        one = outcome(found, "title of mixed", "idle sessions open")
        self.assertEqual((one.verdict, one.summary.median), (targets.HELD, 0.95))
        found = outcomes_of(row("mixed", contender("auto", 95, 95),
                                contender("auto-again", 95, 95)),
                            row("mixed-0", contender("auto", 100, 100),
                                contender("auto-again", 90, 90)))
        one = outcome(found, "title of mixed", "idle sessions open")
        self.assertEqual(one.verdict, targets.ABOVE)
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
            return contender(name, cells=[cell(number, 10, cpu_seconds=cpu,
                                               histogram=[[bound, 1000]]) for number in (1, 2)])
        results = {"rows": [row("a", relay("auto", 2, 30), relay("haproxy", 1, 10))]}
        self.assertEqual([one.measure.name for one in targets.peer_defeats(results)],
                         ["p99 latency", "CPU"])

    def test_engines_in_value_alone(self):
        results = {"rows": [row("a", contender("auto", 1), contender("copy-64K", 2),
                                contender("haproxy", 9))]}
        found = targets.engine_defeats(results)
        self.assertEqual([one.winner["name"] for one in found], ["copy-64K"])

    def test_behind_only_if_the_interval_says_so(self):
        def is_behind(*contenders):
            found = targets.peer_defeats({"rows": [row("a", *contenders)]})
            return [one.is_behind for one in found if one.measure.name == "value"]
        auto, nginx = contender("auto", 96, 97, 96), contender("nginx", 100, 100, 100)
        self.assertEqual(is_behind(auto, nginx), [True])
        self.assertEqual(is_behind(contender("auto", 96, 97, 103), nginx), [False])
        self.assertEqual(is_behind(contender("auto", 50), nginx), [False])
        self.assertEqual(is_behind(auto, nginx, contender("auto-again", 90, 90, 90)), [False])
        self.assertEqual(is_behind(auto, nginx, contender("auto-again", 96, 97, 96)), [True])

    def test_the_control_is_no_engine(self):
        results = {"rows": [row("a", contender("auto", 1, 1), contender("auto-again", 2, 2))]}
        self.assertEqual(targets.engine_defeats(results), [])

    def test_level_is_no_defeat(self):
        results = {"rows": [row("a", contender("auto", 1), contender("nginx", 1))]}
        self.assertEqual(targets.peer_defeats(results), [])

    def test_absent(self):
        self.assertEqual(targets.sockmap_defeats({"rows": [row("a", contender("copy", 1))]}), [])


if __name__ == "__main__":
    unittest.main()
