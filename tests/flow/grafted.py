# SPDX-License-Identifier: BSD-2-Clause
"""Grafted sessions in the lab: what no other carrier can do, and what only they could break.

    echo conversations, every byte compared  -->  culvert --engine graft  -->  echo server

The daemon is killed and started again under them; they go back to their sockets; interfaces come and
go; sockets are made late; local ports are short. Devices, routes and families: networks.py.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest
from labkit import RELAY, SERVER, SLOW, TOP, Daemon, LabError, expect, wait_until

pytestmark = pytest.mark.needs("ip", packages="demo", ipv6=True)
PORT = 7100
LISTEN = 9100
TCP_REPAIR = 19
PROGRAMS = 2 * 3  # at lo, to-client, to-server

# ADDRESS PORT CONNECTIONS SECONDS SIZE: talk to an echo server for SECONDS at least and until stdin
# ends; with 0, connect and end at once.  Print "connected" when all are, and last, in JSON, what
# became of them.
TALK = """
import asyncio, json, os, sys, time
address, port, n, seconds, size = sys.argv[1], *map(int, sys.argv[2:])
did = {"open": 0, "rounds": 0, "wrong": 0, "reset": 0, "ended": 0, "gap_ms": 0}
go_on = seconds > 0
def end():
    global go_on
    go_on = False
    asyncio.get_running_loop().remove_reader(0)
async def talk():
    try:
        r, w = await asyncio.open_connection(address, port)
        did["open"] += 1
        if did["open"] == n:
            print("connected", flush=True)
        until = time.monotonic() + seconds
        while go_on or time.monotonic() < until:
            data, start = os.urandom(size), time.monotonic()
            w.write(data)
            did["wrong"] += await r.readexactly(size) != data
            did["rounds"] += 1
            did["gap_ms"] = max(did["gap_ms"], (time.monotonic() - start) * 1000)
            await asyncio.sleep(0.001)
        w.write_eof()
        did["wrong"] += await r.read() != b""
        did["ended"] += 1
        w.close()
    except (OSError, asyncio.IncompleteReadError):
        did["reset"] += 1
async def main():
    asyncio.get_running_loop().add_reader(0, end)
    await asyncio.gather(*(talk() for i in range(n)))
    print(json.dumps(did))
asyncio.run(main())
"""


# Rules that no packet of a grafted session meets.
UNMET_RULES = """
table inet filter {
    chain in { type filter hook input priority filter; tcp dport 9100 drop; }
    chain through { type filter hook forward priority filter; drop; }
    chain out { type filter hook output priority filter; tcp dport 7100 drop; }
}
table netdev filter {
    chain from_client {
        type filter hook ingress device "to-client" priority filter; tcp dport 9100 drop; }
    chain to_server {
        type filter hook egress device "to-server" priority filter; tcp dport 7100 drop; }
}
"""


class Trial:
    """A lab with a daemon that grafts; `pins` is a BPF file system of its own."""

    def __init__(self, lab, program):
        self.lab = lab
        self.program = program
        self.run = lab.run
        self.pins = os.path.join(lab.mount_bpf(), "culvert")
        lab.start_echo("server", PORT)
        self.daemon = None

    def begin(self, *options, forwards=((f"{RELAY}:{LISTEN}", f"{SERVER}:{PORT}"),)):
        self.daemon = Daemon(self.lab, self.program, "graft", forwards, "--graft-pins", self.pins,
                             *options)

    def end(self):
        if self.daemon:
            self.daemon.stop()
            self.remove()
        self.daemon = None

    def remove(self):
        self.run("relay", self.program, "graft", "--remove", "--control", self.daemon.control,
                 "--graft-pins", self.pins)

    def talk(self, connections, seconds, size=500, address=RELAY, port=LISTEN, wait=True):
        """
        WAIT until all are connected: only then it is ours whether they are grafted.  On a busy
        machine Python starts late; and what holds the RTNL keeps a new bridge without a carrier,
        and drops SYNs.
        """
        process = self.lab.start("client", sys.executable, "-c", TALK, address, str(port),
                                 str(connections), str(seconds * SLOW), str(size),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while wait and os.read(process.stdout.fileno(), 1) not in (b"\n", b""):
            pass  # what follows is for communicate()
        return process

    def grafted(self):
        return sum(s["flows"][0]["carrier"] == "graft"
                   for s in self.daemon.ask("sessions")["sessions"])

    def wait_grafted(self, n):
        try:
            wait_until(lambda: self.grafted() == n, f"{n} grafted sessions")
        except LabError as error:
            ends = {k: v for k, v in self.daemon.ask("status")["errors"].items() if v}
            raise LabError(f"{error}: {self.daemon.ask('sessions')['sessions']}, "
                           f"ended: {ends}") from None

    def said(self, process, seconds=30):
        did = json.loads(process.communicate(timeout=seconds * SLOW)[0].splitlines()[-1])
        self.lab.finish(process, SLOW)
        expect(did["wrong"] == 0, f"wrong answers: {did}")
        return did

    def expect_counted(self, did, sessions):
        expect(did["ended"] == sessions, f"sessions were lost: {did}")
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "no session to be left")
        forward = self.daemon.ask("status")["forwards"][0]
        expect(forward["bytes_to_upstream"] == forward["bytes_to_client"] == did["rounds"] * 500,
               f"counted {forward}, but there were {did['rounds']} rounds of 500 bytes")

    def hold(self, client):
        """A socket that is in the way of whoever makes that of the session of CLIENT."""
        host, port = client.rsplit(":", 1)

        def is_made():
            sock = self.lab.socket("relay", RELAY)
            sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
            try:
                sock.bind((RELAY, LISTEN))
                sock.connect((host, int(port)))
            except OSError:  # the sockets of the daemon that was killed are still there
                return sock.close()
            return sock

        return wait_until(is_made, f"a socket to {client}")

    def make_late(self):
        self.run("relay", "ip", "link", "add", "late", "type", "veth", "peer", "name", "late",
                 "netns", f"{self.lab.name}-client")
        for namespace, address in ("relay", "10.0.9.2/24"), ("client", "10.0.9.1/24"):
            self.run(namespace, "ip", "link", "set", "late", "up")
            self.run(namespace, "ip", "address", "add", address, "dev", "late")

    def wait_programs(self, n):
        wait_until(lambda: self.programs() == n, f"{n} packet programs")

    def programs(self):
        """How many are at the interfaces: links of TCX, which are pinned, or filters of clsact."""
        names = os.listdir(os.path.join(self.pins, *os.listdir(self.pins)))
        return sum(name.startswith("link_") for name in names) or len(self.filters())

    def filters(self):
        devices = [words.split(":")[1].split("@")[0].strip()
                   for words in self.run("relay", "ip", "-o", "link").splitlines()]
        return [line for device in devices for hook in ("ingress", "egress")
                for line in self.run("relay", "tc", "filter", "show", "dev", device,
                                     hook).splitlines() if "handle" in line]

    def expect_nothing_left(self):
        expect(not os.listdir(self.pins), "there are pins")
        expect(not self.filters(), f"at interfaces: {self.filters()}")

    @contextlib.contextmanager
    def bridge(self):
        """The relay's address towards the client is that of br0, and to-client is a port."""
        move = """
            ip address flush dev $1
            ip link set $2 up
            ip address add 10.0.1.2/24 dev $2
            ip address add fd00:1::2/64 dev $2 nodad"""
        self.run("relay", "sh", "-ec", "ip link add br0 type bridge; ip link set br0 up; "
                 "ip link set to-client master br0" + move, "-", "to-client", "br0")
        try:
            yield
        finally:
            self.run("relay", "sh", "-ec", "ip link del br0" + move, "-", "to-client",
                     "to-client")

    def wait_rounds(self, rounds):
        until = self.bytes_now() + rounds * 500
        wait_until(lambda: self.bytes_now() >= until, "sessions to go on", 3)

    def nft(self, text):
        self.run("relay", "nft", "-f", self.lab.write("rules", text))

    def bytes_now(self):
        return self.daemon.ask("status")["forwards"][0]["bytes_to_upstream"]

    def is_still(self):
        before = self.bytes_now()
        time.sleep(0.7)
        return self.bytes_now() == before


@pytest.fixture(scope="module")
def trial(lab, culvert):
    return Trial(lab, culvert)


# --- cases ---

def test_survives_kill(trial):
    """The last ports of two ranges: who adopts a session finds its server by its address."""
    trial.begin("--session-log", "-", forwards=(
        (f"{RELAY}:{LISTEN - 9}-{LISTEN}", f"{SERVER}:{PORT - 9}-{PORT}"),))
    talk = trial.talk(20, 10)
    trial.wait_grafted(20)
    for end in trial.daemon.kill, trial.daemon.restart, trial.daemon.kill:
        end()
        wait_until(lambda: "20 grafted sessions of an earlier daemon are adopted" in
                   trial.daemon.log(), "an adoption")
        forward = trial.daemon.ask("forwards")["forwards"][0]
        expect(forward["live"] == forward["servers"][0]["live"] == 20, f"whose: {forward}")
    did = trial.said(talk)
    wait_until(lambda: not trial.daemon.ask("sessions")["sessions"], "no session to be left")
    trial.daemon.stop()  # which writes what waits for the session log
    ended = trial.daemon.ended()
    counted = [sum(line[key] for line in ended) for key in ("bytes_to_upstream",
                                                            "bytes_to_client")]
    expect(len(ended) == did["ended"] == 20 and counted == [did["rounds"] * 500] * 2,
           f"{did}, but the session log has {counted} bytes of {len(ended)} sessions")


def test_back_to_sockets(trial):
    trial.begin()
    talk = trial.talk(8, 6)
    trial.wait_grafted(8)
    for engine, grafted in ("copy", 0), ("graft", 8), ("copy", 0), ("auto", 8):
        trial.daemon.command("engine", f"{RELAY}:{LISTEN}", engine)
        trial.wait_grafted(grafted)
    trial.expect_counted(trial.said(talk), 8)


def test_ports_are_kept(trial):
    trial.run("relay", "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40031",
              "net.ipv4.tcp_fin_timeout=1")
    trial.begin()
    talk = trial.talk(6, 12)
    trial.wait_grafted(6)
    trial.daemon.kill()
    time.sleep(4)  # FIN_WAIT2 of the dead daemon's sockets, and a look of the new one
    for _ in range(20):
        trial.said(trial.talk(1, 0))
    errors = trial.daemon.ask("status")["errors"]
    expect(not errors["connect-refused"], f"a port was given away: {errors}")
    expect(trial.said(talk)["ended"] == 6, "sessions were lost")
    trial.run("relay", "sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 60999")


def test_sockets_come_late(trial):
    """Sockets that could not be made anew at the start are made later, and find dead ends. With a file
    there is a privileged process, which makes them."""
    config = trial.lab.write("late.conf", f"[forward late]\nlisten = {RELAY}:{LISTEN}\n"
                             f"upstream = {SERVER}:{PORT}\nkeepalive = 2s\n")
    trial.begin("--config", config, forwards=())
    talk = trial.talk(3, 60)
    trial.wait_grafted(3)
    clients = [s["client"] for s in trial.daemon.ask("sessions")["sessions"]]
    trial.daemon.die()
    held = [trial.hold(client) for client in clients]
    trial.daemon.start()
    wait_until(lambda: "3 sessions that were left have no sockets" in trial.daemon.log(), "the log")
    for sock in held:
        sock.close()
    trial.run("client", "ip", "route", "add", "blackhole", f"{RELAY}/32")
    try:
        wait_until(lambda: not trial.daemon.ask("sessions")["sessions"], "dead ends to be found", 30)
    finally:  # or no other case reaches the relay
        trial.run("client", "ip", "route", "del", "blackhole", f"{RELAY}/32")
        trial.lab.stop(talk)


def test_interfaces_come_and_go(trial):
    trial.begin(forwards=((f"0.0.0.0:{LISTEN}", f"{SERVER}:{PORT}"),))
    trial.make_late()
    trial.wait_programs(PROGRAMS + 2)
    talk = trial.talk(4, 6, 500, "10.0.9.2")
    trial.wait_grafted(4)
    trial.run("relay", "ip", "link", "del", "late")
    trial.wait_programs(PROGRAMS)
    trial.make_late()
    trial.expect_counted(trial.said(talk), 4)
    trial.run("relay", "ip", "link", "del", "late")


def test_filters_of_others(trial):
    """Who removes clsact, or has a filter there."""
    trial.begin()
    if not trial.filters():
        return  # TCX
    talk = trial.talk(4, 6)
    trial.wait_grafted(4)
    trial.run("relay", "tc", "qdisc", "del", "dev", "to-client", "clsact")
    trial.wait_programs(PROGRAMS)
    trial.run("relay", "tc", "filter", "add", "dev", "to-server", "ingress", "bpf",
              "bytecode", "1,6 0 0 0,")
    trial.expect_counted(trial.said(talk), 4)
    expect(trial.daemon.stop() == 0, "the daemon did not stop in order")
    left = trial.filters()
    expect(len(left) == 1 and "bytecode" in left[0], f"filters: {left}")
    trial.run("relay", "tc", "qdisc", "del", "dev", "to-server", "clsact")
    trial.expect_nothing_left()


@pytest.mark.needs("nft")
def test_firewall(trial):
    """What docs/security.md says of nftables."""
    with open(os.path.join(TOP, "docs/security.md"), encoding="utf-8") as file:
        met_rules = file.read().split("```nft\n")[1].split("```")[0]
    trial.begin()
    talk = trial.talk(4, 6)
    trial.wait_grafted(4)
    trial.nft(UNMET_RULES)
    trial.wait_rounds(100)
    new = trial.talk(1, 0, wait=False)
    time.sleep(1)
    expect(new.poll() is None, "the rules drop nothing")
    trial.nft("flush ruleset")
    expect(trial.said(new)["ended"] == 1, "the rules went, and no session began")
    trial.expect_counted(trial.said(talk), 4)
    trial.end()
    with trial.bridge():
        trial.begin()
        talk = trial.talk(4, 6)
        trial.wait_grafted(4)
        trial.nft(met_rules)
        wait_until(trial.is_still, "sessions to be stopped", 3)
        trial.nft("flush ruleset")
        trial.wait_rounds(100)
        trial.expect_counted(trial.said(talk), 4)


def test_nothing_is_left(trial):
    trial.begin()
    expect(trial.said(trial.talk(3, 1))["ended"] == 3, "sessions were lost")
    expect(trial.daemon.stop() == 0, "the daemon did not stop in order")
    trial.expect_nothing_left()
    trial.begin()
    trial.daemon.die()
    expect(trial.programs() == PROGRAMS, "the programs went with the daemon")
    trial.remove()
    trial.expect_nothing_left()
    trial.begin("--graft-pins", "none")
    trial.daemon.process.kill()
    wait_until(lambda: not trial.filters(), "filters that nobody could find to go")
    trial.expect_nothing_left()


