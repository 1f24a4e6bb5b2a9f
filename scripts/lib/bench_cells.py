# SPDX-License-Identifier: BSD-2-Clause
"""Measures cells of the benchmark: one workload through one relay, with what it costs."""

import time
from contextlib import contextmanager

from bench_clients import REDIS, Timing, load_seconds, measured_seconds
from bench_meter import (Recorder, changes_between, peak_beyond_first, MachineProbe, read_text,
                         scaled, sockets_in_use)
from cost import CountingUnavailable
from labkit import LabError, wait_until

# The end of a run that is not counted, of load generators that do not say when they measured:
# when that is over, what is on its way still arrives, and they write their report.
END_SECONDS = 0.1
# How long a load generator may take beyond its time: connections that must be repeated, a backlog
# that must drain before it can end.
PATIENCE_SECONDS = 20
DRAIN_SECONDS = 3.0
# Stolen time beyond this share of a cell is worth telling.
STEAL_SHARE = 0.01
# A busy machine may leave us no CPU while a short cell measures: so often it is tried.
TRIES = 3


class TooShort(LabError):
    """What a cell cost was not seen often enough to tell."""


def tried(run):
    """What RUN() returns; again where that was too short, TRIES times in all."""
    for _ in range(TRIES - 1):
        try:
            return run()
        except TooShort:
            continue
    return run()


class Namespaces:
    """Knows how many TCP sockets the lab's namespaces have when nothing goes on."""

    def __init__(self, lab):
        # A process in each, through which its counters can be read once it has got there.
        self._pids = [lab.start(role, "sleep", "infinity").pid
                      for role in ("client", "relay", "server")]
        wait_until(lambda: all(read_text(f"/proc/{pid}/comm") == "sleep\n" for pid in self._pids),
                   "a process to be in each namespace")
        self._idle = self._count()

    def _count(self):
        return [sockets_in_use(pid) for pid in self._pids]

    @contextmanager
    def taken_for_idle(self):
        """Within it, what is open at its beginning counts as nothing: listeners, for example."""
        outside = self._idle
        self._idle = self._count()
        try:
            yield
        finally:
            self._idle = outside

    def drain(self):
        """Waits until the last cell's connections are gone; returns how many still are not."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            left = sum(max(now - idle, 0) for now, idle in zip(self._count(), self._idle))
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)


def difference(before, after):
    """What each of the counters AFTER has more than BEFORE; None if they are not kept."""
    if before is None or after is None:
        return None
    return {name: after[name] - before.get(name, 0) for name in after}


class Cells:
    """Runs workloads through relays. COUNTER: what counts system calls, see bench_meter."""

    def __init__(self, clients, namespaces, counter):
        self._clients = clients
        self._namespaces = namespaces
        self._counter = counter

    def _run(self, workload, targets, timing, probe, at_begin=lambda: None):
        """Runs the load generator, with a Recorder beside it; AT_BEGIN: when it is warmed up.

        Returns its Measurement, the samples, what they changed by while it measured: it ends
        when that is over, but for requests on their way and the end of streams; and the answer of
        AT_BEGIN().
        """
        recorder = Recorder(probe)
        process, started = None, time.monotonic()
        try:
            process = self._clients.start(workload, targets, timing)
            self._clients.wait_for_warmup(process, workload, timing)
            begun = at_begin()
            end = self._clients.wait(process, load_seconds(workload, timing) + PATIENCE_SECONDS)
        finally:
            samples = recorder.close()
            if process and process.poll() is None:
                self._clients.stop(process)
        measurement = self._clients.finish(workload, process)
        seconds = end - started if workload.tool == REDIS else measured_seconds(workload, timing)
        begin, until = end - seconds, end - END_SECONDS
        if measurement.began:  # draining may take longer than END_SECONDS
            begin, until = measurement.began, measurement.began + seconds
        try:
            return measurement, samples, changes_between(samples, begin, until), begun
        except ValueError as error:
            raise TooShort(f"{process.title}: {error}") from None

    def measure(self, workload, relay, timing, at_begin=None):
        """One cell as it is in the results, without its round."""
        left = self._namespaces.drain()
        relay.check()
        measurement, samples, changes, carriers = tried(lambda: self._run(
            workload, relay.targets, timing,
            MachineProbe(None if relay.is_direct else relay.cpu), at_begin or relay.carriers))
        relay.check()
        cell = cell_of(measurement, changes, peak_beyond_first(samples, "kernel"), left)
        cell["carriers"] = difference(carriers, relay.carriers())
        return cell

    def measure_row(self, row, relay, timing):
        """A cell of ROW."""
        cell = self.measure(row.workload, relay, timing,
                            relay.kill if row.kind == "gap" else None)
        if row.kind == "gap":
            if cell["errors"]:
                raise LabError(f"{cell['errors']} sessions were lost")
            cell["value"] = cell["latency_us"]["max"] / 1000
        if row.kind == "memory":
            cell["value"] = cell["kernel_peak_bytes"] / row.workload.connections
        return cell

    def count(self, workload, relay, timing):
        """System calls and context switches of the relay in a run of its own; None if unknown."""
        if relay.is_direct or self._counter.reason:
            return None
        self._namespaces.drain()
        relay.check()
        try:
            events = self._counter.open(relay.pids)
        except CountingUnavailable as error:
            raise LabError(str(error)) from None
        try:
            measurement, _samples, counted, _begun = tried(lambda: self._run(
                workload, relay.targets, timing, lambda: self._counter.read(events)))
        finally:
            self._counter.close(events)
        return {**counted, "work": measurement.per_second * counted["seconds"]}

    def try_out(self, row, relay, seconds):
        """The row's figure for a relay in a short run, to choose its configuration."""
        return self.measure_row(row, relay, trial_timing(row, seconds))["value"]


def trial_timing(row, seconds):
    return Timing(seconds * row.stretch, min(0.25, seconds / 2))


def cell_of(measurement, changes, peak, left):
    """CHANGES: while it measured. LEFT: sockets of the cell before that were not gone."""
    extra = dict(measurement.extra)
    if left:
        extra["sockets_left_before"] = left
    if changes["steal"] > STEAL_SHARE * changes["seconds"]:
        extra["stolen_cpu_seconds"] = round(changes["steal"], 3)
    return {"value": measurement.value, "latency_us": measurement.latency,
            "histogram": measurement.histogram, "cpu_seconds": changes["cpu"],
            "work": measurement.per_second * changes["seconds"],
            "relay_cpu_seconds": changes.get("relay"), "relay_syscalls": None,
            "relay_switches": None, "kernel_peak_bytes": peak, "errors": measurement.errors,
            "wrong": measurement.wrong, "carriers": None, "extra": extra}


def one_line(error):
    return " ".join(str(error).split())[:400]


def failed_cell(error):
    """The cell of a contender that failed."""
    return {"failed": one_line(error)}


def apply_counts(cell, counted):
    """Fills in what COUNTED in a run of its own comes to for the work of CELL."""
    if counted is None or "failed" in cell:
        return
    for name in ("syscalls", "switches"):
        cell[f"relay_{name}"] = scaled(counted[name], counted["work"], cell["work"])
