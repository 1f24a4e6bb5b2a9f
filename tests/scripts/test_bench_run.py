# SPDX-License-Identifier: BSD-2-Clause
"""How a run of the benchmark goes: the choice of configurations, who decides, what its clients say, and
results that cannot be written. Nothing is measured: cells are made up. No root, no network. That a run
comes to its end, with rounds that decide, is proved by one (`bench` of scripts/test --all)."""

import argparse
import json
import os
import re
import sys
from unittest import mock

import pytest
from bench import loads, measuring, running
from bench.contenders import CONTENDERS
from bench.rows import ROWS, Plan, select_rows
from bench.running import OutputError, Results
from labkit import LabError
from sample_rows import contender, row

CRR = next(one for one in ROWS if one.name == "crr")
CELL = {"latency_us": None, "histogram": None, "cpu_seconds": 1.0, "work": 1.0,
        "relay_cpu_seconds": None, "relay_syscalls": None, "relay_switches": None,
        "kernel_peak_bytes": None, "errors": 0, "wrong": 0, "carriers": None, "extra": {}}
VALUES = {"direct": 200, "auto": 100, "auto-again": 101, "sockmap": 60, "splice": 98,
          "copy": 99, "haproxy": 70, "nginx": 95, "socat": 20}


# --- the choice ---

def test_finalists():
    """Those within a factor of two of the best."""
    for values, better, wanted in (
            ({0: 100, 1: 51, 2: 49, 3: None}, "higher", [0, 1]),
            ({0: 100, 1: 199, 2: 201}, "lower", [0, 1]), ({0: 100, 1: 10}, "higher", []),
            ({0: None}, "higher", []), ({0: 0, 1: 0}, "lower", [0, 1])):
        assert running.finalists(values, better) == wanted


def test_choice():
    """Of trials' figures by index, one is chosen, after so many trials of each."""
    for figures, better, passes, wanted in (
            ({0: (100, 60), 1: (95, 95), 2: (49,), 3: (40,)}, "higher", 2, (1, [2, 2, 1, 1])),
            ({0: (47,), 1: (95,), 2: (40,), 3: (None,)}, "higher", 2, (1, [1, 1, 1, 1])),
            ({0: (None,), 1: (None,)}, "higher", 2, (0, [1, 1])),
            ({0: (100, None), 1: (95, 90)}, "higher", 2, (1, [2, 2])),
            ({0: (None,), 1: (9,), 2: (8,)}, "lower", 1, (2, [1, 1, 1]))):
        trials = {index: iter(values) for index, values in figures.items()}
        tried = []

        def try_out(index, trials=trials, tried=tried):
            tried.append(index)
            return next(trials[index])

        chosen, _means = running.choose(len(figures), try_out, better, "crr", passes)
        assert (chosen, [tried.count(index) for index in figures]) == wanted


# --- results ---

def test_only_those_who_decide(tmp_path):
    """Rounds of one row, with cells that are made up; the last ones are of the best alone."""
    results = Results(str(tmp_path / "results.json"))
    plan = Plan(argparse.Namespace(rounds=2, seconds=1.0, calibrate=False, idle=100, decisive=3),
                select_rows(["crr"], False), {name: CONTENDERS[name] for name in VALUES})
    with mock.patch.object(measuring, "Counter"):
        bench = running.Benchmark(plan, results, mock.Mock())
    bench.progress.say = lambda _text: None
    bench.cells = mock.Mock(measure_row=lambda _row, name, _timing: {**CELL, "value": VALUES[name]})
    relays, everyone = mock.Mock(get=lambda name: name), plan.contenders_of(CRR)
    results.add_row(CRR)
    for one in everyone:
        results.add_contender(CRR, one, "")
    bench._run_rounds(CRR, everyone, range(1, 3), relays)
    bench._decide(CRR, everyone, relays)
    with open(results.path, encoding="utf-8") as file:
        found = json.load(file)["rows"][0]
    deciders = ["auto", "auto-again", "copy", "splice", "nginx"]
    assert (found["ordinary_rounds"], found["decisive"]) == (2, deciders)
    assert {one["name"]: len(one["cells"]) for one in found["contenders"]} == {
        name: 5 if name in deciders else 2 for name in VALUES}


def test_ratios_are_printed(capsys):
    rows = [row("crr", contender("copy", 96, 100), contender("copy-other", 100, 100)),
            row("idle", contender("auto", 4), contender("auto-other", 8), better="lower")]
    running.print_other(mock.Mock(rows=rows))
    assert re.sub(" +", " ", capsys.readouterr().out).splitlines() == [
        "crr copy / copy-other: 0.980 [0.960-1.000], rounds: 2",
        "idle auto / auto-other: 2.000 [2.000-2.000], rounds: 1"]


def test_no_room(tmp_path):
    def results():
        return running.open_results(argparse.Namespace(
            out=str(tmp_path / "new"), quick=True, loopback=False, culvert="/bin/true",
            rounds=2, seconds=1.0, calibrate=False, idle=100, decisive=3))

    with mock.patch("os.posix_fallocate", side_effect=OSError(28, "No space left on device")), \
            pytest.raises(OutputError, match="64 MiB are needed"):
        results()
    later = results()
    os.symlink("/dev/full", f"{later.path}.new")
    with pytest.raises(OutputError, match="No space left on device"):
        later.write()


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file")
    arguments = ["bench", "--rows", "crr", "--contenders", "direct", "--out", path]
    with mock.patch.object(sys, "argv", arguments), mock.patch.object(running, "Interrupts"):
        assert running.main() == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "cannot be written" in said


# --- what clients say ---

REDIS = """"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p99_latency_ms"
"SET","20000.00","0.9","0.1","0.8","2.5"
"GET","60000.00","0.3","0.1","0.2","0.5"
"""
DNSPERF = """\
  Queries lost:         2 (0.01%)
  Response codes:       NOERROR 33000 (99.99%), SERVFAIL 3 (0.01%)
  Queries per second:   33847.125
  Average Latency (s):  0.002910 (min 0.000142, max 0.021113)
"""


def test_redis():
    found = loads.parse_redis(REDIS)
    assert found.value == pytest.approx(30000)  # 3 seconds for 30,000 of each
    assert found.latency["p99"] == pytest.approx(2500)
    with pytest.raises(LabError):
        loads.parse_redis("Could not connect")


def test_dnsperf():
    found = loads.parse_dnsperf(DNSPERF)
    assert (found.value, found.errors, found.wrong) == (33847.125, 2, 3)
    assert found.latency["max"] == pytest.approx(21113)
    with pytest.raises(LabError):
        loads.parse_dnsperf("[Timeout]")


def test_one_way():
    """The rate is the highest without loss, and work is all that came."""
    found = loads.parse_bench(json.dumps({
        "rate": None, "gbps": 1.0, "lossless": 400000, "requests": 300000, "seconds": 1.5,
        "latency_us": None, "histogram": None, "errors": {}, "wrong": 0, "connections": 1}))
    assert (found.value, found.per_second) == (400000, 200000)


def test_too_short():
    """It is tried again, and not for ever; after another failure it is not."""
    for effects, calls in ((measuring.TooShort("a"), measuring.TRIES), (LabError("refused"), 1)):
        run = mock.Mock(side_effect=effects)
        with pytest.raises(LabError):
            measuring.tried(run)
        assert run.call_count == calls
    assert measuring.tried(mock.Mock(side_effect=[measuring.TooShort("a"), "cell"])) == "cell"
