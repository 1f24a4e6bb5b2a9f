# SPDX-License-Identifier: BSD-2-Clause
"""What fleet.py and fleet_storm.py stand on: relays behind addresses that a router spreads by ECMP.

client - r1 - a, b, c, d - r2 - server.  Each relay has the addresses of all on lo, and connects from
its own.  Servers of transparent forwards see the client's address: r2 knows the relay by the port.
"""

import json
import os
import subprocess
import sys
import time

from labkit import Daemon, Guard, Lab, expect, place, tail, wait_until
from udp_rig import PEER as UDP_PEER
from udp_rig import Client

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standby_peer.py")
NAMES = "abcd"
FAMILIES = "-4", "-6"
VIP, SERVER = ("192.0.2.80", "2001:db8::80"), ("10.8.0.2", "fd08::2")
CLIENT = "10.7.0.2", "fd07::2"
# Where forwards listen, and their servers.
FORWARDS = {"web": (VIP[0], 9100, SERVER[0], 7100), "six": (VIP[1], 9101, SERVER[1], 7100),
            "mixed": (VIP[1], 9102, SERVER[0], 7100),
            "clear": (VIP[0], 9104, SERVER[0], 7102), "clear6": (VIP[1], 9105, SERVER[1], 7102),
            "datagrams": (VIP[0], 9153, SERVER[0], 7153),
            "datagrams6": (VIP[1], 9154, SERVER[1], 7153)}
SOURCE = {name: (f"10.9.0.{i + 1}", f"fd09::{i + 1}") for i, name in enumerate(NAMES)}
# A refused connection.
MEET = """import socket, sys
try:
    socket.create_connection((sys.argv[1], 1), 0.5)
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)"""
# All of these, and no daemons in them, are gone.
TAKE_DOWN = """for ns in /run/netns/"$0"-*; do
ip netns pids "${ns##*/}" | xargs -r kill -9; ip netns delete "${ns##*/}"; done"""


def via(side, name, family):
    """The address of relay NAME towards r1 or r2."""
    number = NAMES.index(name)
    return f"fd0{side}:{number}::2" if family == "-6" else f"10.{side}.{number}.2"


def nexthops(side, names, family):
    return " ".join(f"nexthop via {via(side, name, family)}" for name in sorted(names))


class Fleet(Lab):
    """LATE: of N relays those that do not run yet.  LINES: of all forwards."""

    def __init__(self, program, n=3, reflectors=0, late="", lines=(), engine="auto"):
        super().__init__()
        self.program, self.engine, self.lines = program, engine, lines
        self.names, self.late = NAMES[:n], late
        self.reflectors = {f"reflector{i}": None for i in range(reflectors)}
        self.relays, self.streams = {}, {}  # {name: Daemon}, {(from, to): process}
        self.routed, self.cut_off = set(), set()
        self.pins, self.boots = None, 0

    # --- the networks ---

    def __enter__(self):
        self._guard = Guard(("sh", "-c", TAKE_DOWN, self.name), os.environ)
        try:
            self.up()
        except BaseException:
            self.close()
            raise
        return self

    def close(self):
        super().close()
        subprocess.run(["sh", "-c", TAKE_DOWN, self.name], check=False)

    def ip(self, role, *lines, family=None):
        subprocess.run(["ip", *[family] * bool(family), "-n", f"{self.name}-{role}", "-batch", "-"],
                       check=True, text=True, input="\n".join(lines))

    def _way_into(self, namespace):
        return "nsenter", f"--net=/run/netns/{self.name}-{namespace}"

    def add(self, role, *sysctls):
        subprocess.run(["ip", "netns", "add", f"{self.name}-{role}"], check=True)
        values = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
                  "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0",
                  "net.ipv4.conf.all.send_redirects=0", "net.ipv4.fib_multipath_hash_policy=1",
                  "net.ipv6.fib_multipath_hash_policy=1", "net.ipv4.ip_nonlocal_bind=1",
                  "net.ipv6.ip_nonlocal_bind=1", *sysctls)
        subprocess.run([*self._way_into(role), "sysctl", "-qw", *values], check=True)
        self.ip(role, "link set lo up")

    def cable(self, one, two, network, last):
        """From ONE to TWO, which has the address that ends with LAST."""
        self.ip(one, f"link add to-{two} type veth peer name to-{one} netns {self.name}-{two}")
        for role, dev, end in (one, f"to-{two}", 3 - last), (two, f"to-{one}", last):
            four, six = network
            self.ip(role, f"link set {dev} up", f"address add {four}.{end}/24 dev {dev}",
                    f"address add {six}::{end}/64 dev {dev} nodad")

    def plug(self, name):
        """A relay's machine, which has not booted yet."""
        number = NAMES.index(name)
        self.add(name, f"net.ipv4.ip_local_port_range={20000 + 5000 * number} {24999 + 5000 * number}")
        for side in 1, 2:
            self.cable(f"r{side}", name, (f"10.{side}.{number}", f"fd0{side}:{number}"), 2)
        for i, family in enumerate(FAMILIES):
            self.ip(name, *(f"address add {address[i]} dev lo"
                            for address in (VIP, *(SOURCE[n] for n in self.names))),
                    *(f"route add {CLIENT[i]} via {via(1, name, family)[:-1]}1",
                      f"route add {SERVER[i]} via {via(2, name, family)[:-1]}1",
                      "rule add iif to-r2 ipproto tcp sport 7102 lookup 100",
                      "route add local default dev lo table 100"), family=family)

    def up(self):
        for role in "client", "r1", "r2", "server":
            self.add(role)
        self.cable("r1", "client", ("10.7.0", "fd07"), 2)
        self.cable("r2", "server", ("10.8.0", "fd08"), 2)
        for role, side in ("client", 7), ("server", 8):
            self.ip(role, f"route add default via 10.{side}.0.1")
            self.ip(role, f"route add default via fd0{side}::1", family="-6")
        for i, family in enumerate(FAMILIES):
            self.ip("r2", *(f"rule add iif to-server to {CLIENT[i]} ipproto tcp dport"
                            f" {20000 + 5000 * n}-{24999 + 5000 * n} lookup {10 + n}"
                            for n in range(len(NAMES))), family=family)
        self.start_server("server", 7102, sys.executable, "-B", PEER, "serve", "7100", "7102")
        self.start_server("server", 7153, sys.executable, "-B", UDP_PEER, "serve", "7153",
                          protocol="udp")
        for name in self.reflectors:
            self.reflect(name)
        for name in self.names:
            if name not in self.late:
                self.boot(name)
        self.join()
        self.route(set(self.names) - set(self.late))

    def route(self, live, back=None):
        """The addresses by ECMP over LIVE; each source to its relay, else by ECMP, or to BACK[name]."""
        self.routed = set(live)
        for i, family in enumerate(FAMILIES):
            self.ip("r1", f"route replace {VIP[i]} {nexthops(1, live, family)}", family=family)
            lines = []
            for number, name in enumerate(self.names):
                hops = nexthops(2, (back or {}).get(name) or (name if name in live else live), family)
                lines += [f"route replace {SOURCE[name][i]} {hops}",
                          f"route replace {CLIENT[i]} table {10 + number} {hops}"]
            self.ip("r2", *lines, family=family)

    def hop(self, chance, least=1):
        """Routes at random."""
        names = self.live()
        live = chance.sample(names, chance.randint(min(least, len(names)), len(names)))
        self.route(live, {name: chance.choice(live) for name in self.names})

    # --- relays ---

    def live(self):
        return [name for name, relay in self.relays.items() if relay.process.poll() is None]

    def boot(self, name):
        self.plug(name)
        text = "[culvert]\nsession-log = -\nmax-sessions = 4000\nmax-sessions-per-client = 0\n" \
            f"relay = {name}\n"
        for forward, (to, port, server, at) in FORWARDS.items():
            lines = f"[forward {forward}]", f"listen = {place(to, port)}{'/udp' * (at == 7153)}", \
                f"upstream = {place(server, at)}", "transparent = yes" if at == 7102 else \
                f"source = {SOURCE[name][':' in server]}", *self.lines, ""
            text += "\n".join(lines)
        self.pins = self.pins or self.mount_bpf()
        self.boots += 1  # each finds no pins
        self.relays[name] = Daemon(self, self.program, self.engine, (), "--config",
                                   self.write(f"{name}.conf", text), "--graft-pins",
                                   os.path.join(self.pins, f"{name}-{self.boots}"), namespace=name)
        self.meet(name)

    def meet(self, name):
        """Both routers find their neighbour: else a SYN that is sent again takes another next hop (IPv6)."""
        for side in 1, 2:
            for family in FAMILIES:
                wait_until(lambda: not subprocess.run(
                    [*self._way_into(f"r{side}"), sys.executable, "-c", MEET,
                     via(side, name, family)], check=False).returncode, f"r{side} to meet {name}")

    def reflect(self, name):
        """A reflector begins."""
        control = os.path.join(self.home, name, "socket")
        os.mkdir(os.path.dirname(control), 0o755)
        process = self.start("client", self.program, "reflect", "--control", control)
        wait_until(lambda: "culvert: ready" in tail(process.log), f"{name} to be ready")
        self.reflectors[name] = control

    def control(self, name):
        return self.reflectors[name] if name in self.reflectors else self.relays[name].control

    def join(self):
        """All relays that run tell each other of their sessions, unless they are cut off."""
        live = self.live()
        for one in live:
            for two in self.reflectors or live:
                # a reflector is on the side of the others
                if one != two and (one in self.cut_off) == (two in self.cut_off):
                    self.pipe(one, two)
                    self.pipe(two, one)
        for name in set(live) - self.cut_off:
            n = len(self.reflectors) or len(set(live) - self.cut_off) - 1
            wait_until(lambda: sum(s["stream"] == "import" and s["in_sync"]
                                   for s in self.standby(name)["streams"]) >= n,
                       lambda: f"{name} in sync: {self.standby(name)}", 20)

    def pipe(self, source, target):
        if (source, target) not in self.streams:
            self.streams[source, target] = self.start(
                "client", "sh", "-c",
                f"while :; do {self.program} export --after 0.5 --control {self.control(source)} |"
                f" {self.program} import --name {source} --control {self.control(target)};"
                " sleep 0.1; done")

    def cut(self, *names):
        """NAMES, and all others, do not hear each other."""
        self.cut_off = set(names)
        for pair in list(self.streams):
            if len(self.cut_off.intersection(pair)) == 1:
                self.stop(self.streams.pop(pair))

    def die(self, name):
        """As by loss of power: nothing is told to anybody."""
        for pair in [pair for pair in self.streams if name in pair]:
            self.stop(self.streams.pop(pair))
        self.ip(name, "link set to-r1 down", "link set to-r2 down")
        self.relays[name].die()

    def come_back(self, name):
        """After die()."""
        for side in "r1", "r2":
            self.ip(side, f"link delete to-{name}")
        subprocess.run(["ip", "netns", "delete", f"{self.name}-{name}"], check=True)
        self.boot(name)
        self.join()

    def ask(self, name, *words):
        return self.relays[name].ask(*words)

    def standby(self, name):
        return self.ask(name, "status")["standby"]

    def owned(self):
        """{forward and client: the relays that have the session}."""
        owners = {}
        for name in self.live():
            for session in self.ask(name, "sessions")["sessions"]:
                owners.setdefault((session["forward"], session["client"]), []).append(name)
        return owners

    def why(self, ports):
        """What the session logs of all relays say of clients with PORTS."""
        return {port: [(name, e["time"][11:23], e["end"], e["duration_ms"],
                        [flow["reason"] for flow in e["flows"]]) for name, relay in self.relays.items()
                       for e in relay.ended() if e["client"].endswith(f":{port}")]
                for port in ports}

    def twice(self):
        return {who: names for who, names in self.owned().items() if len(names) > 1}

    def sums(self):
        return {name: {"owned": len(self.ask(name, "sessions")["sessions"]),
                       **{key: self.standby(name)[key]
                          for key in ("held", "helped", "orphans", "adopted", "refused")}}
                for name in self.live()}

    def adopted(self):
        """Sessions of TCP: flows of UDP move with their packets."""
        return sum(f["adopted"] for name in self.live() for f in self.ask(name, "status")["forwards"]
                   if not f["name"].startswith("datagrams"))

    def at_server(self):
        return subprocess.run([*self._way_into("server"), "ss", "-Htn", "state", "established"],
                              check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    def wait_owned(self, n, seconds=15):
        """Each of N sessions has one owner."""
        wait_until(lambda: len(self.owned()) == n and not self.twice(), lambda:
                   f"{n} sessions with one owner each: {self.sums()}, not: {self.twice()}, "
                   f"{len(self.owned())}: {self.owned()}", seconds)

    def wait_told(self, n):
        """All relays know N sessions."""
        wait_until(lambda: all(s["held"] + s["helped"] + s["owned"] == n
                               for s in self.sums().values()),
                   lambda: f"{n} sessions to be known to all: {self.sums()}", 20)

    def wait_empty(self, seconds=10):
        wait_until(lambda: not any(s["owned"] + s["held"] + s["helped"] + s["orphans"]
                                   for s in self.sums().values()), lambda:
                   f"nothing to be left: {self.sums()} {[self.left(n) for n in self.live()]}", seconds)

    def left(self, name):
        return [(s["forward"], s["client"], s["standby"], s["age_ms"])
                for s in self.ask(name, "sessions", "--all")["sessions"]][:4]

    # --- sessions ---

    def talk(self, forward, kind, n):
        process = self.start("client", sys.executable, "-B", PEER, "talk",
                             *map(str, FORWARDS[forward][:2]), kind, str(n),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.name, process.n, process.began = f"{forward} {kind}", n, time.monotonic()
        return process

    def wait_ready(self, talks):
        for talk in talks:
            expect(talk.stdout.readline() == "ready\n", f"clients: {tail(talk.log)}")

    @staticmethod
    def say(talk, word):
        talk.stdin.write(word + "\n")
        talk.stdin.flush()
        return json.loads(talk.stdout.readline())

    def end_of(self, talk):
        """What TALK has done; no byte may be wrong."""
        line = talk.stdout.readline()
        expect(line.startswith("{"), f"clients: {tail(talk.log)}")
        did = json.loads(line)
        self.finish(talk, 10)
        expect(not did.get("wrong"), f"{talk.name}: {did}")
        return did

    def flows(self, n, *forwards):
        """Clients of UDP."""
        return [Client(self, *FORWARDS[forward][:2]) for forward in forwards for _ in range(n)]
