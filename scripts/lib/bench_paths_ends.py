# SPDX-License-Identifier: BSD-2-Clause
"""The ends of transfers over paths (bench_paths_peer.py) in a lab, and what they measure."""

import collections
import itertools
import json
import os
import queue
import subprocess
import threading
import time

from bench_paths_cells import CONVERSATIONS
from labkit import SERVER, LabError, sha256_of_file, tail, write_random

PYTHON = "/usr/bin/python3"
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_paths_peer.py")
PORT = 6100  # of TCP, and of UDP for QUIC
# Seconds that an end may need beyond its deadline.
GRACE = 5.0


class Lines:
    """The output of a process: a line of JSON at a time."""

    def __init__(self, process):
        self._process = process
        self._queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._queue.put(json.loads(line))

    def get(self, seconds):
        """None if there is none in time."""
        try:
            return self._queue.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None


def transfer_cell(cell, began, seconds, client, server):
    """The figures of a transfer. CLIENT, SERVER: what each end's connections received."""
    received = [*client, *server]
    total = sum(one["bytes"] for one in received)
    wanted = cell.size * cell.connections * (2 if cell.direction == "both" else 1)
    is_whole = total == wanted
    took = (max(one["ended"] for one in received) - began) / 1e9 if is_whole else seconds
    return figures_of(total * 8 / 1e6 / took, received,
                      {"bytes": total, "seconds": round(took, 6), "capped": not is_whole})


def conversation_cell(seconds, client):
    rounds = collections.Counter(took for one in client for took in one["rounds"])
    return {**figures_of(rounds.total() / seconds, client, {"rounds": rounds.total()}),
            "histogram": sorted(map(list, rounds.items()))}


def figures_of(value, connections, extra):
    errors = [one["error"] for one in connections if one.get("error")]
    return {"value": value, "latency_us": None, "histogram": None, "cpu_seconds": None,
            "work": None, "relay_cpu_seconds": None, "relay_syscalls": None,
            "relay_switches": None, "kernel_peak_bytes": None, "errors": len(errors),
            "wrong": sum(one["wrong"] for one in connections), "carriers": None,
            "extra": {**extra, **({"error": errors[0]} if errors else {})}}


class Ends:
    """Both, in LAB; they last as long as it does."""

    def __init__(self, lab):
        self._lab = lab
        self._numbers = itertools.count(1)
        server = lab.start_server("server", PORT, PYTHON, "-B", PEER, "server", SERVER, str(PORT),
                                  stdout=subprocess.PIPE)
        self._client = lab.start("client", PYTHON, "-B", PEER, "client", stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self._server_lines, self._client_lines = Lines(server), Lines(self._client)

    def measure(self, cell, target, seconds):
        """A cell of a row. TARGET: (address, port)."""
        talks = cell.kind == CONVERSATIONS
        numbers = [next(self._numbers) for _ in range(cell.connections)]
        task = {"address": target[0], "port": target[1], "size": cell.size, "numbers": numbers,
                "kind": "converse" if talks else cell.direction, "seconds": seconds,
                "congestion": cell.congestion}
        self._client.stdin.write(json.dumps(task).encode() + b"\n")
        self._client.stdin.flush()
        outcome = self._client_lines.get(seconds + GRACE)
        if outcome is None:
            raise LabError(f"the client said nothing:\n{tail(self._client.log)}")
        connections = outcome["connections"]
        if talks:
            return conversation_cell(seconds, connections)
        reports = self._server_reports(cell, connections, outcome["began"] + seconds * 1e9)
        return transfer_cell(cell, outcome["began"], seconds, connections, reports)

    def _server_reports(self, cell, connections, deadline):
        """Of those connections that the server has heard of."""
        awaited = {one["number"] for one in connections if not one["error"]} \
            if cell.direction != "download" else set()
        reports = []
        while awaited:
            report = self._server_lines.get((deadline - time.monotonic_ns()) / 1e9 + 0.3)
            if report is None:
                break
            if report["number"] in awaited:
                awaited.remove(report["number"])
                reports.append(report)
        return reports


class Quic:
    """A file by QUIC: ngtcp2's programs, which know nothing of culvert."""

    def __init__(self, lab, size):
        self._lab = lab
        self._size = size
        self._numbers = itertools.count(1)
        os.mkdir(lab.path("quic"))
        self._digest = write_random(lab.path("quic/file"), size)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
                        "/CN=lab", "-keyout", lab.path("key"), "-out", lab.path("cert")],
                       check=True, stderr=subprocess.DEVNULL)
        lab.start_server("server", PORT, "gtlsserver", "-q", "-d", lab.path("quic"), SERVER,
                         str(PORT), lab.path("key"), lab.path("cert"), protocol="udp")

    def measure(self, target, seconds):
        """The whole program counts, from its start to its end: it has no figures of its own.
        One that does not end in time has failed: the file has its size from the beginning."""
        folder = self._lab.path(f"quic.{next(self._numbers)}")
        os.mkdir(folder)
        began = time.monotonic()
        process = self._lab.start("client", "gtlsclient", "-q", "--exit-on-all-streams-close",
                                  "--download", folder, target[0], str(target[1]),
                                  "https://lab/file")
        self._lab.finish(process, seconds)
        took = time.monotonic() - began
        path = os.path.join(folder, "file")
        is_wrong = not os.path.exists(path) or sha256_of_file(path) != self._digest
        return figures_of(self._size * 8 / 1e6 / took, [{"wrong": int(is_wrong)}],
                          {"bytes": self._size, "seconds": round(took, 6)})
