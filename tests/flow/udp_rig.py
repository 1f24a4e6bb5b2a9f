# SPDX-License-Identifier: BSD-2-Clause
"""What the cases of udp.py stand on: clients that know each byte, loads, and the daemon."""

import contextlib
import errno
import itertools
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys

from labkit import RELAY, SERVER, SLOW, Daemon, LabError, expect, place, tail, wait_until
from udp_peer import HEAD, WHO, answer, question

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "udp_peer.py")
RELAY6, SERVER6 = "fd00:1::2", "fd00:2::2"
# The family of the client, and that of the server.
PAIRS = {"44": (RELAY, SERVER), "66": (RELAY6, SERVER6), "46": (RELAY, SERVER6),
         "64": (RELAY6, SERVER)}
LISTEN = {pair: 9100 + n for n, pair in enumerate(PAIRS)}
PORTS = 7100, 7101
TCP = f"{RELAY}:9120", f"{SERVER}:7120"  # a forward
PROXY_V2 = b"\r\n\r\n\0\r\nQUIT\n"
numbers = itertools.count(1 << 20)  # of clients; those of a load are lower


def forwards_of(*pairs, port=PORTS[0]):
    return {pair: (place(PAIRS[pair][0], LISTEN[pair]), place(PAIRS[pair][1], port))
            for pair in pairs}


def proxy_header(client, server):
    """Of version 2: pairs of address and port."""
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    body = socket.inet_pton(family, client[0]) + socket.inet_pton(family, server[0]) + \
        struct.pack("!HH", client[1], server[1])
    return PROXY_V2 + struct.pack("!BBH", 0x21, 0x22 if ":" in client[0] else 0x12,
                                  len(body)) + body


def expect_refused(sock, who):
    """SOCK is told, once it sends to a closed port, or some times later: one complaint of a client's
    machine is not believed, and Linux sends one a second (icmp_ratelimit)."""
    sock.settimeout(0.3 * SLOW)
    for _ in range(20):
        try:
            sock.send(b"x" * 100)
            data = sock.recv(100)
            raise LabError(f"{who} has an answer: {data}")
        except ConnectionRefusedError:
            return
        except TimeoutError:
            pass
    raise LabError(f"{who} is not refused")


class Client:
    """A socket in a namespace, connected to ADDRESS and PORT."""

    def __init__(self, lab, address, port, source=None, namespace="client", own_port=0):
        self.number, self.seq, self.asked = next(numbers), 0, {}
        self.prefix = b""
        self.sock = lab.socket(namespace, address, socket.SOCK_DGRAM)
        if source or own_port:
            self.sock.bind((source or "", own_port))
        self.sock.connect((address, port))

    def send(self, size=64, **how):
        self.seq += 1
        self.asked[self.seq] = data = question(self.number, self.seq, size, **how)
        self.sock.send(self.prefix + data)

    def hear(self, seconds=1.0):
        """The next answer: whole, and of a question of ours. None: there is none."""
        if not select.select([self.sock], [], [], seconds * SLOW)[0]:
            return None
        data = self.sock.recv(65536)
        if len(data) < HEAD.size:
            expect(data == self.asked[self.seq], f"{len(data)} strange bytes came back")
            return data
        _, number, seq, reply, _, _ = HEAD.unpack_from(data)
        expect(number == self.number, f"an answer of client {number} came to {self.number}")
        whole = self.asked.get(seq)
        expect(whole and (reply == WHO or data == answer(whole)[0]),
               f"another answer than that of question {seq}: {len(data)} bytes")
        return data

    def ask(self, size=64, tries=1, seconds=1.0, **how):
        """The answer; the last one, if there were several. TRIES: a datagram may be lost."""
        wanted = how.get("copies", 1)
        for _ in range(tries):
            try:
                self.send(size, **how)
                heard = [self.hear(seconds) for _ in range(wanted)]
            except (ConnectionRefusedError, OSError) as error:
                if tries == 1 or error.errno not in (errno.ECONNREFUSED, errno.EMSGSIZE):
                    raise LabError(f"client {self.number}: {error}") from None
                continue
            if None not in heard:
                return heard[-1]
        raise LabError(f"no answer to question {self.seq} of {size} bytes")

    def who(self, tries=1):
        """Address and port whom the server has seen, and the server's port."""
        address, *ports = self.ask(reply=WHO, tries=tries)[HEAD.size:].decode().split()
        return address, *map(int, ports)

    def is_heard(self, seconds=0.4):
        """Whether it has an answer; it may be told that nobody is there."""
        try:
            self.send()
            return self.hear(seconds) is not None
        except ConnectionRefusedError:
            return False

    def converse(self, server):
        """The address that SERVER has seen."""
        for _ in range(4):
            self.send()
            data, peer = server.recvfrom(1000)
            server.sendto(data, peer)
            expect(self.hear(), "no answer")
        return peer


def spoof(lab, port, count, sources=None):
    """COUNT datagrams to PORT, from SOURCES, or addresses that are nobody's; stops now and then."""
    with lab.inside("client"):
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    data = question(1, 1, 30)
    to = socket.inet_aton(RELAY)
    with raw:
        for n in range(count):
            head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0,
                               socket.inet_aton(sources[n % len(sources)]) if sources else
                               bytes([10, 9, n >> 8 & 255, n & 255]), to)
            raw.sendto(head + struct.pack("!HHHH", 20000 + n % 30000, port,
                                          8 + len(data), 0) + data, (RELAY, 0))
            if n % 200 == 0:
                yield n


def forge_error(raw, code, sender, receiver):
    """By RAW, an ICMP socket: what SENDER has sent to RECEIVER was not delivered."""
    quote = struct.pack("!BBHIBBH4s4sHHI", 0x45, 0, 100, 0, 64, 17, 0,
                        socket.inet_aton(sender[0]), socket.inet_aton(receiver[0]),
                        sender[1], receiver[1], 80 << 16)
    total = sum(struct.unpack("!14H", quote), 0x300 + code)
    total = (total & 0xffff) + (total >> 16)
    raw.sendto(struct.pack("!BBHI", 3, code, ~(total + (total >> 16)) & 0xffff, 0) + quote,
               (sender[0], 0))


class Rig:
    """The lab, and a daemon with a configuration file; `pins` is a file system of its own."""

    def __init__(self, lab, program, engine):
        self.lab, self.program, self.engine = lab, program, engine
        self.daemon = None
        self.undo = contextlib.ExitStack()
        self.pins = os.path.join(lab.mount_bpf(f"bpf-{engine}"), "culvert")
        self.run = lab.run

    def write_config(self, *lines, forwards=None, top=()):
        """FORWARDS: by name, where it listens and where it leads to; LINES are for each."""
        text = "\n".join(["[culvert]", *top])
        for name, (listen, upstream) in (forwards_of(*PAIRS) if forwards is None else forwards).items():
            text += "\n".join([f"\n[forward {name}]", f"listen = {listen}/udp",
                               f"upstream = {upstream}", *lines])
        return self.lab.write("culvert.conf", text + "\n")

    def begin(self, *lines, options=(), **more):
        self.daemon = Daemon(self.lab, self.program, self.engine, (), "--graft-pins", self.pins,
                             "--config", self.write_config(*lines, **more), *options)

    def one(self, upstream=f"{SERVER}:{PORTS[0]}", listen=f"{RELAY}:{LISTEN['44']}"):
        """One forward, named "44" as by default."""
        return {"44": (listen, upstream)}

    def reload(self, *lines, **more):
        self.write_config(*lines, **more)
        self.daemon.reload()

    def set_engine(self, engine):
        for pair in PAIRS:
            self.daemon.command("engine", pair, engine)

    def carried(self):
        return sum(f["flows"] for f in self.daemon.ask("status")["carriers"]
                   if f["carrier"] == "graft") / 2

    def end(self):
        self.undo.close()
        self.run("client", "ip", "route", "flush", "cache")
        if not self.daemon:
            return
        code, log = self.daemon.stop(), tail(self.daemon.process.log)
        self.run("relay", self.program, "graft", "--remove", "--graft-pins", self.pins, "--control",
                 self.daemon.control)
        self.daemon = None
        expect(code == 0, f"the daemon did not stop in order: {code}\n{log}")

    def ip(self, namespace, do, *undo):
        """ip DO, which has its opposites, with the next end()."""
        self.run(namespace, "ip", *do.split())
        for words in undo:
            self.undo.callback(self.run, namespace, "ip", *words.split())

    def client(self, pair="44", **more):
        client = Client(self.lab, PAIRS[pair][0], LISTEN[pair], **more)
        self.undo.callback(client.sock.close)
        return client

    def proven(self, **more):
        client = self.client(**more)
        for _ in range(3):
            client.ask()
        return client

    def name(self, name, *addresses):
        """The relay's daemons find NAME in their hosts file."""
        home = f"/etc/netns/{self.lab.name}-relay"  # ip netns exec puts it in place
        os.makedirs(home)
        self.undo.callback(shutil.rmtree, home)
        with open(f"{home}/hosts", "w", encoding="ascii") as file:
            file.write("".join(f"{address} {name}\n" for address in addresses))

    def server(self, port, address="0.0.0.0"):
        """A socket of the server's, to be played by the test."""
        sock = self.lab.socket("server", address, socket.SOCK_DGRAM)
        sock.bind((address, port))
        sock.settimeout(2 * SLOW)
        self.undo.callback(sock.close)
        return sock

    def listen_tcp(self):
        with self.lab.inside("server"):
            listener = socket.create_server(("", 7120))
        listener.settimeout(2 * SLOW)
        self.undo.callback(listener.close)
        return listener

    def connect_tcp(self, source="10.0.1.1"):
        """By the forward TCP."""
        with self.lab.inside("client"):
            sock = socket.create_connection((RELAY, 9120), 2 * SLOW, (source, 0))
        self.undo.callback(sock.close)
        return sock

    def sessions(self):
        return self.daemon.ask("sessions")["sessions"]

    def wait_sessions(self, n, seconds=10.0):
        seen = []

        def are_there():
            seen[:] = self.sessions()
            return len(seen) == n

        wait_until(are_there, lambda: f"{n} sessions: there are {len(seen)}" + "".join(
            f"\n# {s['forward']} {s['client']} at worker {s['worker']}, {s['age_ms']} ms, "
            f"{s['flows'][0]['datagrams']} datagrams"
            for s in sorted(seen, key=lambda s: s["client"])[:12]), seconds)

    def errors(self, *causes):
        """Sum of what is counted under CAUSES."""
        errors = self.daemon.ask("status")["errors"]
        return sum(errors[cause] for cause in causes)

    def finished(self):
        """Sessions that ended in order, as by silence."""
        return sum(f["finished"] for f in self.daemon.ask("status")["forwards"])

    def expect_carried(self, n, why=None):
        """N sessions come to the carrier that the engine means; or stay copied, WHY."""
        wanted = "graft" if self.engine == "auto" and not why else "copy"

        def others():
            return [s for s in self.sessions() if {f["carrier"] for f in s["flows"]} != {wanted}]

        wait_until(lambda: len(self.sessions()) == n and not others(), lambda:
                   f"not {n} sessions by {wanted}, but {len(self.sessions())}:" + "".join(
                       f"\n# {s['forward']} {s['client']} {s['not_grafted']}: " + ", ".join(
                           f"{f['carrier']} ({f['reason']}) {f['datagrams']}" for f in s["flows"])
                       for s in others()[:9]), 3)
        for session in self.sessions():
            expect(session["protocol"] == "udp", f"protocol: {session}")
            expect(all(flow["reason"] for flow in session["flows"]), f"no reason: {session}")
            expect(not why or self.engine == "copy" or why in json.dumps(session),
                   f"not for the reason {why}: {session}")

    def load(self, flows, pairs=tuple(PAIRS), direct=False, pace=0.01, **more):
        """A load of FLOWS of each pair, which all have answers; DIRECT: and round culvert."""
        targets = [(PAIRS[pair][0], LISTEN[pair]) for pair in pairs]
        if direct:
            targets.append((SERVER, PORTS[0]))
        process = self.lab.start(
            "client", sys.executable, "-B", PEER, "load",
            json.dumps(dict(more, targets=targets, flows=flows, pace=pace)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        readable = select.select([process.stdout], [], [], 30 * SLOW)[0]
        expect(readable and process.stdout.readline() == "ready\n", "not all flows have answers")
        return process

    def said(self, process, ordered=True):
        """What became of a load: of all by culvert, and of those that went round it.  ORDERED: no
        answer was overtaken."""
        process.stdin.close()
        did = json.loads(process.stdout.readline() or "{}")
        self.lab.finish(process, 30 * SLOW)
        around, total = did.pop(SERVER, {}), {}
        for one in did.values():
            for key, value in one.items():
                total[key] = max(total.get(key, 0), value) if key == "slowest_ms" else \
                    total.get(key, 0) + value
        for key in "wrong", "strange", "doubled":
            expect(not total.get(key), f"{key} answers: {total}")
        # An emulated CPU stops for a while: what it has in hand is overtaken by another carrier's.
        accepted = total.get("answered", 0) // 5000 if SLOW > 1 else 0
        expect(not ordered or total.get("disordered", 0) <= accepted,
               f"disordered answers: {total}")
        return total, around

    def expect_whole(self, did, around=None):
        lost = {key: n for key, n in did.items()
                if n and (key.startswith(("lost", "errno")) or key == "late")}
        expect(not lost, f"datagrams were lost: {did}")
        if around:
            print(f"# slowest {did['slowest_ms']:.1f} ms, around culvert "
                  f"{around['slowest_ms']:.1f} ms")
            expect(did["slowest_ms"] < 20 * SLOW + 2 * around["slowest_ms"],
                   f"an answer was waited for: {did}, around culvert: {around}")
