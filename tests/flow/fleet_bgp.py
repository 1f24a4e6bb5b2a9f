# SPDX-License-Identifier: BSD-2-Clause
"""A fleet whose routes are real bird2's, by the files of docs/examples (scripts/lab --bgp).

client - r1 - relay, relay2, ... - r2 - server. Each relay runs culvert and culvert-announce, and imports
from each other one. A relay loses power and comes back, is drained by culvert-announce.service, and its
bird2 is killed, under sessions of both families: each byte is compared, no session is lost, each is owned
once.
"""

import configparser
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
from fleet_rig import PEER
from labkit import SERVER, TOP, Lab, tail, wait_until

pytestmark = pytest.mark.needs("ip", "ss", "bird", "birdc", "ps", ipv6=True)
EXAMPLES = os.path.join(TOP, "docs/examples")
NAMES = "relay", "relay2", "relay3", "relay4"
VIP, VIP6, PORT, SERVER6 = "192.0.2.80", "2001:db8::80", 9100, "fd00:2::2"
ROUTER_OF = {"r1": "10.0.3", "r2": "10.0.4"}
FORWARD = """[forward {name}]
listen = {vip}:{port}
upstream = {server}:7100
source = {source}
"""
CONFIG = """[culvert]
relay = {relay}
graft-pins = none
graft-rtt = 0
session-log = -
max-sessions = 4000
max-sessions-per-client = 0
"""


def service():
    """[Service] of culvert-announce.service."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(os.path.join(EXAMPLES, "culvert-announce.service"))
    return unit["Service"]


class Announced:
    """A fleet in the lab: routes are bird2's."""

    def __init__(self, lab, program):
        self.lab, self.program, self.names = lab, program, NAMES[:lab.bgp]
        self.daemons, self.streams, self.announcers = {}, {}, {}

    def run(self, role, *words):
        return subprocess.run(["ip", "netns", "exec", f"{self.lab.name}-{role}", *words], check=True,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    def start(self, role, *words, **options):
        return self.lab.start(role, *words, **options)

    def up(self):
        self.lab.start_server("server", 7100, sys.executable, "-B", PEER, "serve", "7100")
        for name in self.names:
            self.boot(name)
            self.announce(name)
        self.join(self.names)
        wait_until(lambda: self.announced() == set(self.names), "all to be announced")

    # --- relays ---

    def control(self, name):
        return self.lab.path(os.path.join(name, "socket"))

    def live(self):
        return [name for name, daemon in self.daemons.items() if daemon.poll() is None]

    def ask(self, name, *words):
        return json.loads(subprocess.run(
            [self.program, *words, "--json", "--control", self.control(name)], check=True,
            stdout=subprocess.PIPE, text=True).stdout)

    def sums(self):
        return {name: {"owned": len(self.ask(name, "sessions")["sessions"]),
                       **{key: self.ask(name, "status")["standby"][key]
                          for key in ("held", "helped", "orphans", "adopted", "refused")}}
                for name in self.live()}

    def join(self, names):
        """NAMES and all others that live tell each other of their sessions."""
        for one in names:
            for two in self.live():
                for pair in ((one, two), (two, one)) if one != two else ():
                    if pair not in self.streams:
                        self.pipe(*pair)
        for name in self.live():
            wait_until(lambda: sum(s["stream"] == "import" and s["in_sync"]
                                   for s in self.ask(name, "status")["standby"]["streams"])
                       >= len(self.live()) - 1, f"{name} in sync", 20)

    def pipe(self, source, target):
        self.streams[source, target] = self.start(
            "client", "sh", "-c",
            f"while :; do {self.program} export --after 0.5 --control {self.control(source)} |"
            f" {self.program} import --name {source} --control {self.control(target)}; sleep 0.1; done")

    def record(self, name):
        """A file of the lab's record."""
        return f"/run/culvert-lab/{self.lab.name}/{name}"

    def boot(self, name):
        number = self.names.index(name) + 1
        os.makedirs(self.lab.path(name), exist_ok=True)
        text = CONFIG.format(relay=name) + "".join(
            FORWARD.format(name=f, vip=vip, port=PORT, server=server, source=f"{sources}{number}")
            for f, vip, server, sources in (("web", VIP, SERVER, "10.0.5."),
                                            ("six", f"[{VIP6}]", f"[{SERVER6}]", "fd00:5::")))
        self.daemons[name] = self.start(name, self.program, "run", "--config",
                                        self.lab.write(f"{name}.conf", text),
                                        "--control", self.control(name))
        wait_until(lambda: "culvert: ready" in open(self.daemons[name].log, encoding="utf-8").read(),
                   f"{name} to be ready", 60)

    def birdc(self, name):
        return f"birdc -s {self.record(name)}.ctl"

    def announce(self, name):
        """As ExecStart= of the unit."""
        program, *relays = shlex.split(service()["ExecStart"])
        assert (program, relays) == ("/usr/local/sbin/culvert-announce", ["$RELAYS"])
        self.announcers[name] = self.start(
            name, "env", f"BIRDC={self.birdc(name)}",
            f"STATUS={self.program} status --control {self.control(name)}",
            os.path.join(EXAMPLES, "culvert-announce"), *(n for n in self.names if n != name))

    def stop_announcer(self, name, by=signal.SIGTERM):
        """As `systemctl stop`: TERM for the script alone, and what comes after it, also after KILL."""
        unit = service()
        assert unit["KillMode"] == "mixed" and "ExecStop" not in unit
        self.announcers[name].send_signal(by)
        assert self.announcers.pop(name).wait(10) == (0 if by == signal.SIGTERM else -by)
        program, *words = shlex.split(unit["ExecStopPost"].removeprefix("-"))
        assert program == "/usr/sbin/birdc"
        subprocess.run([*self.birdc(name).split(), *words], check=True, stdout=subprocess.DEVNULL)

    def kill_bird(self, name):
        with open(f"{self.record(name)}.pid", encoding="ascii") as file:
            os.kill(int(file.read()), signal.SIGKILL)

    def start_bird(self, name):
        one = self.record(name)
        self.run(name, "bird", "-c", f"{one}.conf", "-s", f"{one}.ctl", "-P", f"{one}.pid")

    def bgp_sessions(self, name):
        return self.run(name, *self.birdc(name).split(), "show", "protocols").count("Established")

    def plug(self, name, state):
        for router in ROUTER_OF:
            self.run(router, "ip", "link", "set", f"relay{self.names.index(name) + 1}", state)

    def die(self, name):
        """As by loss of power: links first."""
        self.plug(name, "down")
        for process in self.announcers.pop(name), self.daemons[name]:
            process.kill()
            process.wait()
        self.kill_bird(name)
        self.cut(name)

    def cut(self, name):
        """The streams from and to NAME end."""
        for pair in [pair for pair in self.streams if name in pair]:
            self.lab.stop(self.streams.pop(pair))

    def stop_culvert(self, name):
        self.daemons[name].terminate()
        assert self.daemons[name].wait(20) == 0
        self.cut(name)

    def come_back(self, name):
        """As after a reboot: no socket is left, nor what waits for a neighbour."""
        self.run(name, "ss", "-K", "-t", "state", "connected")
        self.run(name, "ip", "neigh", "flush", "all")
        self.plug(name, "up")
        self.start_bird(name)
        self.boot(name)
        self.announce(name)

    # --- routes ---

    def next_hops(self, router, address):
        """The relays that ROUTER sends packets for ADDRESS to."""
        said = self.run(router, "ip", "-6" if ":" in address else "-4", "route", "show", address).split()
        return {self.names[int(via.replace(":", ".").rsplit(".", 1)[1]) - 2]
                for word, via in zip(said, said[1:]) if word == "via"}

    def announced(self):
        """The relays that get VIP's packets, and alone those of their own sources."""
        return {name for number, name in enumerate(self.names, 1)
                if all(name in self.next_hops("r1", vip) for vip in (VIP, VIP6))
                and all(self.next_hops("r2", f"{sources}{number}") == {name}
                        for sources in ("10.0.5.", "fd00:5::"))}

    def is_gone(self, name):
        """No route leads to NAME."""
        return not any(name in self.next_hops(router, address) for router, addresses in
                       (("r1", (VIP, VIP6)), ("r2", [f"{sources}{number + 1}" for sources in
                                                     ("10.0.5.", "fd00:5::")
                                                     for number in range(len(self.names))]))
                       for address in addresses)

    # --- sessions ---

    def talk(self, kind, n, address=VIP):
        process = self.start("client", sys.executable, "-B", PEER, "talk", address, str(PORT), kind,
                             str(n), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.kind, process.n = f"{kind} to {address}", n
        assert process.stdout.readline() == "ready\n", open(process.log, encoding="utf-8").read()
        return process

    @staticmethod
    def say(client, word):
        client.stdin.write(word + "\n")
        client.stdin.flush()
        return json.loads(client.stdout.readline())

    def begin(self):
        self.clients = [self.talk(kind, n, address) for address in (VIP, VIP6)
                        for kind, n in (("e", 10), ("i", 11), ("d", 1), ("u", 1), ("h", 3))]
        self.n = sum(c.n for c in self.clients)
        wait_until(lambda: all(s["owned"] + s["held"] + s["helped"] == self.n
                               for s in self.sums().values()), "all sessions to be told", 20)
        self.gaps()

    def gaps(self):
        """{kind: the longest gap in ms} since the last call."""
        return {c.kind: self.say(c, "gap")["gap_ms"] for c in self.clients if c.kind[0] in "edu"}

    def owners(self):
        """The ids of owned sessions, each as often as it is owned."""
        return [s["id"] for n in self.names if self.daemons[n].poll() is None
                for s in self.ask(n, "sessions")["sessions"]]

    def is_owned_once(self):
        owners = self.owners()
        return len(owners) == len(set(owners)) == self.n

    def expect_whole(self, what):
        """After an event each idle session answers, and each session is owned once."""
        for client in self.clients:
            if client.kind[0] == "i":
                self.say(client, "ask")
        gaps = self.gaps()
        print(f"# {what}: {len(self.names)} relays, longest gap {max(gaps.values())} ms, of {gaps}",
              flush=True)
        wait_until(self.is_owned_once, lambda: f"each of {self.n} to be owned once: {self.sums()}", 15)

    def finish_sessions(self):
        for client in self.clients:
            client.stdin.close()
        for client in self.clients:
            line = client.stdout.readline()
            assert line.startswith("{"), tail(client.log)
            did = json.loads(line)
            assert not did.get("wrong") and not did["lost"], f"{client.kind}: {did}"
        wait_until(lambda: not any(s["owned"] + s["held"] + s["helped"] + s["orphans"]
                                   for s in self.sums().values()),
                   lambda: f"nothing to be left: {self.sums()}")


@pytest.fixture(params=(3, 4))
def fleet(request, culvert):
    with Lab(bgp=request.param) as lab:
        one = Announced(lab, culvert)
        one.up()
        yield one
        for name, process in one.daemons.items():
            print(name, open(process.log, encoding="utf-8").read()[-3000:])


def test_power(fleet):
    """A relay loses power, and comes back: it is announced when it is in sync, not before."""
    fleet.begin()
    fleet.die("relay2")
    wait_until(lambda: fleet.is_gone("relay2"), "the routes to leave")
    time.sleep(3)  # whoever is silent meanwhile is seen as silent
    fleet.expect_whole("power")
    assert fleet.announced() == set(fleet.names) - {"relay2"}
    fleet.come_back("relay2")
    wait_until(lambda: fleet.bgp_sessions("relay2") == 4, "bird2 to find the routers")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert fleet.is_gone("relay2"), "announced before it is in sync"
    fleet.join(["relay2"])
    wait_until(lambda: fleet.announced() == set(fleet.names), "relay2 to be announced")
    time.sleep(2)
    fleet.expect_whole("return")
    fleet.finish_sessions()


def test_drain(fleet):
    """A relay is drained by its unit, and comes back."""
    fleet.begin()
    fleet.stop_announcer("relay")
    assert fleet.is_gone("relay")
    fleet.expect_whole("drain")
    fleet.announce("relay")
    wait_until(lambda: fleet.announced() == set(fleet.names), "relay to be announced")
    time.sleep(1)
    fleet.expect_whole("end of the drain")
    fleet.finish_sessions()


def test_stop(fleet):
    """A relay is drained by its unit, its culvert is stopped, and both start again."""
    fleet.begin()
    fleet.stop_announcer("relay")
    fleet.stop_culvert("relay")
    fleet.expect_whole("culvert stopped")
    fleet.boot("relay")
    fleet.announce("relay")
    fleet.join(["relay"])
    wait_until(lambda: fleet.announced() == set(fleet.names), "relay to be announced")
    time.sleep(1)
    fleet.expect_whole("start")
    fleet.finish_sessions()


def test_bird(fleet):
    """A relay's bird2 is killed, and started again, as by systemd. So is its culvert-announce."""
    fleet.begin()
    fleet.kill_bird("relay3")
    wait_until(lambda: fleet.is_gone("relay3"), "the routes to leave")
    time.sleep(2)
    fleet.expect_whole("bird2 killed")
    fleet.start_bird("relay3")
    wait_until(lambda: fleet.announced() == set(fleet.names), "relay3 to be announced")
    time.sleep(1)
    fleet.expect_whole("bird2 back")
    fleet.stop_announcer("relay3", signal.SIGKILL)
    assert fleet.is_gone("relay3")
    fleet.announce("relay3")
    wait_until(lambda: fleet.announced() == set(fleet.names), "relay3 to be announced again")
    fleet.expect_whole("culvert-announce killed")
    fleet.finish_sessions()
