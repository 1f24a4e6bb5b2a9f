# SPDX-License-Identifier: BSD-2-Clause
"""The cost of a run: CPU time of the machine and of a process, and its system calls.

The CPU time of the machine is the time by the clock of all its CPUs, less idle time, waiting for a
disk, and stolen time. The counters of user, kernel and interrupt time are not used: most kernels
(CONFIG_TICK_CPU_ACCOUNTING) charge each tick to the task that happens to run. Work between ticks,
or while interrupts are off and ticks are late, is missing there: a relay that forked for each
connection had three times the CPU time of its "machine". Idle time and the time of each thread are
measured by the clock (CONFIG_NO_HZ, the scheduler), so the part and the whole are of one kind.
"""

import ctypes
import errno
import os
import platform
import re
import struct
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")


def parse_machine_cpu(text, now):
    """(busy seconds since the clock began, stolen ones) of all CPUs, of the text of /proc/stat.

    NOW: of the clock when it was read. Only differences between two readings mean something.
    """
    words = text.split("\n", 1)[0].split()
    cpus = len(re.findall(r"^cpu\d", text, re.M))
    if words[:1] != ["cpu"] or not cpus:
        raise ValueError(f"/proc/stat begins with {text[:20]!r}")
    _user, _nice, _system, idle, iowait, _irq, _softirq, steal = (int(n) / TICKS
                                                                   for n in words[1:9])
    return cpus * now - idle - iowait - steal, steal


def machine_cpu_seconds():
    """Busy time of all CPUs, counted from some moment."""
    with open("/proc/stat", encoding="ascii") as file:
        now = time.monotonic()
        return parse_machine_cpu(file.read(), now)[0]


def parse_process_cpu(text):
    """Seconds, of the text of /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def process_cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return parse_process_cpu(file.read())


class CountingUnavailable(Exception):
    """Perf events do not work here; the text says why."""


# perf_event_open(2): its number, and a struct perf_event_attr of the first published size.
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "s390x": 331, "ppc64le": 319}
PERF_TYPE_TRACEPOINT = 2
PERF_ATTR_SIZE = 64
PERF_ATTR_INHERIT = 1 << 1
PERF_FLAG_FD_CLOEXEC = 1 << 3


def tracepoint_id():
    # tracefs may not be mounted; a mount namespace of its own leaves the machine as it was.
    script = ("id=/sys/kernel/tracing/events/raw_syscalls/sys_enter/id; "
              "[ -e $id ] || mount -t tracefs none /sys/kernel/tracing; cat $id")
    result = subprocess.run(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        raise CountingUnavailable("this kernel has no tracepoint for system calls")
    return int(result.stdout)


class TaskEvents:
    """Counts one perf event over the tasks TIDS and all that they create from now on, at next to no
    cost to them."""

    def __init__(self, kind, config, tids):
        number = PERF_EVENT_OPEN.get(platform.machine())
        if number is None:
            raise CountingUnavailable(f"perf events: unknown machine {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        attributes = struct.pack("=IIQQQQQIIQ", kind, PERF_ATTR_SIZE, config, 0, 0, 0,
                                 PERF_ATTR_INHERIT, 0, 0, 0)
        self._fds = []
        for tid in tids:
            fd = libc.syscall(number, attributes, tid, -1, -1,
                              ctypes.c_ulong(PERF_FLAG_FD_CLOEXEC))
            if fd >= 0:
                self._fds.append(fd)
            elif ctypes.get_errno() != errno.ESRCH:  # else it has just ended
                self.close()
                raise CountingUnavailable(f"perf events: {os.strerror(ctypes.get_errno())}")

    def read(self):
        return sum(struct.unpack("=Q", os.read(fd, 8))[0] for fd in self._fds)

    def close(self):
        while self._fds:
            os.close(self._fds.pop())


def count_with_perf(pid, work):
    """Runs WORK and returns its result and the system calls that PID made meanwhile."""
    counter = TaskEvents(PERF_TYPE_TRACEPOINT, tracepoint_id(),
                         map(int, os.listdir(f"/proc/{pid}/task")))
    try:
        before = counter.read()
        result = work()
        return result, counter.read() - before
    finally:
        counter.close()
