#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark: see scripts/bench, which prepares and calls this."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from contextlib import contextmanager
from datetime import datetime

from bench_cells import Cells, Namespaces, apply_counts, failed_cell, one_line
from bench_clients import CULVERT_BENCH, IPERF3, WRK, Clients
from bench_idle import IdleCells, capacity_note, processes_needed
from bench_lab import BenchLab, Interrupts
from bench_meter import Counter, CpuMeters, is_slab_shrinkable
from bench_plan import (CALIBRATION_PASSES, CALIBRATION_SECONDS, COUNT_TIMING, Plan, Progress,
                        cell_text, minutes_text)
from bench_relays import CONTENDERS, PLENTY, Forward, Relay
from bench_results import Results, describe_culvert, describe_machine
from bench_rows import (IDLE_TOOL, ROWS, SelectionError, order_of_round, select_contenders,
                        select_rows)
from labkit import SERVER, TOP, Interrupted, LabError

LISTEN_PORT = 9000
SINK_PORT = 6000
PORTS_EACH = 16

DESCRIPTORS = 65536


def raise_descriptor_limit():
    """Makes room for many sessions, as far as allowed; returns descriptors a process."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, max(hard, DESCRIPTORS)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Benchmark:
    def __init__(self, plan, results, meters, descriptors):
        self.plan = plan
        self.options = plan.options
        self.results = results
        self.meters = meters
        self.descriptors = descriptors
        self.counter = Counter()
        self.progress = Progress(plan.seconds())
        self.lab = self.clients = self.namespaces = self.cells = self.idle = None

    def run(self, lab):
        self.lab = lab
        self.clients = Clients(lab, self.options.bench_tool, max(1, self.plan.cpus // 2))
        self.results.describe(machine=describe_machine(lab, self._methods()))
        self._start_servers()
        self.namespaces = Namespaces(lab)
        self.cells = Cells(self.clients, self.namespaces, self.counter)
        self.idle = IdleCells(lab, self.options.bench_tool, self.cells, self.namespaces,
                              self._start_relay, self.options.idle, self.descriptors,
                              self.clients.processes)
        for rows in self.plan.groups:
            self._run_group(rows)

    def _methods(self):
        counting = self.counter.reason or "perf events, in a run of their own"
        return {"relay CPU": self.meters.method, "system calls and context switches": counting,
                "slabs shrunk before memory is read": "yes" if is_slab_shrinkable() else "no",
                "descriptors a process": str(self.descriptors),
                "processes of load generator and sink": str(self.clients.processes)}

    def _start_servers(self):
        tools = {row.workload.tool for rows in self.plan.groups for row in rows}
        if WRK in tools:
            self.lab.start_nginx(1 << 20)
        if IPERF3 in tools:
            self.lab.start_iperf3()

    # Relays

    def _forwards(self, contender, instances, port=None, skip=0):
        """PORT: of the server, if it does not listen at ports for each contender. SKIP: so many
        of the contender's ports are taken."""
        first = list(CONTENDERS).index(contender.name) * PORTS_EACH + skip
        return [Forward(LISTEN_PORT + first + number, port or SINK_PORT + first + number)
                for number in range(instances)]

    def _start_relay(self, contender, config, instances=1, sessions=None, port=None, skip=0):
        """SESSIONS: how many each instance must be able to hold; None: plenty."""
        sessions = sessions or min(PLENTY, contender.sessions_per_process(self.descriptors))
        forwards = self._forwards(contender, instances, port, skip)
        relay = Relay(self.lab, contender, config, forwards, self.meters.make())
        return relay.start(self.options.culvert, sessions)

    @contextmanager
    def _sink(self, contenders, instances, processes):
        ports = [forward.upstream for contender in contenders
                 for forward in self._forwards(contender, instances)]
        sink = self.lab.start_sink(self.options.bench_tool, SERVER, ports, processes)
        try:
            yield
        finally:
            self.lab.stop(sink)

    # Configurations

    def _choose(self, row, contender, try_all):
        """The best configuration. TRY_ALL(contender, configs) answers the row's figure for each,
        None where one failed."""
        configs = self.plan.configs_of(row, contender)
        if len(configs) == 1:
            return configs[0]
        tried = list(zip(configs, try_all(contender, configs)))
        best = choose_best(tried, row.better)
        self.results.add_calibration(
            row, contender.name, [(contender.describe(config), value) for config, value in tried],
            contender.describe(best))
        self.progress.say(f"{row.name}: {contender.name} is best with {contender.describe(best)}")
        self.progress.advance(len(configs) * self.plan.trial_seconds(row))
        return best

    def _try_all(self, row, contender, configs):
        """Interleaved as well, each configuration at ports of its own; the mean of the passes."""
        relays = RowRelays({
            index: lambda config=config, index=index: self._start_relay(
                contender, config, port=self._server_port(row), skip=index)
            for index, config in enumerate(configs)})
        figures = {index: [] for index in range(len(configs))}
        try:
            relays.start()
            with self.namespaces.taken_for_idle():
                for number in range(1, CALIBRATION_PASSES + 1):
                    for index in order_of_round(figures, number):
                        figures[index] += self._try_out(row, contender, relays, index)
        finally:
            relays.stop()
        return [statistics.mean(found) if found else None for found in figures.values()]

    def _try_out(self, row, contender, relays, index):
        try:
            return [self.cells.try_out(row, relays.get(index), CALIBRATION_SECONDS)]
        except LabError as error:
            self.progress.say(f"{row.name}: trying {contender.name}: {one_line(error)}")
            return []

    def _try_idle(self, contender, configs):
        values = []
        for config in configs:
            try:
                values.append(self.idle.try_out(contender, config))
            except LabError as error:
                self.progress.say(f"idle: trying {contender.name}: {one_line(error)}")
                values.append(None)
        return values

    def _server_port(self, row):
        return self.clients.upstream_port(row.workload)

    # Rows

    def _run_group(self, rows):
        contenders = self.plan.contenders_of(rows[0])
        if rows[0].workload.tool == IDLE_TOOL:
            self._run_idle(rows)
        elif not contenders:
            return
        elif rows[0].workload.tool == CULVERT_BENCH:
            trials = max(len(self.plan.configs_of(rows[0], one)) for one in contenders)
            with self._sink(contenders, trials, self.clients.processes):
                self._run_row(rows[0], contenders)
        else:
            self._run_row(rows[0], contenders)

    def _run_row(self, row, contenders):
        self.results.add_row(row)
        configs = {}
        for contender in contenders:
            configs[contender.name] = self._choose(
                row, contender, lambda one, choice: self._try_all(row, one, choice))
            self.results.add_contender(row, contender,
                                       contender.describe(configs[contender.name]))
        relays = RowRelays({
            one.name: lambda one=one: self._start_relay(one, configs[one.name],
                                                        port=self._server_port(row))
            for one in contenders})
        try:
            relays.start()
            with self.namespaces.taken_for_idle():
                for number in range(1, self.plan.rounds_of(row) + 1):
                    for contender in order_of_round(contenders, number):
                        self._run_cell(row, contender, number, relays)
                    self.results.write()
                self._count(row, contenders, relays)
        finally:
            relays.stop()
        self.results.write()

    def _run_cell(self, row, contender, number, relays):
        try:
            cell = self.cells.measure_row(row, relays.get(contender.name),
                                          self.plan.timing_of(row))
        except LabError as error:
            cell = failed_cell(error)
        self._keep(row, contender, number, cell)
        self.progress.advance(self.plan.cell_seconds(row))

    def _keep(self, row, contender, number, cell):
        self.results.add_cell(row, contender.name, number, cell)
        self.progress.say(
            f"{row.name:11} {number}/{self.plan.rounds_of(row)} {contender.name:14} "
            f"{cell_text(row, cell)}  [{minutes_text(self.progress.left())} left]")

    def _count(self, row, contenders, relays):
        """System calls and context switches, in runs that nothing else is measured in."""
        for contender in contenders:
            try:
                counted = self.cells.count(row.workload, relays.get(contender.name),
                                           COUNT_TIMING)
            except LabError as error:
                self.progress.say(f"{row.name}: {contender.name}: not counted: "
                                  f"{one_line(error)}")
                counted = None
            entry = self.results.contender(row, contender.name)
            entry["counted"] = counted
            for cell in entry["cells"]:
                apply_counts(cell, counted)
            self.progress.advance(self.plan.count_seconds(row))

    # Idle sessions

    def _run_idle(self, rows):
        contenders = [one for one in self.plan.contenders.values()
                      if any(one.name in row.contenders for row in rows)]
        direct = CONTENDERS["direct"]
        capacities = {one.name: self.idle.capacity(one) for one in contenders}
        instances = max((capacity.instances for capacity in capacities.values()), default=1)
        processes = processes_needed(self.options.idle, self.descriptors, self.clients.processes)
        with self._sink({one.name: one for one in (direct, *contenders)}.values(), instances,
                        processes):
            configs = {one.name: self._choose(rows[0], one, self._try_idle)
                       for one in contenders}
            for row in rows:
                self._begin_idle_row(row, contenders, configs, capacities)
            for number in range(1, self.plan.rounds_of(rows[0]) + 1):
                self._run_idle_round(rows, contenders, configs, number)
                self.results.write()

    def _begin_idle_row(self, row, contenders, configs, capacities):
        self.results.add_row(row)
        for one in contenders:
            if one.name in row.contenders:
                self.results.add_contender(row, one, one.describe(configs[one.name]))
                if note := self._capacity_note(one, capacities[one.name]):
                    self.results.append_note(row, note)

    def _capacity_note(self, contender, capacity):
        return capacity_note(contender, capacity, self.options.idle, self.descriptors)

    def _run_idle_round(self, rows, contenders, configs, number):
        """The direct path first: the others are compared with it."""
        direct = CONTENDERS["direct"]
        try:
            cells = self.idle.begin_round(direct, self.plan.timing)
        except LabError as error:
            cells = {row.name: failed_cell(error) for row in rows}
        self._keep_idle(rows, direct, number, cells)
        self.progress.advance(self.plan.cell_seconds(rows[0]))
        others = [one for one in contenders if one is not direct]
        for contender in order_of_round(others, number):
            try:
                cells = self.idle.measure(contender, configs[contender.name], self.plan.timing)
            except LabError as error:
                cells = {row.name: failed_cell(error) for row in rows}
            self._keep_idle(rows, contender, number, cells)
            self.progress.advance(self.plan.cell_seconds(rows[0]))

    def _keep_idle(self, rows, contender, number, cells):
        for row in rows:
            if contender.name in row.contenders and contender.name in self.plan.contenders:
                self._keep(row, contender, number, cells[row.name])


class RowRelays:
    """Relays that run at the same time, by name; one that died is started again.

    STARTERS: {name: function that starts the relay and returns it}.
    """

    def __init__(self, starters):
        self._starters = starters
        self._running = {}
        self._failed = {}

    def start(self):
        for name, start in self._starters.items():
            try:
                self._running[name] = start()
            except LabError as error:
                self._failed[name] = f"did not start: {one_line(error)}"

    def get(self, name):
        """Raises LabError if it cannot be had."""
        if name in self._failed:
            raise LabError(self._failed[name])
        relay = self._running.pop(name, None)
        try:
            if relay:
                relay.check()
        except LabError:
            relay.stop()
            relay = None
        self._running[name] = relay or self._starters[name]()
        return self._running[name]

    def stop(self):
        for relay in self._running.values():
            relay.stop()
        self._running.clear()


def choose_best(tried, better):
    """The configuration with the best value of (configuration, value or None) pairs.

    The first one if none worked: then the row shows the failure.
    """
    sign = 1 if better == "higher" else -1
    working = [pair for pair in tried if pair[1] is not None]
    return max(working, key=lambda pair: sign * pair[1])[0] if working else tried[0][0]


# The command

def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/bench", allow_abbrev=False,
                                     usage="sudo scripts/bench [OPTION...], see --help")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", default="")
    parser.add_argument("--contenders", default="")
    parser.add_argument("--rounds", type=positive_int)
    parser.add_argument("--seconds", type=positive_float)
    parser.add_argument("--idle", type=positive_int, default=20000)
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--no-calibration", dest="calibrate", action="store_false")
    parser.add_argument("--out")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--culvert", default=os.path.join(TOP, "build", "culvert"))
    parser.add_argument("--bench-tool", default=os.path.join(TOP, "build", "culvert-bench"))
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (0.5 if options.quick else 1.25)
    options.calibrate = options.calibrate and not options.quick
    options.culvert = os.path.abspath(options.culvert)
    options.bench_tool = os.path.abspath(options.bench_tool)
    return options


def positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def positive_float(text):
    number = float(text)
    if not 0.2 <= number <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.2 to 3600")
    return number


def split_names(text):
    return [name for name in text.split(",") if name]


def print_list():
    print("Rows (* in --quick):")
    for row in ROWS:
        print(f"  {'*' if row.quick else ' '} {row.name:12} {row.group:13} {row.title}")
    print("\nContenders:")
    for contender in CONTENDERS.values():
        print(f"    {contender.name:15} {contender.why_missing() or contender.family}")


def open_results(options):
    """The folder of the results is there, and the document in it begun."""
    out = options.out or os.path.join(TOP, "build", "bench",
                                      datetime.now().strftime("%Y-%m-%d-%H%M%S"))
    os.makedirs(out, exist_ok=True)
    return Results(os.path.join(out, "results.json"), quick=options.quick,
                   lab="loopback" if options.loopback else "veth", rounds=options.rounds,
                   cell_seconds=options.seconds, culvert=describe_culvert(options.culvert))


def announce(plan, missing, path):
    print(f"results  {path}")
    print(f"rows     {', '.join(row.name for rows in plan.groups for row in rows)}")
    print(f"of       {', '.join(plan.contenders)}")
    for name, why in missing.items():
        print(f"LEFT OUT {name}: {why}")
    print(f"time     {plan.options.rounds} rounds, {plan.options.seconds:g} s a cell: about "
          f"{minutes_text(plan.seconds())}\n", flush=True)


def make_report(path):
    """Returns whether the report was made."""
    script = os.path.join(TOP, "scripts", "report")
    if not os.path.exists(script):
        print("bench: scripts/report is missing: no report", file=sys.stderr)
        return False
    return subprocess.run([script, path], check=False, stdin=subprocess.DEVNULL).returncode == 0


def conclude(results, strict):
    """Tells what went wrong; returns the exit code. STRICT: a failed cell is a failure."""
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


def measure(options, plan, results, interrupts):
    """Runs the plan in a lab, of which nothing is left afterwards."""
    meters = CpuMeters()
    try:
        with BenchLab(interrupts, options.loopback) as lab:
            Benchmark(plan, results, meters, raise_descriptor_limit()).run(lab)
    finally:
        meters.close()


def run(options, plan, missing):
    interrupts = Interrupts()
    results = open_results(options)
    for name, why in missing.items():
        results.leave_out(name, why)
    announce(plan, missing, results.path)
    code = None
    try:
        measure(options, plan, results, interrupts)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    except Interrupted as signal_number:
        print("\nbench: interrupted; the lab is gone, the rows so far are kept", file=sys.stderr)
        code = 128 + signal_number.args[0]
    results.write(complete=code is None)
    if results.rows and not make_report(results.path):
        code = code or 1
    return conclude(results, options.strict) if code is None else code


def main():
    options = parse_options()
    if options.list:
        print_list()
        return 0
    try:
        rows = select_rows(split_names(options.rows), options.quick)
        names = select_contenders(split_names(options.contenders), options.quick, CONTENDERS)
    except SelectionError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    missing = {name: why for name in CONTENDERS if name in names
               if (why := CONTENDERS[name].why_missing())}
    plan = Plan(options, rows, {name: one for name, one in CONTENDERS.items()
                                if name in names and name not in missing})
    return run(options, plan, missing)


if __name__ == "__main__":
    sys.exit(main())
