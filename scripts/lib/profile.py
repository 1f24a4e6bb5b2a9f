#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Profiles a relay under a workload: see scripts/profile, which prepares and calls this."""

import argparse
import collections
import dataclasses
import os
import re
import sys
import tempfile
import time

import profile_components as components
import profile_heap
import profile_offcpu as offcpu
from bench import raise_descriptor_limit
from bench_lab import BenchLab, Interrupts
from bench_meter import CpuMeters, processes_of
from labkit import Interrupted, LabError
from profile_compact import write_compact
from profile_load import WORKLOADS, Load, Roles
from profile_perf import Perf, Unavailable
from profile_relay import PROFILED, Runs, choose_subject, result_files
from profile_report import write_report
from profile_window import Window

PARTS = ("cost", "events", "syscalls", "oncpu", "offcpu", "heap")
# Another name, from before the rows of the benchmark.
ALIASES = {"bulk": "bulk-1"}
FREQUENCY = 999
# What the results of a long recording may take on the disk.
ROOM = 32 << 20


def say(label, text):
    print(f"{label:9} {text}", flush=True)


@dataclasses.dataclass
class Result:
    """What the parts found; a part that did not run or could not has None, and a reason."""

    subject: object  # profile_relay.Subject
    workload: object
    seconds: float
    sampled: str = ""
    hardware: tuple = ()
    reports: dict = dataclasses.field(default_factory=dict)  # part: report of the load
    gained: dict = dataclasses.field(default_factory=dict)  # part: what profile_window says
    missing: dict = dataclasses.field(default_factory=dict)  # part: why
    cost: tuple = None  # events of the machine, of the relay
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

    @property
    def relay(self):
        """The relay's name in tables, and its role in stacks."""
        return self.subject.program


@dataclasses.dataclass
class Waits:
    """What the scheduler's events say. seconds: of the recording; by_role: role: intervals."""

    seconds: float
    by_role: dict
    switches: collections.Counter  # role
    preempted: collections.Counter  # role
    wakeups: collections.Counter  # (role of the waker, role of the woken)


class Profile:
    def __init__(self, options, lab, subject, meters):
        self.options = options
        self.lab = lab
        self.workload = WORKLOADS[options.workload]
        self.perf = Perf(_folder(lab, "perf"))
        self.load = Load(lab, options.bench, self.workload.is_http)
        self.runs = Runs(lab, subject, options.culvert, meters, raise_descriptor_limit())
        self.result = Result(subject, self.workload, options.seconds, self.perf.sampled,
                             self.perf.hardware, sessions=options.sessions)

    def run(self):
        for part in self.options.parts:
            started = time.monotonic()
            try:
                getattr(self, f"_do_{part}")()
                text = self._rate(part)
            except (LabError, Unavailable) as reason:
                self.result.missing[part] = str(reason)
                self.result.reports.pop(part, None)
                text = f"NOT MEASURED: {reason}"
            say(part, f"{text} ({time.monotonic() - started:.0f} s)")
        self.result.lost = dict(self.perf.lost)
        return self.result

    def _rate(self, part):
        return self.result.rate(part) if part in self.result.gained else "measured"

    def _under_load(self, part, work, seconds=None):
        """Calls WORK(relay, window) while the workload runs through a fresh relay."""
        relay, client = self.runs.start(self.workload.forward), None
        try:
            window = Window(self.load, relay, seconds or self.options.seconds,
                            self.lab.path(f"window-{part}"))
            client = self.load.start(self.workload)
            answer = work(relay, window)
            report = self.load.finish(client)
            gained = window.gained() | {"exchange": self.workload.exchange(report)}
            self.result.reports[part] = report
            self.runs.stop(relay)
        finally:
            if client:
                self.load.drop(client)
            relay.stop()
        if not self.workload.units(gained):
            raise LabError(f"nothing went through {self.result.relay} while it was recorded")
        self.result.gained[part] = gained
        return answer

    def _do_cost(self):
        """Counters only, which disturb next to nothing."""
        self.result.cost = self._under_load(
            "cost", lambda relay, window: self.perf.count(_pids(relay), window))

    def _do_events(self):
        self.result.events = self._under_load(
            "events", lambda _, window: self.perf.count_kernel_events(window))

    def _do_syscalls(self):
        self.result.calls, self.result.calls_by = self._under_load(
            "syscalls", lambda relay, window: self.perf.count_calls(_pids(relay), window))

    def _do_oncpu(self):
        def work(_relay, window):
            roles = Roles(self.lab, self.result.relay, self.result.subject.contender.forks)
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

        def work(_relay, window):
            roles = Roles(self.lab, self.result.relay, self.result.subject.contender.forks)
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
        relay = self.runs.start()
        try:
            self.result.resident = profile_heap.measure_resident(self.load, relay,
                                                                 self.options.sessions)
            self.runs.stop(relay)
        finally:
            relay.stop()
        if self.result.subject.is_culvert:
            self.result.heap = profile_heap.measure_heap(
                self.lab, self.load, self.options.culvert, self.result.subject.contender,
                self.options.sessions)


def _pids(relay):
    """All processes of RELAY, in the order in which they were numbered."""
    return sorted(processes_of(relay.pids))


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
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) or not 0 < float(text) <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, up to 600")
    return float(text)


def count(text):
    if not re.fullmatch(r"\d{1,9}", text) or not 1 <= int(text) <= 100000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100000")
    return int(text)


def part_list(text):
    parts = tuple(text.split(","))
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in parts)


def one_of(known, what):
    def parse(text):
        name = ALIASES.get(text, text)
        if name not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}: {', '.join(known)}")
        return name
    return parse


class Parser(argparse.ArgumentParser):
    """One line for a mistake, not the whole usage."""

    def error(self, message):
        print(f"profile: {message}; see scripts/profile --help", file=sys.stderr)
        sys.exit(2)


def parse_options():
    parser = Parser(prog="profile", allow_abbrev=False, add_help=False)
    parser.add_argument("engine", metavar="RELAY", type=one_of(PROFILED, "relay to profile"))
    parser.add_argument("workload", metavar="WORKLOAD", type=one_of(WORKLOADS, "workload"))
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


def check_folder(folder):
    """Makes FOLDER; OSError if the results will not go there."""
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * 65536)
    room = os.statvfs(folder)
    if room.f_bavail * room.f_frsize < ROOM:
        raise LabError(f"{folder}: less than {ROOM >> 20} MiB are free")


def profile(options, subject):
    """Returns the Result; nothing of the lab is left afterwards."""
    interrupts = Interrupts()
    meters = CpuMeters()
    try:
        with BenchLab(interrupts, False) as lab:
            return Profile(options, lab, subject, meters).run()
    finally:
        meters.close()


def main():
    options = parse_options()
    try:
        check_folder(options.out)
        if options.check:
            return 0
        subject = choose_subject(options.engine, WORKLOADS[options.workload],
                                 len(os.sched_getaffinity(0)), result_files())
        if reason := subject.contender.why_missing():
            raise LabError(f"{options.engine}: {reason}")
        say("relay", f"{subject.program}: {subject.describe()} ({subject.source})")
        result = profile(options, subject)
        write_report(result, options.out)
        write_compact(result, options.out)
        say("report", os.path.join(options.out, "index.html, summary.md, profile.md"))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"profile: {where}{error.strerror}", file=sys.stderr)
        return 1
    except (LabError, Unavailable) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    except Interrupted as number:
        print("\nprofile: interrupted; the lab is gone", file=sys.stderr)
        return 128 + number.args[0]
    return 1 if result.missing else 0


if __name__ == "__main__":
    sys.exit(main())
