#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark: see scripts/bench, which prepares and calls this."""

import resource
import sys
from contextlib import contextmanager

from bench_cells import Cells, Namespaces, apply_counts, failed_cell, one_line
from bench_choice import Choice
from bench_clients import CULVERT_BENCH, Clients
from bench_command import (announce, conclude, make_report, open_results, parse_options,
                           print_list, split_names)
from bench_idle import IdleCells, capacity_note, processes_needed
from bench_lab import BenchLab, Interrupts
from bench_meter import Counter, CpuMeters, is_slab_shrinkable
from bench_plan import COUNT_TIMING, Plan, Progress, cell_text, minutes_text
from bench_relays import PLENTY, Forward, Relay
from bench_results import OutputError, describe_machine
from bench_rows import (CONTENDERS, IDLE_SESSIONS, IDLE_TOOL, SelectionError, order_of_round,
                        select_contenders, select_rows)
from bench_running import RowRelays
from labkit import Interrupted, LabError
from rivals import BY_ITSELF, deciders

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
        self.lab = self.clients = self.namespaces = self.cells = self.idle = self.choice = None

    def run(self, lab):
        self.lab = lab
        self.clients = Clients(lab, self.options.bench_tool, max(1, self.plan.cpus // 2))
        self.results.describe(machine=describe_machine(lab, self._methods()))
        lab.start_servers({row.workload.tool for rows in self.plan.groups for row in rows})
        self.namespaces = Namespaces(lab)
        self.cells = Cells(self.clients, self.namespaces, self.counter)
        self.idle = IdleCells(lab, self.options.bench_tool, self.cells, self.namespaces,
                              self._start_relay, self.options.idle, self.descriptors,
                              self.clients.processes)
        self.choice = Choice(self.plan, self.results, self.progress, self.cells, self.idle,
                             self.namespaces, self._start_relay)
        for rows in self.plan.groups:
            self._run_group(rows)

    def _methods(self):
        counting = self.counter.reason or "perf events, in a run of their own"
        return {"relay CPU": self.meters.method, "system calls and context switches": counting,
                "slabs shrunk before memory is read": "yes" if is_slab_shrinkable() else "no",
                "order within a round": "shuffled, differently in each round and row, but alike in "
                                        "all runs",
                "relays": "new processes in each round",
                "descriptors a process": str(self.descriptors),
                "processes of load generator and sink": str(self.clients.processes)}

    # Relays

    def _forwards(self, contender, instances, workload, skip=0):
        """SKIP: so many of the contender's ports are taken."""
        first = list(CONTENDERS).index(contender.name) * PORTS_EACH + skip
        port = self.clients.upstream_port(workload)
        return [Forward(LISTEN_PORT + first + number, port or SINK_PORT + first + number,
                        workload.host, workload.protocols) for number in range(instances)]

    def _start_relay(self, contender, config, instances=1, sessions=None, workload=IDLE_SESSIONS,
                     skip=0):
        """SESSIONS: how many each instance must be able to hold; None: plenty."""
        sessions = sessions or min(PLENTY, contender.sessions_per_process(self.descriptors))
        forwards = self._forwards(contender, instances, workload, skip)
        relay = Relay(self.lab, contender, config, forwards, self.meters.make())
        return relay.start(self.options.culvert, sessions)

    @contextmanager
    def _sink(self, contenders, instances, processes, workload):
        ports = [forward.upstream for contender in contenders
                 for forward in self._forwards(contender, instances, workload)]
        sink = self.lab.start_sink(self.options.bench_tool, workload.host, ports, processes,
                                   workload.protocol)
        try:
            yield
        finally:
            self.lab.stop(sink)

    # Rows

    def _run_group(self, rows):
        contenders = self.plan.contenders_of(rows[0])
        if rows[0].workload.tool == IDLE_TOOL:
            self._run_idle(rows)
        elif not contenders:
            return
        elif rows[0].workload.tool == CULVERT_BENCH:
            trials = max(len(self.plan.configs_of(rows[0], one)) for one in contenders)
            with self._sink(contenders, trials, self.clients.processes, rows[0].workload):
                self._run_row(rows[0], contenders)
        else:
            self._run_row(rows[0], contenders)

    def _run_row(self, row, contenders):
        self.results.add_row(row)
        configs = {}
        for contender in contenders:
            configs[contender.name] = self.choice.for_row(row, contender)
            self.results.add_contender(row, contender,
                                       contender.describe(configs[contender.name]))
        relays = RowRelays({
            one.name: lambda one=one: self._start_relay(one, configs[one.name],
                                                        workload=row.workload)
            for one in contenders}, [one.name for one in contenders if one.alone])
        try:
            relays.start()
            with self.namespaces.taken_for_idle():
                relays.rest()
                ordinary = self.plan.rounds_of(row)
                self._run_rounds(row, contenders, range(1, ordinary + 1), relays)
                self._count(row, contenders, relays)
                self._decide(row, contenders, relays)
        finally:
            relays.stop()
        self.results.write()

    def _run_rounds(self, row, contenders, numbers, relays):
        """With new processes in each round; those of the first have just been started."""
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
        """Its connections end first: they do not outlive it."""
        if contender.alone:
            self.namespaces.drain()
            relays.rest()

    def _keep(self, row, contender, number, cell):
        self.results.add_cell(row, contender.name, number, cell)
        self.progress.say(
            f"{row.name:11} {self.plan.round_text(row, number):6} {contender.name:14} "
            f"{cell_text(row, cell)}  [{minutes_text(self.progress.left())} left]")

    # Decisive rounds

    def _decide(self, row, contenders, relays):
        """More rounds of ROW with those alone who decide its verdict."""
        names = self._begin_decisive([row], row)
        chosen = [one for one in contenders if one.name in names]
        self._run_rounds(row, chosen, self.plan.decisive_numbers([row]) if names else (), relays)

    def _begin_decisive(self, rows, judged):
        """The names of those who take part in the decisive rounds of ROWS, a group; [] if there
        are none. JUDGED: the row of the verdict."""
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

    def _count(self, row, contenders, relays):
        """System calls and context switches of the ordinary rounds' work, in runs that nothing else
        is measured in."""
        for contender in contenders:
            try:
                counted = self.cells.count(row.workload, relays.get(contender.name),
                                           COUNT_TIMING)
            except LabError as error:
                self.progress.say(f"{row.name}: {contender.name}: not counted: "
                                  f"{one_line(error)}")
                counted = None
            self._rest(relays, contender)
            entry = self.results.contender(row, contender.name)
            entry["counted"] = counted
            for cell in entry["cells"]:
                apply_counts(cell, counted)
            self.progress.advance(self.plan.count_seconds(row))

    # Idle sessions

    def _run_idle(self, rows):
        contenders = [one for one in self.plan.contenders.values()
                      if any(one.name in row.participants for row in rows)]
        capacities = {one.name: self.idle.capacity(one) for one in contenders}
        instances = max((capacity.instances for capacity in capacities.values()), default=1)
        processes = processes_needed(self.options.idle, self.descriptors, self.clients.processes)
        everyone = {one.name: one for one in (CONTENDERS["direct"], *contenders)}
        with self._sink(everyone.values(), instances, processes, IDLE_SESSIONS):
            configs = {one.name: self.choice.for_idle(rows[0], one) for one in contenders}
            for row in rows:
                self._begin_idle_row(row, contenders, configs, capacities)
            for number in range(1, self.plan.rounds_of(rows[0]) + 1):
                self._run_idle_round(rows, contenders, configs, number)
                self.results.write()
            self._decide_idle(rows, contenders, configs)

    def _begin_idle_row(self, row, contenders, configs, capacities):
        self.results.add_row(row)
        for one in contenders:
            if one.name in row.participants:
                self.results.add_contender(row, one, one.describe(configs[one.name]))
                if note := capacity_note(one, capacities[one.name], self.options.idle,
                                         self.descriptors):
                    self.results.append_note(row, note)

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
        self._measure_idle(rows, others, configs, number)

    def _measure_idle(self, rows, contenders, configs, number):
        for contender in order_of_round(contenders, number, "idle"):
            try:
                cells = self.idle.measure(contender, configs[contender.name], self.plan.timing)
            except LabError as error:
                cells = {row.name: failed_cell(error) for row in rows}
            self._keep_idle(rows, contender, number, cells)
            self.progress.advance(self.plan.cell_seconds(rows[0]))

    def _decide_idle(self, rows, contenders, configs):
        """Of the rate beside the idle sessions alone: no round begins with the direct path, which
        memory would have to be compared with."""
        judged = next((row for row in reversed(rows) if row.name in BY_ITSELF), None)
        if judged is None:
            return
        names = self._begin_decisive(rows, judged)
        chosen = [one for one in contenders if one.name in names]
        rates = [row for row in rows if row.name in BY_ITSELF]
        for number in self.plan.decisive_numbers(rows) if names else ():
            self._measure_idle(rates, chosen, configs, number)
            self.results.write()

    def _keep_idle(self, rows, contender, number, cells):
        for row in rows:
            if contender.name in row.participants and contender.name in self.plan.contenders:
                self._keep(row, contender, number, cells[row.name])


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
        print("\nbench: interrupted; the lab is gone, the rounds so far are kept", file=sys.stderr)
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
    try:
        return run(options, plan, missing)
    except OutputError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
