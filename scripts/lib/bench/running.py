# SPDX-License-Identifier: BSD-2-Clause
"""A run of the benchmark: its results, its rounds, the choice of configurations, its command line.

A configuration is chosen by trials, each as noisy as any cell. So all configurations have one
trial, in a shuffled order; those that reach at least half of the best have another; and the best
mean of those that had both is chosen.
"""

import argparse
import errno
import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import datetime

import plot
from bench.contenders import CONTENDERS, Relays, add_other, one_line
from bench.loads import BenchLab, Interrupts
from bench.measuring import (Cells, CpuMeters, IdleCells, Stage, apply_counts, capacity_note,
                             failed_cell, is_slab_shrinkable)
from bench.rows import (COUNT_TIMING, CULVERT_BENCH, IDLE_SESSIONS, IDLE_TOOL, ROWS, Plan,
                        SelectionError, order_of_round, select_contenders, select_rows)
from labkit import TOP, Interrupted, LabError
from rivals import BY_ITSELF, OTHERS, aims, deciders

# Room for results.json, its successor beside it, and the report.
ROOM_BYTES = 64 << 20
ROUNDS, QUICK_ROUNDS, HEADLINE_ROUNDS = 4, 3, 7
SECONDS, QUICK_SECONDS = 1.0, 0.4
DECISIVE = 12  # of 12 the interval ends at the 3rd, of 11 at the 2nd: a quarter narrower
# A configuration this far behind the best of the first pass (as a logarithm) is not tried again.
HOPELESS = math.log(2)

# Results

FORMAT = 1

SYSCTLS = ("net.ipv4.tcp_congestion_control", "net.ipv4.ip_local_port_range",
           "net.ipv4.tcp_tw_reuse", "net.ipv4.tcp_max_tw_buckets", "net.ipv4.tcp_no_metrics_save",
           "net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_rmem",
           "net.ipv4.tcp_wmem", "net.ipv4.tcp_mem", "net.core.rmem_max", "net.core.wmem_max",
           "net.core.default_qdisc", "net.core.netdev_max_backlog", "fs.pipe-max-size",
           "kernel.pid_max")

# Packages of contenders and load generators.
PACKAGES = ("haproxy", "nginx", "socat", "rinetd", "redir", "iperf3", "wrk", "redis-server",
            "dnsperf", "nsd")


def output_of(*command):
    """The output of COMMAND, on either stream; "" if it cannot be run."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def succeeds(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def find_version(text):
    """The first thing in TEXT that looks like a version."""
    match = re.search(r"\d+\.\d+[\w.+~-]*", text)
    return match.group(0) if match else "unknown"


def packages():
    """{name: version} of those that are installed."""
    lines = output_of("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES).splitlines()
    return dict(line.split() for line in lines if len(line.split()) == 2)


def read_sysctls(lab):
    """{name: value} in the relay's namespace."""
    paths = ["/proc/sys/" + name.replace(".", "/") for name in SYSCTLS]
    process = lab.start("relay", "grep", "-Hs", "", *paths)
    process.wait()
    lab.stop(process)
    with open(process.log, encoding="ascii", errors="replace") as file:
        lines = [line.rstrip("\n").partition(":") for line in file if line.startswith("/proc")]
    return {path[len("/proc/sys/"):].replace("/", "."): re.sub(r"\s+", " ", value)
            for path, _, value in lines}


def describe_machine(lab, methods):
    """METHODS: texts about methods that differ from machine to machine."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        cpuinfo = file.read()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.M)
    return {"kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": model.group(1) if model else platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "virtualization": output_of("systemd-detect-virt") or "not known",
            "sysctls": read_sysctls(lab), "packages": packages(), "methods": methods}


def describe_culvert(program):
    git = ("git", "-C", TOP)
    known = shutil.which("git") and succeeds(*git, "rev-parse", "HEAD")
    return {"version": find_version(output_of(program, "--version")),
            "commit": output_of(*git, "rev-parse", "HEAD") if known else "unknown",
            "dirty": bool(known and output_of(*git, "status", "--porcelain"))}


class OutputError(Exception):
    """The results cannot be written; the text says where and why."""


class Results:
    """All cells so far. Written anew after each round, so that a file is always whole."""

    def __init__(self, path, **head):
        self.path = path
        self._began = time.monotonic()
        self._document = {"format": FORMAT, "culvert": {},
                          "started": datetime.now().astimezone().isoformat(timespec="seconds"),
                          "seconds": 0, "complete": False, **head, "rows": [], "calibration": [],
                          "left_out": []}
        self._rows = {}

    def describe(self, **head):
        self._document.update(head)

    def leave_out(self, contender, why):
        self._document["left_out"].append({"contender": contender, "why": why})

    def add_row(self, row):
        entry = {"name": row.name, "title": row.title, "group": row.group, "kind": row.kind,
                 "unit": row.unit, "better": row.better, "work_unit": row.work_unit,
                 "note": row.note, "contenders": []}
        self._rows[row.name] = entry
        self._document["rows"].append(entry)

    def append_note(self, row, text):
        entry = self._rows[row.name]
        entry["note"] = f"{entry['note']}\n{text}".strip()

    def begin_decisive(self, row, rounds, names):
        """Only NAMES take part in the rounds of ROW that follow so many ordinary ROUNDS."""
        self._rows[row.name].update(ordinary_rounds=rounds, decisive=names)

    def row(self, row):
        """ROW with its cells, as a report reads it."""
        return self._rows[row.name]

    def add_contender(self, row, contender, config):
        """CONFIG: as text."""
        self._rows[row.name]["contenders"].append(
            {"name": contender.name, "family": contender.family, "config": config, "cells": []})

    def contender(self, row, name):
        return next(one for one in self._rows[row.name]["contenders"] if one["name"] == name)

    def add_cell(self, row, name, number, cell):
        self.contender(row, name)["cells"].append({"round": number, **cell})

    def add_calibration(self, row, name, tried, chosen):
        """TRIED: (config, value) pairs, the value None if it failed; texts for configurations."""
        self._document["calibration"].append(
            {"row": row.name, "contender": name, "chosen": chosen,
             "tried": [{"config": config, "value": value} for config, value in tried]})

    @property
    def document(self):
        """All that a report reads."""
        return self._document

    @property
    def rows(self):
        return self._document["rows"]

    def cells(self):
        """(row name, contender name, cell) of all."""
        for row in self.rows:
            for contender in row["contenders"]:
                for cell in contender["cells"]:
                    yield row["name"], contender["name"], cell

    def write(self, complete=False):
        self._document["seconds"] = round(time.monotonic() - self._began, 1)
        self._document["complete"] = complete
        try:
            with open(f"{self.path}.new", "w", encoding="utf-8") as file:
                json.dump(self._document, file, indent=None, separators=(",", ":"))
                file.write("\n")
            os.replace(f"{self.path}.new", self.path)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from None


# Progress

def minutes_text(seconds):
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min"


class Progress:
    """The time that is left, by an estimate that learns."""

    def __init__(self, total):
        self._began = time.monotonic()
        self._total = total
        self._done = 0.0

    def advance(self, estimate):
        self._done += estimate

    def drop(self, estimate):
        """Takes off work that is not to be done after all."""
        self._total -= estimate

    def left(self):
        elapsed = time.monotonic() - self._began
        pace = elapsed / self._done if self._done > 5 else 1.0
        return max(self._total - self._done, 0) * pace

    def say(self, text):
        elapsed = int(time.monotonic() - self._began)
        print(f"{elapsed // 60:3}:{elapsed % 60:02}  {text}", flush=True)


def cell_text(row, cell):
    """One cell, for the progress line."""
    if "failed" in cell:
        return f"FAILED: {cell['failed']}"
    digits = 2 if row.kind in ("throughput", "gap") else 0
    text = f"{cell['value']:,.{digits}f} {row.unit}"
    if cell["cpu_seconds"] and cell["work"]:
        scale, unit = (1, "s") if row.work_unit == "GB" else (1e6, "us")
        text += f", CPU {cell['cpu_seconds'] * scale / cell['work']:.3g} {unit}/{row.work_unit}"
    for name in ("errors", "wrong"):
        text += f", {cell[name]} {name.upper()}" if cell[name] else ""
    return text


# The choice of a configuration

def finalists(values, better):
    """Of {index: value or None} the indices worth another trial; none if there is one only."""
    working = {index: value for index, value in values.items() if value is not None}
    if not working:
        return []
    best = (max if better == "higher" else min)(working.values())
    near = [index for index, value in working.items()
            if value == best or _distance(value, best) <= HOPELESS]
    return near if len(near) > 1 else []


def _distance(value, best):
    return abs(math.log(value / best)) if value > 0 and best > 0 else math.inf


def choose(count, try_out, better, salt, passes=2):
    """(index chosen, [mean of its trials, ...]) of COUNT configurations.

    TRY_OUT(index) answers a figure, None if it failed. The mean of none is None. The first
    configuration is chosen if none worked: then the row shows the failure.
    """
    values = {index: [] for index in range(count)}
    for index in order_of_round(values, 1, salt):
        values[index].append(try_out(index))
    again = finalists({index: value for index, (value,) in values.items()}, better)
    for index in order_of_round(again, 2, salt) if passes > 1 else ():
        values[index].append(try_out(index))
    working = {index: [one for one in found if one is not None] for index, found in values.items()}
    means = [statistics.mean(found) if found else None for found in working.values()]
    most = max(map(len, working.values()))
    best = [index for index, found in working.items() if found and len(found) == most]
    pick = max if better == "higher" else min
    return pick(best, key=means.__getitem__, default=0), means


# The rounds

class Benchmark:
    """Carries PLAN out on STAGE."""

    def __init__(self, plan, results, stage):
        self.plan, self.results, self.stage = plan, results, stage
        self.progress = Progress(plan.seconds())
        self.cells = Cells(stage)
        self.idle = IdleCells(stage, self.cells)

    def run(self):
        for rows in self.plan.groups:
            self._run_group(rows)

    def methods(self):
        """Texts for describe_machine()."""
        counting = self.cells.counter.reason or "perf events, in a run of their own"
        return {"relay CPU": self.stage.meters.method,
                "system calls and context switches": counting,
                "slabs shrunk before memory is read": "yes" if is_slab_shrinkable() else "no",
                "order within a round": "shuffled, differently in each round and row, but alike in "
                                        "all runs",
                "relays": "new processes in each round",
                "descriptors a process": str(self.stage.descriptors),
                "processes of load generator and sink": str(self.stage.loads.processes)}

    def _run_group(self, rows):
        row, contenders = rows[0], self.plan.contenders_of(rows[0])
        if row.workload.tool == IDLE_TOOL:
            self._run_idle(rows)
        elif contenders:
            with ExitStack() as stack:
                if row.workload.tool == CULVERT_BENCH:
                    trials = max(len(self.plan.configs_of(row, one)) for one in contenders)
                    stack.enter_context(self.stage.sink(contenders, row.workload, trials))
                self._run_row(row, contenders)

    def _run_row(self, row, contenders):
        self.results.add_row(row)
        configs = {}
        for one in contenders:
            configs[one.name] = self._choose(row, one, self._try_row)
            self.results.add_contender(row, one, one.describe(configs[one.name]))
        starters = {one.name: lambda one=one: self.stage.start_relay(one, configs[one.name],
                                                                     row.workload)
                    for one in contenders}
        with Relays(starters, [one.name for one in contenders if one.alone]) as relays, \
                self.stage.namespaces.taken_for_idle():
            relays.rest()
            self._run_rounds(row, contenders, range(1, self.plan.rounds_of(row) + 1), relays)
            self._count(row, contenders, relays)
            self._decide(row, contenders, relays)
        self.results.write()

    # Configurations

    def _choose(self, row, contender, try_all):
        """The best configuration. TRY_ALL(row, contender, configs) does as choose()."""
        configs = self.plan.configs_of(row, contender)
        if len(configs) == 1:
            return configs[0]
        best, means = try_all(row, contender, configs)
        texts = [contender.describe(config) for config in configs]
        self.results.add_calibration(row, contender.name, list(zip(texts, means)), texts[best])
        self.progress.say(f"{row.name}: {contender.name} is best with {texts[best]}")
        self.progress.advance(self.plan.calibration_seconds(row, contender))
        return configs[best]

    def _try_row(self, row, contender, configs):
        """Each configuration has a port of its own, so that trials follow each other at once."""
        starters = {index: lambda config=config, index=index: self.stage.start_relay(
            contender, config, row.workload, skip=index) for index, config in enumerate(configs)}
        with Relays(starters) as relays, self.stage.namespaces.taken_for_idle():
            return choose(len(configs), lambda index: self._tried(
                row, contender, lambda: self.cells.try_out(row, relays.get(index),
                                                           self.plan.trial_length(row))),
                row.better, row.name)

    def _try_idle(self, row, contender, configs):
        """Least memory counts, which varies so little that one trial is enough."""
        return choose(len(configs), lambda index: self._tried(
            row, contender, lambda: self.idle.try_out(contender, configs[index])),
            row.better, "idle", passes=1)

    def _tried(self, row, contender, run):
        try:
            return run()
        except LabError as error:
            self.progress.say(f"{row.name}: trying {contender.name}: {one_line(error)}")
            return None

    # Cells

    def _run_rounds(self, row, contenders, numbers, relays):
        """Each round has new processes; those of the first have just been started."""
        for number in numbers:
            if number > 1:
                relays.restart([one.name for one in contenders])
            for contender in order_of_round(contenders, number, row.name):
                try:
                    cell = self.cells.measure_row(row, relays.get(contender.name),
                                                  self.plan.timing_of(row))
                except LabError as error:
                    cell = failed_cell(error)
                self._rest(relays, contender)
                self._keep(row, contender, number, cell)
                self.progress.advance(self.plan.cell_seconds(row))
            self.results.write()

    def _rest(self, relays, contender):
        """Stops a contender that runs alone, once its connections have ended."""
        if contender.alone:
            self.stage.namespaces.drain()
            relays.rest()

    def _keep(self, row, contender, number, cell):
        self.results.add_cell(row, contender.name, number, cell)
        self.progress.say(
            f"{row.name:11} {self.plan.round_text(row, number):6} {contender.name:14} "
            f"{cell_text(row, cell)}  [{minutes_text(self.progress.left())} left]")

    def _count(self, row, contenders, relays):
        """System calls and context switches of the ordinary rounds' work, in runs that measure
        nothing else."""
        for contender in contenders:
            try:
                counted = self.cells.count(row.workload, relays.get(contender.name), COUNT_TIMING)
            except LabError as error:
                self.progress.say(f"{row.name}: {contender.name}: not counted: {one_line(error)}")
                counted = None
            self._rest(relays, contender)
            entry = self.results.contender(row, contender.name)
            entry["counted"] = counted
            for cell in entry["cells"]:
                apply_counts(cell, counted)
            self.progress.advance(self.plan.count_seconds(row))

    # Decisive rounds

    def _decide(self, row, contenders, relays):
        """More rounds of ROW, of the contenders alone that its verdict depends on."""
        names = self._begin_decisive([row], row)
        chosen = [one for one in contenders if one.name in names]
        self._run_rounds(row, chosen, self.plan.decisive_numbers([row]) if names else (), relays)

    def _begin_decisive(self, rows, judged):
        """The names of the contenders in the decisive rounds of ROWS, a group; [] if there are
        none. JUDGED: the row of the verdict."""
        numbers = self.plan.decisive_numbers(rows)
        if not numbers:
            return []
        names = deciders(self.results.row(judged), judged.name not in BY_ITSELF)
        self.progress.drop(self.plan.decisive_seconds(rows)
                           - len(names) * len(numbers) * self.plan.cell_seconds(rows[0]))
        if names:
            self.progress.say(f"{judged.name}: {len(numbers)} decisive rounds of "
                              f"{', '.join(names)}")
        for row in rows if names else ():
            if row is judged or row.name in BY_ITSELF:
                self.results.begin_decisive(row, self.plan.rounds_of(row), names)
        return names

    # Idle sessions

    def _run_idle(self, rows):
        contenders = [one for one in self.plan.contenders.values()
                      if any(one.name in row.participants for row in rows)]
        capacities = {one.name: self.idle.capacity(one) for one in contenders}
        instances = max((capacity.instances for capacity in capacities.values()), default=1)
        everyone = {"direct": CONTENDERS["direct"], **{one.name: one for one in contenders}}
        with self.stage.sink(everyone.values(), IDLE_SESSIONS, instances,
                             self.idle.processes(self.plan.options.idle)):
            configs = {one.name: self._choose(rows[0], one, self._try_idle) for one in contenders}
            for row in rows:
                self._begin_idle_row(row, contenders, configs, capacities)
            for number in range(1, self.plan.rounds_of(rows[0]) + 1):
                # The direct path is first: it is the base of the others.
                self._idle_cells(rows, everyone["direct"], number,
                                 lambda: self.idle.begin_round(self.plan.timing))
                self._measure_idle(rows, [one for one in contenders if one.name != "direct"],
                                   configs, number)
            self._decide_idle(rows, contenders, configs)

    def _begin_idle_row(self, row, contenders, configs, capacities):
        self.results.add_row(row)
        for one in contenders:
            if one.name in row.participants:
                self.results.add_contender(row, one, one.describe(configs[one.name]))
                if note := capacity_note(one, capacities[one.name], self.plan.options.idle,
                                         self.stage.descriptors):
                    self.results.append_note(row, note)

    def _measure_idle(self, rows, contenders, configs, number):
        for contender in order_of_round(contenders, number, "idle"):
            self._idle_cells(rows, contender, number, lambda one=contender: self.idle.measure(
                one, configs[one.name], self.plan.timing))
        self.results.write()

    def _idle_cells(self, rows, contender, number, measure):
        try:
            cells = measure()
        except LabError as error:
            cells = {row.name: failed_cell(error) for row in rows}
        for row in rows:
            if contender.name in row.participants and contender.name in self.plan.contenders:
                self._keep(row, contender, number, cells[row.name])
        self.progress.advance(self.plan.cell_seconds(rows[0]))

    def _decide_idle(self, rows, contenders, configs):
        """Only of the rate beside the idle sessions. No round begins with the direct path, the base
        of memory."""
        rates = [row for row in rows if row.name in BY_ITSELF]
        if not rates:
            return
        names = self._begin_decisive(rows, rates[-1])
        chosen = [one for one in contenders if one.name in names]
        for number in self.plan.decisive_numbers(rows) if names else ():
            self._measure_idle(rates, chosen, configs, number)


# The command line

def positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def count_from_zero(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return number


def positive_float(text):
    number = float(text)
    if not 0.2 <= number <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.2 to 3600")
    return number


def program_path(text):
    path = os.path.abspath(text)
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        raise argparse.ArgumentTypeError(f"{text} is not a program")
    return path


def split_names(text):
    return [name for name in text.split(",") if name]


def make_parser(name, rounds=None, seconds=None):
    """The options of both kinds of run."""
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False,
                                     usage=f"sudo {name} [OPTION...], see --help")
    parser.add_argument("--rounds", type=positive_int, default=rounds)
    parser.add_argument("--seconds", type=positive_float, default=seconds)
    parser.add_argument("--contenders", type=split_names, default=[])
    parser.add_argument("--against", type=program_path)
    parser.add_argument("--out")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--culvert", type=os.path.abspath,
                        default=os.path.join(TOP, "build", "culvert"))
    return parser


def parse_options():
    parser = make_parser("scripts/bench")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--headline", action="store_true")
    parser.add_argument("--rows", type=split_names, default=[])
    parser.add_argument("--decisive", type=count_from_zero)
    parser.add_argument("--idle", type=positive_int, default=20000)
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--no-calibration", dest="calibrate", action="store_false")
    parser.add_argument("--bench-tool", type=os.path.abspath,
                        default=os.path.join(TOP, "build", "culvert-bench"))
    options = parser.parse_args()
    if options.headline:
        options.rows = options.rows or list(plot.ROWS)
        options.contenders = options.contenders or list(plot.CONTENDERS)
        options.rounds = options.rounds or HEADLINE_ROUNDS
        options.decisive = options.decisive or 0
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    if options.decisive is None:
        options.decisive = 0 if options.quick else DECISIVE
    options.calibrate = options.calibrate and not options.quick
    return options


def print_list():
    print("Rows (* in --quick):")
    for row in ROWS:
        print(f"  {'*' if row.quick else ' '} {row.name:12} {row.group:13} {row.title}")
    print("\nContenders:")
    for contender in CONTENDERS.values():
        print(f"    {contender.name:15} {contender.why_missing() or contender.family}")


def _take_room(folder):
    """Raises OSError unless files can be written to FOLDER, and it has room for the results."""
    path = os.path.join(folder, ".room")
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    finally:
        if os.path.exists(path):
            os.unlink(path)


def open_results(options):
    """Begins the document of the results, in a folder that is there and has room."""
    out = options.out or os.path.join(TOP, "build", "bench",
                                      datetime.now().strftime("%Y-%m-%d-%H%M%S"))
    results = Results(os.path.join(out, "results.json"), quick=options.quick,
                      lab="loopback" if options.loopback else "veth", rounds=options.rounds,
                      decisive_rounds=options.decisive, cell_seconds=options.seconds,
                      culvert=describe_culvert(options.culvert))
    if os.path.exists(out) and not os.path.isdir(out):
        raise OutputError(f"results cannot be written to {out}: it is not a directory")
    if os.path.isdir(results.path):
        raise OutputError(f"{results.path} is in the way: it is a directory")
    try:
        os.makedirs(out, exist_ok=True)
        _take_room(out)
    except OSError as error:
        needed = f"; {ROOM_BYTES >> 20} MiB are needed" if error.errno == errno.ENOSPC else ""
        raise OutputError(f"results cannot be written to {out}: {error.strerror}{needed}") from None
    return results


def begin(options):
    """({name: contender}, the Results) of a run. Contenders that are missing are left out."""
    contenders = select_contenders(options.contenders, options.quick, CONTENDERS)
    results = open_results(options)
    print(f"results  {results.path}")
    for name, one in list(contenders.items()):
        if why := one.why_missing():
            del contenders[name]
            results.leave_out(name, why)
            print(f"LEFT OUT {name}: {why}")
    return contenders, results


def announce(plan):
    print(f"rows     {', '.join(row.name for rows in plan.groups for row in rows)}")
    print(f"of       {', '.join(plan.contenders)}")
    decisive = max(map(plan.decisive_rounds_of, plan.groups), default=0)
    more = f", up to {decisive} decisive ones" if decisive else ""
    print(f"time     {plan.options.rounds} rounds{more}, {plan.options.seconds:g} s a cell: about "
          f"{minutes_text(plan.seconds())}\n", flush=True)


def make_report(path):
    """Returns True if the report was made."""
    script = os.path.join(TOP, "scripts", "report")
    if not os.path.exists(script):
        print("bench: scripts/report is missing: no report", file=sys.stderr)
        return False
    return subprocess.run([script, path], check=False, stdin=subprocess.DEVNULL).returncode == 0


def print_other(results):
    """The ratios of the program to that of --against, row by row."""
    for row in results.rows:
        for ours, theirs, least, ratio in aims(row):
            if (found := ratio.summary) and theirs in OTHERS.values():
                print(f"{row['name']:16} {ours} / {theirs}: {found.median:.3f} [{found.low:.3f}-"
                      f"{found.high:.3f}], rounds: {found.count}"
                      f"{'' if found.median >= least else f', less than {least:g}'}")


def conclude(results, strict):
    """Prints the failures; returns the exit code. STRICT: a failed cell is a failure."""
    cells = list(results.cells())
    failed = [(row, name) for row, name, cell in cells if "failed" in cell]
    wrong = [(row, name) for row, name, cell in cells if cell.get("wrong")]
    for text, found in (("failed", failed), ("WRONG PAYLOAD", wrong)):
        for row, name in dict.fromkeys(found):
            print(f"bench: {row}: {name}: {text} in {found.count((row, name))} cells",
                  file=sys.stderr)
    if not cells or len(failed) == len(cells):
        print("bench: nothing could be measured", file=sys.stderr)
        return 1
    return 1 if wrong or (strict and failed) else 0


def carry_out(results, strict, measure, finish=lambda: None):
    """Runs MEASURE(), then FINISH(), and makes the report; returns the exit code."""
    code = 0
    try:
        measure()
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    except Interrupted as signal_number:
        print("\nbench: interrupted; the lab is gone, the rounds so far are kept", file=sys.stderr)
        code = 128 + signal_number.args[0]
    results.write(complete=not code)
    finish()
    if "machine" in results.document and results.rows and not make_report(results.path):
        code = code or 1
    print_other(results)
    return code or conclude(results, strict)


def run(options):
    rows = select_rows(options.rows, options.quick)
    interrupts = Interrupts()
    contenders, results = begin(options)
    plan = Plan(options, rows, contenders)
    announce(plan)

    def measure():
        """In a lab, of which nothing is left afterwards."""
        meters = CpuMeters()
        tools = {row.workload.tool for group in plan.groups for row in group}
        try:
            with BenchLab(interrupts, options.loopback) as lab:
                bench = Benchmark(plan, results, Stage(lab, options, meters, tools))
                results.describe(machine=describe_machine(lab, bench.methods()))
                bench.run()
        finally:
            meters.close()

    return carry_out(results, options.strict, measure)


def with_messages(options, list_all, body):
    """The exit code of BODY(OPTIONS), or of LIST_ALL(), with messages for usual mistakes."""
    if options.against:
        add_other(options.against)
    try:
        return list_all() if options.list else body(options)
    except SelectionError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except OutputError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def main():
    return with_messages(parse_options(), print_list, run)
