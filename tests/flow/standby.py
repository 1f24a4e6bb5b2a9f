#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""A relay dies, or gives its addresses away, and another one goes on with its sessions.

Two relays with culvert, each of which imports what the other one exports.  Conversations, streams in
full flight, idle and half-closed sessions, of both families, mixed, transparent, balanced, with PROXY
headers.  Each byte is compared.  --storm: the same at random; round R of seed S is round 1 of seed
S + R - 1.  Exits with 77 and the reason where this cannot run.
"""

import collections
import ipaddress
import json
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/lib"))
# pylint: disable=wrong-import-position
from labkit import (ONLY, Lab, LabError, begin_or_skip, cases_of, expect, run_cases, run_test, tail,
                    test_options, wait_until)
from standby_rig import (CLIENT_SIDE, CONFIG, OWN, PORTS, RELAYS, SERVER_SIDE, Pair)

QUICK = ["power", "planned", "back", "records"]


class Trial(Pair):
    """The cases."""

    def kinds(self, scale=1):
        """Sessions of every kind, by what they are."""
        four, six = CLIENT_SIDE
        wanted = {
            "conversations": (9100, "e", 4, four), "idle": (9100, "i", 4, four),
            "down": (9100, "d", 1, four), "up": (9100, "u", 1, four),
            "half-closed": (9100, "h", 2, four),
            "IPv6": (9101, "e", 2, six), "IPv6 to IPv4": (9100, "e", 2, six),
            "idle, IPv6 to IPv4": (9102, "i", 2, six), "balanced": (9102, "e", 2, four),
            "header": (9103, "e", 2, four), "transparent": (9104, "e", 2, four),
        }
        return {what: self.talk(port, kind, n * scale, address)
                for what, (port, kind, n, address) in wanted.items()}

    def run_through(self, old, moves, scale=1):
        """All kinds live through MOVES, which is a list of (power, what comes back after)."""
        talks = self.kinds(scale)
        total = sum(t.n for t in talks.values())
        self.wait_mirrored(old, total)
        self.say(talks["half-closed"], "fin")
        time.sleep(0.2)  # FIN is told of at once
        for power in moves:
            new = self.other(old)
            self.move(old, new, power)
            # conversations go on by themselves; what has left is nobody's session
            wait_until(lambda r=new: self.sessions(r), f"sessions to come to {new}")
            if not power:
                wait_until(lambda r=old: not self.sessions(r), f"sessions to leave {old}")
            for what in "idle", "idle, IPv6 to IPv4":
                self.say(talks[what], "ask")
            if power and len(moves) > 1:
                self.come_back(old)
                self.wait_mirrored(new, 1)
            old = new
        gaps = {what: self.finish(t)["gap_ms"] for what, t in talks.items()}
        self.wait_empty(old)
        return gaps

    def test_power(self):
        gaps = self.run_through("relay", [True])
        print(f"# longest gaps, in ms: {gaps}")

    def test_planned(self):
        """S1: the relay whose addresses leave holds its sessions for the other, and says nothing."""
        errors = self.relays["relay"].ask("status")["errors"]
        gaps = self.run_through("relay", [False])
        print(f"# longest gaps, in ms: {gaps}")
        self.wait_empty("relay")
        expect(self.relays["relay"].ask("status")["errors"] == errors, "it has counted errors")

    def test_counters(self):
        """A10: what leaves is counted and logged where it has been, of TCP and of UDP."""
        server, clients, idle = self.serve_datagrams(), self.crowd("moves", 3), None
        moved = '"end":"moved"'
        before = {relay: self.logged(relay, moved) for relay in RELAYS}
        try:
            self.ask_all(clients)
            idle = self.talk(9100, "i", 4)
            self.wait_mirrored("relay", 7)
            for old, new in RELAYS, RELAYS[::-1]:
                self.move(old, new, False)
                self.say(idle, "ask")
                self.ask_all(clients)
                wait_until(lambda r=old: self.logged(r, moved) == before[r] + 7, "seven in the log")
                for relay in RELAYS:
                    wait_until(lambda r=relay: self.adds_up(r), f"counters: {self.counts(relay)}")
                expect(sum(f["moved"] for f in self.counts(old)) >= 7, f"{self.counts(old)}")
                self.wait_mirrored(new, 7)
            self.finish(idle)
        finally:
            for process in clients, server:
                self.lab.stop(process)

    def test_rested_slots(self):
        """Sessions had gone back to their sockets when a daemon died: the next one has other slots."""
        idle = self.talk(9100, "i", 3)
        self.wait_mirrored("relay", 3)
        subprocess.run([self.program, "engine", "plain", "copy", "--control",
                        self.relays["relay"].control], check=True, stdout=subprocess.DEVNULL)
        self.say(idle, "ask")
        wait_until(lambda: {f["carrier"] for s in self.sessions("relay") for f in s["flows"]} ==
                   {"copy"}, "all to go back")
        self.relays["relay"].kill()
        idle = self.talk(9100, "i", 3)
        self.wait_mirrored("relay", 3)
        self.finish(idle)

    def test_back(self):
        """S5: away and back, by plan and by power."""
        self.run_through("relay", [False, False, True, True])

    def test_never_came(self):
        """Sessions that say nothing while addresses move, which are at both relays for a second."""
        old, new = RELAYS
        for wait in 0.4, 1.2:
            idle = self.talk(9100, "i", 8)
            self.wait_mirrored(old, 8)
            wait_until(lambda: self.standby(new)["held"] == 8, "eight to be held")
            self.move(old, new, True)
            self.come_back(old)
            wait_until(lambda: self.standby(old)["held"] == 8, "eight to be held")
            self.move(new, old, False)
            time.sleep(wait)
            self.finish(idle)
            for relay in RELAYS:
                self.wait_empty(relay, 8)

    def test_hot(self):
        """S2: what happens to links of a standby is nothing to its sessions; S4: nor are strays."""
        idle = self.talk(9100, "i", 5)
        self.wait_mirrored("relay", 5)
        self.ip("relay2", "address", "add", "10.9.9.9/32", "dev", "lo")
        # relay2 is a router, by which packets of the address come, on their way to relay
        self.ip("client", "route", "add", CLIENT_SIDE[0], "via", OWN["relay2"][0])
        stray = self.talk(9100, "e", 3)
        time.sleep(1.5)
        adopted = self.standby("relay2")["adopted"]
        self.say(idle, "ask")
        self.finish(stray)
        self.finish(idle)
        self.ip("client", "route", "del", CLIENT_SIDE[0])
        expect(self.standby("relay2")["adopted"] == adopted and not self.sessions("relay2"),
               "a standby has adopted what only passed")
        self.wait_empty("relay2")

    def test_split(self):
        """S6: both have the addresses, and packets come to either, or to one of each side."""
        talks = [self.talk(9100, kind, n) for kind, n in (("e", 5), ("d", 1), ("u", 1))]
        self.wait_mirrored("relay", 7)
        self.take("relay2")
        for turn in range(6):
            a, b = RELAYS if turn % 2 else RELAYS[::-1]
            self.announce(a, "1" if turn > 2 else "12")
            if turn > 2:
                self.announce(b, "2")
            time.sleep(0.4)
        self.announce("relay")
        for talk in talks:
            self.finish(talk)

    def test_new_sessions(self):
        """S3: after a failover new sessions use ports of which old ones have none."""
        old = self.talk(9100, "i", 50)
        self.wait_mirrored("relay", 50)
        self.move("relay", "relay2", False)
        new = self.talk(9100, "e", 50)
        self.say(old, "ask")
        self.finish(new)
        self.finish(old)

    def restart(self, relay, ports):
        """RELAY with another range of local ports."""
        self.inside(relay, "sysctl", "-qw", f"net.ipv4.ip_local_port_range={ports}")
        self.relays[relay].process.kill()
        self.lab.stop(self.relays[relay].process)
        for to in list(self.links):
            self.unlink(to)
        self.forget(relay)
        self.start(relay)
        for to in RELAYS:
            self.link(to)

    def crowd(self, name, n, address=CLIENT_SIDE[0], port=9153):
        """N clients of UDP."""
        return self.lab.start("client", sys.executable, "-c", CROWD, address, str(port), name,
                              str(n), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask_all(self, crowd):
        """Until all get their own answers, and never another's."""
        def all_answered():
            said = self.say(crowd, "ask")
            expect(not said["foreign"], f"answers to others: {said}")
            return not said["lost"]

        wait_until(all_answered, "all to be answered", 20)

    def serve_datagrams(self):
        server = self.lab.start("server", sys.executable, "-c", DATAGRAMS, "7153",
                                stdout=subprocess.PIPE)
        server.stdout.readline()
        return server

    def test_ports(self):
        """A1: no new session has a port of a held one, though both relays connect from some ports."""
        def same_ports():
            return [s["same_ports"] for r in RELAYS for s in self.standby(r)["streams"]
                    if s["stream"] == "import"]

        expect(same_ports() == [False, False], f"ports: {same_ports()}")
        self.restart("relay", "29850 30049")
        wait_until(lambda: same_ports() == [True, True], "both to say that ports are the same")
        expect(self.logged("relay2", "it connects from ports 29850 to 30049"),
               "the log does not say that ports are the same")
        server, clients = self.serve_datagrams(), []
        try:
            clients.append(self.crowd("old", 80))
            idle = self.talk(9100, "i", 80)
            self.ask_all(clients[0])
            self.wait_mirrored("relay", 160)
            self.move("relay", "relay2", True)
            self.ask_all(clients[0])
            self.come_back("relay")
            self.wait_all_mirrored("relay2")
            wait_until(lambda: self.standby("relay")["held"] == 160, "all to be held")
            self.move("relay2", "relay", False)
            clients.append(self.crowd("new", 80))
            new = self.talk(9102, "e", 220)  # more than there are ports: two servers share these
            for client in clients[::-1]:
                self.ask_all(client)
            self.say(idle, "ask")
            self.finish(new)
            self.finish(idle)
        finally:
            for process in clients + [server]:
                self.lab.stop(process)
            self.restart("relay", PORTS["relay"])

    def test_ports_in_use(self):
        """A1: a record whose port is in use here is refused."""
        server, clients = self.serve_datagrams(), []
        try:
            for relay in RELAYS:
                self.restart(relay, "31000 31039")
            for relay in RELAYS:  # of TCP; the start wants more
                self.inside(relay, "sysctl", "-qw", "net.ipv4.ip_local_port_range=31100 31101")
            for relay in RELAYS:
                self.unlink(relay)
            self.ip("relay2", "address", "add", SERVER_SIDE[0] + "/24", "dev", "to-server")
            clients.append(self.crowd("stray", 40, OWN["relay2"][0]))
            self.say(clients[0], "ask")  # answers come to the other relay
            clients.append(self.lab.start("client", sys.executable, "-c", CONNECT, OWN["relay2"][0],
                                          "9109", stdin=subprocess.PIPE))
            wait_until(lambda: len(self.sessions("relay2")) == 41, "sessions of relay2")
            self.announce("relay")  # relay2 has asked for its neighbours with that address
            clients.append(self.crowd("old", 5))
            self.ask_all(clients[2])
            idle = self.talk(9100, "i", 2)
            self.link("relay2")
            self.wait_mirrored("relay", 7)
            wait_until(lambda: self.standby("relay2")["refused"] == 6, "six to be refused")
            expect(self.standby("relay2")["held"] == 1, "not one is held")
            self.finish(idle)
        finally:
            for process in clients + [server]:
                self.lab.stop(process)
            for relay in RELAYS:
                self.restart(relay, PORTS[relay])

    def test_owner_times_out(self):
        """A2, A8: who holds a session does not time it out, nor end it for its owner."""
        server, talk = self.serve_datagrams(), self.talk(9109, "e", 3)
        clients = self.crowd("talks", 2, port=9154)

        def is_held(n=5):
            self.ask_all(clients)
            return self.standby("relay2")["held"] == n

        try:
            wait_until(is_held, "five to be held", 20)
            for part, longer in ("told", 4.5), ("not told", 11.5):  # than idle-timeout, and 10 s
                start = time.monotonic()
                while is_held() and time.monotonic() < start + longer:
                    time.sleep(0.1)
                expect(is_held() and not self.sessions("relay2"), f"{part}: not all are held")
                if part == "told":  # both have the addresses, and do not hear each other
                    for to in RELAYS:
                        self.unlink(to)
                    for address, dev in (CLIENT_SIDE[0], "to-client"), (SERVER_SIDE[0], "to-server"):
                        self.ip("relay2", "address", "add", address + "/24", "dev", dev)
                elif part == "not told":
                    self.announce("relay2")
                    wait_until(lambda: self.ask_all(clients) or len(self.sessions("relay2")) == 5,
                               "the other one to go on")
                    self.ask_all(clients)
                    self.announce("relay")
                    self.release("relay2")
                    wait_until(is_held, "five to be held again", 20)
                    for to in RELAYS:
                        self.link(to)
            self.unlink("relay2")  # nobody takes them within idle-timeout from then on
            wait_until(lambda: is_held(0), "all to be let go", 40)
            expect(len(self.sessions("relay")) == 5, "their owner has lost some")
            self.link("relay2")
            wait_until(is_held, "five to be held in the end", 20)
            self.move("relay", "relay2", False)
            self.ask_all(clients)
            self.finish(talk)
        finally:
            for process in clients, server:
                self.lab.stop(process)

    def test_control(self):
        """What came is counted, listed, timed out and killed as any other, and its ends are told."""
        idle, kill = self.talk(9109, "i", 2), self.talk(9100, "i", 3)
        self.wait_mirrored("relay", 5)
        self.move("relay", "relay2", False)
        self.say(kill, "ask")
        self.say(idle, "ask")
        wait_until(lambda: len(self.sessions("relay2")) == 5, "all to be adopted")
        bytes_of = {f["name"]: f["bytes_to_upstream"]
                    for f in self.relays["relay2"].ask("forwards")["forwards"]}
        subprocess.run([self.program, "kill", "--forward", "plain", "--control",
                        self.relays["relay2"].control], check=True, stdout=subprocess.DEVNULL)
        expect(0 < bytes_of["plain"] < 9100, f"bytes: {bytes_of}")
        for process in kill, idle:  # by RST, at once, or in time
            wait_until(lambda p=process: self.reset_of(p) == p.n, "clients to be told", 10)
        self.wait_empty("relay2")

    def test_unsynced(self):
        """S10: a relay that has the addresses, and is not told yet, does not answer for others."""
        talk = self.talk(9100, "e", 5)
        self.wait_mirrored("relay", 5)
        self.unlink("relay2")
        dump = self.dump("relay")
        self.come_back_empty("relay2")
        late = subprocess.Popen([self.program, "import", "--name", "peer", "--control",
                                 self.relays["relay2"].control], stdin=subprocess.PIPE)
        late.stdin.write(dump[:4])
        late.stdin.flush()
        wait_until(lambda: self.standby("relay2")["streams"], "the import to begin")
        self.move("relay", "relay2", False)
        time.sleep(0.7)
        late.stdin.write(dump[4:])
        late.stdin.close()
        late.wait(10)
        self.finish(talk)
        self.wait_empty("relay2")

    def test_stalled(self):
        """An import that stalls hinders connections of forwards alone, and not for ever."""
        idle = self.talk(9100, "i", 2)
        self.wait_mirrored("relay", 2)
        dump, streams = self.dump("relay"), len(self.standby("relay2")["streams"])
        stalled = subprocess.Popen([self.program, "import", "--name", "stalled", "--control",
                                    self.relays["relay2"].control], stdin=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL)
        stalled.stdin.write(dump[:10])
        stalled.stdin.flush()
        wait_until(lambda: any(s["name"] == "stalled" and s["records"]
                               for s in self.standby("relay2")["streams"]), "the import to begin")
        said = [self.inside("client", sys.executable, "-c", STRAY, OWN["relay2"][0], port)
                for port in ("22", "9100")]
        expect(said == ["reset", "silent"], f"at port 22, and at a forward's: {said}")
        wait_until(lambda: len(self.standby("relay2")["streams"]) == streams, "its end", 20)
        expect(self.inside("client", sys.executable, "-c", STRAY, OWN["relay2"][0], "9100") ==
               "reset", "the import has ended, and the stack is still silent")
        stalled.stdin.close()
        stalled.wait(10)
        self.finish(idle)

    def test_two_uplinks(self):
        """A rule knows the way of the address that clients connect to; no socket can be asked for it."""
        far = "10.7.7.1"
        with open(self.lab.path("alone.conf"), "w", encoding="ascii") as file:
            file.write(self.config.split("[forward clear]", maxsplit=1)[0])
        self.come_back_empty("relay2", "--config", self.lab.path("alone.conf"),
                             "--privileged-process", "no")
        self.link("relay2")
        self.ip("client", "address", "add", f"{far}/32", "dev", "lo")
        for relay in RELAYS:
            self.ip(relay, "link", "add", "other", "type", "veth", "peer", "name", "nowhere")
            for dev in "other", "nowhere":
                self.ip(relay, "link", "set", dev, "up")
            self.ip(relay, "neigh", "add", far, "lladdr", "02:00:00:00:00:07", "dev", "other")
            self.ip(relay, "route", "add", f"{far}/32", "dev", "other")
            self.ip(relay, "route", "add", f"{far}/32", "via", "10.0.1.1", "table", "300")
            self.ip(relay, "rule", "add", "from", CLIENT_SIDE[0], "lookup", "300")
        talks = [self.talk(9100, kind, 5, sources=[far]) for kind in "ei"]
        self.wait_mirrored("relay", 10)
        self.move("relay", "relay2", False)
        self.say(talks[1], "ask")
        for talk in talks:
            self.finish(talk)
        self.die("relay2")  # end() starts it again, with the file of all cases
        for relay in RELAYS:
            self.ip(relay, "link", "del", "other")
            self.ip(relay, "rule", "del", "from", CLIENT_SIDE[0], "lookup", "300")
            self.ip(relay, "route", "flush", "table", "300")
        self.ip("client", "address", "del", f"{far}/32", "dev", "lo")

    def test_many_addresses(self):
        """Clients may connect to any number of addresses; those that no session has are forgotten."""
        some = "10.8.0.0/23"
        self.ip("client", "route", "add", some, "via", CLIENT_SIDE[0])
        self.ip("relay", "route", "add", "local", some, "dev", "lo")
        idle = self.talk(9100, "i", 300, some)
        self.wait_mirrored("relay", 300)
        self.ip("relay", "route", "del", "local", some, "dev", "lo")
        self.ip("relay2", "route", "add", "local", some, "dev", "lo")
        self.move("relay", "relay2", False)
        self.say(idle, "ask")
        self.finish(idle)
        for relay in RELAYS:
            self.wait_empty(relay)
            wait_until(lambda r=relay: self.standby(r)["addresses"] < 10, "few addresses", 20)
        self.ip("relay2", "route", "del", "local", some, "dev", "lo")
        self.ip("client", "route", "del", some)

    def test_route_news(self):
        """What changes in the routes of a standby costs it nothing for each session that it holds."""
        far = ipaddress.ip_network("10.20.0.0/22")
        self.ip("client", "route", "add", "local", str(far), "dev", "lo")
        for relay in RELAYS:
            self.ip(relay, "route", "add", str(far), "via", "10.0.1.1")
        idle = self.talk(9100, "i", 400, sources=[str(far[number]) for number in range(1, 401)])
        self.wait_mirrored("relay", 400)
        wait_until(lambda: self.standby("relay2")["held"] == 400, "all to be held")
        before = self.spent("relay2")
        for number in range(150):
            self.ip("relay2", "route", "del" if number % 2 else "add", "10.30.0.0/24", "dev", "lo")
        spent = self.spent("relay2") - before
        expect(spent < 0.04, f"150 routes took {spent:.3f} s of the main thread")
        self.move("relay", "relay2", True)
        self.say(idle, "ask")
        self.finish(idle)
        for relay in RELAYS:
            self.ip(relay, "route", "del", str(far))
        self.ip("client", "route", "del", "local", str(far), "dev", "lo")

    def spent(self, relay):
        """Seconds of CPU time of RELAY's main thread."""
        pid = self.relays[relay].pid
        with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9

    def reset_of(self, process):
        """How many of PROCESS were reset: it finds that when it says something, or waits."""
        wait_until(lambda: len(self.sessions("relay2")) == (2 if process.n == 3 else 0), "RST", 10)
        return self.say(process, "ask").get("reset")

    def dump(self, relay):
        """What RELAY exports, up to the mark that this is all."""
        export = subprocess.Popen([self.program, "export", "--after", "0", "--control",
                                   self.relays[relay].control], stdout=subprocess.PIPE)
        data = b""
        while not data.endswith(b"\6\1\0\4"):
            data += export.stdout.read1(65536)
        export.kill()
        export.wait()
        return data

    def come_back_empty(self, relay, *options):
        """RELAY without what it was told; the addresses are not there."""
        for to in list(self.links):
            self.unlink(to)
        self.relays[relay].process.kill()
        self.lab.stop(self.relays[relay].process)
        self.forget(relay)
        self.start(relay, *options)
        self.link(self.other(relay))

    def feed(self, data):
        return subprocess.run([self.program, "import", "--name", "peer", "--control",
                               self.relays["relay2"].control], input=data, check=False,
                              capture_output=True, timeout=20)

    def test_records(self):
        """S11: what is torn, broken, or of another version is refused, and changes nothing."""
        idle = self.talk(9100, "i", 5)
        self.wait_mirrored("relay", 5)
        self.unlink("relay2")
        wait_until(lambda: self.standby("relay2")["held"] == 5, "five to be held")
        dump = self.dump("relay")
        size = (len(dump) - 8) // 5
        expect(size <= 200 and (len(dump) - 8) % 5 == 0, f"a record has {size} bytes")
        first = 4 + size
        broken = {
            b"": "nothing has come",
            dump[:first + 20]: f"byte {first}: it is not whole",
            dump[:first] + b"\2\2" + dump[first + 2:]: f"byte {first}: it has another version",
            dump[:first] + b"\2\1\0\3" + dump[first + 4:]: f"byte {first}: its length is none",
            dump[:first] + b"\2\1\0\x90" + dump[first + 4:]: f"byte {first}: ",
            dump[4:]: "byte 0: not what `culvert export` begins with",
            b"GET / HTTP/1.0\r\n\r\n": "byte 0: not what `culvert export` begins with",
        }
        for data, why in broken.items():
            said = self.feed(data)
            expect((said.returncode == 0) == (why is None) and (why or "").encode() in said.stderr,
                   f"{why}: {said}")
            expect(self.standby("relay2")["held"] == 5, f"{why}: what was there has changed")
        random.seed(1)
        for _ in range(30):  # whatever comes, culvert lives; what it takes is gone with the next dump
            noise = bytearray(dump)
            for _ in range(random.randrange(1, 6)):
                noise[random.randrange(4, len(noise))] = random.randrange(256)
            self.feed(bytes(noise))
        expect(self.feed(dump).returncode == 0, "the whole dump is refused")
        # one that cannot be is skipped: the client's port is behind 31 bytes and the header
        refused = self.standby("relay2")["refused"]
        bad = dump[:first + 35] + b"\0\0" + dump[first + 37:]
        expect(self.feed(bad).returncode == 0, "a record from port 0 ends the stream")
        expect(self.standby("relay2")["refused"] == refused + 1 and
               self.standby("relay2")["held"] == 4, f"port 0: {self.standby('relay2')}")
        # a kind that is not known yet is skipped
        expect(self.feed(dump[:4] + b"\x63\1\0\6xx" + dump[4:]).returncode == 0, "unknown kind")
        self.link("relay2")
        self.finish(idle)
        self.wait_empty("relay2")

    def test_port_0(self):
        """A3: a datagram that nobody can answer begins no session."""
        self.inside("client", sys.executable, "-c", FROM_PORT_0, CLIENT_SIDE[0], "9153")
        wait_until(lambda: self.logged("relay", "from port 0"), "the log to say so")
        expect(not self.sessions("relay"), "there is a session")

    def test_forged(self):
        """A4: who knows addresses and ports, and no numbers, ends nothing, and moves no counter."""
        for exported in True, False:
            if not exported:
                self.unlink("relay2")
            talk, idle = self.talk(9100, "e", 3), self.talk(9105, "i", 3)
            wait_until(lambda: len(self.grafted("plain", "probed")) == 6, "all to be grafted", 20)
            if exported:
                self.wait_all_mirrored("relay")
            before = self.grafted("probed")
            for rate in "400", "2000":
                self.lab.finish(self.forge(rate), 30)
                expect(self.grafted("probed") == before, f"{rate}/s: {self.sessions('relay')}")
            self.say(idle, "ask")
            self.finish(talk)
            forger = self.forge("2000", "30")  # a dead end is found beside it
            self.ip("client", "route", "add", "blackhole", f"{CLIENT_SIDE[0]}/32")
            try:
                wait_until(lambda: not self.sessions("relay"), "dead ends to be found", 25)
            finally:
                self.ip("client", "route", "del", "blackhole", f"{CLIENT_SIDE[0]}/32")
                for process in forger, idle:
                    self.lab.stop(process)
                self.clients.remove(idle)
        self.link("relay2")

    def grafted(self, *forwards):
        """Bytes of each grafted session of FORWARDS, by its client."""
        return {s["client"]: [flow["bytes"] for flow in s["flows"]] for s in self.sessions("relay")
                if s["forward"] in forwards and
                all(flow["carrier"] == "graft" for flow in s["flows"])}

    def forge(self, rate, seconds="4"):
        """Another machine sends so many packets a second in the names of both ends."""
        ports = {"plain": 9100, "probed": 9105}
        pairs = [f"{s['client']}:{CLIENT_SIDE[0]}:{ports[s['forward']]}"
                 for s in self.sessions("relay")]
        for line in self.inside("server", "ss", "-Htn", "state", "established").splitlines():
            here, there = line.replace("[::ffff:", "").replace("]", "").split()[2:4]
            pairs += [f"{here}:{there}"] if there.startswith(SERVER_SIDE[0]) else []
        return self.lab.start("relay2", sys.executable, "-c", FORGE, rate, seconds, *pairs)

    def test_many_changes(self):
        """Each relay tells the other of sessions whose records are just being replaced there."""
        for _ in range(3):
            talks = [self.talk(9100, "h", 300) for _ in range(2)]
            self.wait_mirrored("relay", 600)
            for talk in talks:
                self.say(talk, "fin")
            time.sleep(0.6)  # each record has changed twice, and both have looked at it
            held = self.standby("relay2")["held"]
            for talk in talks:
                self.finish(talk)
            expect(held == 600, f"{held} of 600 sessions are known to the standby")
            for relay in RELAYS:
                self.wait_empty(relay)

    def test_slow_reader(self):
        """Who exports is not held up by a reader that takes nothing, nor are other readers."""
        deaf = subprocess.Popen([self.program, "export", "--after", "0", "--control",
                                 self.relays["relay"].control], stdout=subprocess.PIPE)
        idle = self.talk(9100, "i", 500)
        self.wait_mirrored("relay", 500)
        talk = self.talk(9100, "e", 5)
        self.wait_mirrored("relay", 505)
        self.finish(talk)
        self.finish(idle)
        self.wait_empty("relay2")
        deaf.kill()
        deaf.wait()

    def test_datagrams(self):
        """Flows of UDP go on with the same port at the server."""
        server = self.serve_datagrams()
        client = self.lab.start("client", sys.executable, "-c", ASK, CLIENT_SIDE[0], "9153",
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = [self.say(client, "ask") for _ in range(4)][-1]
        self.wait_mirrored("relay", 1)
        for power in False, True:
            old = "relay" if not power else "relay2"
            if not power:  # after news of routes its sockets carry it, and the other relay knows it still
                self.ip(old, "address", "del", f"{CLIENT_SIDE[1]}/64", "dev", "to-client")
                self.say(client, "ask")
                talk = self.talk(9100, "i", 1)
                self.wait_mirrored(old, 2)
                self.finish(talk)
            self.move(old, self.other(old), power)
            wait_until(lambda: self.say(client, "ask").get("port") == first["port"],
                       "the server to see the same port", 10)
            wait_until(lambda o=old: len(self.sessions(self.other(o))) == 1, "adoption")
            if not power:  # the old one knows the flow, and has no session
                wait_until(lambda o=old: not self.sessions(o) and self.standby(o)["held"] == 1,
                           "the flow to leave")
            if not power:
                self.wait_mirrored(self.other(old), 1)
        for process in client, server:
            self.lab.stop(process)


class Storm(Trial):
    """Failovers at random; each round has sessions of its own."""

    # so sessions end of which the relay has died before it could tell that both ends have finished
    config = CONFIG.replace("[culvert]\n", "[culvert]\nkeepalive = 10s\n")

    def __init__(self, lab, program):
        super().__init__(lab, program)
        self.owner = RELAYS[0]
        self.did = collections.Counter()
        self.gaps = collections.defaultdict(list)
        self.kind = ""  # of the last failover
        self.story = []

    def storm(self, rounds, seed):
        for number in range(rounds):
            self.kind, self.story, start = "", [], time.monotonic()
            try:
                self.round(random.Random(seed + number))
            except (LabError, subprocess.SubprocessError):
                self.tell_all()
                raise
            finally:
                self.did["rounds"] += 1
                print(f"# round {number + 1}: {'; '.join(self.story)}"
                      f" ({time.monotonic() - start:.0f} s)", flush=True)
        self.sum_up()

    def round(self, chance):
        lossy = chance.random() < 0.3
        moves = chance.randint(1, 3)
        fin = chance.randint(0, moves)  # half-closed ones end before that failover, or last
        if lossy:
            self.lose(True)
        self.story.append(f"from {self.owner}{', loss' if lossy else ''}")
        talks = self.kinds(2)
        self.wait_mirrored(self.owner, sum(t.n for t in talks.values()))
        for turn in range(moves):
            self.failover(chance, talks, lossy, turn == fin)
        if chance.random() < 0.5:
            self.ask_idle(talks)
        did = collections.Counter()
        bad = []
        for what, talk in talks.items():
            has = self.end_of(talk)
            self.did.update(sessions=talk.n, wrong=has.get("wrong", 0),
                            lost=talk.n - has.get("ended", 0))
            did["gap"] = max(did["gap"], has["gap_ms"])
            if has.get("wrong") or has.get("ended") != talk.n:
                bad.append(f"{talk.n} of {what}: {has}")
        self.note_gap(did["gap"])
        if lossy:
            self.lose(False)
        expect(not bad, "; ".join(bad))
        start = time.monotonic()
        for relay in RELAYS:
            self.wait_empty(relay, 30)
        self.story.append(f"empty after {time.monotonic() - start:.1f} s")

    def failover(self, chance, talks, lossy, fin):
        old, new = self.owner, self.other(self.owner)
        power, cut, early = (chance.random() < share for share in (0.5, 0.3, 0.5))
        wait, rest = chance.uniform(0, 2), chance.uniform(0, 2)
        old_for = chance.uniform(20, 60) if chance.random() < 0.15 else chance.uniform(1, 5)
        if fin and early:
            self.say(talks["half-closed"], "fin")
        if cut:
            self.wait_all_mirrored(old)
            self.unlink(new)
            time.sleep(old_for)
        if fin and not early:
            self.say(talks["half-closed"], "fin")
        time.sleep(wait)
        self.note_gap(max(self.say(t, "gap")["gap_ms"] for t in talks.values()))
        self.kind = ("power" if power else "planned") + (", loss" if lossy else "")
        self.story.append(f"{'power' if power else 'plan'} after {wait:.2f} s" +
                          (f", copies {old_for:.0f} s old" if cut else "") +
                          (f", fin {'early' if early else 'late'}" if fin else ""))
        self.move(old, new, power)
        self.owner = new
        self.did["power" if power else "planned"] += 1
        if chance.random() < 0.5:
            self.ask_idle(talks)
        if power:
            time.sleep(rest)
            self.come_back(old)
            self.wait_all_mirrored(new)
        elif cut:
            self.link(new)

    def ask_idle(self, talks):
        for what in "idle", "idle, IPv6 to IPv4":
            self.say(talks[what], "ask")

    def note_gap(self, gap):
        """GAP is the longest one since the last failover."""
        if self.kind:
            self.gaps[self.kind].append(gap)
            self.story[-1] += f", gap {gap} ms"

    def tell_all(self):
        """What is known of a round that has failed."""
        for relay in RELAYS:
            daemon = self.relays[relay]
            print(f"--- {relay}:\n{tail(daemon.process.log, 20)}")
            if daemon.process.poll() is None:
                print(json.dumps(daemon.ask("status")))
                print("\n".join(json.dumps(s) for s in self.sessions(relay)[:5]))
        for role in "client", "server":
            print(f"--- {role}:\n" + "\n".join(self.inside(role, "ss", "-tnoiOH").split("\n")[:40]))
        self.sum_up()

    def sum_up(self):
        did = self.did
        did["left"] = sum(len(self.sessions(r)) + self.standby(r)["held"] for r in RELAYS
                          if self.relays[r].process.poll() is None)
        print(", ".join(f"{what}: {did[what]}" for what in (
            "rounds", "sessions", "power", "planned", "wrong", "lost", "left")))
        for kind, gaps in sorted(self.gaps.items()):
            print(f"gaps, {kind}: {len(gaps)}, median {statistics.median(gaps):.0f} ms,"
                  f" longest {max(gaps)} ms", flush=True)


# Each of N clients says its name, and a number; lines of JSON tell what they have got.
CROWD = """
import json, select, socket, sys, time
clients, turn = [], 0
for _ in range(int(sys.argv[4])):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], int(sys.argv[2])))
    clients.append(s)
for line in sys.stdin:
    turn, foreign, end = turn + 1, 0, time.monotonic() + 2
    want = {s: f"{sys.argv[3]}-{i}-{turn}" for i, s in enumerate(clients)}
    for s, d in want.items():
        s.send(d.encode())
    left = set(want)
    while left and (rest := end - time.monotonic()) > 0:
        for s in select.select(clients, [], [], rest)[0]:
            try: d = s.recv(100).decode().split()[1]
            except OSError: continue
            left.discard(s) if d == want[s] else None
            foreign += d.rsplit("-", 1)[0] != want[s].rsplit("-", 1)[0]
    print(json.dumps({"lost": len(left), "foreign": foreign}), flush=True)
"""
FROM_PORT_0 = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
s.sendto(struct.pack("!HHHH", 0, int(sys.argv[2]), 9, 0) + b"x", (sys.argv[1], 0))
"""
# Packets of connections (source, its port, destination, its port), with numbers that are wrong.
FORGE = """
import random, socket, struct, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
def total(data):
    t = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    t = (t & 65535) + (t >> 16)
    return ~(t + (t >> 16)) & 65535
rate, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
pairs = [p.split(":") for p in sys.argv[3:]]
due = time.monotonic()
while time.monotonic() < end:
    source, sport, to, port = random.choice(pairs)
    source, to = socket.inet_aton(source), socket.inet_aton(to)
    flags = random.choice((0x10, 0x10, 0x18, 0x11, 0x14, 0x04))
    tcp = struct.pack("!HHIIBBHHH", int(sport), int(port), random.getrandbits(32),
                      random.getrandbits(32), 0x50, flags, 65535, 0, 0)
    tcp += random.randbytes(10) if flags & 8 else b""
    tcp = tcp[:16] + struct.pack("!H", total(source + to + struct.pack("!HH", 6, len(tcp)) + tcp)) + \
        tcp[18:]
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, source, to)
    s.sendto(ip + tcp, (socket.inet_ntoa(to), 0))
    due += 1 / rate
    time.sleep(max(0, due - time.monotonic()))
"""
CONNECT = """
import socket, sys
s = socket.create_connection(sys.argv[1:3])
sys.stdin.read()
"""
DATAGRAMS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("", int(sys.argv[1])))
print("ready", flush=True)
while True:
    d, a = s.recvfrom(2000)
    s.sendto(b"%d %s" % (a[1], d), a)
"""
# A packet of a connection that its other end does not know.
STRAY = """
import socket, sys
s = socket.socket(); s.settimeout(1); s.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR
s.connect((sys.argv[1], int(sys.argv[2])))
try: s.setsockopt(socket.IPPROTO_TCP, 19, 0); s.recv(1)
except ConnectionResetError: print("reset", end="")
except TimeoutError: print("silent", end="")
"""
ASK = """
import json, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], int(sys.argv[2])))
s.settimeout(1)
for line in sys.stdin:
    try: s.send(b"x"); print(json.dumps({"port": int(s.recv(100).split()[0])}), flush=True)
    except OSError as e: print(json.dumps({"error": str(e)}), flush=True)
"""


def run(options):
    with Lab(two_relays=True) as lab:
        trial = (Storm if options.storm else Trial)(lab, options.culvert)
        try:
            trial.begin()
            cases = {name: case for name, case in cases_of(trial, options.only).items()
                     if name in QUICK or not options.quick}
            if options.storm:
                print(f"seed {options.seed}", flush=True)
                cases = {"storm": lambda: trial.storm(options.storm, options.seed)}
            return run_cases(trial, cases)
        finally:
            for relay in trial.relays.values():
                if options.only:
                    print(tail(relay.process.log, 12))
            subprocess.run(["umount", "-l", trial.pins], check=False)


def main():
    options = test_options(
        __doc__, ONLY, ("--quick", {"action": "store_true", "help": "the cases that matter most"}),
        ("--storm", {"type": int, "metavar": "ROUNDS", "help": "instead of the cases"}),
        ("--seed", {"type": int, "default": int(time.time())}))
    begin_or_skip(["ip", "nsenter", *(["nft", "ss"] if options.storm else [])], "demo", ipv6=True)
    return run_test(lambda: run(options))


sys.exit(main())
