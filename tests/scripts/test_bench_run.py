# SPDX-License-Identifier: BSD-2-Clause
"""How a run of the benchmark goes: its plan, the choice of configurations, decisive rounds, and
results that cannot be written. Nothing is measured: cells are made up. No root, no network."""

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

from bench import contenders, loads, measuring, running
from bench.contenders import CONTENDERS, Forward, Relay, Relays
from bench.rows import (DATAGRAMS, QUESTIONS, ROWS, Plan, select_contenders,
                        select_rows)
from bench.running import OutputError, Progress, Results
from labkit import LabError
from sample_rows import contender, row

BY_NAME = {row.name: row for row in ROWS}
CELL = {"latency_us": None, "histogram": None, "cpu_seconds": 1.0, "work": 1.0,
        "relay_cpu_seconds": None, "relay_syscalls": None, "relay_switches": None,
        "kernel_peak_bytes": None, "errors": 0, "wrong": 0, "carriers": None, "extra": {}}


def options(**changed):
    return argparse.Namespace(**{"rounds": 2, "seconds": 1.0, "calibrate": False, "idle": 100,
                                 "decisive": 3, **changed})


def plan(rows, names, **changed):
    return Plan(options(**changed), select_rows(rows, False),
                {name: CONTENDERS[name] for name in names})


def default_plan(rounds, seconds, decisive, quick):
    return Plan(options(rounds=rounds, seconds=seconds, decisive=decisive, idle=20000,
                        calibrate=not quick), select_rows([], quick),
                select_contenders([], quick, CONTENDERS))


class Planned(unittest.TestCase):
    def test_decisive_rounds(self):
        one = plan(["crr", "rr-64x1", "mixed"], ["auto", "copy"], decisive=20)
        crr, alone, mixed = (BY_NAME[name] for name in ("crr", "rr-64x1", "mixed"))
        self.assertEqual(list(one.decisive_numbers([crr])), list(range(3, 23)))
        self.assertEqual(list(one.decisive_numbers([alone])), [])
        self.assertEqual(list(one.decisive_numbers([mixed])), list(range(3, 9)))
        self.assertEqual((one.round_text(crr, 2), one.round_text(crr, 3)), ("2/2", "+1/20"))

    def test_they_take_time(self):
        names = ["auto", "auto-again", "copy", "haproxy"]
        without, with_them = (plan(["crr"], names, decisive=count) for count in (0, 3))
        self.assertAlmostEqual(with_them.seconds() - without.seconds(),
                               3 * 4 * with_them.cell_seconds(BY_NAME["crr"]))

    def test_default_runs_last_as_long_as_promised(self):
        with mock.patch("os.sched_getaffinity", return_value={0, 1}):
            full = default_plan(running.ROUNDS, running.SECONDS, running.DECISIVE, False)
            quick = default_plan(running.QUICK_ROUNDS, running.QUICK_SECONDS, 0, True)
        self.assertLess(full.seconds(), 91 * 60)  # an hour and a half
        self.assertLess(quick.seconds(), 4.6 * 60)  # about four minutes

    def test_the_headline(self):
        with mock.patch.object(sys, "argv", ["bench", "--headline"]):
            found = running.parse_options()
        with mock.patch("os.sched_getaffinity", return_value={0, 1}):
            one = Plan(found, select_rows(found.rows, False),
                       {name: CONTENDERS[name] for name in found.contenders})
        self.assertLess(one.seconds(), 12 * 60)
        self.assertEqual([one.decisive_rounds_of(rows) for rows in one.groups], [0] * 6)

    def test_progress_without_what_is_not_done(self):
        progress = Progress(100.0)
        progress.drop(40.0)
        self.assertAlmostEqual(progress.left(), 60.0)


class Choosing(unittest.TestCase):
    def test_finalists(self):
        """Those within a factor of two of the best."""
        values = {0: 100, 1: 51, 2: 49, 3: None}
        self.assertEqual(running.finalists(values, "higher"), [0, 1])
        self.assertEqual(running.finalists({0: 100, 1: 199, 2: 201}, "lower"), [0, 1])
        self.assertEqual(running.finalists({0: 100, 1: 10}, "higher"), [])
        self.assertEqual(running.finalists({0: None}, "higher"), [])
        self.assertEqual(running.finalists({0: 0, 1: 0}, "lower"), [0, 1])

    def choose(self, figures, better="higher", passes=2):
        """The index chosen, and the number of trials; FIGURES: {index: its trials' figures}."""
        tried = []

        def try_out(index):
            tried.append(index)
            return figures[index][tried.count(index) - 1]

        chosen, _means = running.choose(len(figures), try_out, better, "crr", passes)
        return chosen, [tried.count(index) for index in range(len(figures))]

    def test_the_mean_of_those_tried_twice(self):
        self.assertEqual(self.choose({0: (100, 60), 1: (95, 95), 2: (49,), 3: (40,)}),
                         (1, [2, 2, 1, 1]))

    def test_one_far_ahead_is_not_tried_again(self):
        self.assertEqual(self.choose({0: (47,), 1: (95,), 2: (40,), 3: (None,)}),
                         (1, [1, 1, 1, 1]))

    def test_all_failed(self):
        self.assertEqual(self.choose({index: (None,) for index in range(4)})[0], 0)

    def test_one_that_failed_again_is_not_chosen(self):
        self.assertEqual(self.choose({0: (100, None), 1: (95, 90)}), (1, [2, 2]))

    def test_one_pass(self):
        """Of idle sessions: least memory, and a failure ends nothing."""
        self.assertEqual(self.choose({0: (None,), 1: (9,), 2: (8,)}, "lower", 1), (2, [1, 1, 1]))

    def test_a_configuration_that_fails_with_idle_sessions(self):
        made = plan(["idle"], ["haproxy"], calibrate=True)
        row, haproxy = BY_NAME["idle"], made.contenders["haproxy"]
        configs = made.configs_of(row, haproxy)
        with mock.patch.object(measuring, "Counter"):
            one = running.Benchmark(made, mock.Mock(), mock.Mock())
        one.progress = mock.Mock()
        one.idle = mock.Mock(try_out=lambda _contender, config: self.fails_unless(
            config == configs[1]))
        self.assertEqual(one._choose(row, haproxy, one._try_idle), configs[1])

    def fails_unless(self, works):
        if not works:
            raise LabError("no room")
        return 1000


class DecisiveRounds(unittest.TestCase):
    """The benchmark's rounds of one row, with cells that are made up."""

    VALUES = {"direct": 200, "auto": 100, "auto-again": 101, "sockmap": 60, "splice": 98,
              "copy": 99, "haproxy": 70, "nginx": 95, "socat": 20}

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="culvert-bench.")
        self.addCleanup(folder.cleanup)
        self.results = Results(os.path.join(folder.name, "results.json"))
        self.plan = plan(["crr"], self.VALUES)
        with mock.patch.object(measuring, "Counter"):
            self.bench = running.Benchmark(self.plan, self.results, mock.Mock())
        self.bench.progress.say = lambda _text: None
        self.bench.cells = mock.Mock(
            measure_row=lambda _row, name, _timing: {**CELL, "value": self.VALUES[name]})
        self.relays = mock.Mock(get=lambda name: name)

    def run_row(self):
        row, everyone = BY_NAME["crr"], self.plan.contenders_of(BY_NAME["crr"])
        self.results.add_row(row)
        for one in everyone:
            self.results.add_contender(row, one, "")
        self.bench._run_rounds(row, everyone, range(1, 3), self.relays)
        self.bench._decide(row, everyone, self.relays)
        with open(self.results.path, encoding="utf-8") as file:
            return json.load(file)["rows"][0]

    def test_only_those_who_decide(self):
        row = self.run_row()
        self.assertEqual((row["ordinary_rounds"], row["decisive"]),
                         (2, ["auto", "auto-again", "copy", "splice", "nginx"]))
        counts = {one["name"]: [cell["round"] for cell in one["cells"]]
                  for one in row["contenders"]}
        self.assertEqual(counts["splice"], [1, 2, 3, 4, 5])
        self.assertEqual(counts["haproxy"], [1, 2])

    def test_each_round_has_new_processes(self):
        """Of the contenders in it; the first round has them from the beginning."""
        self.run_row()
        everyone = [one.name for one in self.plan.contenders_of(BY_NAME["crr"])]
        deciders = [name for name in everyone
                    if name in ("auto", "auto-again", "copy", "splice", "nginx")]
        self.assertEqual([call.args[0] for call in self.relays.restart.call_args_list],
                         [everyone] + 3 * [deciders])

    def test_the_estimate_is_of_those_who_take_part(self):
        seconds = self.plan.cell_seconds(BY_NAME["crr"])
        self.bench.progress = mock.Mock(left=lambda: 0.0)
        self.run_row()
        # six might have taken part in three rounds, five did
        (dropped,), _ = self.bench.progress.drop.call_args
        self.assertAlmostEqual(dropped, 3 * seconds)

    def test_interrupted_within_them(self):
        cells, done = self.bench.cells.measure_row, []

        def measure_row(*arguments):
            done.append(arguments)
            if len(done) == 2 * len(self.VALUES) + 3:
                raise KeyboardInterrupt
            return cells(*arguments)

        self.bench.cells.measure_row = measure_row
        with self.assertRaises(KeyboardInterrupt):
            self.run_row()
        self.results.write()
        with open(self.results.path, encoding="utf-8") as file:
            row = json.load(file)["rows"][0]
        self.assertEqual(sum(len(one["cells"]) for one in row["contenders"]),
                         2 * len(self.VALUES) + 2)
        self.assertEqual(row["ordinary_rounds"], 2)

    def test_none_wanted(self):
        self.plan.options.decisive = 0
        row = self.run_row()
        self.assertNotIn("decisive", row)


class Running(unittest.TestCase):
    """The relays of a row, with relays that are made up."""

    def setUp(self):
        self.made, self.broken = [], set()
        self.relays = Relays({name: lambda name=name: self.make(name) for name in "AB"})

    def make(self, name):
        if name in self.broken:
            raise LabError("no port")
        self.made.append(mock.Mock(title=name))
        return self.made[-1]

    def test_restarted(self):
        self.relays.__enter__()
        self.relays.restart(["A"])
        self.assertEqual([one.title for one in self.made], ["A", "B", "A"])
        self.assertEqual([one.stop.called for one in self.made], [True, False, False])
        self.assertEqual([self.relays.get(name) for name in "AB"], [self.made[2], self.made[1]])

    def test_one_that_must_be_alone(self):
        """Only from get() to rest()."""
        relays = Relays({name: lambda name=name: self.make(name) for name in "AB"}, "B")
        relays.__enter__()
        relays.rest()
        relays.restart("AB")
        self.assertEqual([one.title for one in self.made], ["A", "B", "A"])
        self.assertEqual([one.stop.called for one in self.made], [True, True, False])
        relays.get("B")
        relays.rest()
        self.assertEqual([one.stop.called for one in self.made], [True, True, False, True])

    def test_one_that_fails_to_start_may_work_the_next_time(self):
        self.relays.__enter__()
        self.broken = {"A"}
        self.relays.restart("AB")
        with self.assertRaisesRegex(LabError, "did not start: no port"):
            self.relays.get("A")
        self.assertEqual(self.relays.get("B").title, "B")
        self.broken = set()
        self.relays.restart("AB")
        self.assertEqual(self.relays.get("A").title, "A")


class Datagrams(unittest.TestCase):
    """Of contenders that forward UDP."""

    FORWARD = Forward(9144, 53, protocols=("tcp", "udp"))

    def test_nginx(self):
        for goal, answers in ((DATAGRAMS, 0), (QUESTIONS, 2)):
            config = CONTENDERS["nginx"].configs(goal, 2)[0]
            text = contenders.nginx_conf(config, self.FORWARD, 10, "/x")
            self.assertIn("listen 10.0.1.2:9144 backlog=16384 reuseport;", text)
            self.assertIn("listen 10.0.1.2:9144 udp reuseport;", text)
            self.assertEqual(text.count("proxy_responses 1;"), answers)

    def test_kernel_nat(self):
        text = contenders.nft_rules(self.FORWARD)
        self.assertEqual(text.count("udp dport 9144 dnat to 10.0.2.2:53"), 2)

    def test_only_those_who_can(self):
        for row in ROWS:
            if "udp" in row.workload.protocols:
                self.assertFalse({"haproxy", "redir", "sockmap"} & set(row.participants))
                self.assertIn("auto-again", row.participants)


class KernelNat(unittest.TestCase):
    """The contender that has no process."""

    def test_rules_are_there_while_it_runs(self):
        with tempfile.TemporaryDirectory(prefix="culvert-bench.") as folder:
            lab = mock.Mock(path=lambda name: os.path.join(folder, name),
                            watched=lambda *_: contextlib.nullcontext())
            relay = Relay(lab, CONTENDERS["nft-dnat"], {}, [Forward(9016, 6016)], None)
            relay.start("", 1)
            with open(os.path.join(folder, "relay-9016.nft"), encoding="ascii") as file:
                self.assertIn("tcp dport 9016 dnat to 10.0.2.2:6016", file.read())
        relay.stop()
        relay.stop()
        self.assertEqual([call.args[1] for call in lab.run.call_args_list], ["sh", "nft"])
        self.assertEqual(lab.run.call_args.args[1:], ("nft", "delete", "table", "ip", "bench9016"))

    def test_nobodys_peer(self):
        self.assertEqual(CONTENDERS["nft-dnat"].family, "kernel")
        self.assertTrue(CONTENDERS["nft-dnat"].alone)


class Against(unittest.TestCase):
    """Another program takes part beside the one to measure."""

    def setUp(self):
        known = mock.patch.dict(CONTENDERS)
        known.start()
        self.addCleanup(known.stop)
        contenders.add_other("/bin/true")

    def test_beside_its_original(self):
        self.assertEqual(list(select_contenders(["auto", "nginx"], False, CONTENDERS)),
                         ["auto", "nginx", "auto-other"])
        self.assertEqual(BY_NAME["crr"].participants[2:5], ("auto", "auto-again", "auto-other"))
        self.assertIn("copy-other", BY_NAME["udp-rr-1"].participants)
        self.assertNotIn("copy-other", BY_NAME["killed"].participants)

    def test_its_program_is_started(self):
        place = mock.Mock(forward=Forward(9000, 1))
        with mock.patch.object(contenders, "Daemon") as daemon:
            for name in ("copy", "copy-other"):
                CONTENDERS[name].start(place, {})
        self.assertEqual([call.args[1] for call in daemon.call_args_list],
                         [place.culvert, "/bin/true"])

    def test_ratios_are_printed(self):
        rows = [row("crr", contender("copy", 96, 100), contender("copy-other", 100, 100)),
                row("idle", contender("auto", 4), contender("auto-other", 8), better="lower")]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            running.print_other(mock.Mock(rows=rows))
        self.assertEqual([re.sub(" +", " ", line) for line in output.getvalue().splitlines()], [
            "crr copy / copy-other: 0.980 [0.960-1.000], rounds: 2",
            "idle auto / auto-other: 2.000 [2.000-2.000], rounds: 1"])


class Output(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="culvert-bench.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def open(self, *path):
        out = os.path.join(self.folder, *path)
        return running.open_results(options(out=out, quick=True, loopback=False,
                                            culvert="/bin/true"))

    def complaint(self, *path):
        with self.assertRaises(OutputError) as caught:
            self.open(*path)
        return str(caught.exception)

    def test_a_new_folder(self):
        results = self.open("new", "folder")
        self.assertEqual(os.listdir(os.path.dirname(results.path)), [])
        results.write()
        self.assertTrue(os.path.exists(results.path))

    def test_a_file_in_the_way(self):
        with open(os.path.join(self.folder, "file"), "w", encoding="ascii"):
            pass
        self.assertIn("not a directory", self.complaint("file"))
        self.assertIn("Not a directory", self.complaint("file", "below"))

    def test_a_folder_in_the_way(self):
        os.makedirs(os.path.join(self.folder, "results.json"))
        self.assertIn("is in the way", self.complaint())

    def test_no_room(self):
        with mock.patch("os.posix_fallocate", side_effect=OSError(28, "No space left on device")):
            self.assertIn("64 MiB are needed", self.complaint("full"))
        self.assertEqual(os.listdir(os.path.join(self.folder, "full")), [])

    def test_no_room_later(self):
        results = self.open()
        os.symlink("/dev/full", f"{results.path}.new")
        with self.assertRaises(OutputError) as caught:
            results.write()
        self.assertIn("No space left on device", str(caught.exception))

    def test_the_program_says_it_in_a_line(self):
        with open(os.path.join(self.folder, "file"), "w", encoding="ascii"):
            pass
        errors = io.StringIO()
        arguments = ["bench", "--rows", "crr", "--contenders", "direct", "--out",
                     os.path.join(self.folder, "file")]
        with mock.patch.object(sys, "argv", arguments), mock.patch.object(running, "Interrupts"), \
                contextlib.redirect_stderr(errors):
            code = running.main()
        self.assertEqual((code, len(errors.getvalue().splitlines())), (1, 1))
        self.assertIn("cannot be written", errors.getvalue())


class Clients(unittest.TestCase):
    REDIS = """"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p99_latency_ms"
"SET","20000.00","0.9","0.1","0.8","2.5"
"GET","60000.00","0.3","0.1","0.2","0.5"
"""

    def test_redis(self):
        found = loads.parse_redis(self.REDIS)
        self.assertAlmostEqual(found.value, 30000)  # 3 seconds for 30,000 of each
        self.assertAlmostEqual(found.latency["p99"], 2500)
        self.assertRaises(LabError, loads.parse_redis, "Could not connect")

    DNSPERF = """\
  Queries lost:         2 (0.01%)
  Response codes:       NOERROR 33000 (99.99%), SERVFAIL 3 (0.01%)
  Queries per second:   33847.125
  Average Latency (s):  0.002910 (min 0.000142, max 0.021113)
"""

    def test_dnsperf(self):
        found = loads.parse_dnsperf(self.DNSPERF)
        self.assertEqual((found.value, found.errors, found.wrong), (33847.125, 2, 3))
        self.assertAlmostEqual(found.latency["max"], 21113)
        self.assertRaises(LabError, loads.parse_dnsperf, "[Timeout]")

    def test_one_way(self):
        """The rate is the highest without loss, and work is all that came."""
        found = loads.parse_bench(json.dumps({
            "rate": None, "gbps": 1.0, "lossless": 400000, "requests": 300000, "seconds": 1.5,
            "latency_us": None, "histogram": None, "errors": {}, "wrong": 0, "connections": 1}))
        self.assertEqual((found.value, found.per_second), (400000, 200000))


class TooShort(unittest.TestCase):
    def test_tried_again(self):
        run = mock.Mock(side_effect=[measuring.TooShort("a"), "cell"])
        self.assertEqual(measuring.tried(run), "cell")

    def test_not_for_ever(self):
        run = mock.Mock(side_effect=measuring.TooShort("a"))
        self.assertRaises(LabError, measuring.tried, run)
        self.assertEqual(run.call_count, measuring.TRIES)

    def test_not_after_another_failure(self):
        run = mock.Mock(side_effect=LabError("refused"))
        self.assertRaises(LabError, measuring.tried, run)
        self.assertEqual(run.call_count, 1)
