# SPDX-License-Identifier: BSD-2-Clause
"""Idle sessions: the memory that each costs, and the speed of others beside them.

A contender is alone for this: its relay is started for the cell and ended after it.
"""

import json
import math
import os
import statistics
import subprocess
from dataclasses import dataclass

from bench_clients import CULVERT_BENCH, Workload, bench_command, parse_bench
from bench_cells import failed_cell
from bench_meter import beyond_two_sockets, memory_of, per_session, settled_kernel_memory
from bench_relays import RESERVE
from labkit import LabError, wait_until

TALK = Workload(CULVERT_BENCH, "rr", 64, 64)
OPEN_SECONDS = 60
CALIBRATION_SESSIONS = 1000
PLAIN_PAIRS = 5000
PAIR_READINGS = 3
MARGIN = 128
MOST_INSTANCES = 16
SOCKETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_sockets.py")


@dataclass(frozen=True)
class Capacity:
    """How many sessions to open, through how many instances of a relay."""
    sessions: int
    instances: int
    each: int  # sessions that an instance must be able to hold


@dataclass(frozen=True)
class Usage:
    """Bytes: what a session costs the kernel and the relay's processes; BASE: these without any."""
    sessions: int
    instances: int
    kernel: float
    daemon: float
    base: int


def plan_capacity(contender, wanted, descriptors):
    """As many of the WANTED sessions as DESCRIPTORS a process and MOST_INSTANCES allow."""
    if contender.family == "direct":
        return Capacity(wanted, 1, wanted)
    if contender.most_sessions:
        sessions = min(wanted, contender.most_sessions)
        return Capacity(sessions, 1, sessions)
    limit = max(contender.sessions_per_process(descriptors), 1)
    sessions = min(wanted, limit * MOST_INSTANCES)
    instances = math.ceil(sessions / limit)
    # Connections are spread evenly over the instances, but for the few of the other workload.
    return Capacity(sessions, instances, min(limit, math.ceil(sessions / instances) + MARGIN))


def capacity_note(contender, capacity, wanted, descriptors):
    """What of a contender's idle sessions is not as asked for; "" if nothing."""
    notes = []
    if capacity.sessions < wanted:
        why = f" ({contender.why_not_more})" if contender.why_not_more else ""
        notes.append(f"{capacity.sessions:,} sessions only{why}")
    if capacity.instances > 1:
        notes.append(f"{capacity.instances} instances, because a process has {descriptors:,} "
                     "descriptors")
    return f"{contender.name}: {', '.join(notes)}." if notes else ""


def processes_needed(sessions, descriptors, fewest):
    """Of client and server, which need a descriptor for each session; not spread quite evenly."""
    return max(fewest, math.ceil(sessions / (0.8 * (descriptors - RESERVE))))


class IdleClient:
    """culvert-bench idle, from the moment when all its sessions are open."""

    def __init__(self, lab, bench, targets, wanted, processes):
        self._lab = lab
        self.sessions = 0  # that are open
        command = bench_command(bench, Workload(CULVERT_BENCH, "idle", wanted, 64), targets,
                                None, processes)
        self._process = lab.start("client", *command)
        try:
            wait_until(self._is_open, f"{wanted:,} sessions to be open", OPEN_SECONDS)
            if self.sessions < wanted / 2:
                raise LabError(f"only {self.sessions:,} of {wanted:,} sessions could be opened")
        except BaseException:
            lab.stop(self._process)
            raise

    def _text(self):
        with open(self._process.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def _is_open(self):
        if self._process.poll() is not None:
            raise LabError(f"culvert-bench idle ended with {self._process.returncode}: "
                           f"{self._text().strip()[-300:]}")
        first, end, _rest = self._text().partition("\n")
        if not end or not first.startswith("{"):
            return False
        self.sessions = json.loads(first)["ready"]
        return True

    def close(self):
        """Ends it and returns what it reports: whether each session still lived."""
        code = self._lab.stop(self._process, OPEN_SECONDS)
        if code is None:
            raise LabError("culvert-bench idle did not end")
        return parse_bench(self._text())


class IdleCells:
    """SESSIONS: how many to open. START_RELAY(contender, config, instances, sessions): of bench."""

    def __init__(self, lab, bench, cells, namespaces, start_relay, sessions, descriptors, fewest):
        self._lab = lab
        self._bench = bench
        self._cells = cells
        self._namespaces = namespaces
        self._start_relay = start_relay
        self._wanted = sessions
        self._descriptors = descriptors
        self._fewest = fewest
        self._direct = None  # kernel bytes of a session, without relay
        self._pair = None    # of two plain sockets
        self._unsettled = 0  # readings of kernel memory while it still changed

    def capacity(self, contender):
        return plan_capacity(contender, self._wanted, self._descriptors)

    def _open(self, relay, sessions):
        processes = processes_needed(sessions, self._descriptors, self._fewest)
        return IdleClient(self._lab, self._bench, relay.targets, sessions, processes)

    def begin_round(self, direct, timing):
        """Measures what the others are compared with; returns the direct path's cells.

        DIRECT: the contender.
        """
        self._direct = self._pair = None
        self._pair = self._measure_pairs()
        return self.measure(direct, {}, timing)

    def _kernel(self):
        kernel, has_settled = settled_kernel_memory()
        self._unsettled += not has_settled
        return kernel

    def _measure_pairs(self):
        """Kernel bytes of two connected TCP sockets that nobody watches."""
        count = min(PLAIN_PAIRS, (self._descriptors - RESERVE) // 2)
        process = self._lab.start("relay", SOCKETS, str(count), stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            return statistics.median(self._measure_pairs_once(process, count)
                                     for _ in range(PAIR_READINGS))
        finally:
            process.stdin.close()
            process.stdout.close()
            self._lab.stop(process)

    def _measure_pairs_once(self, process, count):
        before = self._kernel()
        self._tell(process, "open")
        after = self._kernel()
        self._tell(process, "close")
        return per_session(before, after, count)

    def _tell(self, process, word):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if answer != word:
            raise LabError(f"{process.title} answered {answer!r} to {word!r}")

    def measure(self, contender, config, timing):
        """{row name: cell} of the rows "idle", "mixed-0" and "mixed"."""
        capacity = self.capacity(contender)
        self._namespaces.drain()
        relay = self._start_relay(contender, config, capacity.instances, capacity.each)
        try:
            with self._namespaces.taken_for_idle():
                alone = self._cells.measure(TALK, relay, timing)
                self._namespaces.drain()
                return {"mixed-0": alone, **self._measure_open(capacity, relay, timing)}
        finally:
            relay.stop()

    def _measure_open(self, capacity, relay, timing):
        """{row name: cell} of the rows "idle" and "mixed", which may have failed."""
        self._unsettled = 0
        try:
            kernel, daemon = self._kernel(), memory_of(relay.pids)
            client = self._open(relay, capacity.sessions)
            try:
                usage = Usage(client.sessions, capacity.instances,
                              per_session(kernel, self._kernel(), client.sessions),
                              per_session(daemon, memory_of(relay.pids), client.sessions), daemon)
                with self._namespaces.taken_for_idle():
                    beside = self._cells.measure(TALK, relay, timing)
            finally:
                report = client.close()
            relay.check()
        except LabError as error:
            return {name: failed_cell(error) for name in ("idle", "mixed")}
        if relay.is_direct:
            self._direct = usage.kernel
        beside["extra"]["idle_sessions"] = usage.sessions
        return {"idle": self._memory_cell(usage, report), "mixed": beside}

    def _memory_cell(self, usage, report):
        beyond = None
        if self._direct is not None and self._pair is not None:
            beyond = beyond_two_sockets(usage.kernel, self._direct, self._pair)
        extra = {"kernel_bytes_beyond_sockets": beyond, "kernel_bytes_of_session": usage.kernel,
                 "kernel_bytes_of_direct": self._direct, "plain_pair_bytes": self._pair,
                 "sessions": usage.sessions, "instances": usage.instances,
                 "bytes_without_sessions": usage.base}
        if self._unsettled:
            extra["unsettled_readings"] = self._unsettled
        return {"value": usage.daemon, "latency_us": None, "histogram": None, "cpu_seconds": None,
                "work": usage.sessions, "relay_cpu_seconds": None, "relay_syscalls": None,
                "relay_switches": None, "kernel_peak_bytes": None, "errors": report.errors,
                "wrong": report.wrong, "carriers": None, "extra": extra}

    def try_out(self, contender, config):
        """The daemon's memory a session, with few of them, to choose a configuration."""
        sessions = min(self.capacity(contender).sessions, CALIBRATION_SESSIONS)
        relay = self._start_relay(contender, config, 1, sessions + MARGIN)
        try:
            before = memory_of(relay.pids)
            client = self._open(relay, sessions)
            try:
                return per_session(before, memory_of(relay.pids), client.sessions)
            finally:
                client.close()
        finally:
            relay.stop()
