#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Profiles culvert under a workload: see scripts/profile, which prepares and calls this."""

import argparse
import collections
import dataclasses
import os
import sys
import time

import profile_components as components
import profile_heap
import profile_offcpu as offcpu
from labkit import Daemon, Interrupted, Lab, LabError, handle_signals, tail
from profile_load import WORKLOADS, Load, Roles
from profile_perf import Perf, Unavailable
from profile_report import write_report
from profile_window import Window

ENGINES = ("auto", "sockmap", "splice", "copy")
PARTS = ("cost", "events", "syscalls", "oncpu", "offcpu", "heap")
RELAY = "culvert"
FREQUENCY = 999


def say(label, text):
    print(f"{label:9} {text}", flush=True)


@dataclasses.dataclass
class Result:
    """What the parts found; a part that did not run or could not has None, and a reason."""

    engine: str
    workload: object
    seconds: float
    sampled: str = ""
    hardware: tuple = ()
    reports: dict = dataclasses.field(default_factory=dict)  # part: report of the load
    gained: dict = dataclasses.field(default_factory=dict)  # part: what profile_window says
    missing: dict = dataclasses.field(default_factory=dict)  # part: why
    cost: tuple = None  # events of the machine, of culvert
    events: dict = None
    calls: dict = None
    calls_by: str = ""
    oncpu: dict = None  # role: {stack: samples}
    offcpu: object = None  # Waits
    heap: object = None
    resident: tuple = None
    sessions: int = 0
    lost: dict = None

    def units(self, part):
        """The work that was done while PART was recorded."""
        return self.workload.units(self.gained[part])

    def rate(self, part):
        return self.workload.rate(self.gained[part])


@dataclasses.dataclass
class Waits:
    """What the scheduler's events say. seconds: of the recording; by_role: role: intervals."""

    seconds: float
    by_role: dict
    switches: collections.Counter  # role
    preempted: collections.Counter  # role
    wakeups: collections.Counter  # (role of the waker, role of the woken)


class Profile:
    def __init__(self, options, lab):
        self.options = options
        self.lab = lab
        self.workload = WORKLOADS[options.workload]
        self.perf = Perf(_folder(lab, "perf"))
        self.load = Load(lab, options.bench)
        self.result = Result(options.engine, self.workload, options.seconds, self.perf.sampled,
                             self.perf.hardware, sessions=options.sessions)

    def run(self):
        for part in self.options.parts:
            started = time.monotonic()
            try:
                getattr(self, f"_do_{part}")()
                text = self._rate(part)
            except Unavailable as reason:
                self.result.missing[part] = str(reason)
                text = f"NOT MEASURED: {reason}"
            say(part, f"{text} ({time.monotonic() - started:.0f} s)")
        self.result.lost = dict(self.perf.lost)
        return self.result

    def _rate(self, part):
        return self.result.rate(part) if part in self.result.gained else "measured"

    def _under_load(self, part, work, seconds=None):
        """Calls WORK(daemon, window) while the workload runs through a fresh daemon."""
        daemon = Daemon(self.lab, self.options.culvert, self.options.engine, self.load.forwards)
        window = Window(daemon, seconds or self.options.seconds, self.lab.path(f"window-{part}"))
        client = self.load.start(self.workload, daemon)
        answer = work(daemon, window)
        self.result.reports[part] = self.load.finish(client)
        self.result.gained[part] = window.gained()
        if daemon.stop() != 0:
            raise LabError(f"culvert did not end well:\n{tail(daemon.process.log)}")
        if not self.result.units(part):
            raise LabError(f"{part}: nothing went through culvert while it was recorded")
        return answer

    def _do_cost(self):
        """Counters only, which disturb next to nothing."""
        self.result.cost = self._under_load(
            "cost", lambda daemon, window: self.perf.count(daemon.pid, window))

    def _do_events(self):
        self.result.events = self._under_load(
            "events", lambda _, window: self.perf.count_kernel_events(window))

    def _do_syscalls(self):
        self.result.calls, self.result.calls_by = self._under_load(
            "syscalls", lambda daemon, window: self.perf.trace_calls(daemon.pid, window))

    def _do_oncpu(self):
        def work(_daemon, window):
            roles = Roles(self.lab, RELAY)
            self.perf.record_stacks(FREQUENCY, window)
            return roles

        roles = self._under_load("oncpu", work)
        by_role = collections.defaultdict(collections.Counter)
        for sample in self.perf.stacks():
            by_role[_role_of_sample(roles, sample)][sample.stack] += 1
        if not by_role:
            raise Unavailable("perf record brought no samples")
        self.result.oncpu = dict(by_role)

    def _do_offcpu(self):
        seconds = min(self.options.seconds, self.options.offcpu_seconds)

        def work(_daemon, window):
            roles = Roles(self.lab, RELAY)
            self.perf.record_switches(window)
            return roles

        roles, waits = self._under_load("offcpu", work, seconds), offcpu.OffCpu()
        for sample in self.perf.switches():
            waits.add(sample)
        waits.finish()
        if waits.first is None:
            raise Unavailable("perf record brought no events of the scheduler")
        self.result.offcpu = _by_role(roles, waits)

    def _do_heap(self):
        arguments = (self.lab, self.load, self.options.culvert, self.options.engine,
                     self.options.sessions)
        self.result.resident = profile_heap.measure_resident(*arguments)
        self.result.heap = profile_heap.measure_heap(*arguments)


def _role_of_sample(roles, sample):
    """Interrupts that an idle CPU serves are work, and count for a role of their own."""
    role = roles.of(sample.pid, sample.comm)
    if role == "idle" and components.component_of_stack(sample.stack) != components.IDLE:
        return "interrupts while idle"
    return role


def _by_role(roles, waits):
    by_role = collections.defaultdict(list)
    comms = {0: "swapper"}
    for interval in waits.intervals:
        comms[interval.tid] = interval.comm
        by_role[roles.of(interval.pid, interval.comm)].append(interval)
    answer = Waits(waits.last - waits.first, dict(by_role), collections.Counter(),
                   collections.Counter(), collections.Counter())
    comm_of_pid = {waits.thread_pid.get(tid, tid): comm for tid, comm in comms.items()}
    for source, target in ((waits.switches, answer.switches), (waits.preempted, answer.preempted)):
        for pid, count in source.items():
            target[roles.of(pid, comm_of_pid.get(pid, ""))] += count
    for (waker, woken), count in waits.wakeups.items():
        pid = waits.thread_pid.get(woken, woken)
        answer.wakeups[roles.of(waker, comm_of_pid.get(waker, "")),
                       roles.of(pid, comms.get(woken, ""))] += count
    return answer


def _folder(lab, name):
    folder = lab.path(name)
    os.makedirs(folder)
    return folder


def positive(text):
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 600")
    return value


def count(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def part_list(text):
    parts = tuple(text.split(","))
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"{part} is none of {', '.join(PARTS)}")
    return parts


def parse_options():
    parser = argparse.ArgumentParser(prog="profile", description="where the time goes")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--culvert", required=True, help="the program, with frame pointers")
    parser.add_argument("--bench", required=True, help="the program culvert-bench")
    parser.add_argument("--out", required=True, help="folder of the results")
    parser.add_argument("--seconds", type=positive, default=5.0, help="recorded of each part")
    parser.add_argument("--offcpu-seconds", type=positive, default=2.0,
                        help="recorded at most of the scheduler's events, which are many")
    parser.add_argument("--sessions", type=count, default=1000, help="idle ones for the heap")
    parser.add_argument("--parts", type=part_list, default=PARTS,
                        help=f"some of {','.join(PARTS)}")
    parser.add_argument("--check", action="store_true", help="only look at the options")
    return parser.parse_args()


def main():
    options = parse_options()
    if options.check:
        return 0
    handle_signals()
    try:
        with Lab() as lab:
            result = Profile(options, lab).run()
        os.makedirs(options.out, exist_ok=True)
        write_report(result, options.out)
        say("report", os.path.join(options.out, "index.html"))
    except (LabError, Unavailable, OSError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    except Interrupted as number:
        print("\nprofile: interrupted; the lab is gone", file=sys.stderr)
        return 128 + number.args[0]
    return 1 if result.missing else 0


if __name__ == "__main__":
    sys.exit(main())
