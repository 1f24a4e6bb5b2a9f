# SPDX-License-Identifier: BSD-2-Clause
"""A relay dies, or gives its addresses away, and another one goes on with its sessions.

Two relays with culvert, each of which imports what the other one exports.  Conversations, streams in
full flight, idle and half-closed sessions, of both families, mixed, transparent, balanced, with PROXY
headers.  Each byte is compared.  The same at random: random_operations.py.
"""

import ipaddress
import random
import socket
import struct
import subprocess
import sys
import time

import pytest
from labkit import Lab, expect, wait_until
from standby_rig import CLIENT_SIDE, OWN, PORTS, RELAYS, SERVER_SIDE, Pair
from udp_rig import PEER, Client

pytestmark = pytest.mark.needs("ip", "nsenter", packages="demo", ipv6=True)


class Trial(Pair):
    """What the cases have in common."""

    def serve(self):
        super().serve()
        self.lab.start_server("server", 7153, sys.executable, "-B", PEER, "serve", "7153",
                              protocol="udp")

    def kinds(self):
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
        return {what: self.talk(port, kind, n, address)
                for what, (port, kind, n, address) in wanted.items()}

    def idle(self, n, address=CLIENT_SIDE[0], sources=()):
        """N idle sessions, of which the other relay is told."""
        idle = self.talk(9100, "i", n, address, sources)
        self.wait_mirrored("relay", n)
        return idle

    def start_anew(self, relay, *options, links=RELAYS):
        """RELAY without what it was told; then each of LINKS is told again."""
        for to in list(self.links):
            self.unlink(to)
        self.relays[relay].die()
        self.forget(relay)
        self.start(relay, *options)
        for to in links:
            self.link(to)

    def use_ports(self, relay, ports):
        self.inside(relay, "sysctl", "-qw", f"net.ipv4.ip_local_port_range={ports}")
        self.start_anew(relay)

    def crowd(self, n, address=CLIENT_SIDE[0], port=9153):
        """N clients of UDP."""
        return [Client(self.lab, address, port) for _ in range(n)]

    @staticmethod
    def ask_all(crowd):
        """Until all get their own answers, and never another's; the ports that the server has seen."""
        return {client.who(tries=20)[1] for client in crowd}

    def spent(self, relay):
        """Seconds of CPU time of RELAY's main thread."""
        pid = self.relays[relay].pid
        with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9

    def reset_of(self, process):
        """How many of PROCESS were reset: it finds that when it says something, or waits."""
        wait_until(lambda: len(self.sessions("relay2")) == (2 if process.n == 3 else 0), "RST", 10)
        return self.say(process, "ask").get("reset")

    def export(self):
        return subprocess.Popen([self.program, "export", "--after", "0", "--control",
                                 self.relays["relay"].control], stdout=subprocess.PIPE)

    def dump(self):
        """What the first relay exports, up to the mark that this is all."""
        export, data = self.export(), b""
        while not data.endswith(b"\6\2\0\4"):
            data += export.stdout.read1(65536)
        export.kill()
        export.wait()
        return data

    def begin_import(self, data, name="peer"):
        """Into the second relay; more may follow."""
        process = subprocess.Popen([self.program, "import", "--name", name, "--control",
                                    self.relays["relay2"].control], stdin=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdin.write(data)
        process.stdin.flush()
        return process

    def feed(self, data):
        """All of it: how that ended, and what was said."""
        process = self.begin_import(data)
        said = process.communicate(timeout=20)[1]
        return process.returncode, said

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


@pytest.fixture(scope="module")
def trial(culvert):
    with Lab(two_relays=True) as lab:
        one = Trial(lab, culvert)
        one.begin()
        yield one


def test_counters(trial):
    """A10: what leaves is counted and logged where it has been, of TCP and of UDP."""
    moved = '"end":"moved"'
    before = {relay: trial.logged(relay, moved) for relay in RELAYS}
    clients, idle = trial.crowd(3), trial.talk(9100, "i", 4)
    trial.ask_all(clients)
    trial.wait_mirrored("relay", 7)
    for old, new in RELAYS, RELAYS[::-1]:
        trial.move(old, new, False)
        trial.say(idle, "ask")
        trial.ask_all(clients)
        wait_until(lambda r=old: trial.logged(r, moved) == before[r] + 7, "seven in the log")
        for relay in RELAYS:
            trial.expect_sums(relay)
        expect(sum(f["moved"] for f in trial.counts(old)) >= 7, f"{trial.counts(old)}")
        trial.wait_mirrored(new, 7)
    trial.finish(idle)


def test_rested_slots(trial):
    """Sessions had gone back to their sockets when a daemon died: the next one has other slots."""
    idle = trial.idle(3)
    trial.relays["relay"].command("engine", "plain", "copy")

    def all_are_back():
        trial.say(idle, "ask")  # a session without sockets yet goes back with a later packet
        return {f["carrier"] for s in trial.sessions("relay") for f in s["flows"]} == {"copy"}

    wait_until(all_are_back, "all to go back")
    trial.relays["relay"].kill()
    idle = trial.idle(3)
    trial.finish(idle)


@pytest.mark.quick
def test_back(trial):
    """S5: all kinds live through moves away and back, by plan and by power; S1: the relay whose
    addresses leave holds its sessions for the other, and says nothing."""
    talks, old = trial.kinds(), "relay"
    trial.wait_mirrored(old, sum(t.n for t in talks.values()))
    trial.say(talks["half-closed"], "fin")
    time.sleep(0.2)  # FIN is told of at once
    for power in False, False, True, True:
        new, errors = trial.other(old), trial.relays[old].ask("status")["errors"]
        trial.move(old, new, power)
        # conversations go on by themselves; what has left is nobody's session
        wait_until(lambda r=new: trial.sessions(r), f"sessions to come to {new}")
        if not power:
            wait_until(lambda r=old: not trial.sessions(r), f"sessions to leave {old}")
            expect(trial.relays[old].ask("status")["errors"] == errors, f"{old} has counted errors")
        for what in "idle", "idle, IPv6 to IPv4":
            trial.say(talks[what], "ask")
        if power:  # until 5 s after the other one was heard, it is helped, and tells nobody
            wait_until(lambda r=new: not sum(trial.standby(r)[of] for of in ("helped", "held")),
                       "all to be adopted")
            trial.come_back(old)
            trial.wait_all_mirrored(new)
        old = new
    print("# longest gaps, in ms:", {what: trial.finish(t)["gap_ms"] for what, t in talks.items()})
    trial.wait_empty(old)


def test_never_came(trial):
    """Sessions that say nothing while addresses move, which are at both relays for a second."""
    old, new = RELAYS
    for wait in 0.4, 1.2:
        idle = trial.idle(8)
        wait_until(lambda: trial.standby(new)["held"] == 8, "eight to be held")
        trial.move(old, new, True)
        trial.come_back(old)
        wait_until(lambda: trial.standby(old)["held"] == 8, "eight to be held")
        trial.move(new, old, False)
        time.sleep(wait)
        trial.finish(idle)
        for relay in RELAYS:
            trial.wait_empty(relay, 8)


def test_hot(trial):
    """S2: what happens to links of a standby is nothing to its sessions; S4: nor are strays."""
    idle = trial.idle(5)
    trial.ip("relay2", "address", "add", "10.9.9.9/32", "dev", "lo")
    # relay2 is a router, by which packets of the address come, on their way to relay
    trial.ip("client", "route", "add", CLIENT_SIDE[0], "via", OWN["relay2"][0])
    stray = trial.talk(9100, "e", 3)
    time.sleep(1.5)
    adopted = trial.standby("relay2")["adopted"]
    trial.say(idle, "ask")
    trial.finish(stray)
    trial.finish(idle)
    trial.ip("client", "route", "del", CLIENT_SIDE[0])
    expect(trial.standby("relay2")["adopted"] == adopted and not trial.sessions("relay2"),
           "a standby has adopted what only passed")
    trial.wait_empty("relay2")


def test_ports(trial):
    """A1: no new session has a port of a held one, though both relays connect from some ports."""
    def same_ports():
        return [s["same_ports"] for r in RELAYS for s in trial.standby(r)["streams"]
                if s["stream"] == "import"]

    expect(same_ports() == [False, False], f"ports: {same_ports()}")
    try:
        trial.use_ports("relay", "29850 30049")
        wait_until(lambda: same_ports() == [True, True], "both to say that ports are the same")
        expect(trial.logged("relay2", "it connects from ports 29850 to 30049"),
               "the log does not say that ports are the same")
        old, idle = trial.crowd(80), trial.talk(9100, "i", 80)
        trial.ask_all(old)
        trial.wait_mirrored("relay", 160)
        trial.move("relay", "relay2", True)
        trial.ask_all(old)
        trial.come_back("relay")
        trial.wait_all_mirrored("relay2")
        wait_until(lambda: trial.standby("relay")["held"] == 160, "all to be held")
        trial.move("relay2", "relay", False)
        new = trial.crowd(80)
        more = trial.talk(9102, "e", 220)  # than there are ports: two servers share these
        for client in new, old:
            trial.ask_all(client)
        trial.say(idle, "ask")
        trial.finish(more)
        trial.finish(idle)
    finally:
        trial.use_ports("relay", PORTS["relay"])


def test_ports_in_use(trial):
    """A1: a record whose port is in use here is refused."""
    try:
        for relay in RELAYS:
            trial.use_ports(relay, "31000 31039")
        for relay in RELAYS:  # of TCP; the start wants more
            trial.inside(relay, "sysctl", "-qw", "net.ipv4.ip_local_port_range=31100 31101")
        for relay in RELAYS:
            trial.unlink(relay)
        trial.ip("relay2", "address", "add", SERVER_SIDE[0] + "/24", "dev", "to-server")
        # answers come to the other relay
        strays = trial.crowd(40, OWN["relay2"][0])
        for client in strays:
            client.send()
        stray = trial.lab.socket("client", OWN["relay2"][0])
        stray.connect((OWN["relay2"][0], 9109))
        wait_until(lambda: len(trial.sessions("relay2")) == 41, "sessions of relay2")
        trial.announce("relay")  # relay2 has asked for its neighbours with that address
        trial.ask_all(trial.crowd(5))
        idle = trial.talk(9100, "i", 2)
        trial.link("relay2")
        trial.wait_mirrored("relay", 7)
        wait_until(lambda: trial.standby("relay2")["refused"] == 6, "six to be refused")
        expect(trial.standby("relay2")["held"] == 1, "not one is held")
        trial.finish(idle)
    finally:
        for relay in RELAYS:
            trial.use_ports(relay, PORTS[relay])


def test_set_up_ports(trial):
    """A1: the same from the SYN on.  Both relays prepare sessions with the same few ports."""
    def from_syn(relay):
        return sum(s["flows"][0]["reason"] == "from the SYN on" for s in trial.sessions(relay))

    def begin(relay, *crowds):
        wait_until(lambda: talks.append(trial.talk(9100, "e", 1)) or from_syn(relay),
                   lambda: f"a session from the SYN on: {trial.relays[relay].ask('status')}")
        talks.extend(trial.talk(9100, kind, n) for kind, n in crowds)
        # clients that come at once empty the stock
        wait_until(lambda: from_syn(relay) > 20 or talks.append(trial.talk(9100, "e", 5)),
                   lambda: f"{from_syn(relay)} of {relay} began in the kernel")

    def use(config):
        trial.lab.write("culvert.conf", config)
        for relay in RELAYS:
            trial.start_anew(relay)

    talks = []
    use(trial.config.replace("\n", "\nset-up = kernel\nset-up-ports = 20000-20149\n", 1))
    try:
        begin("relay", ("e", 40), ("i", 40))
        trial.wait_all_mirrored("relay")
        for power, (old, new) in (True, RELAYS), (False, RELAYS[::-1]):
            trial.move(old, new, power)
            begin(new, ("e", 30))
            if power:
                trial.come_back(old)
            trial.wait_all_mirrored(new)
        for process in talks:
            trial.finish(process)
    finally:
        use(trial.config)


def test_owner_times_out(trial):
    """A2, A8: who holds a session does not time it out, nor end it for its owner."""
    talk, clients = trial.talk(9109, "e", 3), trial.crowd(2, port=9154)

    def is_held(n=5):
        trial.ask_all(clients)
        return trial.standby("relay2")["held"] == n

    def stays(part, longer):
        start = time.monotonic()
        while is_held() and time.monotonic() < start + longer:
            time.sleep(0.1)
        expect(is_held() and not trial.sessions("relay2"), f"{part}: not all are held")

    wait_until(is_held, "five to be held", 20)
    stays("told", 4.5)  # longer than idle-timeout
    for to in RELAYS:  # both have the addresses, and do not hear each other
        trial.unlink(to)
    for address, dev in (CLIENT_SIDE[0], "to-client"), (SERVER_SIDE[0], "to-server"):
        trial.ip("relay2", "address", "add", address + "/24", "dev", dev)
    stays("not told", 4)  # a relay that is not heard for 5 s is dead
    trial.announce("relay2")
    wait_until(lambda: trial.ask_all(clients) and len(trial.sessions("relay2")) == 5,
               "the other one to go on")
    trial.ask_all(clients)
    trial.announce("relay")
    trial.release("relay2")
    wait_until(is_held, "five to be held again", 20)
    for to in RELAYS:
        trial.link(to)
    trial.unlink("relay2")  # nobody takes them within idle-timeout from then on
    wait_until(lambda: is_held(0), "all to be let go", 40)
    expect(len(trial.sessions("relay")) == 5, "their owner has lost some")
    trial.link("relay2")
    wait_until(is_held, "five to be held in the end", 20)
    trial.move("relay", "relay2", False)
    trial.ask_all(clients)
    trial.finish(talk)


def test_control(trial):
    """What came is counted, listed, timed out and killed as any other, and its ends are told."""
    idle, kill = trial.talk(9109, "i", 2), trial.talk(9100, "i", 3)
    trial.wait_mirrored("relay", 5)
    trial.move("relay", "relay2", False)
    trial.say(kill, "ask")
    trial.say(idle, "ask")
    wait_until(lambda: len(trial.sessions("relay2")) == 5, "all to be adopted")
    bytes_of = {f["name"]: f["bytes_to_upstream"]
                for f in trial.relays["relay2"].ask("forwards")["forwards"]}
    trial.relays["relay2"].command("kill", "--forward", "plain")
    expect(0 < bytes_of["plain"] < 9100, f"bytes: {bytes_of}")
    for process in kill, idle:  # by RST, at once, or in time
        wait_until(lambda p=process: trial.reset_of(p) == p.n, "clients to be told", 10)
    trial.wait_empty("relay2")


def test_unsynced(trial):
    """S10: a relay that has the addresses, and is not told yet, does not answer for others; nor does one
    that is in sync with a relay that has not yet adopted what nobody else has."""
    talk = trial.talk(9100, "e", 5)
    trial.wait_mirrored("relay", 5)
    trial.unlink("relay2")
    dump = trial.dump()
    trial.start_anew("relay2", links=["relay"])
    late = trial.begin_import(dump[:4])
    wait_until(lambda: trial.standby("relay2")["streams"], "the import to begin")
    trial.move("relay", "relay2", False)
    time.sleep(0.7)
    late.stdin.write(dump[4:])
    late.stdin.close()
    late.wait(10)
    trial.finish(talk)
    trial.wait_empty("relay2")
    trial.link_all()
    trial.move("relay2", "relay", False)
    talk = trial.talk(9100, "e", 5)
    trial.wait_mirrored("relay", 5)
    trial.move("relay", "relay2", True)
    trial.come_back("relay", links=["relay"])
    trial.take("relay")
    time.sleep(0.7)
    trial.link_all()
    trial.finish(talk)


def test_stalled(trial):
    """An import that stalls hinders connections of forwards alone, and not for ever."""
    idle = trial.idle(2)
    streams = len(trial.standby("relay2")["streams"])
    stalled = trial.begin_import(trial.dump()[:10], "stalled")
    wait_until(lambda: any(s["name"] == "stalled" and s["records"]
                           for s in trial.standby("relay2")["streams"]), "the import to begin")
    said = [trial.inside("client", sys.executable, "-c", STRAY, OWN["relay2"][0], port)
            for port in ("22", "9100")]
    expect(said == ["reset", "silent"], f"at port 22, and at a forward's: {said}")
    wait_until(lambda: len(trial.standby("relay2")["streams"]) == streams, "its end", 20)
    expect(trial.inside("client", sys.executable, "-c", STRAY, OWN["relay2"][0], "9100") ==
           "reset", "the import has ended, and the stack is still silent")
    stalled.stdin.close()
    stalled.wait(10)
    trial.finish(idle)


def test_two_uplinks(trial):
    """A rule knows the way of the address that clients connect to; no socket can be asked for it."""
    far = "10.7.7.1"
    alone = trial.lab.write("alone.conf", trial.config.split("[forward clear]", maxsplit=1)[0])
    trial.start_anew("relay2", "--config", alone, "--privileged-process", "no")
    trial.ip("client", "address", "add", f"{far}/32", "dev", "lo")
    for relay in RELAYS:
        trial.ip(relay, "link", "add", "other", "type", "veth", "peer", "name", "nowhere")
        for dev in "other", "nowhere":
            trial.ip(relay, "link", "set", dev, "up")
        trial.ip(relay, "neigh", "add", far, "lladdr", "02:00:00:00:00:07", "dev", "other")
        trial.ip(relay, "route", "add", f"{far}/32", "dev", "other")
        trial.ip(relay, "route", "add", f"{far}/32", "via", "10.0.1.1", "table", "300")
        trial.ip(relay, "rule", "add", "from", CLIENT_SIDE[0], "lookup", "300")
    talks = [trial.talk(9100, kind, 5, sources=[far]) for kind in "ei"]
    trial.wait_mirrored("relay", 10)
    trial.move("relay", "relay2", False)
    trial.say(talks[1], "ask")
    for talk in talks:
        trial.finish(talk)
    trial.die("relay2")  # end() starts it again, with the file of all cases
    for relay in RELAYS:
        trial.ip(relay, "link", "del", "other")
        trial.ip(relay, "rule", "del", "from", CLIENT_SIDE[0], "lookup", "300")
        trial.ip(relay, "route", "flush", "table", "300")
    trial.ip("client", "address", "del", f"{far}/32", "dev", "lo")


def test_many_addresses(trial):
    """Clients may connect to any number of addresses; those that no session has are forgotten."""
    some = "10.8.0.0/23"
    trial.ip("client", "route", "add", some, "via", CLIENT_SIDE[0])
    trial.ip("relay", "route", "add", "local", some, "dev", "lo")
    idle = trial.idle(300, some)
    trial.ip("relay", "route", "del", "local", some, "dev", "lo")
    trial.ip("relay2", "route", "add", "local", some, "dev", "lo")
    trial.move("relay", "relay2", False)
    trial.say(idle, "ask")
    trial.finish(idle)
    for relay in RELAYS:
        trial.wait_empty(relay)
        wait_until(lambda r=relay: trial.standby(r)["addresses"] < 10, "few addresses", 20)
    trial.ip("relay2", "route", "del", "local", some, "dev", "lo")
    trial.ip("client", "route", "del", some)


def test_route_news(trial):
    """What changes in the routes of a standby costs it nothing for each session that it holds."""
    far = ipaddress.ip_network("10.20.0.0/22")
    trial.ip("client", "route", "add", "local", str(far), "dev", "lo")
    for relay in RELAYS:
        trial.ip(relay, "route", "add", str(far), "via", "10.0.1.1")
    idle = trial.idle(400, sources=[str(far[number]) for number in range(1, 401)])
    wait_until(lambda: trial.standby("relay2")["held"] == 400, "all to be held")
    before = trial.spent("relay2")
    for number in range(150):
        trial.ip("relay2", "route", "del" if number % 2 else "add", "10.30.0.0/24", "dev", "lo")
    spent = trial.spent("relay2") - before
    expect(spent < 0.04, f"150 routes took {spent:.3f} s of the main thread")
    trial.move("relay", "relay2", True)
    trial.say(idle, "ask")
    trial.finish(idle)
    for relay in RELAYS:
        trial.ip(relay, "route", "del", str(far))
    trial.ip("client", "route", "del", "local", str(far), "dev", "lo")


def without_forwards(dump):
    """The records of DUMP, as of an older relay."""
    kept, at = b"", 0
    while at < len(dump):
        size = int.from_bytes(dump[at + 2:at + 4], "big")
        kept += dump[at:at + size] if dump[at] != 9 else b""
        at += size
    return kept


@pytest.mark.quick
def test_records(trial):
    """S11: what is torn, broken, or of another version is refused, and changes nothing."""
    idle = trial.idle(5)
    trial.unlink("relay2")
    wait_until(lambda: trial.standby("relay2")["held"] == 5, "five to be held")
    dump = without_forwards(trial.dump())
    size = (len(dump) - 8) // 5
    expect(size <= 200 and (len(dump) - 8) % 5 == 0, f"a record has {size} bytes")
    first = 4 + size
    broken = {
        b"": "nothing has come",
        dump[:first + 20]: f"byte {first}: the stream ended within it",
        dump[:first] + b"\2\3" + dump[first + 2:]: f"byte {first}: it has another version",
        dump[:first] + b"\2\2\0\3" + dump[first + 4:]: f"byte {first}: its length is impossible",
        dump[:first] + b"\2\2\0\x90" + dump[first + 4:]: f"byte {first}: ",
        dump[4:]: "byte 0: not what `culvert export` begins with",
        b"GET / HTTP/1.0\r\n\r\n": "byte 0: not what `culvert export` begins with",
    }
    for data, why in broken.items():
        code, said = trial.feed(data)
        expect(code and why.encode() in said, f"{why}: {code}, {said}")
        expect(trial.standby("relay2")["held"] == 5, f"{why}: what was there has changed")
    random.seed(1)
    for _ in range(30):  # whatever comes, culvert lives; what it takes is gone with the next dump
        noise = bytearray(dump)
        for _ in range(random.randrange(1, 6)):
            noise[random.randrange(4, len(noise))] = random.randrange(256)
        trial.feed(bytes(noise))
    expect(trial.feed(dump)[0] == 0, "the whole dump is refused")
    # one that cannot be is skipped: the client's port is behind 31 bytes and the header
    refused = trial.standby("relay2")["refused"]
    bad = dump[:first + 35] + b"\0\0" + dump[first + 37:]
    expect(trial.feed(bad)[0] == 0, "a record from port 0 ends the stream")
    expect(trial.standby("relay2")["refused"] == refused + 1 and
           trial.standby("relay2")["held"] == 4, f"port 0: {trial.standby('relay2')}")
    # a kind that is not known yet is skipped
    expect(trial.feed(dump[:4] + b"\x63\2\0\6xx" + dump[4:])[0] == 0, "unknown kind")
    trial.link("relay2")
    trial.finish(idle)
    trial.wait_empty("relay2")


def test_port_0(trial):
    """A3: a datagram that nobody can answer begins no session."""
    with trial.lab.inside("client"), \
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        raw.sendto(struct.pack("!HHHH", 0, 9153, 9, 0) + b"x", (CLIENT_SIDE[0], 0))
    wait_until(lambda: trial.logged("relay", "its source port is 0"), "the log to say so")
    expect(not trial.sessions("relay"), "there is a session")


def test_forged(trial):
    """A4: who knows addresses and ports, and no numbers, ends nothing, and moves no counter."""
    for exported in True, False:
        if not exported:
            trial.unlink("relay2")
        talk, idle = trial.talk(9100, "e", 3), trial.talk(9105, "i", 3)
        wait_until(lambda: len(trial.grafted("plain", "probed")) == 6, "all to be grafted", 20)
        if exported:
            trial.wait_all_mirrored("relay")
        before = trial.grafted("probed")
        for rate in "400", "2000":
            trial.lab.finish(trial.forge(rate), 30)
            expect(trial.grafted("probed") == before, f"{rate}/s: {trial.sessions('relay')}")
        trial.say(idle, "ask")
        trial.finish(talk)
        forger = trial.forge("2000", "30")  # a dead end is found beside it
        trial.ip("client", "route", "add", "blackhole", f"{CLIENT_SIDE[0]}/32")
        try:
            wait_until(lambda: not trial.sessions("relay"), "dead ends to be found", 25)
        finally:
            trial.ip("client", "route", "del", "blackhole", f"{CLIENT_SIDE[0]}/32")
            for process in forger, idle:
                trial.lab.stop(process)
            trial.clients.remove(idle)
    trial.link("relay2")


def test_many_changes(trial):
    """Each relay tells the other of sessions whose records are just being replaced there."""
    for _ in range(3):
        talks = [trial.talk(9100, "h", 300) for _ in range(2)]
        trial.wait_mirrored("relay", 600)
        for talk in talks:
            trial.say(talk, "fin")
        time.sleep(0.6)  # each record has changed twice, and both have looked at it
        held = trial.standby("relay2")["held"]
        for talk in talks:
            trial.finish(talk)
        expect(held == 600, f"{held} of 600 sessions are known to the standby")
        for relay in RELAYS:
            trial.wait_empty(relay)


def test_slow_reader(trial):
    """Who exports is not held up by a reader that takes nothing, nor are other readers."""
    deaf = trial.export()
    idle = trial.idle(500)
    talk = trial.talk(9100, "e", 5)
    trial.wait_mirrored("relay", 505)
    trial.finish(talk)
    trial.finish(idle)
    trial.wait_empty("relay2")
    deaf.kill()
    deaf.wait()


def test_datagrams(trial):
    """Flows of UDP go on with the same port at the server."""
    client = trial.crowd(1)
    first = [trial.ask_all(client) for _ in range(4)][-1]
    trial.wait_mirrored("relay", 1)
    # after news of routes its sockets carry it, and the other relay knows it still
    trial.ip("relay", "address", "del", f"{CLIENT_SIDE[1]}/64", "dev", "to-client")
    trial.ask_all(client)
    talk = trial.talk(9100, "i", 1)
    trial.wait_mirrored("relay", 2)
    trial.finish(talk)
    for (old, new), power in ((RELAYS, False), (RELAYS[::-1], True)):
        trial.move(old, new, power)
        wait_until(lambda: trial.ask_all(client) == first, "the server to see the same port", 10)
        wait_until(lambda r=new: len(trial.sessions(r)) == 1, "adoption")
        if not power:  # the old one knows the flow, and has no session
            wait_until(lambda o=old: not trial.sessions(o) and trial.standby(o)["held"] == 1,
                       "the flow to leave")
            trial.wait_mirrored(new, 1)


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
# A packet of a connection that its other end does not know.
STRAY = """
import socket, sys
s = socket.socket(); s.settimeout(1); s.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR
s.connect((sys.argv[1], int(sys.argv[2])))
try: s.setsockopt(socket.IPPROTO_TCP, 19, 0); s.recv(1)
except ConnectionResetError: print("reset", end="")
except TimeoutError: print("silent", end="")
"""
