# SPDX-License-Identifier: BSD-2-Clause
"""Three or four relays behind one address, which a router spreads over them by ECMP.

client - r1 - a, b, c, d - r2 - server; each relay has all sources on lo, and connects from its own.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time

import pytest

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standby_peer.py")
VIP, SERVER, CLIENT = "192.0.2.80", "10.8.0.2", "10.7.0.2"
NAMES = "abcd"
PORT = 9100


def wait_until(condition, what, seconds=10):
    end = time.monotonic() + seconds
    while not (seen := condition()):
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.05)
    return seen


class Fleet:
    def __init__(self, program, n, *lines, reflectors=0):
        self.program = program
        self.names = NAMES[:n]
        self.reflectors = [f"reflector{i}" for i in range(reflectors)]
        self.home = tempfile.mkdtemp(prefix="culvert-fleet.")
        os.chmod(self.home, 0o755)
        self.prefix = "cvf-" + self.home.rpartition(".")[2]
        self.daemons, self.streams, self.processes = {}, {}, []
        self.lines = lines
        self.live = set(self.names)

    # --- namespaces ---

    def ns(self, role):
        return f"{self.prefix}-{role}"

    def run(self, role, *words, check=True):
        return subprocess.run(["ip", "netns", "exec", self.ns(role), *words], check=check, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    def start(self, role, *words, **options):
        log = open(os.path.join(self.home, f"{role}-{len(self.processes)}.log"), "wb")
        options.setdefault("stdout", log)
        process = subprocess.Popen(["ip", "netns", "exec", self.ns(role), *words], stderr=log,
                                   start_new_session=True, **options)
        process.log = log.name
        self.processes.append(process)
        return process

    def cable(self, one, two, at, first, second):
        """Devices to-TWO in ONE and to-ONE in TWO, with addresses AT.1 and AT.2 by default."""
        subprocess.run(["ip", "link", "add", f"to-{two}", "netns", self.ns(one), "type", "veth", "peer",
                        "name", f"to-{one}", "netns", self.ns(two)], check=True)
        for role, dev, address in (one, f"to-{two}", f"{at}.{first}"), (two, f"to-{one}", f"{at}.{second}"):
            self.run(role, "ip", "address", "add", f"{address}/24", "dev", dev)
            self.run(role, "ip", "link", "set", dev, "up")
            self.run(role, "ethtool", "-K", dev, "tx", "off", check=False)

    def up(self):
        for role in ("client", "r1", "r2", "server", *self.names):
            subprocess.run(["ip", "netns", "add", self.ns(role)], check=True)
            self.run(role, "ip", "link", "set", "lo", "up")
            self.run(role, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0",
                     "net.ipv4.conf.default.rp_filter=0", "net.ipv4.conf.all.send_redirects=0",
                     "net.ipv4.fib_multipath_hash_policy=1", "net.ipv4.ip_nonlocal_bind=1")
        self.cable("client", "r1", "10.7.0", 2, 1)
        self.cable("r2", "server", "10.8.0", 1, 2)
        self.run("client", "ip", "route", "add", "default", "via", "10.7.0.1")
        self.run("server", "ip", "route", "add", "default", "via", "10.8.0.1")
        for i, name in enumerate(self.names):
            self.cable("r1", name, f"10.1.{i}", 1, 2)
            self.cable(name, "r2", f"10.2.{i}", 2, 1)
            self.run(name, "ip", "route", "add", "10.7.0.0/24", "via", f"10.1.{i}.1")
            self.run(name, "ip", "route", "add", "10.8.0.0/24", "via", f"10.2.{i}.1")
            for address in (VIP, *(self.source(n) for n in self.names)):
                self.run(name, "ip", "address", "add", f"{address}/32", "dev", "lo")
        self.route()
        self.start("server", sys.executable, "-B", PEER, "serve", "7100")
        for name in self.reflectors:
            self.start_reflector(name)
        for name in self.names:
            self.boot(name)
        self.join(self.names)

    def start_reflector(self, name):
        os.makedirs(os.path.join(self.home, name), exist_ok=True)
        os.chmod(os.path.join(self.home, name), 0o755)
        process = self.start("client", self.program, "reflect", "--control", self.control(name))
        wait_until(lambda: "culvert: ready" in open(process.log, encoding="utf-8").read(), f"{name} to be ready")
        self.daemons[name] = process

    def join(self, names):
        """NAMES and all others tell each other of their sessions."""
        if not self.reflectors:
            self.mesh(names)
            return
        for name in names:
            for reflector in self.reflectors:
                self.pipe(name, reflector)
                self.pipe(reflector, name)
        for name in names:
            self.wait_synced(name, len(self.reflectors))

    @staticmethod
    def source(name):
        return f"10.9.0.{NAMES.index(name) + 1}"

    def route(self, live=None, back=None):
        """VIP by ECMP over LIVE; each source to its relay, else by ECMP, or to BACK[source]."""
        self.live = set(live or self.live)
        hops = [w for n in sorted(self.live) for w in ("nexthop", "via", f"10.1.{NAMES.index(n)}.2")]
        self.run("r1", "ip", "route", "replace", f"{VIP}/32", *hops)
        for n in self.names:
            to = (back or {}).get(n) or (n if n in self.live else None)
            hops = ["via", f"10.2.{NAMES.index(to)}.2"] if to else [
                w for m in sorted(self.live) for w in ("nexthop", "via", f"10.2.{NAMES.index(m)}.2")]
            self.run("r2", "ip", "route", "replace", f"{self.source(n)}/32", *hops)

    # --- relays ---

    def control(self, name):
        return os.path.join(self.home, name, "socket")

    def boot(self, name):
        os.makedirs(os.path.join(self.home, name), exist_ok=True)
        os.chmod(os.path.join(self.home, name), 0o755)
        path = os.path.join(self.home, f"{name}.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(("[culvert]", "graft-pins = none", "graft-rtt = 0", "session-log = -",
                                  "max-sessions = 4000", "max-sessions-per-client = 0", f"relay = {name}",
                                  *self.lines,
                                  "[forward web]", f"listen = {VIP}:{PORT}",
                                  f"upstream = {SERVER}:7100", f"source = {self.source(name)}", "")))
        self.daemons[name] = self.start(name, self.program, "run", "--config", path, "--control",
                                        self.control(name))
        wait_until(lambda: "culvert: ready" in open(self.daemons[name].log, encoding="utf-8").read(),
                   f"{name} to be ready", 60)

    def mesh(self, names):
        """Each other relay's sessions are imported by NAMES, and the other way round."""
        for a in names:
            for b in self.names:
                for source, target in ((a, b), (b, a)):
                    if source != target and (source, target) not in self.streams and \
                            self.daemons[source].poll() is None and self.daemons[target].poll() is None:
                        self.pipe(source, target)
        for name in self.names:
            if self.daemons[name].poll() is None:
                self.wait_synced(name, sum(self.daemons[n].poll() is None for n in self.names) - 1)

    def pipe(self, source, target):
        self.streams[source, target] = self.start(
            "client", "sh", "-c",
            f"while :; do {self.program} export --after 0.5 --control {self.control(source)} |"
            f" {self.program} import --name {source} --control {self.control(target)}; sleep 0.1; done")

    def wait_synced(self, name, n):
        wait_until(lambda: sum(s["stream"] == "import" and s["in_sync"]
                               for s in self.standby(name)["streams"]) >= n, f"{name} in sync", 20)

    def die(self, name):
        """As by loss of power."""
        for side in "r1", "r2":
            self.run(side, "ip", "link", "set", f"to-{name}", "down")
        for pair in [p for p in self.streams if name in p]:
            self.end(self.streams.pop(pair))
        self.daemons[name].kill()
        self.daemons[name].wait()

    def ask(self, name, *words):
        return json.loads(subprocess.run(
            [self.program, *words, "--json", "--control", self.control(name)], check=True,
            stdout=subprocess.PIPE, text=True).stdout)

    def standby(self, name):
        return self.ask(name, "status")["standby"]

    def owned(self):
        """{relay: its sessions}, of live relays."""
        return {n: len(self.ask(n, "sessions")["sessions"]) for n in self.names
                if self.daemons[n].poll() is None}

    def sums(self):
        live = [n for n in self.names if self.daemons[n].poll() is None]
        return {n: {"owned": len(self.ask(n, "sessions")["sessions"]),
                    **{k: self.standby(n)[k] for k in ("held", "helped", "orphans", "adopted", "refused")}}
                for n in live}

    # --- sessions ---

    def talk(self, kind, n):
        process = self.start("client", sys.executable, "-B", PEER, "talk", VIP, str(PORT), kind, str(n),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.kind, process.n = kind, n
        assert process.stdout.readline() == "ready\n", open(process.log, encoding="utf-8").read()
        return process

    @staticmethod
    def say(process, word):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    @staticmethod
    def finish(process):
        process.stdin.close()
        return json.loads(process.stdout.readline())

    @staticmethod
    def end(process):
        try:
            os.killpg(process.pid, 15)
        except ProcessLookupError:
            pass
        process.wait()

    def down(self):
        for process in reversed(self.processes):
            self.end(process)
        for role in ("client", "r1", "r2", "server", *self.names):
            subprocess.run(["ip", "netns", "delete", self.ns(role)], check=False)


def begin_fleet(culvert, n, *lines, **options):
    one = Fleet(culvert, n, *lines, **options)
    try:
        one.up()
        yield one
        for name, process in one.daemons.items():
            print(name, open(process.log, encoding="utf-8").read()[-3000:])
    finally:
        one.down()


@pytest.fixture(params=("mesh", "reflectors"))
def fleet(request, culvert):
    yield from begin_fleet(culvert, 3, reflectors=2 * (request.param == "reflectors"))


@pytest.fixture
def impatient(culvert):
    yield from begin_fleet(culvert, 3, "idle-timeout = 4s", "keepalive = 2s")


def finish_all(fleet, clients, lost=0):
    said = {c.kind: fleet.finish(c) for c in clients}
    print(said, fleet.sums())
    assert sum(s["wrong"] for s in said.values()) == 0, said
    assert sum(s.get("reset", 0) + s.get("silent", 0) for s in said.values()) <= lost, said
    wait_until(lambda: all(s["owned"] + s["held"] + s["helped"] + s["orphans"] == 0
                           for s in fleet.sums().values()), f"nothing to be left: {fleet.sums()}", 15)


def begin(fleet, kinds=(("e", 20), ("i", 22), ("d", 1), ("u", 1), ("h", 6))):
    clients = [fleet.talk(kind, n) for kind, n in kinds]
    n = sum(n for _, n in kinds)
    wait_until(lambda: sum(fleet.owned().values()) == n, f"{n} sessions")
    wait_until(lambda: all(s["held"] + s["helped"] + s["owned"] == n for s in fleet.sums().values()),
               "each to be told", 20)
    return clients


def test_power(fleet):
    clients = begin(fleet)
    print(fleet.sums())
    fleet.route("bc")
    fleet.die("a")
    wait_until(lambda: sum(fleet.owned().values()) == 50, f"each to be owned once", 20)
    time.sleep(3)
    print(fleet.sums())
    assert sum(fleet.owned().values()) == 50
    finish_all(fleet, clients)


def test_drain(fleet):
    clients = begin(fleet)
    fleet.route("bc")
    time.sleep(8)
    print(fleet.sums())
    fleet.route("abc")
    time.sleep(3)
    assert sum(s["adopted"] for s in fleet.sums().values()) == 0, fleet.sums()
    finish_all(fleet, clients)


def test_rehash(fleet):
    clients = begin(fleet)
    chance = random.Random(1)
    for _ in range(10):
        some = chance.sample(fleet.names, chance.choice((2, 3)))
        fleet.route(some, {n: chance.choice(some) for n in fleet.names})
        time.sleep(2)
    print(fleet.sums())
    assert sum(s["adopted"] for s in fleet.sums().values()) == 0, fleet.sums()
    fleet.route("abc")
    finish_all(fleet, clients)


def test_times_out(impatient):
    """Silent sessions end in time, working ones go on, though every packet goes by other relays."""
    clients = begin(impatient, (("e", 10), ("i", 10)))
    for _ in range(4):
        impatient.route("abc", {n: NAMES[(NAMES.index(n) + 1) % 3] for n in impatient.names})
        time.sleep(2)
    assert sum(impatient.owned().values()) == 10, impatient.sums()
    said = [impatient.finish(c) for c in clients]
    print(said, impatient.sums())
    assert said[0].get("reset", 0) == 0 and said[1].get("reset", 0) == 10, said


def test_kill(fleet):
    """At any relay, by the number that all relays show."""
    clients = begin(fleet, (("e", 10), ("i", 10)))
    fleet.route("bc")
    time.sleep(1)
    shown = {s["id"] for s in fleet.ask("b", "sessions", "--all")["sessions"]}
    assert len(shown) == 20 and len({s["id"] for n in fleet.names for s in fleet.ask(n, "sessions")["sessions"]}
                                    | shown) == 20, shown
    some = list(shown)[:7]
    assert fleet.ask("b", "kill", *map(str, some))["killed"] == 7
    wait_until(lambda: sum(fleet.owned().values()) == 13, "seven to be over")
    said = [fleet.finish(c) for c in clients]
    assert sum(s.get("reset", 0) for s in said) == 7, said
