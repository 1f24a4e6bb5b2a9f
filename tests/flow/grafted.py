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
from labkit import RELAY, SERVER, SLOW, TOP, Daemon, expect, wait_until
from standby_rig import PEER

pytestmark = pytest.mark.needs("ip", packages="demo", ipv6=True)
PORT = 7100
LISTEN = 9100
TCP_REPAIR = 19
PROGRAMS = 2 * 3  # at lo, to-client, to-server

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
        lab.start_server("server", PORT, sys.executable, "-B", PEER, "serve", str(PORT))
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

    def talk(self, connections, address=RELAY, wait=True):
        """
        Conversations that go on until said().  WAIT until all are connected: only then it is ours
        whether they are grafted.  On a busy machine Python starts late; and what holds the RTNL
        keeps a new bridge without a carrier, and drops SYNs.
        """
        process = self.lab.start("client", sys.executable, "-B", PEER, "talk", address, str(LISTEN),
                                 "e", str(connections), stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        expect(not wait or process.stdout.readline() == "ready\n", "the clients have ended")
        return process

    def grafted(self):
        return sum(s["flows"][0]["carrier"] == "graft"
                   for s in self.daemon.ask("sessions")["sessions"])

    def wait_grafted(self, n):
        def what():
            ends = {k: v for k, v in self.daemon.ask("status")["errors"].items() if v}
            return f"{n} grafted sessions: {self.daemon.ask('sessions')['sessions']}, ended: {ends}"

        wait_until(lambda: self.grafted() == n, what)

    def said(self, process, sessions):
        """The bytes of one way of SESSIONS, which end in order; 16 of each are not told."""
        did = json.loads(process.communicate(timeout=30 * SLOW)[0].splitlines()[-1])
        self.lab.finish(process, SLOW)
        expect(not did.get("wrong") and did.get("ended") == sessions, f"sessions were lost: {did}")
        return did.get("bytes", 0) // 2 + 16 * sessions

    def expect_counted(self, process, sessions, before=0):
        said = before + self.said(process, sessions)
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "no session to be left")
        forward = self.daemon.ask("status")["forwards"][0]
        expect(forward["bytes_to_upstream"] == forward["bytes_to_client"] == said,
               f"counted {forward}, but there were {said} bytes")

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

    def wait_bytes(self, more):
        until = self.bytes_now() + more
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
    talk = trial.talk(20)
    trial.wait_grafted(20)
    for end in trial.daemon.kill, trial.daemon.restart, trial.daemon.kill:
        end()
        wait_until(lambda: "20 grafted sessions of an earlier daemon are adopted" in
                   trial.daemon.log(), "an adoption")
        forward = trial.daemon.ask("forwards")["forwards"][0]
        expect(forward["live"] == forward["servers"][0]["live"] == 20, f"whose: {forward}")
    said = trial.said(talk, 20)
    wait_until(lambda: not trial.daemon.ask("sessions")["sessions"], "no session to be left")
    trial.daemon.stop()  # which writes what waits for the session log
    ended = trial.daemon.ended()
    counted = [sum(line[key] for line in ended) for key in ("bytes_to_upstream",
                                                            "bytes_to_client")]
    expect(len(ended) == 20 and counted == [said] * 2,
           f"{said} bytes, but the session log has {counted} of {len(ended)} sessions")


def test_back_to_sockets(trial):
    trial.begin()
    talk = trial.talk(8)
    trial.wait_grafted(8)
    for engine, grafted in ("copy", 0), ("graft", 8), ("copy", 0), ("auto", 8):
        trial.daemon.command("engine", f"{RELAY}:{LISTEN}", engine)
        trial.wait_grafted(grafted)
    trial.expect_counted(talk, 8)


def test_ports_are_kept(trial):
    trial.run("relay", "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40031",
              "net.ipv4.tcp_fin_timeout=1")
    trial.begin()
    talk = trial.talk(6)
    trial.wait_grafted(6)
    trial.daemon.kill()
    time.sleep(4)  # FIN_WAIT2 of the dead daemon's sockets, and a look of the new one
    for _ in range(20):
        trial.said(trial.talk(1), 1)
    errors = trial.daemon.ask("status")["errors"]
    expect(not errors["connect-refused"], f"a port was given away: {errors}")
    trial.said(talk, 6)
    trial.run("relay", "sysctl", "-qw", "net.ipv4.ip_local_port_range=32768 60999")


def test_sockets_come_late(trial):
    """Sockets that could not be made anew at the start are made later, and find dead ends. With a file
    there is a privileged process, which makes them."""
    config = trial.lab.write("late.conf", f"[forward late]\nlisten = {RELAY}:{LISTEN}\n"
                             f"upstream = {SERVER}:{PORT}\nkeepalive = 2s\n")
    trial.begin("--config", config, forwards=())
    talk = trial.talk(3)
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
    talk = trial.talk(4, "10.0.9.2")
    trial.wait_grafted(4)
    # without sockets, a packet on a device without programs resets its session
    wait_until(lambda: trial.run("relay", "ss", "-tnH", "state", "established").count("\n") == 8,
               "sockets of all sessions")
    trial.run("relay", "ip", "link", "del", "late")
    trial.wait_programs(PROGRAMS)
    trial.make_late()
    trial.expect_counted(talk, 4)
    trial.run("relay", "ip", "link", "del", "late")


def test_filters_of_others(trial):
    """Who removes clsact, or has a filter there."""
    trial.begin()
    if not trial.filters():
        return  # TCX
    talk = trial.talk(4)
    trial.wait_grafted(4)
    trial.run("relay", "tc", "qdisc", "del", "dev", "to-client", "clsact")
    trial.wait_programs(PROGRAMS)
    trial.run("relay", "tc", "filter", "add", "dev", "to-server", "ingress", "bpf",
              "bytecode", "1,6 0 0 0,")
    trial.expect_counted(talk, 4)
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
    talk = trial.talk(4)
    trial.wait_grafted(4)
    trial.nft(UNMET_RULES)
    trial.wait_bytes(50_000)
    new = trial.talk(1, wait=False)
    time.sleep(1)
    expect(new.poll() is None, "the rules drop nothing")
    conf = trial.lab.write("conf", f"[forward a]\nlisten = :{LISTEN}\nupstream = {SERVER}:{PORT}\n")
    checked = trial.run("relay", trial.program, "check", conf)
    lists = "the kernel lacks CONFIG_NETFILTER_NETLINK_HOOK" not in checked
    for place in ("input: chain inet filter in", "output: chain inet filter out",
                  "ingress of to-client: chain netdev filter from_client"):
        expect((f"grafted sessions bypass netfilter at {place}" in checked) == lists, checked)
    trial.nft("flush ruleset")
    trial.expect_counted(talk, 4, trial.said(new, 1))
    trial.end()
    with trial.bridge():
        trial.begin()
        talk = trial.talk(4)
        trial.wait_grafted(4)
        trial.nft(met_rules)
        wait_until(trial.is_still, "sessions to be stopped", 3)
        trial.nft("flush ruleset")
        trial.wait_bytes(50_000)
        trial.expect_counted(talk, 4)


def test_nothing_is_left(trial):
    trial.begin()
    talk = trial.talk(3)
    trial.wait_grafted(3)
    trial.said(talk, 3)
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


