# SPDX-License-Identifier: BSD-2-Clause
"""What a session costs of the daemon's memory: its heap by valgrind massif, and RSS.

Each figure is the difference between a daemon that holds N idle sessions and one that holds none,
divided by N. The heap is what malloc was asked for (and what it adds in bookkeeping) once the start
is over, which itself takes more for a moment: libbpf reads the kernel's types. The resident
memory (Pss, over all processes) comes from a run of its own, without any tool; it is all that is
measured of other relays than culvert.
"""

import dataclasses
import glob
import os
import re
import shutil
import signal
import time

from bench_meter import memory_of
from labkit import Daemon, LabError
from profile_load import idle_workload
from profile_perf import Unavailable

TOP_SITES = 10
HEAP_NOTE = ("The heap is what is in use once the start is over; while it loads the program, "
             "libbpf needs several MB for a moment, to read the kernel's types. Kernel memory "
             "(sockets, maps) is not in these figures.")


@dataclasses.dataclass(frozen=True)
class Heap:
    """Bytes with no sessions (base) and with SESSIONS (peak); sites: [(bytes, call path)]."""

    sessions: int
    base: int
    peak: int
    overhead_base: int
    overhead_peak: int
    sites: list

    def per_session(self):
        return (self.peak - self.base) / self.sessions


class ToolDaemon(Daemon):
    """culvert run by another program; its own pid is what it says itself."""

    def __init__(self, lab, wrapper, program, contender, forwards):
        start = time.monotonic()
        super().__init__(_Wrapping(lab, wrapper), program, contender.engine, forwards,
                         *contender.options,
                         # valgrind writes its file from within the daemon
                         "--seccomp", "off")
        self.lab = lab
        self.daemon_pid = self.ask("status")["pid"]
        # The tool's clock begins after ours. So once twice this time has passed, it shows more
        # than this, and it has shown less for all that belongs to the start.
        self.started = time.monotonic() - start
        time.sleep(self.started)

    def stop(self):
        """Ends the daemon itself, so that the tool sees its end and writes its figures."""
        os.kill(self.daemon_pid, signal.SIGTERM)
        self.lab.finish(self.process, 60)


class _Wrapping:
    """A lab that starts every program below WRAPPER."""

    def __init__(self, lab, wrapper):
        self._lab = lab
        self._wrapper = wrapper
        self.home = lab.home

    def start(self, namespace, *command, **options):
        return self._lab.start(namespace, *self._wrapper, *command, **options)


def hold(load, sessions, work):
    """Calls WORK while the relay holds SESSIONS idle sessions."""
    if not sessions:
        return work()
    client = load.start(idle_workload(sessions))
    try:
        return work()
    finally:
        load.drop(client)


def measure_resident(load, relay, sessions):
    """(bytes without sessions, bytes with SESSIONS) of RELAY, which is fresh."""
    base = memory_of(relay.pids)
    return base, hold(load, sessions, lambda: memory_of(relay.pids))


def measure_heap(lab, load, program, contender, sessions):
    """By massif. Valgrind 3.19 knows enough of bpf(2) for the sockmap engine, too."""
    if not shutil.which("valgrind"):
        raise Unavailable("valgrind is missing: scripts/deps bench")
    try:
        return _with_massif(lab, load, program, contender, sessions)
    except LabError as error:
        raise Unavailable(f"culvert --engine {contender.engine} under valgrind: {error}") from None


def _folder(lab, name):
    """A folder that the daemon can write into, whoever it has become by then."""
    folder = lab.path(name)
    os.makedirs(folder)
    os.chmod(folder, 0o777)
    return folder


def _run(lab, load, wrapper, program, contender, sessions):
    """Returns the seconds of the tool's clock that belong to the start of the daemon."""
    daemon = ToolDaemon(lab, wrapper, program, contender, load.forwards)
    hold(load, sessions, lambda: _stay(daemon))
    daemon.stop()
    return daemon.started


def _stay(daemon, seconds=1.0):
    """Massif looks only when something is allocated: each request makes the daemon do that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        daemon.ask("status")
        time.sleep(0.05)


def _the_file(pattern):
    files = glob.glob(pattern)
    if len(files) != 1:
        raise LabError(f"{len(files)} files {pattern}, not one")
    return files[0]


def _with_massif(lab, load, program, contender, sessions):
    results = []
    for count in (0, sessions):
        folder = _folder(lab, f"massif-{count}")
        started = _run(lab, load, ("valgrind", "--tool=massif", "--vgdb=no", "--time-unit=ms",
                                   "--detailed-freq=1", "--max-snapshots=1000", "--threshold=0.1",
                                   f"--massif-out-file={folder}/out"), program, contender, count)
        with open(_the_file(f"{folder}/out*"), encoding="utf-8", errors="replace") as file:
            results.append(parse_massif(file, started * 1000))
    base, peak = results
    return Heap(sessions, base[0], peak[0], base[1], peak[1], peak[2][:TOP_SITES])


def parse_massif(lines, since):
    """The largest snapshot from the time SINCE on, in the unit of the file.

    (heap bytes, malloc's own bytes beside them, [(bytes, call path)] largest first)
    """
    best, snapshot = None, {}
    for line in lines:
        line = line.rstrip("\n")
        key, equals, value = line.partition("=")
        if key == "snapshot":
            snapshot = {"tree": []}
        elif equals and key in ("time", "mem_heap_B", "mem_heap_extra_B"):
            snapshot[key] = int(value)
        elif key == "heap_tree":
            if snapshot["time"] >= since and (best is None or snapshot["mem_heap_B"] >=
                                              best["mem_heap_B"]):
                best = snapshot
        elif re.match(r" *n\d+: ", line):
            snapshot["tree"].append(line)
    if best is None:
        raise LabError("massif took no snapshot while the sessions were held")
    return best["mem_heap_B"], best["mem_heap_extra_B"], _sites(best["tree"])


def _sites(lines):
    """The leaves of a heap tree: what asked for how much, and up to three callers."""
    sites, path = [], []
    for line in lines:
        match = re.match(r"^(?P<indent> *)n(?P<children>\d+): (?P<bytes>\d+) (?P<text>.*)$", line)
        if not match:
            continue
        depth = len(match["indent"])
        text = re.sub(r"^0x[0-9A-F]+: ", "", match["text"])
        path = path[:depth] + [text]
        if match["children"] == "0" and depth > 0:
            callers = [re.sub(r" \(in .*/(\S+)\)$", r" (\1)", step) for step in path[1:5]]
            sites.append((int(match["bytes"]), " < ".join(callers)))
    return sorted(sites, reverse=True)
