# SPDX-License-Identifier: BSD-2-Clause
"""What scripts/profile takes for the work, the configuration, the layers. No root, no network."""

import collections
import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts", "lib"))

import bench_clients  # noqa: E402 (the path comes first)
import bench_rows  # noqa: E402
import cost  # noqa: E402
import profile  # noqa: E402
import profile_compact as compact  # noqa: E402
import profile_load  # noqa: E402
import profile_relay  # noqa: E402
import profile_window as window  # noqa: E402
from flame import KERNEL, Frame  # noqa: E402

GAINED = {"seconds": 2.0, "payload": 4_000_000_000, "opened": 500, "sessions": 7, "exchange": 128,
          "machine_cpu": 3.0, "relay_cpu": 1.0}


def kernel(*names):
    return tuple(Frame(name, KERNEL, "") for name in names)


def user(name):
    return Frame(name, "user", "/usr/bin/relay")


class WorkloadTest(unittest.TestCase):
    def test_they_are_the_rows_of_the_benchmark(self):
        rows = {row.name: row for row in bench_rows.ROWS}
        for name, workload in profile_load.WORKLOADS.items():
            if name != "idle":
                self.assertIs(workload.load, rows[name].workload)
                self.assertEqual(workload.goal, rows[name].goal)
        for name in ("bulk-1", "bulk-8", "bulk-both", "rr-64x64", "rr-1Kx512", "rr-16Kx64", "crr",
                     "wrk", "idle"):
            self.assertIn(name, profile_load.WORKLOADS)
        self.assertEqual(profile_load.WORKLOADS["crr"].connections, 16)

    def test_the_load_is_started_as_in_the_benchmark(self):
        workload = profile_load.WORKLOADS["crr"]
        command = bench_clients.bench_command("b", workload.load, [("a", 1)], profile_load.TIMING,
                                              1)
        self.assertEqual(command[command.index("--connections") + 1], "16")
        self.assertIn("--source", command)

    def test_units_and_rates(self):
        workloads = profile_load.WORKLOADS
        self.assertEqual(workloads["bulk-1"].units(GAINED), 4.0)
        self.assertEqual(workloads["bulk-1"].rate(GAINED), "16.00 Gbit/s")
        self.assertEqual(workloads["rr-64x64"].units(GAINED), 4e9 / 128)
        self.assertEqual(workloads["crr"].rate(GAINED), "250 transactions/s")
        self.assertEqual(workloads["idle"].units(GAINED), profile_load.IDLE_CONNECTIONS)
        self.assertEqual(workloads["idle"].rate(GAINED), "7 sessions held")


    def test_payload_of_an_exchange(self):
        workloads = profile_load.WORKLOADS
        self.assertEqual(workloads["rr-64x64"].exchange({}), 128)
        self.assertIsNone(workloads["bulk-1"].exchange({}))
        request = len("GET /small/0 HTTP/1.1\r\nHost: 10.0.1.2:9000\r\n\r\n")
        self.assertEqual(len(profile_load.RELAY), len("10.0.1.2"))
        self.assertEqual(workloads["wrk"].exchange({"bytes": 12_300, "requests": 10}),
                         request + 1230)


class WindowTest(unittest.TestCase):
    def test_payload_of_sockets(self):
        text = ("0 0 10.0.2.2:7000 10.0.2.1:41000\n\t cubic wscale:7,7 rto:204 cwnd:10 "
                "bytes_sent:640 bytes_acked:576 bytes_received:704 segs_out:11\n"
                "0 0 10.0.2.2:7000 10.0.2.1:41001\n\t cubic cwnd:10 bytes_received:64\n")
        self.assertEqual(window.parse_sockets(text), {"payload": 576 + 704 + 64, "sessions": 2})
        self.assertEqual(window.parse_sockets(""), {"payload": 0, "sessions": 0})

    def test_accepted_connections(self):
        text = ("Ip: A B\nIp: 1 2\nTcp: RtoMin ActiveOpens PassiveOpens\nTcp: 200 5 4711\n"
                "Udp: X\nUdp: 3\n")
        self.assertEqual(window.parse_passive_opens(text), 4711)

    def test_cpu_of_a_relay(self):
        self.assertEqual(window.parse_relay_cpu("usage_usec 2500000\nuser_usec 1\n"), 2.5)
        after = " ".join(["S", *["1"] * 10, "100", "20", "30", "4", "20", "0"])
        line = f"99 (a) b) {after}\n"
        self.assertAlmostEqual(window.parse_relay_cpu(line + line), 240 / cost.TICKS)
        self.assertEqual(window.parse_relay_cpu(""), 0)


class SubjectTest(unittest.TestCase):
    def choose(self, name, row, results, suffix=".json"):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results" + suffix)
            with (gzip.open if suffix.endswith("gz") else open)(path, "wt") as file:
                file.write(results if isinstance(results, str) else json.dumps(results))
            return profile_relay.choose_subject(name, profile_load.WORKLOADS[row], 2,
                                                [os.path.join(folder, "missing.json"), path])

    def test_the_calibration_of_the_row_decides(self):
        results = {"calibration": [
            {"row": "crr", "contender": "haproxy", "chosen": "nbthread 2, bufsize 65536"},
            {"row": "rr-64x64", "contender": "nginx", "chosen": "nonsense"},
            {"row": "rr-64x64", "contender": "haproxy", "chosen": "nbthread 1, bufsize 65536"}]}
        for suffix in (".json", ".json.gz"):
            subject = self.choose("haproxy", "rr-64x64", results, suffix)
            self.assertEqual(subject.config, {"nbthread": 1, "bufsize": 65536})
            self.assertIn("best for this row", subject.source)
        subject = self.choose("nginx", "rr-64x64", results)
        self.assertEqual(subject.config, {"worker_processes": 2, "proxy_buffer_size": 16384})
        self.assertIn("no calibration", subject.source)

    def test_broken_results_are_passed_over(self):
        for text in ("", "{", "[]", "{}", '{"calibration": null}', '{"calibration": [{}]}'):
            subject = self.choose("haproxy", "crr", text)
            self.assertIn("no calibration", subject.source)

    def test_culvert_has_nothing_to_choose(self):
        subject = self.choose("auto", "bulk-1", "{}")
        self.assertTrue(subject.is_culvert)
        self.assertEqual((subject.program, subject.describe()), ("culvert", "--engine auto"))

    def test_the_direct_path_is_no_relay(self):
        self.assertNotIn("direct", profile_relay.PROFILED)


class LayerTest(unittest.TestCase):
    def layer(self, *names):
        return compact.layer_of_stack(kernel(*names))

    def test_layers(self):
        for layer, names in (
                (compact.TX, ("tcp_sendmsg", "tcp_sendmsg_locked", "__alloc_skb")),
                (compact.RX, ("net_rx_action", "tcp_v4_rcv", "tcp_rcv_established")),
                # what is sent because something came
                (compact.TX, ("tcp_v4_rcv", "tcp_ack", "tcp_write_xmit", "kmem_cache_alloc")),
                # what comes while something is sent
                (compact.RX, ("tcp_write_xmit", "ip_output", "net_rx_action", "tcp_v4_rcv")),
                ("copy", ("tcp_recvmsg", "_copy_to_iter")),
                ("scheduler", ("tcp_recvmsg", "schedule")),
                ("epoll", ("do_epoll_wait",)),
                ("BPF, sockmap", ("tcp_data_ready", "sk_psock_verdict_recv")),
                ("softirq, netdev", ("net_rx_action", "process_backlog")),
                (compact.SET_UP, ("inet_csk_accept", "kmem_cache_free")),
                (compact.OTHER, ("kmem_cache_free",)), (compact.OTHER, ())):
            self.assertEqual(self.layer(*names), layer, names)
        self.assertEqual(compact.layer_of_stack((user("main"),)), compact.USER)

    def test_locks_belong_to_who_takes_them(self):
        slow = "native_queued_spin_lock_slowpath"
        self.assertEqual(self.layer("do_epoll_wait", "_raw_spin_lock", slow), "epoll")
        self.assertEqual(self.layer("tcp_sendmsg", "lock_sock_nested", slow), compact.TX)
        spins = (user("main"), *kernel("do_exit", "mutex_spin_on_owner"))
        self.assertEqual(compact.layer_of_stack(spins), compact.OTHER)

    def test_top_functions_stand_by_layer(self):
        by_role = {"client": {kernel("tcp_recvmsg", "_copy_to_iter"): 5},
                   "relay": {kernel("tcp_sendmsg"): 3, kernel("tcp_sendmsg", "tcp_push"): 4,
                             kernel("do_epoll_wait"): 1}}
        self.assertEqual(compact.top_functions(by_role, 3), [
            (compact.TX, "tcp_push", 4), (compact.TX, "tcp_sendmsg", 3),
            ("copy", "_copy_to_iter", 5)])


class CompactTest(unittest.TestCase):
    def result(self, name="haproxy"):
        subject = profile_relay.choose_subject(name, profile_load.WORKLOADS["bulk-1"], 2, [])
        result = profile.Result(subject, profile_load.WORKLOADS["bulk-1"], 2.0)
        result.gained = {"cost": GAINED, "oncpu": GAINED}
        result.cost = ({"context-switches": 40.0}, {"context-switches": 4.0})
        result.oncpu = {
            result.relay: collections.Counter({kernel("tcp_sendmsg", "tcp_push"): 60}),
            "client": collections.Counter({(user("main"),): 20}),
            "idle": collections.Counter({kernel("default_idle"): 900}),
            "other programs": collections.Counter({(user("main"),): 20})}
        return result

    def test_a_sample_stands_for_its_share_of_the_busy_time(self):
        self.assertAlmostEqual(compact.seconds_of_sample(self.result()), 3.0 / 100)

    def test_text(self):
        text = compact.compact(self.result())
        self.assertIn("### haproxy, bulk-1: 16.00 Gbit/s", text)
        self.assertIn("| context switches, haproxy | 1 |", text)
        # 60 of 80 samples; 60 * 0.03 s / 4 GB
        self.assertIn("| TCP tx | 75.0 % | 0.45 | 0.45 |  |", text)
        self.assertIn("| TCP tx: `tcp_push` | 75.0 % |", text)
        self.assertIn("Other programs took 20.0 %", text)

    def test_what_was_not_measured_is_said(self):
        result = self.result("auto")
        result.oncpu, result.missing = None, {"oncpu": "no\nperf"}
        text = compact.compact(result)
        self.assertIn("Not measured: oncpu: no perf", text)
        self.assertNotIn("TCP tx", text)


class CommitTest(unittest.TestCase):
    def test_a_machine_without_git(self):
        with unittest.mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            self.assertEqual(compact.commit(), "without git")


class OptionTest(unittest.TestCase):
    SCRIPT = os.path.join(TOP, "scripts", "lib", "profile.py")

    def check(self, *words):
        return subprocess.run([sys.executable, "-B", self.SCRIPT, *words, "--culvert", "c",
                               "--bench", "b", "--check"], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)

    def test_mistakes_are_one_line(self):
        for words in (("direct", "crr"), ("auto", "iperf3-1"), ("auto", "sweep-rr"), ("auto",),
                      ("auto", "crr", "--seconds", "0"), ("auto", "crr", "--seconds", "nan"),
                      ("auto", "crr", "--seconds", "1e2"), ("auto", "crr", "--sessions", "0"),
                      ("auto", "crr", "--sessions", "x"), ("auto", "crr", "--parts", "cost,x"),
                      ("auto", "crr", "--bogus")):
            result = self.check(*words, "--out", "/nonexistent/x")
            self.assertEqual(result.returncode, 2, words)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_a_folder_that_cannot_be_written_is_found_first(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "file")
            with open(path, "w", encoding="ascii"):
                pass
            result = self.check("auto", "bulk", "--out", os.path.join(path, "out"))
            self.assertEqual(result.returncode, 1)
            self.assertIn("Not a directory", result.stderr)
            self.assertEqual(self.check("auto", "bulk", "--out", folder).returncode, 0)

    def test_parts_keep_their_order(self):
        self.assertEqual(profile.part_list("oncpu,cost"), ("cost", "oncpu"))


if __name__ == "__main__":
    unittest.main()
