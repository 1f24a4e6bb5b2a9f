# SPDX-License-Identifier: BSD-2-Clause
"""Where threads spend the time in which they do not run, from sched:sched_switch and sched_waking.

An interval begins when a thread is switched out, with the stack that it has then, and ends when it
is switched in again. A wake-up within divides it: before, the thread sleeps; after, it is ready and
waits for a CPU. A thread that was preempted waits for a CPU all the time.
"""

import collections
import re

from profile_components import named

SWITCH = re.compile(r"prev_comm=(?P<prev_comm>.*) prev_pid=(?P<prev>\d+) prev_prio=-?\d+ "
                    r"prev_state=(?P<state>\S+) ==> next_comm=(?P<next_comm>.*) "
                    r"next_pid=(?P<next>\d+)")
WAKING = re.compile(r"comm=(?P<comm>.*) pid=(?P<pid>\d+) prio=")
ASLEEP, READY = named("(asleep)"), named("(ready, waits for a CPU)")

# tid and pid are of the thread; ready is None as long as no wake-up was seen; seconds
Interval = collections.namedtuple("Interval", "pid tid comm stack start ready end")


class OffCpu:
    """Takes events in the order of time; `intervals` are those that are complete."""

    def __init__(self):
        self.intervals = []
        self.switches = collections.Counter()  # pid: switches to another thread
        self.preempted = collections.Counter()  # pid: those of them while it was ready to run
        self.wakeups = collections.Counter()  # (pid of the waker, tid of the woken)
        self.thread_pid = {}
        self.first = self.last = None
        self._out = {}

    def add(self, sample):
        if self.first is None:
            self.first = sample.time
        self.last = sample.time
        self.thread_pid[sample.tid] = sample.pid
        if sample.event.endswith("sched_switch"):
            self._switch(sample)
        elif sample.event.endswith("sched_waking"):
            self._wake(sample)

    def _switch(self, sample):
        match = SWITCH.search(sample.trace)
        if not match:
            return
        self._switch_in(int(match["next"]), sample.time)
        tid = int(match["prev"])
        if tid == 0:
            return
        running = match["state"].startswith("R")
        self.switches[sample.pid] += 1
        self.preempted[sample.pid] += running
        self._out[tid] = Interval(sample.pid, tid, match["prev_comm"], sample.stack, sample.time,
                                  sample.time if running else None, None)

    def _switch_in(self, tid, time):
        interval = self._out.pop(tid, None)
        if interval:
            self.intervals.append(interval._replace(end=time))

    def _wake(self, sample):
        match = WAKING.search(sample.trace)
        if not match:
            return
        tid = int(match["pid"])
        self.wakeups[sample.pid, tid] += 1
        interval = self._out.get(tid)
        if interval and interval.ready is None:
            self._out[tid] = interval._replace(ready=sample.time)

    def finish(self):
        """Closes the intervals that still run, at the time of the last event."""
        for interval in self._out.values():
            self.intervals.append(interval._replace(end=self.last))
        self._out.clear()


def parts(interval):
    """(seconds asleep, seconds ready but without a CPU)."""
    ready = interval.end if interval.ready is None else interval.ready
    return ready - interval.start, interval.end - ready


def stacks_of(intervals, name_of):
    """Yields (stack, microseconds) with a frame for the thread and for what it waited for.

    NAME_OF(interval) -> name of the outermost frame, None to leave the interval out.
    """
    for interval in intervals:
        name = name_of(interval)
        if name is None:
            continue
        asleep, ready = parts(interval)
        if asleep > 0:
            yield (named(name), *interval.stack, ASLEEP), asleep * 1e6
        if ready > 0:
            yield (named(name), *interval.stack, READY), ready * 1e6


def quantile(ordered, share):
    """The smallest value that at least SHARE of the values of a sorted list do not exceed."""
    if not ordered:
        return None
    rank = -(-len(ordered) * share // 1)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def waits_for_cpu(intervals):
    """The waits for a CPU in seconds, sorted; of threads that became ready at all."""
    return sorted(interval.end - interval.ready for interval in intervals
                  if interval.ready is not None)
