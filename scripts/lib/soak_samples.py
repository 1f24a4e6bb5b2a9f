# SPDX-License-Identifier: BSD-2-Clause
"""The samples of a soak run, each second, and the figures that must not have grown at the end."""

import csv
import json
import os
import re
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field

from labkit import LabError

# In the order of the CSV's columns; those of the daemon's status first.
STATUS = ("sessions", "slots_used", "pipes", "pipes_idle", "buffers")
CARRIERS = ("copy", "splice", "sockmap", "graft")
COLUMNS = ("second", "phase", *STATUS, "fds", "rss_kib", "tcp_mem_kib", "tcp_sockets",
           "relay_tcp_kib", "slab_kib", "slab_unreclaimable_kib",
           *(f"{name}_bytes" for name in CARRIERS),
           "handovers", "resets", "errors", "handover_unproved", "kernel_lost", "events_lost")
# Growth over the second half of the run that is allowed, at rest: (absolute, share of the mean).
# Descriptors, slots and sessions must not grow at all.
ALLOWED = {
    "fds": (0, 0.0), "slots_used": (0, 0.0), "sessions": (0, 0.0), "buffers": (0, 0.0),
    "rss_kib": (1024, 0.05), "relay_tcp_kib": (64, 0.0), "slab_unreclaimable_kib": (32768, 0.25),
}
# Slab is the whole machine's; TIME_WAIT fills it for the first minute of each kind of traffic.
MACHINE = ("slab_unreclaimable_kib",)
MACHINE_RESTS = 6
# Causes that are the daemon's own decision to end a session; peers bring about the others.
OWN_RESETS = ("no-memory", "no-descriptor", "handover-unproved", "kernel-lost", "internal")


def ask(path, command, seconds=3.0):
    """The parsed answer of the daemon's control socket; raises OSError or ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        sock.connect(path)
        sock.sendall(json.dumps({"command": command}).encode() + b"\n")
        text = b""
        while block := sock.recv(65536):
            text += block
    return json.loads(text)


def read_text(path):
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def number_after(text, key):
    return int(text.split(key, 1)[1].split()[0]) if key in text else 0


def of_process(pid):
    sockstat = read_text(f"/proc/{pid}/net/sockstat")
    tcp = sockstat.split("\nTCP:", 1)[1].split("\n", 1)[0]
    return {
        "rss_kib": number_after(read_text(f"/proc/{pid}/status"), "VmRSS:"),
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "tcp_sockets": number_after(tcp, "inuse "),
        # of the whole machine: the kernel has one account of TCP memory
        "tcp_mem_kib": number_after(tcp, "mem ") * os.sysconf("SC_PAGESIZE") // 1024,
    }


def of_machine():
    meminfo = read_text("/proc/meminfo")
    return {"slab_kib": number_after(meminfo, "\nSlab:"),
            "slab_unreclaimable_kib": number_after(meminfo, "\nSUnreclaim:")}


def of_status(status):
    resources, errors = status["resources"], status["errors"]
    sample = {name: resources[name] for name in STATUS}
    for carrier in status["carriers"]:
        sample[f"{carrier['carrier']}_bytes"] = carrier["bytes"]
    sample["handovers"] = sum(count for name, count in status["handovers"].items()
                              if name != "failed")
    sample["resets"] = sum(errors.get(name, 0) for name in OWN_RESETS)
    sample["errors"] = sum(errors.values())
    sample["handover_unproved"] = errors.get("handover-unproved", 0)
    sample["kernel_lost"] = errors.get("kernel-lost", 0)
    sample["events_lost"] = status["kernel"]["events_lost"]
    return sample


def relay_tcp_kib(pid):
    """Charges of all TCP sockets of PID's network namespace: queued, reserved, backlog."""
    text = subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ss", "-Htnam"], check=True,
                          capture_output=True, text=True, start_new_session=True).stdout
    charged = re.findall(r"skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f(\d+),w(\d+),o(\d+),bl(\d+)", text)
    return sum(int(part) for socket_ in charged for part in socket_) / 1024


@dataclass
class Samples:
    """A thread that takes one each second; a daemon that is stopped leaves its columns empty."""

    control: str
    pid: int
    rows: list = field(default_factory=list)
    rests: list = field(default_factory=list)
    phase: str = "load"
    begin: float = field(default_factory=time.monotonic)

    def __post_init__(self):
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self, phase):
        row = {"second": round(time.monotonic() - self.begin, 1), "phase": phase}
        row.update(of_machine())
        try:
            row.update(of_process(self.pid))
            row.update(of_status(ask(self.control, "status")))
        except (OSError, ValueError, IndexError):
            pass
        return row

    def _run(self):
        due = self.begin
        while not self._over.wait(max(0.0, due - time.monotonic())):
            self.rows.append(self.take(self.phase))
            due = max(due + 1, time.monotonic())

    def take_rest(self):
        """A sample at rest: no data is on its way, so the samples of all rests must be alike."""
        row = self.take("rest")
        if "sessions" not in row:
            raise LabError("the daemon does not answer although nothing disturbs it")
        # idle pipes are kept for the next session; they are no leak
        row["fds"] -= 2 * row["pipes"]
        row["relay_tcp_kib"] = relay_tcp_kib(self.pid)
        self.rests.append(row)
        self.rows.append(dict(row, fds=row["fds"] + 2 * row["pipes"]))
        return row

    def stop(self):
        self._over.set()
        self._thread.join()
        self.rows.sort(key=lambda row: row["second"])

    def write(self, path):
        with open(path, "w", encoding="ascii", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(self.rows)


def slope(points):
    """Least squares: units of y for each unit of x."""
    n = len(points)
    if n < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / n for values in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def growth(rests, name):
    """Growth of NAME over the second half of the run, by a linear fit, and its mean there."""
    half = rests[len(rests) // 2:] if len(rests) >= 4 else rests
    points = [(row["second"], row[name]) for row in half if name in row]
    if len(points) < 2:
        return 0.0, points[0][1] if points else 0.0
    return slope(points) * (points[-1][0] - points[0][0]), sum(y for _, y in points) / len(points)


def judge(rests):
    """(name, growth, mean, allowed, holds) for each figure."""
    verdicts = []
    for name, (absolute, share) in ALLOWED.items():
        grown, mean = growth(rests, name)
        allowed = max(absolute, share * mean)
        if name in MACHINE and len(rests) < MACHINE_RESTS:
            allowed = float("inf")
        verdicts.append((name, grown, mean, allowed, grown <= allowed + 1e-9))
    return verdicts
