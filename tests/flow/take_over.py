# SPDX-License-Identifier: BSD-2-Clause
"""A daemon takes another one over (`culvert run --take-over`), under sessions of each kind.

    culvert-bench, which verifies each byte  -->  culvert, again and again another one  -->  sink

No session ends, no client is refused. If the next daemon fails, the one of before goes on.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
from labkit import RELAY, SERVER, TOP, Daemon, LabError, expect, wait_until

pytestmark = pytest.mark.needs("ip", packages="demo")
ENGINES = "copy", "splice", "sockmap", "graft", "auto"
BENCH = os.path.join(TOP, "build/culvert-bench")
PORT, LISTEN, DATAGRAMS = 7600, 9600, 9601
ECHO = 7601
PEER = os.path.join(TOP, "tests", "flow", "standby_peer.py")
ADDRESS, UDP_ADDRESS = f"{RELAY}:{LISTEN}", f"{RELAY}:{DATAGRAMS}"
ROUNDS = 8


@pytest.fixture(scope="module")
def pins(lab):
    return os.path.join(lab.mount_bpf(), "culvert")


@pytest.fixture(scope="module", autouse=True)
def servers(lab):
    lab.start_server("server", PORT, BENCH, "sink", "--listen", f"{SERVER}:{PORT}")
    lab.start("server", BENCH, "sink", "--protocol", "udp", "--listen", f"{SERVER}:{PORT}")
    lab.start_server("server", ECHO, sys.executable, "-B", PEER, "serve", str(ECHO))


@pytest.fixture
def daemon(lab, culvert, engine, pins):
    of = Daemon(lab, culvert, engine, [(ADDRESS, f"{SERVER}:{PORT}"),
                                       (f"{UDP_ADDRESS}/udp", f"{SERVER}:{PORT}"),
                                       (f"{RELAY}:9602", f"{SERVER}:{ECHO}")],
                "--graft-pins", pins)
    yield of
    of.stop()


def bench(lab, workload, *options, seconds):
    return lab.start("client", BENCH, workload, "--seconds", str(seconds), "--verify", "full",
                     *options)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def expect_faultless(lab, process, seconds):
    lab.finish(process, seconds)
    text = read(process.log)
    said = json.loads(text[text.index("{"):])
    expect(not any(said["errors"].values()) and not said["wrong"], f"{process.title}: {said['errors']}")


WORKLOADS = {
    "conversations": ("rr", "--connect", ADDRESS, "--connections", "30"),
    "connections": ("crr", "--connect", ADDRESS, "--connections", "8"),
    "bulk": ("bulk-both", "--connect", ADDRESS, "--connections", "4"),
    "slow": ("slow", "--connect", ADDRESS, "--connections", "4"),
    "datagrams": ("rr", "--protocol", "udp", "--connect", UDP_ADDRESS, "--connections", "10")}


@pytest.mark.quick
@pytest.mark.parametrize("workload", WORKLOADS)
def test_under_load(lab, daemon, engine, workload):
    if engine == "sockmap" and workload == "datagrams":
        pytest.skip("sockmap carries no datagrams")
    load = bench(lab, *WORKLOADS[workload], seconds=ROUNDS)
    before = []
    for _ in range(ROUNDS):
        time.sleep(0.3)  # the load goes on
        before.append(daemon.take_over())
    expect_faultless(lab, load, 60)
    for process in before:
        lab.finish(process, 30)
    print("#", *[line.split("info: ")[1] for process in [*before, daemon.process]
                 for line in read(process.log).splitlines() if "have waited" in line], sep="\n# ")


def ends_soon(lab, daemon, kill_after=None, limit=None):
    """A next daemon that fails: its file is bad, or it is killed, or has too few descriptors."""
    options = [] if kill_after is not None or limit else ["--idle-timeout", "x"]
    command = ["prlimit", f"--nofile={limit}"] if limit else []
    process = lab.start("relay", *command, daemon.program, "run", "--engine", daemon.engine,
                        "--control", daemon.control, *daemon._arguments, "--take-over",
                        daemon.control, *options)
    if kill_after is not None:
        time.sleep(kill_after)  # at any step
        process.send_signal(signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    return process


@pytest.mark.parametrize("fault", ("bad option", "descriptors", "killed"))
def test_all_or_nothing(lab, daemon, engine, fault, request):
    """The daemon of before goes on as if nothing had been."""
    chance = random.Random(request.config.option.seed)
    load = bench(lab, "rr", "--connect", ADDRESS, "--connections", "20", seconds=6)
    for _ in range(4 if fault == "killed" else 1):
        other = ends_soon(lab, daemon, kill_after=chance.uniform(0, 0.3) if fault == "killed" else None,
                          limit=40 if fault == "descriptors" else None)
        lab.stop(other)
        if other.returncode == -signal.SIGKILL and daemon.process.poll() is not None:
            pytest.fail("killed after it had taken over: not a test of this")
    expect(daemon.process.poll() is None, "the daemon of before has ended")
    expect_faultless(lab, load, 60)


def talker():
    sock = socket.create_connection((RELAY, 9602), 5)
    sock.settimeout(5)
    return sock
