# SPDX-License-Identifier: BSD-2-Clause
"""The workloads of scripts/profile: culvert-bench through a relay in the lab."""

import dataclasses
import json
import os
import signal
import subprocess
import time

from labkit import RELAY, SERVER, LabError, tail, wait_until

RELAY_PORT = 9000
SINK_PORT = 7000
WARM_UP = 1.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """A workload of culvert-bench; unit is what its costs are given per."""

    name: str
    mode: str
    connections: int
    size: int
    unit: str
    title: str

    def arguments(self):
        words = [self.mode, "--connections", str(self.connections)]
        return words + ["--size", str(self.size)] if self.size else words

    def units(self, gained):
        """The work that is in what culvert's counters gained (profile_window)."""
        if self.unit == "session":
            return float(self.connections)
        if self.unit == "transaction":
            return float(gained["finished"])
        size = sum(gained["bytes"].values())
        return size / 1e9 if self.unit == "GB" else size / (2 * self.size)

    def rate(self, gained):
        """The rate as text."""
        if self.unit == "session":
            return f"{gained['sessions']:,} sessions held"
        if self.unit == "GB":
            return f"{self.units(gained) * 8 / gained['seconds']:.2f} Gbit/s"
        return f"{self.units(gained) / gained['seconds']:,.0f} {self.unit}s/s"


WORKLOADS = {workload.name: workload for workload in (
    Workload("bulk", "bulk-up", 1, 0, "GB", "bulk, 1 stream"),
    Workload("bulk-8", "bulk-up", 8, 0, "GB", "bulk, 8 streams"),
    Workload("bulk-both", "bulk-both", 1, 0, "GB", "bulk, 1 stream, both ways at once"),
    Workload("rr-64x64", "rr", 64, 64, "request", "request/response of 64 B, 64 connections"),
    Workload("rr-1Kx512", "rr", 512, 1024, "request",
             "request/response of 1 KiB, 512 connections"),
    Workload("rr-16Kx64", "rr", 64, 16384, "request",
             "request/response of 16 KiB, 64 connections"),
    Workload("crr", "crr", 64, 64, "transaction",
             "connect, request/response of 64 B, close; 64 at a time"),
    Workload("idle", "idle", 2000, 0, "session", "2,000 idle connections"),
)}


class Load:
    """culvert-bench in the lab: a sink, and clients one after the other."""

    def __init__(self, lab, program):
        self.lab = lab
        self.program = os.path.abspath(program)
        self.forwards = ((f"{RELAY}:{RELAY_PORT}", f"{SERVER}:{SINK_PORT}"),)
        self.sink = lab.start_server("server", SINK_PORT, self.program, "sink", "--listen",
                                     f"{SERVER}:{SINK_PORT}")

    def start(self, workload, daemon):
        """A client that is warmed up when this returns and goes on until finish()."""
        idle = workload.mode == "idle"
        client = self.lab.start("client", self.program, *workload.arguments(), "--connect",
                                f"{RELAY}:{RELAY_PORT}",
                                *([] if idle else ["--seconds", "3600", "--warmup",
                                                   f"{WARM_UP:g}"]),
                                stdout=subprocess.PIPE, text=True)
        if idle:
            self._wait_for_sessions(client)
        wait_until(lambda: self.is_running(client) and (
            workload.mode == "crr" or sessions_of(daemon) >= workload.connections),
                   f"{workload.connections} sessions in culvert", 30)
        time.sleep(0 if idle else WARM_UP)
        return client

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
        client.send_signal(signal.SIGTERM)
        with client.stdout:
            text = client.stdout.read()
        code = self.lab.stop(client, 30)
        if not text.strip():
            raise LabError(f"the load generator ended with {code} and said nothing:\n"
                           f"{tail(client.log)}")
        report = json.loads(text.splitlines()[-1])
        if report["wrong"]:
            raise LabError(f"{report['wrong']} wrong answers or bytes")
        return report

    def drop(self, client):
        """Ends a client whose report is not needed."""
        client.stdout.close()
        self.lab.stop(client)


def sessions_of(daemon):
    return daemon.ask("status")["resources"]["sessions"]


class Roles:
    """Which part each process plays, from the network namespace that it is in."""

    LABELS = {"client": "client", "server": "server", "relay": None}

    def __init__(self, lab, relay_name):
        self._relay_name = relay_name
        self._namespaces = {os.stat(f"/run/netns/{lab.name}-{part}").st_ino: part
                            for part in self.LABELS}
        self._known = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                self._learn(int(name))

    def _learn(self, pid):
        try:
            part = self._namespaces.get(os.stat(f"/proc/{pid}/ns/net").st_ino)
        except OSError:
            return
        if part:
            self._known[pid] = self.LABELS[part] or self._relay_name

    def of(self, pid, comm):
        """The role of a process; of kernel threads by their name."""
        if pid in self._known:
            return self._known[pid]
        if pid == 0:
            return "idle"
        for prefix in ("kworker", "ksoftirqd"):
            if comm.startswith(prefix):
                return prefix
        if comm.startswith("perf"):
            return "perf"
        return "other programs"

    def pids_of(self, role):
        return sorted(pid for pid, name in self._known.items() if name == role)
