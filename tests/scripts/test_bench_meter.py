# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark's parsing, arithmetic and data: bench_*.py. No root, no network."""

import json
import os
import subprocess
import sys
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts", "lib"))

import bench_cells  # noqa: E402 (the path comes first)
import bench_clients  # noqa: E402
import bench_idle  # noqa: E402
import bench_meter  # noqa: E402
import bench_plan  # noqa: E402
import bench_relays  # noqa: E402
import bench_results  # noqa: E402
import bench_rows  # noqa: E402
from bench_choice import choose_best  # noqa: E402
from labkit import LabError  # noqa: E402

K = 1024
FORWARD = bench_relays.Forward(9000, 6000)


class RecordTest(unittest.TestCase):
    SAMPLES = [(10.0, {"cpu": 1.0, "kernel": 500}), (10.5, {"cpu": 2.0, "kernel": 900}),
               (11.0, {"cpu": 4.0, "kernel": 700}), (11.5, {"cpu": 4.5, "kernel": 400})]

    def test_only_samples_within_count(self):
        changes = bench_meter.changes_between(self.SAMPLES, 10.2, 11.2)
        self.assertEqual(changes, {"cpu": 2.0, "kernel": -200, "seconds": 0.5})

    def test_the_ends_belong_to_it(self):
        changes = bench_meter.changes_between(self.SAMPLES, 10.0, 11.5)
        self.assertEqual((changes["cpu"], changes["seconds"]), (3.5, 1.5))

    def test_a_single_sample_tells_nothing(self):
        with self.assertRaises(ValueError):
            bench_meter.changes_between(self.SAMPLES, 10.9, 11.4)

    def test_peak_is_beyond_the_first_and_never_negative(self):
        self.assertEqual(bench_meter.peak_beyond_first(self.SAMPLES, "kernel"), 400)
        self.assertEqual(bench_meter.peak_beyond_first(self.SAMPLES[1:], "kernel"), 0)

    def test_recorder_takes_one_at_once_and_ends(self):
        counts = iter(range(1000))
        samples = bench_meter.Recorder(lambda: {"n": next(counts)}).close()
        self.assertEqual(samples[0][1], {"n": 0})

    def test_recorder_keeps_the_pace_that_the_probe_asks_for(self):
        class Probe:
            interval = 60

            def __call__(self):
                return {"n": 0}

        recorder = bench_meter.Recorder(Probe())
        time.sleep(3 * bench_meter.SAMPLE_SECONDS)
        self.assertEqual(len(recorder.close()), 1)

    def test_relay_and_machine_are_read_in_the_same_sample(self):
        meter = bench_meter.TreeCpu()
        probe = bench_meter.probe_machine(meter)
        self.assertEqual(probe.interval, meter.interval)
        self.assertEqual(set(probe()), {"relay", "cpu", "steal", "kernel"})
        self.assertEqual(set(bench_meter.probe_machine(None)()), {"cpu", "steal", "kernel"})

    def test_counts_are_scaled_to_the_work_of_the_cell(self):
        self.assertEqual(bench_meter.scaled(300, 100.0, 250.0), 750)
        self.assertIsNone(bench_meter.scaled(300, 0, 250.0))

    def test_counts_are_filled_in(self):
        cell = {"work": 50.0, "relay_syscalls": None, "relay_switches": None}
        bench_cells.apply_counts(cell, {"syscalls": 10, "switches": 0, "work": 5.0})
        self.assertEqual((cell["relay_syscalls"], cell["relay_switches"]), (100, 0))
        failed = {"failed": "why"}
        bench_cells.apply_counts(failed, {"syscalls": 10, "switches": 0, "work": 5.0})
        self.assertEqual(failed, {"failed": "why"})

    def test_carriers_are_differences(self):
        self.assertEqual(bench_cells.difference({"copy": 5}, {"copy": 7, "splice": 3}),
                         {"copy": 2, "splice": 3})
        self.assertIsNone(bench_cells.difference(None, None))

    def test_cell_counts_the_work_of_the_window(self):
        measurement = bench_clients.Measurement(value=8.0, per_second=1.0)
        changes = {"seconds": 0.5, "cpu": 0.25, "steal": 0.0, "relay": 0.1}
        cell = bench_cells.cell_of(measurement, changes, 4096, 0)
        self.assertEqual((cell["work"], cell["cpu_seconds"], cell["relay_cpu_seconds"]),
                         (0.5, 0.25, 0.1))
        self.assertEqual(cell["extra"], {})
        noisy = bench_cells.cell_of(measurement, {**changes, "steal": 0.1}, 0, 3)
        self.assertEqual(noisy["extra"], {"stolen_cpu_seconds": 0.1, "sockets_left_before": 3})


class RelayTest(unittest.TestCase):
    def test_haproxy(self):
        conf = bench_relays.haproxy_conf({"nbthread": 2, "bufsize": 65536}, FORWARD, 77)
        for line in ("nbthread 2", "maxconn 77", "tune.bufsize 65536",
                     "bind 10.0.1.2:9000 backlog 16384", "server upstream 10.0.2.2:6000"):
            self.assertIn(f"    {line}\n", conf)
        self.assertNotIn("splice", conf)
        self.assertNotIn("pipe", conf)

    def test_haproxy_splice(self):
        config = {"nbthread": 1, "bufsize": 16384, "splice": "always", "pipesize": 262144}
        conf = bench_relays.haproxy_conf(config, FORWARD, 77)
        for line in ("option splice-request", "option splice-response", "tune.pipesize 262144",
                     f"maxpipes {bench_relays.MAXIMUM_PIPES}"):
            self.assertIn(f"    {line}\n", conf)
        conf = bench_relays.haproxy_conf({**config, "splice": "auto", "pipesize": None}, FORWARD, 1)
        self.assertIn("option splice-auto\n", conf)
        self.assertNotIn("pipesize", conf)

    def test_nginx(self):
        config = {"worker_processes": 2, "proxy_buffer_size": 65536}
        conf = bench_relays.nginx_conf(config, FORWARD, 100, "/lab/x", "load_module m;\n")
        self.assertTrue(conf.startswith("load_module m;\ndaemon off;\n"))
        for text in ("worker_processes 2;", "worker_connections 264;", "pid /lab/x.pid;",
                     "listen 10.0.1.2:9000 backlog=16384 reuseport;",
                     "proxy_pass 10.0.2.2:6000;", "proxy_buffer_size 65536;"):
            self.assertIn(text, conf)
        self.assertEqual(conf.count("{"), conf.count("}"))
        alone = bench_relays.nginx_conf({**config, "worker_processes": 1}, FORWARD, 1, "h")
        self.assertNotIn("reuseport", alone)

    def test_nginx_module(self):
        find = bench_relays.nginx_stream_module
        self.assertIsNone(find("configure arguments: --with-stream_ssl_module"))
        self.assertEqual(find("configure arguments: --with-stream --x"), "")
        self.assertEqual(find("--modules-path=/usr/lib/m --with-stream=dynamic"),
                         "/usr/lib/m/ngx_stream_module.so")

    def test_socat_and_redir(self):
        command = bench_relays.socat_command({"buffer": 8192, "nodelay": True}, FORWARD)
        self.assertEqual(command[-1], "TCP4:10.0.2.2:6000,nodelay")
        self.assertIn("8192", command)
        command = bench_relays.socat_command({"buffer": 8192, "nodelay": False}, FORWARD)
        self.assertNotIn("nodelay", " ".join(command))
        command = bench_relays.redir_command({"bufsize": 4096}, FORWARD)
        self.assertIn("--bufsize=4096", command)
        # its "none" logs everything, to the console where there is no syslog
        self.assertEqual(command[command.index("-l") + 1], "err")

    def test_culvert_has_one_configuration(self):
        sweep = bench_relays.CONTENDERS["copy-8K"]
        self.assertEqual(sweep.configs(bench_relays.BULK, 2), [{}])
        self.assertEqual(sweep.describe({}), "--engine copy --copy-buffer 8K")
        self.assertEqual(bench_relays.CONTENDERS["auto"].describe({}), "--engine auto")
        self.assertEqual(bench_relays.CONTENDERS["auto-1w"].describe({}),
                         "--engine auto --workers 1")

    def test_every_configuration_can_be_written_and_told_apart(self):
        goals = (bench_relays.BULK, bench_relays.CONVERSATION, bench_relays.CONNECT,
                 bench_relays.IDLE)
        for contender in bench_relays.CONTENDERS.values():
            for goal in goals:
                texts = [contender.describe(config) for config in contender.configs(goal, 2)]
                self.assertEqual(len(texts), len(set(texts)), contender.name)
                self.assertLessEqual(len(texts), 16, "ports of a contender")
        for config in bench_relays.CONTENDERS["haproxy-splice"].configs(bench_relays.BULK, 1):
            self.assertIn("splice", bench_relays.haproxy_conf(config, FORWARD, 1))

    def test_workers(self):
        self.assertEqual(bench_relays.worker_counts(1), [1])
        self.assertEqual(bench_relays.worker_counts(2), [2, 1])
        self.assertEqual(bench_relays.worker_counts(8), [8, 2, 1])

    def test_carriers(self):
        status = {"carriers": [{"carrier": "copy", "flows": 1, "bytes": 5},
                               {"carrier": "splice", "flows": 0, "bytes": 0}]}
        self.assertEqual(bench_relays.carriers_of(status), {"copy": 5, "splice": 0})


class RowTest(unittest.TestCase):
    def test_names(self):
        names = [row.name for row in bench_rows.ROWS]
        self.assertEqual(len(names), len(set(names)))
        for row in bench_rows.ROWS:
            for name in row.contenders:
                self.assertIn(name, bench_relays.CONTENDERS)
        for name in bench_rows.QUICK:
            self.assertIn(name, bench_relays.CONTENDERS)

    def test_selection(self):
        def names(patterns, quick=False):
            return [row.name for row in bench_rows.select_rows(patterns, quick)]

        self.assertEqual(names([]), [row.name for row in bench_rows.ROWS])
        self.assertEqual(names([], True), [row.name for row in bench_rows.ROWS if row.quick])
        self.assertEqual(names(["sweep"]), ["sweep-bulk", "sweep-rr"])
        self.assertEqual(names(["crr", "rr-64*"]), ["rr-64x1", "rr-64x64", "crr"])
        with self.assertRaises(bench_rows.SelectionError):
            names(["crr", "nonsense"])

    def test_contenders(self):
        known = bench_relays.CONTENDERS
        self.assertEqual(bench_rows.select_contenders([], False, known),
                         set(known) - {"auto-1w"})
        self.assertEqual(bench_rows.select_contenders(["auto-1w"], True, known), {"auto-1w"})
        self.assertEqual(bench_rows.select_contenders(["auto"], True, known), {"auto"})
        with self.assertRaises(bench_rows.SelectionError):
            bench_rows.select_contenders(["auto", "netcat"], False, known)

    def test_idle_rows_share_their_measurement(self):
        groups = bench_rows.group_rows(bench_rows.ROWS)
        self.assertEqual([[row.name for row in group] for group in groups if len(group) > 1],
                         [["idle", "mixed-0", "mixed"]])

    def test_order(self):
        """A shuffle: each contender once, alike in all runs, another in each round and row."""
        order = bench_rows.order_of_round
        self.assertEqual(order([], 5), [])
        rounds = [order("ABCDEF", number, "crr") for number in range(1, 17)]
        for one in rounds:
            self.assertEqual(sorted(one), list("ABCDEF"))
        self.assertEqual(rounds, [order("ABCDEF", number, "crr") for number in range(1, 17)])
        self.assertGreater(len(set(map(tuple, rounds))), 12)
        self.assertNotEqual(rounds, [order("ABCDEF", number, "wrk") for number in range(1, 17)])

    def test_order_does_not_depend_on_the_process(self):
        """Hashes of strings do."""
        code = "import bench_rows; print(bench_rows.order_of_round('ABCDEF', 3, 'crr'))"
        for seed in ("0", "1"):
            found = subprocess.run(
                [sys.executable, "-B", "-c", code], check=True, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONHASHSEED": seed,
                     "PYTHONPATH": os.path.join(TOP, "scripts", "lib")}).stdout
            self.assertEqual(found.strip(), str(bench_rows.order_of_round("ABCDEF", 3, "crr")))

    def test_nobody_always_follows_the_same_one(self):
        rounds = [bench_rows.order_of_round("ABCDE", number, "crr") for number in range(1, 13)]
        for name in "ABCDE":
            before = [order[order.index(name) - 1] for order in rounds if order.index(name)]
            self.assertGreater(len(set(before)), 2)
            self.assertLessEqual(max(map(before.count, before)), 6)

    def test_choice_of_configuration(self):
        self.assertEqual(choose_best([("a", 1), ("b", 3), ("c", None)], "higher"), "b")
        self.assertEqual(choose_best([("a", 1), ("b", 3), ("c", None)], "lower"), "a")
        self.assertEqual(choose_best([("a", None), ("b", None)], "lower"), "a")


if __name__ == "__main__":
    unittest.main()
