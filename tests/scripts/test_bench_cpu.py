# SPDX-License-Identifier: BSD-2-Clause
"""CPU time of the machine and of a relay: bench_meter.py and cost.py. No root, no network."""

import os
import subprocess
import sys
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts", "lib"))

import bench_meter  # noqa: E402 (the path comes first)
import bench_relays  # noqa: E402
import cost  # noqa: E402

TICKS = bench_meter.TICKS


class CpuTest(unittest.TestCase):
    @staticmethod
    def stat(idle, iowait, steal, busy):
        """/proc/stat of two CPUs, in seconds."""
        ticks = [round(seconds * TICKS) for seconds in (busy, 0, 0, idle, iowait, 0, 0, steal)]
        line = " ".join(map(str, ticks))
        return f"cpu  {line} 0 0\ncpu0 {line} 0 0\ncpu1 {line} 0 0\nintr 5 6\ncpus 9\n"

    def test_machine_busy_is_what_was_not_idle_waiting_or_stolen(self):
        first = cost.parse_machine_cpu(self.stat(100, 10, 1, 70), 1000.0)
        last = cost.parse_machine_cpu(self.stat(100.5, 10.1, 1.2, 70), 1001.0)
        self.assertAlmostEqual(last[0] - first[0], 2 * 1.0 - 0.5 - 0.1 - 0.2)
        self.assertAlmostEqual(last[1] - first[1], 0.2)

    def test_time_that_no_tick_saw_is_busy_all_the_same(self):
        first, _ = cost.parse_machine_cpu(self.stat(100, 10, 1, 70), 1000.0)
        last, _ = cost.parse_machine_cpu(self.stat(100.1, 10, 1, 70.3), 1001.0)
        self.assertAlmostEqual(last - first, 1.9)

    def test_machine_refuses_what_is_no_stat(self):
        for text in ("cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 5 6 7 8\n", ""):
            with self.assertRaises(ValueError):
                cost.parse_machine_cpu(text, 1.0)

    def test_the_machine_is_as_busy_as_a_thread_that_does_not_sleep(self):
        began = cost.machine_cpu_seconds()
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        self.assertGreater(cost.machine_cpu_seconds() - began, 0.3 - 0.05)

    def test_process_name_may_hold_anything(self):
        after = " ".join(["S", "7", "8", "4321", *["0"] * 7, "100", "20", "3", "4", "20", "0"])
        session, seconds = bench_meter.parse_process_stat(f"99 (a) b (c) 1 2) {after}\n")
        self.assertEqual(session, 4321)
        self.assertAlmostEqual(seconds, 127 / TICKS)

    def test_own_session_holds_this_process(self):
        self.assertIn(os.getpid(), bench_meter.processes_of([os.getsid(0)]))
        self.assertEqual(bench_meter.processes_of([]), {})

    def test_other_sessions_are_read_once(self):
        others = set()
        bench_meter.processes_of([], others)
        self.assertIn(str(os.getpid()), others)
        self.assertEqual(bench_meter.processes_of([os.getsid(0)], others), {})

    def test_tree_looks_again_when_a_relay_is_added(self):
        tree = bench_meter.TreeCpu()
        self.assertEqual(tree.seconds(), 0)
        tree.add(os.getsid(0))
        self.assertGreater(tree.seconds(), 0)

    def test_no_figure_where_ended_processes_are_in_no_sum(self):
        def cpu_of(name, meter):
            return bench_relays.Relay(None, bench_relays.CONTENDERS[name], {}, [], meter).cpu

        tree, group = bench_meter.TreeCpu(), object.__new__(bench_meter.GroupCpu)
        self.assertIsNone(cpu_of("redir", tree))
        self.assertIsNone(cpu_of("socat", tree))
        self.assertIs(cpu_of("haproxy", tree), tree)
        self.assertIs(cpu_of("redir", group), group)

    def test_groups_of_killed_benchmarks_go(self):
        with tempfile.TemporaryDirectory() as folder:
            gone = subprocess.Popen(["true"])
            gone.wait()
            names = {f"culvert-bench-{gone.pid}-1": False, f"culvert-bench-{os.getpid()}-2": True,
                     f"culvert-bench-{gone.pid}-3": True, "other": True}
            for name in names:
                os.mkdir(f"{folder}/{name}")
            # Stands for a process inside: such a group cannot be removed.
            os.mkdir(f"{folder}/culvert-bench-{gone.pid}-3/inside")
            bench_meter.remove_stale_groups(folder)
            for name, stays in names.items():
                self.assertEqual(os.path.exists(f"{folder}/{name}"), stays, name)

    def test_cgroup_usage_is_in_microseconds(self):
        text = "usage_usec 2500000\nuser_usec 1000000\nsystem_usec 1500000\n"
        self.assertEqual(bench_meter.parse_cgroup_cpu(text), 2.5)

    def test_cgroup_folder(self):
        hybrid = ("30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
                  "31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw\n")
        find = bench_meter.parse_cgroup2_folder
        self.assertEqual(find(hybrid, "3:cpu:/x\n0::/\n"), "/sys/fs/cgroup/unified")
        self.assertEqual(find(hybrid, "0::/user.slice/a.scope\n"),
                         "/sys/fs/cgroup/unified/user.slice/a.scope")
        self.assertIsNone(find("30 25 0:26 / /sys rw - sysfs sysfs rw\n", "0::/\n"))
        self.assertIsNone(find(hybrid, "3:cpu:/x\n"))


if __name__ == "__main__":
    unittest.main()
