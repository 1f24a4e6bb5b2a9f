# SPDX-License-Identifier: BSD-2-Clause
"""The workloads of scripts/profile: culvert-bench, or wrk and nginx, through a relay in the lab.

They are rows of the benchmark (bench_rows.py), with its parameters, and idle connections.
"""

import dataclasses
import json
import os
import signal
import subprocess
import time

from bench_clients import (CULVERT_BENCH, WRK, WRK_SCRIPT, Timing, bench_command, last_json_line,
                           wrk_command)
from bench_clients import Workload as BenchWorkload
from bench_meter import sockets_in_use
from bench_relays import IDLE, Forward
from bench_rows import ROWS
from labkit import HTTP_PORT, RELAY, SERVER, LabError, tail, wait_until

FORWARD = Forward(9000, 7000)
HTTP_FORWARD = Forward(9000, HTTP_PORT)
# nginx has a file to serve besides the small ones, which nobody fetches here.
BIG_FILE = 4096
WARM_UP = 1.0
# The workload goes on until it is told to end.
TIMING = Timing(3600, WARM_UP)
IDLE_CONNECTIONS = 2000


@dataclasses.dataclass(frozen=True)
class Workload:
    """A row's workload; unit is what its costs are given per, goal that of its row."""

    name: str
    load: BenchWorkload
    unit: str
    goal: str
    title: str

    @property
    def connections(self):
        return self.load.connections

    @property
    def is_http(self):
        return self.load.tool == WRK

    @property
    def forward(self):
        """Of the relay, to the server that this workload needs."""
        return HTTP_FORWARD if self.is_http else FORWARD

    def exchange(self, report):
        """Payload of a request and its response, after what the client reported; None: varies."""
        if self.unit != "request":
            return None
        if not self.is_http:
            return 2 * self.load.size
        # Each answer is of one size; what wrk asks is this.
        request = f"GET /small/0 HTTP/1.1\r\nHost: {RELAY}:{self.forward.listen}\r\n\r\n"
        return len(request) + report["bytes"] / report["requests"]

    def units(self, gained):
        """The work that is in what was gained (profile_window)."""
        if self.unit == "session":
            return float(self.connections)
        if self.unit == "transaction":
            return float(gained["opened"])
        size = gained["payload"]
        return size / 1e9 if self.unit == "GB" else size / gained["exchange"]

    def rate(self, gained):
        """The rate as text."""
        if self.unit == "session":
            return f"{gained['sessions']:,} sessions held"
        if self.unit == "GB":
            return f"{self.units(gained) * 8 / gained['seconds']:.2f} Gbit/s"
        return f"{self.units(gained) / gained['seconds']:,.0f} {self.unit}s/s"


def idle_workload(connections):
    return Workload("idle", BenchWorkload(CULVERT_BENCH, "idle", connections, 64), "session", IDLE,
                    f"{connections:,} idle connections")


WORKLOADS = {row.name: Workload(row.name, row.workload, row.work_unit, row.goal, row.title)
             for row in ROWS if row.workload.tool in (CULVERT_BENCH, WRK) and row.group != "sweep"}
WORKLOADS["idle"] = idle_workload(IDLE_CONNECTIONS)


class Load:
    """Servers in the lab, and clients one after the other. HTTP: nginx is needed as well."""

    def __init__(self, lab, program, http=False):
        self.lab = lab
        self.program = os.path.abspath(program)
        self.processes = max(1, len(os.sched_getaffinity(0)) // 2)  # as in the benchmark
        self.forwards = ((f"{RELAY}:{FORWARD.listen}", f"{SERVER}:{FORWARD.upstream}"),)
        self.sink = lab.start_sink(self.program, SERVER, [FORWARD.upstream], self.processes)
        if http:
            lab.start_nginx(BIG_FILE)
        self._script = lab.path("wrk.lua")
        with open(self._script, "w", encoding="ascii") as file:
            file.write(WRK_SCRIPT)
        self._sockets = sockets_in_use(self.sink.pid)

    def sessions(self):
        """Connections that the server has, as far as its kernel knows."""
        return sockets_in_use(self.sink.pid) - self._sockets

    def start(self, workload):
        """A client that is warmed up when this returns and goes on until finish()."""
        timing = None if workload.unit == "session" else TIMING
        target = (RELAY, workload.forward.listen)
        if workload.is_http:
            command = wrk_command(workload.load, target, timing, self._script, self.processes)
        else:
            command = bench_command(self.program, workload.load, [target], timing, self.processes)
        client = self.lab.start("client", *command, stdout=subprocess.PIPE, text=True)
        try:
            self._wait_until_warm(client, workload)
        except BaseException:
            self.drop(client)
            raise
        return client

    def _wait_until_warm(self, client, workload):
        idle = workload.unit == "session"
        if idle:
            self._wait_for_sessions(client)
        wait_until(lambda: self.is_running(client) and (
            workload.unit == "transaction" or self.sessions() >= workload.connections),
                   f"{workload.connections} sessions at the server", 30)
        time.sleep(0 if idle else WARM_UP)

    @staticmethod
    def is_running(client):
        """True; an error if the client has ended."""
        if client.poll() is not None:
            raise LabError(f"the load generator ended with {client.returncode}:\n"
                           f"{tail(client.log)}")
        return True

    def _wait_for_sessions(self, client):
        line = client.stdout.readline()
        if not line:
            raise LabError(f"the load generator opened no sessions:\n{tail(client.log)}")
        ready = json.loads(line)
        if ready["failed"]:
            raise LabError(f"{ready['failed']} of the sessions could not be opened")

    def finish(self, client):
        """Ends the client; returns its report."""
        self.is_running(client)
        # wrk reports after SIGINT only, culvert-bench after either.
        client.send_signal(signal.SIGINT)
        with client.stdout:
            text = client.stdout.read()
        code = self.lab.stop(client, 30)
        if not text.strip():
            raise LabError(f"the load generator ended with {code} and said nothing:\n"
                           f"{tail(client.log)}")
        report = last_json_line(text)
        wrong = report.get("wrong", 0) + report["errors"].get("status", 0)
        if wrong:
            raise LabError(f"{wrong} wrong answers or bytes")
        return report

    def drop(self, client):
        """Ends a client whose report is not needed."""
        client.stdout.close()
        self.lab.stop(client)


class Roles:
    """Which part each process plays, from the network namespace that it is in.

    FORKS: the relay is one that forks; what it has not yet forked is known by its name.
    """

    LABELS = {"client": "client", "server": "server", "relay": None}

    def __init__(self, lab, relay_name, forks=False):
        self._relay_name = relay_name
        self._forks = forks
        self._namespaces = {os.stat(f"/run/netns/{lab.name}-{part}").st_ino: part
                            for part in self.LABELS}
        self._known = {}
        self._elsewhere = set()
        self._comms = set()  # of what may be forked later
        for name in os.listdir("/proc"):
            if name.isdigit():
                self._learn(int(name))

    def _learn(self, pid):
        try:
            part = self._namespaces.get(os.stat(f"/proc/{pid}/ns/net").st_ino)
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                comm = file.read().rstrip("\n")
        except OSError:
            return
        if not part:
            self._elsewhere.add(pid)
            return
        self._known[pid] = self.LABELS[part] or self._relay_name
        if part == "relay" and self._forks:
            self._comms.add(comm)

    def of(self, pid, comm):
        """The role of a process; of kernel threads by their name."""
        if pid in self._known:
            return self._known[pid]
        if pid == 0:
            return "idle"
        if comm in self._comms and pid not in self._elsewhere:
            return self._relay_name
        for prefix in ("kworker", "ksoftirqd"):
            if comm.startswith(prefix):
                return prefix
        if comm.startswith("perf"):
            return "perf"
        return "other programs"
