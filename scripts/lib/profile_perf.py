# SPDX-License-Identifier: BSD-2-Clause
"""Runs perf (and strace where perf cannot) and reads what they print."""

import json
import os
import re
import shutil
import signal
import subprocess

from flame import PerfScript
from labkit import LabError, tail

HARDWARE = ("cycles", "instructions", "branches", "branch-misses", "cache-references",
            "cache-misses")
SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults")

# Tracepoints of what else the kernel does for the workload, each with the words of the report.
KERNEL_EVENTS = (
    ("sched:sched_switch", "context switches"),
    ("sched:sched_waking", "wake-ups of threads"),
    ("raw_syscalls:sys_enter", "system calls, of all programs"),
    ("workqueue:workqueue_queue_work", "work items queued"),
    ("workqueue:workqueue_execute_start", "work items run"),
    ("irq:softirq_entry", "softirq rounds"),
    ("irq:softirq_raise", "softirqs raised"),
    ("net:net_dev_xmit", "packets sent by devices"),
    ("napi:napi_poll", "NAPI polls"),
    ("tcp:tcp_retransmit_skb", "TCP retransmissions"),
    ("tcp:tcp_rcv_space_adjust", "TCP receive window adjustments"),
    ("skb:kfree_skb", "packets freed by kfree_skb (drops are among them)"),
    ("irq_vectors:reschedule_entry", "reschedule interrupts"),
    ("irq_vectors:call_function_single_entry", "call-function interrupts"),
    ("irq_vectors:local_timer_entry", "timer interrupts"),
    ("timer:timer_start", "timers set"),
    ("exceptions:page_fault_user", "page faults of programs"),
    ("kmem:mm_page_alloc", "page allocations"),
)

# tracefs may not be mounted; in a mount namespace of its own the machine stays as it was.
_WITH_TRACEFS = ("unshare", "--mount", "sh", "-c",
                 "[ -d /sys/kernel/tracing/events ] || mount -t tracefs none /sys/kernel/tracing "
                 '2>/dev/null; exec "$@"', "sh")

SAMPLE_FIELDS = "comm,pid,tid,cpu,time,event,ip,sym,dso"
_ENTER = "syscalls:sys_enter_"
BUFFER_PAGES = "4096"  # of each CPU: 16 MiB, so that nothing is lost at 100,000 events a second


class Unavailable(Exception):
    """A measurement cannot be made on this machine; the text says why."""


def run(command, log, seconds):
    """Runs COMMAND to its end, its output in LOG; ends it, also when interrupted."""
    with open(log, "wb") as output:
        process = subprocess.Popen([*_WITH_TRACEFS, *command], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT,
                                   env=dict(os.environ, LC_ALL="C"), start_new_session=True)
    try:
        process.wait(timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        raise LabError(f"{command[0]} did not end:\n{tail(log)}") from None
    finally:
        if process.poll() is None:
            # its session is its own: the tool and the command that it runs
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if process.returncode != 0:
        raise Unavailable(f"{' '.join(command[:2])} ended with {process.returncode}: "
                          f"{tail(log, 5).strip()}")


def list_of(pids):
    """For -p of perf and strace."""
    return ",".join(map(str, pids))


def tracepoints():
    """The names of the kernel's tracepoints, "group:event"."""
    result = subprocess.run([*_WITH_TRACEFS, "sh", "-c",
                             "cd /sys/kernel/tracing/events && ls -d */*/"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False, start_new_session=True)
    return {line.strip("/").replace("/", ":") for line in result.stdout.splitlines()}


class Perf:
    """perf on this machine; files go into FOLDER."""

    def __init__(self, folder):
        if not shutil.which("perf"):
            raise LabError("perf is missing: scripts/deps bench")
        self.folder = folder
        self.lost = {}
        self.tracepoints = tracepoints()
        counters = self._count(("--", "true"), HARDWARE, 1)
        self.hardware = tuple(name for name in HARDWARE if counters.get(name) is not None)
        self.sampled = "cycles" if "cycles" in self.hardware else "cpu-clock"

    def path(self, name):
        return os.path.join(self.folder, name)

    def _count(self, arguments, events, seconds):
        """{event: value, None where it is not supported}."""
        output = self.path("stat.json")
        run(("perf", "stat", "-j", "-o", output, "-e", ",".join(events), *arguments),
            self.path("stat.log"), seconds)
        with open(output, encoding="utf-8") as file:
            return parse_stat(file)

    def count(self, pids, window):
        """Hardware and software events of the machine and of PIDS: two of {event: value}."""
        events = ",".join((*SOFTWARE, *self.hardware))
        outputs = self.path("stat-machine.json"), self.path("stat-process.json")
        run(("perf", "stat", "-j", "-o", outputs[0], "-e", events, "-a", "--",
             "perf", "stat", "-j", "-o", outputs[1], "-e", events, "-p", list_of(pids), "--",
             *window.command), self.path("stat.log"), window.length)
        answer = []
        for output in outputs:
            with open(output, encoding="utf-8") as file:
                answer.append(parse_stat(file))
        return answer

    def count_kernel_events(self, window):
        """{words of KERNEL_EVENTS: count} of the whole machine."""
        known = [(event, words) for event, words in KERNEL_EVENTS if event in self.tracepoints]
        if not known:
            raise Unavailable("this kernel has no tracepoints")
        values = self._count(("-a", "--", *window.command), [event for event, _ in known],
                             window.length)
        return {words: values[event] for event, words in known if values.get(event) is not None}

    def _record(self, name, events, window, *options):
        """Records EVENTS of the whole machine."""
        data, log = self.path(f"{name}.data"), self.path(f"{name}.log")
        run(("perf", "record", "-a", "-m", BUFFER_PAGES, "-o", data, *options,
             *(word for event in events for word in ("-e", event)), "--", *window.command),
            log, window.length)

    def _script(self, name, fields):
        """Yields the samples of what was recorded as NAME."""
        data = self.path(f"{name}.data")
        errors = self.path(f"{name}-script.log")
        with open(errors, "wb") as log:
            process = subprocess.Popen(("perf", "script", "-i", data, "-F", fields,
                                        "--show-lost-events"),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                       text=True, errors="replace", start_new_session=True,
                                       env=dict(os.environ, LC_ALL="C"))
        try:
            with process.stdout:
                yield from PerfScript().samples(self._without_losses(name, process.stdout))
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
        if process.returncode != 0:
            raise Unavailable(f"perf script ended with {process.returncode}: {tail(errors, 5)}")

    def _without_losses(self, name, lines):
        """Takes the lines away that report lost events, and counts these in self.lost."""
        self.lost[name] = 0
        for line in lines:
            if "PERF_RECORD_LOST" in line:
                numbers = re.findall(r"\d+", line.partition("PERF_RECORD_LOST")[2])
                self.lost[name] += int(numbers[-1]) if numbers else 1
                continue
            yield line

    def record_stacks(self, frequency, window):
        """Stacks of what runs, FREQUENCY times a second on each CPU."""
        self._record("oncpu", (self.sampled,), window, "-g", "-F", str(frequency))

    def stacks(self):
        return self._script("oncpu", SAMPLE_FIELDS)

    def record_switches(self, window):
        """Each switch of threads with the stack of who stops, and each wake-up."""
        needed = {"sched:sched_switch", "sched:sched_waking"}
        if not needed <= self.tracepoints:
            raise Unavailable("this kernel has no tracepoints for the scheduler")
        self._record("offcpu", ("sched:sched_switch/call-graph=fp/",
                                "sched:sched_waking/call-graph=no/"), window)

    def switches(self):
        return self._script("offcpu", SAMPLE_FIELDS + ",trace")

    def count_calls(self, pids, window):
        """System calls of PIDS, {name: number}, and the name of the means.

        Counted by a tracepoint for each: a tool that is told of every call cannot keep up with a
        thread that makes some 100,000 a second, and does not always say what it lost.
        """
        names = sorted(name for name in self.tracepoints if name.startswith(_ENTER))
        try:
            if not names:
                raise Unavailable("this kernel has no tracepoints for system calls")
            values = self._count(("-p", list_of(pids), "--", *window.command), names,
                                 window.length)
            return {name.removeprefix(_ENTER): int(value) for name, value in values.items()
                    if value}, "perf stat"
        except Unavailable as reason:
            calls = strace_calls(pids, window, self.path("syscalls.txt"))
            return calls, f"strace, because {reason}"


def parse_stat(lines):
    """{event: value} of perf stat -j; None for what is not supported or was not counted.

    With more than one event group a line may hold a metric only; those are left out.
    """
    values = {}
    for line in lines:
        line = line.strip()
        if not line.startswith("{"):
            continue
        record = json.loads(line)
        name = record.get("event", "").split(":u")[0]
        text = record.get("counter-value", "")
        if not name:
            continue
        try:
            values[name] = float(text)
        except ValueError:
            values[name] = None
    return values


_STRACE_ROW = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(?P<calls>\d+)\s+"
                         r"(?:\d+\s+)?(?P<name>[a-z]\w*)$")


def parse_strace(lines):
    """{name: calls} of strace -c."""
    sums = {}
    for line in lines:
        match = _STRACE_ROW.match(line.rstrip())
        if match and match["name"] != "total":
            sums[match["name"]] = int(match["calls"])
    return sums


def strace_calls(pids, window, output):
    """The same by strace, which slows the program down. The window begins once it is attached."""
    if not shutil.which("strace"):
        raise Unavailable("neither perf nor strace can count system calls here")
    process = subprocess.Popen(("strace", "-f", "-c", "-o", output, "-p", list_of(pids)),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        greeting = process.stderr.readline()
        if "attached" not in greeting:
            raise Unavailable(f"strace: {greeting.strip()}")
        run(window.command, output + ".log", window.length)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.stderr.read()
        process.stderr.close()
        process.wait()
    with open(output, encoding="utf-8") as file:
        return parse_strace(file)
