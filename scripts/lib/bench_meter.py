# SPDX-License-Identifier: BSD-2-Clause
"""What a cell of the benchmark costs: CPU time, system calls, context switches, memory.

CPU of the machine   what all CPUs were not idle, not waiting for a disk, and not given to others by
                     a hypervisor (steal): see cost.py, why not what /proc/stat says of user, system
                     and interrupts.
CPU of the relay     all its threads and processes, also those that have ended: from cpu.stat of a
                     cgroup of its own (version 2, nanoseconds underneath); not known where none can
                     be made. Interrupts that were served on top of its threads are part of it. Both
                     are read one right after the other, in every sample.
calls and switches   perf events over all its threads and those that they create. Counting slows
                     system calls of the whole machine down a little, so it is done in a run of its
                     own and never while speed is measured.
kernel memory        of the whole machine: MemTotal less what is free (MemFree, and the pages in
                     the lists of each CPU, "count" in /proc/zoneinfo: up to tens of MB), less
                     the page cache (Buffers, Cached, SwapCached), less the anonymous memory of
                     programs. What is left are the slabs (also inodes and dentries of sockets),
                     pages of socket and pipe buffers, page tables, kernel stacks and BPF maps, of
                     client and server too.
memory of the relay  Pss from /proc/PID/smaps_rollup, over all its processes: memory that several
                     share is counted once.
"""

import os
import re
import threading
import time

from cost import (PERF_TYPE_TRACEPOINT, CountingUnavailable, TaskEvents, parse_machine_cpu,
                  tracepoint_id)
from labkit import LabError

PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.05


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


def parse_pss(text):
    """Bytes, of the text of /proc/PID/smaps_rollup."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("smaps_rollup without Pss")


def memory_of(leaders):
    """Pss in bytes of all processes in the sessions that the pids LEADERS lead."""
    total = 0
    for pid in processes_of(leaders):
        try:
            total += parse_pss(read_text(f"/proc/{pid}/smaps_rollup"))
        except (OSError, ValueError):
            continue  # it has just ended
    return total


# CPU of the relay

def parse_cgroup_cpu(text):
    """Seconds, of the text of a cgroup's cpu.stat."""
    fields = dict(line.split(None, 1) for line in text.splitlines())
    return int(fields["usage_usec"]) / 1e6


def parse_cgroup2_folder(mountinfo, cgroup):
    """Where the own cgroup of version 2 is, of the texts of /proc/self/mountinfo and .../cgroup."""
    mounts = [line.split(" - ", 1) for line in mountinfo.splitlines() if " - cgroup2 " in line]
    paths = [line[3:] for line in cgroup.splitlines() if line.startswith("0::/")]
    if not mounts or not paths:
        return None
    return mounts[0][0].split()[4].rstrip("/") + paths[0].rstrip("/")


class GroupCpu:
    """A cgroup for the processes of one relay, below our own, which tells their CPU time.

    Only without the cpu controller: with it the group would be scheduled as one unit, against
    client and server together, and the figures would be others.
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
        return parse_cgroup_cpu(read_text(f"{self._folder}/cpu.stat"))

    def close(self):
        """Removes it, once its last process is reaped, which may be by init. False: not in time."""
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
    """Makes the object that tells a relay's CPU time, None where nothing does."""

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
        """Removes what is still there, once nothing runs any more."""
        if not all([group.close() for group in self._made]):
            raise LabError(f"cgroups are left in {self._folder}: something still runs there")


# System calls and context switches

PERF_TYPE_SOFTWARE = 1
PERF_COUNT_SW_CONTEXT_SWITCHES = 3


def tasks_of(leaders):
    tids = []
    for pid in processes_of(leaders):
        try:
            tids += [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
        except OSError:
            continue
    return tids


class Counter:
    """System calls and context switches of relays, or why they cannot be counted here."""

    def __init__(self):
        self.reason = None
        try:
            self._tracepoint = tracepoint_id()
            self.close(self.open([os.getsid(0)]))
        except CountingUnavailable as reason:
            self.reason = str(reason)

    def open(self, leaders):
        """Begins to count for all processes in the sessions of LEADERS."""
        tids = tasks_of(leaders)
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

def parse_meminfo(text):
    """{name: bytes} of the text of /proc/meminfo."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, *unit = value.split()
        fields[name] = int(number) * (1024 if unit == ["kB"] else 1)
    return fields


def parse_cached_pages(text):
    """Pages that CPUs keep at hand for the next allocation, of the text of /proc/zoneinfo."""
    return sum(int(count) for count in re.findall(r"^ +count: +(\d+)$", text, re.M))


def kernel_memory_of(fields, cached_pages):
    """Bytes that the kernel uses for itself, of what the parsers found."""
    cache = fields["Buffers"] + fields["Cached"] + fields.get("SwapCached", 0)
    free = fields["MemFree"] + cached_pages * PAGE
    return fields["MemTotal"] - free - cache - fields["AnonPages"]


def kernel_memory():
    return kernel_memory_of(parse_meminfo(read_text("/proc/meminfo")),
                            parse_cached_pages(read_text("/proc/zoneinfo")))


def shrink_slabs():
    """Returns empty slabs to the page allocator, or the next user of them seems to cost nothing."""
    try:
        caches = os.listdir("/sys/kernel/slab")
    except OSError:
        return
    # A cache that was merged with others appears under several names; one is enough.
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
    """Collects what each CPU has not yet added to the machine's counters: up to 1 MB each."""
    try:
        read_text("/proc/sys/vm/stat_refresh")
    except OSError:
        pass


def settled_kernel_memory(tolerance=256 << 10, seconds=6.0):
    """(kernel memory in bytes once it changes no more, whether it came to that in time).

    Freed sockets go back after a grace period. If something else on the machine goes on, memory
    never settles.
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


def per_session(before, after, sessions):
    """Bytes that each of SESSIONS added between two readings."""
    if sessions <= 0:
        raise ValueError("no session was open")
    return (after - before) / sessions


def beyond_two_sockets(relay, direct, pair):
    """Kernel bytes of a relay for a session beyond its two sockets.

    RELAY: kernel bytes of a relayed session, with four sockets: those of client and server, and the
    relay's two. DIRECT: the same without relay, which are two. PAIR: two plain TCP sockets.
    """
    return relay - direct - pair


# What a span of time cost

class Recorder:
    """Calls PROBE(), which answers {name: number}, 20 times a second.

    So it need not be known beforehand when a load generator measures. All numbers of a sample are
    of one moment.
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
    """Of the machine's CPU and kernel memory, and of the relay's CPU unless that is None."""

    def __init__(self, relay_cpu):
        self._relay_cpu = relay_cpu

    def __call__(self):
        sample = {"relay": self._relay_cpu.seconds()} if self._relay_cpu else {}
        text, now = read_text("/proc/stat"), time.monotonic()
        sample["cpu"], sample["steal"] = parse_machine_cpu(text, now)
        sample["kernel"] = kernel_memory()
        return sample


def changes_between(samples, begin, end):
    """What each number changed from the first to the last sample from BEGIN to END, and "seconds".

    Raises ValueError if these are not two.
    """
    within = [sample for sample in samples if begin <= sample[0] <= end]
    if len(within) < 2:
        raise ValueError("too short to tell what it cost")
    (first_time, first), (last_time, last) = within[0], within[-1]
    changes = {name: last[name] - first[name] for name in first}
    return {**changes, "seconds": last_time - first_time}


def peak_beyond_first(samples, name):
    """The highest value of NAME, less its first."""
    values = [sample[name] for _time, sample in samples]
    return max(values) - values[0]


def scaled(counted, counted_work, work):
    """What COUNTED events in COUNTED_WORK units of work come to in WORK units, rounded."""
    if not counted_work:
        return None
    return round(counted * work / counted_work)


# What is still open

def parse_sockets_in_use(text):
    """TCP sockets of a network namespace, of the text of its sockstat: listening or connected.

    Those that their program has closed count until their last byte and FIN are acknowledged.
    """
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["TCP:"]:
            return int(words[words.index("inuse") + 1])
    raise ValueError("sockstat without TCP")


def sockets_in_use(pid):
    """TCP sockets in the network namespace of PID."""
    return parse_sockets_in_use(read_text(f"/proc/{pid}/net/sockstat"))
