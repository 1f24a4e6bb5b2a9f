# SPDX-License-Identifier: BSD-2-Clause
"""One cell of the benchmark: the speed of a workload through a relay, and its cost.

CPU of the machine   the time of all CPUs less idle time, waiting for a disk, and time given to
                     others by a hypervisor (steal). cost.py says why the figures of /proc/stat for
                     user, system and interrupts are not used.
CPU of the relay     all its threads and processes, also those that have ended: from cpu.stat of a
                     cgroup of its own (version 2, nanoseconds underneath); not known where none can
                     be made. Interrupts that were served on top of its threads are part of it. The
                     two figures of CPU are read one right after the other, in every sample.
calls and switches   perf events over all its threads and those that they create. Counting slows
                     system calls of the whole machine down a little, so it is done in a run of its
                     own and never while speed is measured.
kernel memory        of the whole machine: MemTotal less free memory (MemFree, and the pages in
                     the lists of each CPU, "count" in /proc/zoneinfo: up to tens of MB), less
                     the page cache (Buffers, Cached, SwapCached), less the anonymous memory of
                     programs. The rest are the slabs (also inodes and dentries of sockets),
                     pages of socket and pipe buffers, page tables, kernel stacks and BPF maps, of
                     client and server too.
memory of the relay  Pss from /proc/PID/smaps_rollup, over all its processes: memory that several
                     share is counted once.
"""

import json
import math
import os
import re
import statistics
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

from bench.contenders import (CONTENDERS, PLENTY, RESERVE, Forward, Relay, one_line,
                              raise_descriptor_limit)
from bench.loads import OWN, Loads, bench_command, parse_bench
from bench.rows import CULVERT_BENCH, IDLE_SESSIONS, REDIS, Workload, trial_timing
from cost import (PERF_TYPE_TRACEPOINT, CountingUnavailable, TaskEvents, parse_machine_cpu,
                  tracepoint_id)
from labkit import LabError, wait_until

PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.05
LISTEN_PORT, SINK_PORT, PORTS_EACH = 9000, 6000, 16


def read_text(path):
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


# Processes of a relay

def processes_of(leaders):
    """The pids of all processes in the sessions that the pids LEADERS lead."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) in leaders:
                found.append(int(name))
        except OSError:
            continue  # it has just ended
    return found


def memory_of(leaders):
    """Pss in bytes of all processes in the sessions that the pids LEADERS lead."""
    total = 0
    for pid in processes_of(leaders):
        try:
            text = read_text(f"/proc/{pid}/smaps_rollup")
        except OSError:
            continue  # it has just ended
        total += sum(int(kilobytes) << 10 for kilobytes in re.findall(r"^Pss: +(\d+)", text, re.M))
    return total


# CPU of the relay

def parse_cgroup2_folder(mountinfo, cgroup):
    """The own cgroup of version 2, of the texts of /proc/self/mountinfo and .../cgroup."""
    mounts = [line.split(" - ", 1) for line in mountinfo.splitlines() if " - cgroup2 " in line]
    paths = [line[3:] for line in cgroup.splitlines() if line.startswith("0::/")]
    if not mounts or not paths:
        return None
    return mounts[0][0].split()[4].rstrip("/") + paths[0].rstrip("/")


class GroupCpu:
    """A cgroup for the processes of one relay, below our own, which tells their CPU time.

    The cpu controller must be off: the group would be scheduled as one unit, against client and
    server together, and the figures would be others.
    """

    def __init__(self, folder):
        self._folder = folder
        os.mkdir(folder)
        try:
            if "cpu" in read_text(f"{folder}/cgroup.controllers").split():
                raise OSError(f"{folder} has the cpu controller")
            self.seconds()
        except (OSError, KeyError):
            os.rmdir(folder)
            raise

    def enter(self):
        """Puts the calling process into it: to be called between fork and exec."""
        with open(f"{self._folder}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")

    def seconds(self):
        fields = dict(line.split() for line in read_text(f"{self._folder}/cpu.stat").splitlines())
        return int(fields["usage_usec"]) / 1e6

    def close(self):
        """Removes it, once its last process is reaped, perhaps by init. False: not in time."""
        deadline = time.monotonic() + 5
        while os.path.isdir(self._folder):
            try:
                os.rmdir(self._folder)
            except OSError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
        return True


def remove_stale_groups(folder):
    """Removes the groups of benchmarks that were killed; one that holds a process stays."""
    for name in os.listdir(folder):
        match = re.fullmatch(r"culvert-bench-(\d+)-\d+", name)
        if match and not os.path.exists(f"/proc/{match.group(1)}"):
            try:
                os.rmdir(f"{folder}/{name}")
            except OSError:
                continue


class CpuMeters:
    """Makes the GroupCpu of each relay, None on a machine without."""

    def __init__(self):
        self._made = []
        self._folder = parse_cgroup2_folder(read_text("/proc/self/mountinfo"),
                                            read_text("/proc/self/cgroup"))
        self.method = "not known: no cgroup of version 2"
        if self._folder is None:
            return
        remove_stale_groups(self._folder)
        try:
            self.make().close()
            self.method = "cgroup cpu.stat"
        except (OSError, KeyError):
            self._folder = None

    def make(self):
        if not self._folder:
            return None
        number = len(self._made) + 1
        self._made.append(GroupCpu(f"{self._folder}/culvert-bench-{os.getpid()}-{number}"))
        return self._made[-1]

    def close(self):
        """Removes the groups that are left, once nothing runs any more."""
        if not all([group.close() for group in self._made]):
            raise LabError(f"cgroups are left in {self._folder}: something still runs there")


# System calls and context switches

PERF_TYPE_SOFTWARE = 1
PERF_COUNT_SW_CONTEXT_SWITCHES = 3


class Counter:
    """System calls and context switches of relays; REASON: they cannot be counted here."""

    def __init__(self):
        self.reason = None
        try:
            self._tracepoint = tracepoint_id()
            self.close(self.open([os.getsid(0)]))
        except CountingUnavailable as reason:
            self.reason = str(reason)

    def open(self, leaders):
        """Begins to count for all processes in the sessions of LEADERS."""
        tids = []
        for pid in processes_of(leaders):
            try:
                tids += map(int, os.listdir(f"/proc/{pid}/task"))
            except OSError:
                continue  # it has just ended
        calls = TaskEvents(PERF_TYPE_TRACEPOINT, self._tracepoint, tids)
        try:
            return calls, TaskEvents(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CONTEXT_SWITCHES, tids)
        except CountingUnavailable:
            calls.close()
            raise

    def read(self, events):
        """{"syscalls": n, "switches": n} since open()."""
        return {"syscalls": events[0].read(), "switches": events[1].read()}

    def close(self, events):
        for event in events:
            event.close()


# Memory of the kernel

def kernel_memory():
    """Bytes that the kernel uses for itself."""
    fields = {name: int(kilobytes) << 10 for name, kilobytes in
              re.findall(r"^(\w+): +(\d+) kB$", read_text("/proc/meminfo"), re.M)}
    cache = fields["Buffers"] + fields["Cached"] + fields.get("SwapCached", 0)
    # Pages that CPUs keep at hand for the next allocation.
    pages = sum(map(int, re.findall(r"^ +count: +(\d+)$", read_text("/proc/zoneinfo"), re.M)))
    return fields["MemTotal"] - fields["MemFree"] - pages * PAGE - cache - fields["AnonPages"]


def shrink_slabs():
    """Returns empty slabs to the page allocator: their next user would seem to cost nothing."""
    try:
        caches = os.listdir("/sys/kernel/slab")
    except OSError:
        return
    # Merged caches appear under several names; one name is enough.
    folders = {os.path.realpath(f"/sys/kernel/slab/{cache}") for cache in caches}
    for folder in folders:
        try:
            with open(f"{folder}/shrink", "w", encoding="ascii") as file:
                file.write("1")
        except OSError:
            continue


def is_slab_shrinkable():
    return os.access("/sys/kernel/slab/TCP/shrink", os.W_OK)


def refresh_counters():
    """Adds the counts that each CPU keeps to the machine's counters: up to 1 MB each."""
    try:
        read_text("/proc/sys/vm/stat_refresh")
    except OSError:
        pass


def settled_kernel_memory(tolerance=256 << 10, seconds=6.0):
    """(kernel memory in bytes once it changes no more, True if that was in time).

    Freed sockets go back after a grace period. Memory never settles beside other work.
    """
    deadline = time.monotonic() + seconds
    last = None
    while True:
        shrink_slabs()
        refresh_counters()
        now = kernel_memory()
        if last is not None and abs(now - last) <= tolerance:
            return now, True
        if time.monotonic() > deadline:
            return now, False
        last = now
        time.sleep(0.1)


# The cost of a span of time

class Recorder:
    """Calls PROBE(), which answers {name: number}, 20 times a second.

    So measured time need not be known beforehand. All numbers of a sample are of one moment.
    """

    def __init__(self, probe):
        self._probe = probe
        self._stop = threading.Event()
        self._samples = []
        self._take()
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def _take(self):
        self._samples.append((time.monotonic(), self._probe()))

    def _record(self):
        while not self._stop.wait(SAMPLE_SECONDS):
            self._take()

    def close(self):
        """Ends it and returns [(time, {name: number}), ...]."""
        self._stop.set()
        self._thread.join()
        return self._samples


class MachineProbe:
    """Reads the machine's CPU and kernel memory, and the relay's CPU unless that is None."""

    def __init__(self, relay_cpu):
        self._relay_cpu = relay_cpu

    def __call__(self):
        sample = {"relay": self._relay_cpu.seconds()} if self._relay_cpu else {}
        text, now = read_text("/proc/stat"), time.monotonic()
        sample["cpu"], sample["steal"] = parse_machine_cpu(text, now)
        sample["kernel"] = kernel_memory()
        return sample


def changes_between(samples, begin, end):
    """The change of each number from the first to the last sample from BEGIN to END, and "seconds".

    Raises ValueError if these are not two.
    """
    within = [sample for sample in samples if begin <= sample[0] <= end]
    if len(within) < 2:
        raise ValueError("too short to tell its cost")
    (first_time, first), (last_time, last) = within[0], within[-1]
    changes = {name: last[name] - first[name] for name in first}
    return {**changes, "seconds": last_time - first_time}


def sockets_in_use(pid):
    """TCP sockets in the network namespace of PID: listening or connected.

    A socket that its program has closed counts until its last byte and FIN are acknowledged.
    """
    return int(re.search(r"^TCP: inuse (\d+)", read_text(f"/proc/{pid}/net/sockstat"), re.M)[1])


# Cells

# Not counted at the end of a run, if the load generator does not report its measured time: the last
# bytes arrive, and the report is written.
END_SECONDS = 0.1
# The time that a load generator may take beyond its own: connections that must be repeated, a
# backlog that must drain before the end.
PATIENCE_SECONDS = 20
DRAIN_SECONDS = 3.0
# Stolen time beyond this share of a cell is worth telling.
STEAL_SHARE = 0.01
# A busy machine may leave us no CPU while a short cell measures: it is tried so often.
TRIES = 3


class TooShort(LabError):
    """There were too few samples to tell the cost of a cell."""


def tried(run):
    """The answer of RUN(), which is repeated if it was TooShort, TRIES times in all."""
    for _ in range(TRIES - 1):
        try:
            return run()
        except TooShort:
            continue
    return run()


class Namespaces:
    """Knows the number of TCP sockets that the lab's namespaces have at rest."""

    def __init__(self, lab):
        # A process in each namespace, through which its counters can be read.
        self._pids = [lab.start(role, "sleep", "infinity").pid
                      for role in ("client", "relay", "server")]
        wait_until(lambda: all(read_text(f"/proc/{pid}/comm") == "sleep\n" for pid in self._pids),
                   "a process to be in each namespace")
        self._idle = self._count()

    def _count(self):
        return [sockets_in_use(pid) for pid in self._pids]

    @contextmanager
    def taken_for_idle(self):
        """Sockets that are open at its beginning count as at rest: listeners, for example."""
        outside = self._idle
        self._idle = self._count()
        try:
            yield
        finally:
            self._idle = outside

    def drain(self):
        """Waits until the last cell's connections are gone; returns the number that are not."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            left = sum(max(now - idle, 0) for now, idle in zip(self._count(), self._idle))
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.01)


class Stage:
    """The lab of a run with its servers and load generators, in which relays are started.

    OPTIONS: of the command line. METERS: CpuMeters. TOOLS: the load generators that need a server.
    """

    def __init__(self, lab, options, meters, tools):
        self.lab, self.options, self.meters = lab, options, meters
        self.descriptors = raise_descriptor_limit()
        self.loads = Loads(lab, options.bench_tool, max(1, len(os.sched_getaffinity(0)) // 2))
        lab.start_servers(tools)
        self.namespaces = Namespaces(lab)

    def _forwards(self, contender, instances, workload, skip=0):
        """SKIP: so many of the contender's ports are taken."""
        first = list(CONTENDERS).index(contender.name) * PORTS_EACH + skip
        port = self.loads.upstream_port(workload)
        return [Forward(LISTEN_PORT + first + number, port or SINK_PORT + first + number,
                        workload.host, workload.protocols) for number in range(instances)]

    def start_relay(self, contender, config, workload=IDLE_SESSIONS, *, instances=1, sessions=None,
                    skip=0):
        """SESSIONS: each instance must be able to hold so many; None: plenty."""
        sessions = sessions or min(PLENTY, contender.sessions_per_process(self.descriptors))
        forwards = self._forwards(contender, instances, workload, skip)
        relay = Relay(self.lab, contender, config, forwards, self.meters.make())
        return relay.start(self.options.culvert, sessions)

    @contextmanager
    def sink(self, contenders, workload, instances, processes=None):
        """The server of culvert-bench, at the ports of so many INSTANCES of each contender."""
        ports = [forward.upstream for contender in contenders
                 for forward in self._forwards(contender, instances, workload)]
        sink = self.lab.start_sink(self.options.bench_tool, workload.host, ports,
                                   processes or self.loads.processes, workload.protocol)
        try:
            yield
        finally:
            self.lab.stop(sink)


class Cells:
    """Runs workloads through relays. STAGE: a Stage."""

    def __init__(self, stage):
        self._loads = stage.loads
        self._namespaces = stage.namespaces
        self.counter = Counter()

    def _run(self, workload, targets, timing, probe, at_begin=lambda: None):
        """Runs the load generator, with a Recorder beside it; AT_BEGIN: when it is warmed up.

        Returns its Measurement, the samples, their changes in measured time, and the answer of
        AT_BEGIN(). A load generator ends with its measured time, but for requests on their way and
        the end of streams.
        """
        recorder = Recorder(probe)
        process, started = None, time.monotonic()
        try:
            process = self._loads.start(workload, targets, timing)
            self._loads.wait_for_warmup(process, workload, timing)
            begun = at_begin()
            end = self._loads.wait(process, workload.load_seconds(timing) + PATIENCE_SECONDS)
        finally:
            samples = recorder.close()
            if process and process.poll() is None:
                self._loads.stop(process)
        measurement = self._loads.finish(workload, process)
        seconds = end - started if workload.tool == REDIS else workload.measured_seconds(timing)
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
        kernel = [sample["kernel"] for _time, sample in samples]
        cell = cell_of(measurement, changes, max(kernel) - kernel[0], left)
        if carriers is not None:
            cell["carriers"] = {name: count - carriers.get(name, 0)
                                for name, count in relay.carriers().items()}
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
        if relay.is_direct or self.counter.reason:
            return None
        self._namespaces.drain()
        relay.check()
        try:
            events = self.counter.open(relay.pids)
        except CountingUnavailable as error:
            raise LabError(str(error)) from None
        try:
            measurement, _samples, counted, _begun = tried(lambda: self._run(
                workload, relay.targets, timing, lambda: self.counter.read(events)))
        finally:
            self.counter.close(events)
        return {**counted, "work": measurement.per_second * counted["seconds"]}

    def try_out(self, row, relay, seconds):
        """The row's figure for a relay in a short run, to choose its configuration."""
        return self.measure_row(row, relay, trial_timing(row, seconds))["value"]


# The fields of a cell that may be unknown.
EMPTY_CELL = dict.fromkeys((
    "latency_us", "histogram", "cpu_seconds", "work", "relay_cpu_seconds", "relay_syscalls",
    "relay_switches", "kernel_peak_bytes", "carriers"))


def cell_of(measurement, changes, peak, left):
    """CHANGES: in measured time. LEFT: sockets that are left of the cell before."""
    extra = dict(measurement.extra)
    if left:
        extra["sockets_left_before"] = left
    if changes["steal"] > STEAL_SHARE * changes["seconds"]:
        extra["stolen_cpu_seconds"] = round(changes["steal"], 3)
    return {**EMPTY_CELL, "value": measurement.value, "latency_us": measurement.latency,
            "histogram": measurement.histogram, "cpu_seconds": changes["cpu"],
            "work": measurement.per_second * changes["seconds"],
            "relay_cpu_seconds": changes.get("relay"), "kernel_peak_bytes": peak,
            "errors": measurement.errors, "wrong": measurement.wrong, "extra": extra}


def failed_cell(error):
    """The cell of a contender that failed."""
    return {"failed": one_line(error)}


def apply_counts(cell, counted):
    """Fills in the events of a run of their own, COUNTED, as those of the work of CELL."""
    if counted is None or "failed" in cell or not counted["work"]:
        return
    for name in ("syscalls", "switches"):
        cell[f"relay_{name}"] = round(counted[name] * cell["work"] / counted["work"])


# Idle sessions: a contender is alone for these, as its relay is started for the cell

TALK = Workload(CULVERT_BENCH, "rr", 64, 64)
OPEN_SECONDS = 60
CALIBRATION_SESSIONS = 1000
PLAIN_PAIRS = 5000
PAIR_READINGS = 3
MARGIN = 128
MOST_INSTANCES = 16


@dataclass(frozen=True)
class Capacity:
    """The sessions to open, and the instances of a relay for them."""
    sessions: int
    instances: int
    each: int  # sessions that an instance must be able to hold


@dataclass(frozen=True)
class Usage:
    """Bytes of a session in the kernel and in the relay's processes; BASE: these without any."""
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
    """The difference between a contender's idle sessions and those asked for, as text."""
    notes = []
    if capacity.sessions < wanted:
        why = f" ({contender.why_not_more})" if contender.why_not_more else ""
        notes.append(f"{capacity.sessions:,} sessions only{why}")
    if capacity.instances > 1:
        notes.append(f"{capacity.instances} instances, because a process has {descriptors:,} "
                     "descriptors")
    return f"{contender.name}: {', '.join(notes)}." if notes else ""


class IdleClient:
    """culvert-bench idle, from the moment when all its sessions are open."""

    def __init__(self, stage, targets, wanted, processes):
        self._lab = stage.lab
        self.sessions = 0  # that are open
        command = bench_command(stage.options.bench_tool,
                                Workload(CULVERT_BENCH, "idle", wanted, 64), targets, None,
                                processes)
        self._process = self._lab.start("client", *command)
        try:
            wait_until(self._is_open, f"{wanted:,} sessions to be open", OPEN_SECONDS)
            if self.sessions < wanted / 2:
                raise LabError(f"only {self.sessions:,} of {wanted:,} sessions could be opened")
        except BaseException:
            self._lab.stop(self._process)
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
        """Ends it and returns its Measurement: sessions that had ended are errors."""
        code = self._lab.stop(self._process, OPEN_SECONDS)
        if code is None:
            raise LabError("culvert-bench idle did not end")
        return parse_bench(self._text())


class IdleCells:
    """Measures the rows of idle sessions on STAGE, with CELLS for the load beside these."""

    def __init__(self, stage, cells):
        self._stage = stage
        self._cells = cells
        self._direct = None  # kernel bytes of a session, without relay
        self._pair = None    # of two plain sockets
        self._unsettled = 0  # readings of kernel memory while it still changed

    def capacity(self, contender):
        return plan_capacity(contender, self._stage.options.idle, self._stage.descriptors)

    def processes(self, sessions):
        """Of client and server, which need a descriptor for each session, and share unevenly."""
        return max(self._stage.loads.processes,
                   math.ceil(sessions / (0.8 * (self._stage.descriptors - RESERVE))))

    def begin_round(self, timing):
        """Measures the base of all others; returns the direct path's cells."""
        self._direct = self._pair = None
        self._pair = self._measure_pairs()
        return self.measure(CONTENDERS["direct"], {}, timing)

    def _kernel(self):
        kernel, has_settled = settled_kernel_memory()
        self._unsettled += not has_settled
        return kernel

    def _measure_pairs(self):
        """Kernel bytes of two connected TCP sockets that nobody watches."""
        count = min(PLAIN_PAIRS, (self._stage.descriptors - RESERVE) // 2)
        process = self._stage.lab.start("relay", *OWN, "pairs", str(count), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        try:
            return statistics.median(self._measure_pairs_once(process, count)
                                     for _ in range(PAIR_READINGS))
        finally:
            process.stdin.close()
            process.stdout.close()
            self._stage.lab.stop(process)

    def _measure_pairs_once(self, process, count):
        before = self._kernel()
        self._tell(process, "open")
        after = self._kernel()
        self._tell(process, "close")
        return (after - before) / count

    def _tell(self, process, word):
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if answer != word:
            raise LabError(f"{process.title} answered {answer!r} to {word!r}")

    def measure(self, contender, config, timing):
        """{row name: cell} of the rows "idle", "mixed-0" and "mixed"."""
        capacity, namespaces = self.capacity(contender), self._stage.namespaces
        namespaces.drain()
        relay = self._stage.start_relay(contender, config, instances=capacity.instances,
                                        sessions=capacity.each)
        try:
            with namespaces.taken_for_idle():
                alone = self._cells.measure(TALK, relay, timing)
                namespaces.drain()
                return {"mixed-0": alone, **self._measure_open(capacity, relay, timing)}
        finally:
            relay.stop()

    def _measure_open(self, capacity, relay, timing):
        """{row name: cell} of the rows "idle" and "mixed", which may have failed."""
        self._unsettled = 0
        try:
            kernel, daemon = self._kernel(), memory_of(relay.pids)
            client = IdleClient(self._stage, relay.targets, capacity.sessions,
                                self.processes(capacity.sessions))
            try:
                usage = Usage(client.sessions, capacity.instances,
                              (self._kernel() - kernel) / client.sessions,
                              (memory_of(relay.pids) - daemon) / client.sessions, daemon)
                with self._stage.namespaces.taken_for_idle():
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
        beyond = None  # the relay's two sockets, of the four of client, relay and server
        if self._direct is not None and self._pair is not None:
            beyond = usage.kernel - self._direct - self._pair
        extra = {"kernel_bytes_beyond_sockets": beyond, "kernel_bytes_of_session": usage.kernel,
                 "kernel_bytes_of_direct": self._direct, "plain_pair_bytes": self._pair,
                 "sessions": usage.sessions, "instances": usage.instances,
                 "bytes_without_sessions": usage.base}
        if self._unsettled:
            extra["unsettled_readings"] = self._unsettled
        return {**EMPTY_CELL, "value": usage.daemon, "work": usage.sessions,
                "errors": report.errors, "wrong": report.wrong, "extra": extra}

    def try_out(self, contender, config):
        """The relay's memory a session, with few sessions, to choose a configuration."""
        sessions = min(self.capacity(contender).sessions, CALIBRATION_SESSIONS)
        relay = self._stage.start_relay(contender, config, sessions=sessions + MARGIN)
        try:
            before = memory_of(relay.pids)
            client = IdleClient(self._stage, relay.targets, sessions, self.processes(sessions))
            try:
                return (memory_of(relay.pids) - before) / client.sessions
            finally:
                client.close()
        finally:
            relay.stop()
