# SPDX-License-Identifier: BSD-2-Clause
"""An oracle on both wires of the relay: is each grafted packet what it has to be?

Conversations run through `culvert --engine graft` in a lab, with IPv4 and IPv6, with and without
loss, SACK, window scaling and timestamps.  All packets of both wires are captured.  The offsets of
a session follow from its two handshakes alone; from then on each packet that the relay sends on
must be one that has come, with these offsets, and each that comes must be sent on, until the
session ends.  Nothing else may leave.  A TSecr must be a clock that the end itself has sent.  With
losses a session whose end asks in vain goes back to its sockets, and is judged up to then.  Then the
same where sessions move to another relay and back, by plan and by loss of power: the offsets
of the handshakes hold on the wires of both.  A session that begins in the kernel (`set-up`) is
grafted from its SYN on: the handshakes are judged, too.
"""

import collections
import contextlib
import fcntl
import itertools
import random
import socket
import struct
import threading
import time

import labkit
import pytest
from ends import ECN, NO_SACK, NO_SCALE, NO_TIMESTAMPS, OLD, set_up
from labkit import place
from networks import no_offload
from standby_rig import CLIENT_SIDE, RELAYS as PAIR, SERVER_SIDE, Pair, forward

pytestmark = pytest.mark.needs("ip", "nft", ipv6=True)

UPSTREAM_PORT = 7001
RELAYS = {4: "10.0.1.2", 6: "fd00:1::2"}
SERVERS = {4: "10.0.2.2", 6: "fd00:2::2"}
# The port of the relay by the families of the client and of the server.
FORWARDS = {(4, 4): 7044, (6, 6): 7066, (6, 4): 7064, (4, 6): 7046}
INTERFACES = ("to-client", "to-server")  # by side
FIN, SYN, RST, ACK = 1, 2, 4, 16
OTHERHOST, OUTGOING = 3, 4
OWN_TTL = 64
DEFAULT_MSS = {4: 536, 6: 1220}  # RFC 9293, 3.7.1
MOST_MSS = {4: 1460, 6: 1440}    # on an Ethernet
TOS = 0x48  # of the ends' packets, which stays; those of the relay itself have none
PATIENCE = 30
MOVING = 1.5  # seconds, around a move in which not all that comes is sent on
ABORT = struct.pack("ii", 1, 0)


def lose(lab, machine, percent):
    """MACHINE loses so much of what the relay sends to it."""
    lab.run(machine, "nft", "table netdev loss { chain in { type filter hook ingress device to-relay "
            f"priority 0; meta l4proto tcp numgen random mod 100 < {percent} drop; }}; }}")


def sum16(data):
    if len(data) & 1:
        data += b"\0"
    return sum(struct.unpack(f"!{len(data) // 2}H", data)) % 65535


class Packet:
    """A TCP packet on the wire of SIDE; out: it leaves the relay."""

    def __init__(self, raw, side, out, when, relay):
        self.side, self.out, self.used, self.when, self.relay = side, out, False, when, relay
        ip = raw[14:]
        if raw[12:14] == b"\x08\0":
            self.family, l3 = 4, 20
            self.ttl, total = ip[8], int.from_bytes(ip[2:4], "big")
            self.traffic, self.kept = ip[1], ip[0:8]  # all but TTL, sum, addresses
            self.src, self.dst = ip[12:16], ip[16:20]
            self.ip_ok = sum16(ip[:20]) == 0
        else:
            self.family, l3 = 6, 40
            self.ttl, total = ip[7], int.from_bytes(ip[4:6], "big") + 40
            self.traffic, self.kept = int.from_bytes(ip[0:2], "big") >> 4 & 0xff, ip[0:7]
            self.src, self.dst = ip[8:24], ip[24:40]
            self.ip_ok = True
        tcp = ip[l3:total]
        (self.sport, self.dport, self.seq, self.ack, offset, self.flags, self.window, _,
         self.urgent) = struct.unpack("!HHIIBBHHH", tcp[:20])
        header = (offset >> 4) * 4
        self.options, self.payload = tcp[20:header], tcp[header:]
        self.reserved = offset & 15
        self.tcp_ok = (sum16(self.src + self.dst) + 6 + len(tcp) + sum16(tcp)) % 65535 == 0

    def end(self):
        return self.seq + len(self.payload) + (self.flags & FIN)

    def port(self):
        """The remote end's on side 0, the relay's on side 1: names the connection."""
        return self.sport if self.out == (self.side == 1) else self.dport

    def walk(self):
        """(kind, value) of each option; NOPs as well."""
        at = 0
        while at < len(self.options) and self.options[at]:
            if self.options[at] == 1:
                yield 1, b""
                at += 1
                continue
            length = self.options[at + 1]
            yield self.options[at], self.options[at + 2:at + length]
            at += length

    def option(self, kind):
        return next((value for k, value in self.walk() if k == kind), None)

    def clocks(self):
        value = self.option(8)
        return struct.unpack("!II", value) if value else None

    def __str__(self):
        return (f"{self.when:.3f} {self.relay} side {self.side} {'out' if self.out else 'in'} "
                f"seq {self.seq} ack {self.ack} flags {self.flags:#x} window {self.window} ttl {self.ttl} "
                f"{len(self.payload)} bytes, options {self.options.hex()}")


class Capture:
    """All TCP packets of both wires, in the order in which the relay has them."""

    def __init__(self, lab, relay="relay"):
        self.relay = relay
        with lab.inside(relay):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.sides = {name: side for side, name in enumerate(INTERFACES)}
            self.own = [fcntl.ioctl(self.sock, 0x8927, name.encode().ljust(40, b"\0"))[18:24]
                        for name in INTERFACES]  # SIOCGIFHWADDR
        self.sock.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
        self.sock.settimeout(0.2)
        self.records, self.ended = [], False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.ended:
            try:
                record = self.sock.recvfrom(65535)
                self.records.append((*record, time.monotonic()))
            except TimeoutError:
                pass

    def packets(self, tally):
        """What a frozen socket has sent comes back on its interface, but was on no wire."""
        self.ended = True
        self.thread.join()
        _, lost = struct.unpack("II", self.sock.getsockopt(263, 6, 8))
        self.sock.close()
        assert not lost, f"{lost} packets were not captured"
        for raw, (interface, _, kind, *_), when in self.records:
            tcp = (raw[12:14] == b"\x08\0" and raw[23] == 6) or (raw[12:14] == b"\x86\xdd" and
                                                               raw[20] == 6)
            if not tcp or interface not in self.sides:
                continue
            side, out = self.sides[interface], kind == OUTGOING
            if not out and raw[6:12] == self.own[side]:
                tally["given back"] += 1
            elif kind == OTHERHOST:  # flooded by a bridge that does not know whose it is
                tally["not for the relay"] += 1
            else:
                yield Packet(raw, side, out, when, self.relay)


# ---- the model


def plus(a, b):
    return (a + b) & 0xffffffff


def ahead(a, b):
    return ((a - b + (1 << 31)) & 0xffffffff) - (1 << 31)


class Session:
    """What the handshakes on both wires say, and all packets."""

    def __init__(self, packets, tally):
        self.packets, self.tally = packets, tally
        syn = {(p.side, p.out): p for p in reversed(packets) if p.flags & SYN}
        self.families = syn[0, False].family, syn[1, True].family
        client, ours = syn[0, False], syn[0, True]
        us, server = syn[1, True], syn[1, False]
        self.from_syn = bool(us.traffic & TOS)
        self.tuples = [(us.src, us.dst, us.sport, us.dport),
                       (ours.src, ours.dst, ours.sport, ours.dport)]  # of what leaves, by side
        self.seq = [us.seq - client.seq, ours.seq - server.seq]
        self.ack = [server.seq - ours.seq, client.seq - us.seq]
        scaled = [all(p.option(3) for p in pair) for pair in ((client, ours), (us, server))]
        self.left = [p.option(3)[0] if on else 0 for p, on in zip((client, server), scaled)]
        # of what leaves, by the side that it comes from: the other end takes no larger segments
        self.mss = [int.from_bytes(p.option(2), "big") if p.option(2) else DEFAULT_MSS[p.family]
                    for p in (server, client)]
        self.sack = [all(p.option(4) is not None for p in pair)  # by side
                     for pair in ((client, ours), (us, server))]
        self.right = [p.option(3)[0] if on else 0 for p, on in zip((us, ours), reversed(scaled))]
        self.tsval = [None, None]
        self.unclamped = [False, False]
        self.sent_clocks = [set(), set()]  # by the remote end of a side
        self.own_clock = [None, None]      # the relay's own, last on the wire of a side

    def fail(self, what, *packets):
        self.tally["faults"] += 1
        if self.tally["faults"] <= 20:
            print(f"FAULT: {what}", *packets, sep="\n  ")

    def check_clocks(self, was, now):
        side, there = was.side, 1 - was.side
        (val, echo), (new_val, new_echo) = was.clocks(), now.clocks()
        if self.tsval[side] is None:
            self.tsval[side] = new_val - val
            # from the SYN on the relay has no clock of its own that the end may have heard
            if not was.flags & SYN and ahead(new_val, self.own_clock[there]) < 0:
                self.fail("the first clock is before the relay's own", was, now)
        if plus(val, self.tsval[side]) != new_val:
            self.fail("TSval", was, now)
        if now.flags & ACK and new_echo not in self.sent_clocks[there]:
            self.fail("TSecr was never sent", was, now)
        if self.tsval[there] is not None and plus(echo, -self.tsval[there]) == new_echo:
            self.unclamped[side] = True
        elif self.unclamped[side]:
            self.fail("TSecr", was, now)

    def options_after(self, was):
        """All but the clocks, which are checked with what came before."""
        for kind, value in was.walk():
            if kind == 5 and not self.sack[1 - was.side]:
                yield from [(1, b"")] * (2 + len(value))
                continue
            if kind == 5:
                edges = struct.unpack(f"!{len(value) // 4}I", value)
                value = b"".join(struct.pack("!I", plus(e, self.ack[was.side])) for e in edges)
            if kind == 2:  # what goes back to the end of WAS must fit its way
                value = struct.pack("!H", min(*struct.unpack("!H", value), MOST_MSS[was.family]))
            yield kind, b"" if kind == 8 else value

    def is_translation(self, was, now):
        return (not was.used and was.side != now.side and was.payload == now.payload and
                was.flags == now.flags and was.traffic == now.traffic and
                (was.kept == now.kept or was.family != now.family) and
                plus(was.seq, self.seq[was.side]) == now.seq and
                (not was.flags & ACK or plus(was.ack, self.ack[was.side]) == now.ack) and
                list(self.options_after(was)) == [(k, b"" if k == 8 else v)
                                                  for k, v in now.walk()])

    def origin(self, waiting, now):
        """Of several that differ in clocks and windows alone, the one whose clock and window fit."""
        may_be = [was for was in waiting[-1000:] if self.is_translation(was, now)]
        for was in reversed(may_be):
            add = self.tsval[was.side]
            if now.window == self.window_after(was) and (
                    not was.clocks() or add is None or
                    plus(was.clocks()[0], add) == now.clocks()[0]):
                return was
        return may_be[-1] if may_be else None

    def window_after(self, was):
        if was.flags & SYN:
            return was.window
        return min(65535, was.window << self.left[was.side] >> self.right[was.side])

    def check(self, was, now):
        side = was.side
        if now.window != self.window_after(was):
            self.fail(f"window, {self.left[side]} to {self.right[side]}", was, now)
        if (now.src, now.dst, now.sport, now.dport) != self.tuples[side]:
            self.fail("addresses or ports", was, now)
        if now.ttl != OWN_TTL or now.urgent != was.urgent or now.reserved != was.reserved:
            self.fail("TTL, or what stays", was, now)
        if len(now.payload) + len(now.options) > self.mss[side]:
            self.fail(f"MSS {self.mss[side]}", was, now)
        if was.ip_ok and was.tcp_ok and not (now.ip_ok and now.tcp_ok):
            self.fail("checksum", was, now)
        self.tally["SACK"] += was.option(5) is not None
        if was.clocks():
            self.check_clocks(was, now)

    def asks_in_vain(self, at):
        """Shortly before AT an end asked again, GRAFT_SILENT_NS after it had done so, and neither
        stream was acknowledged in between.  A busy capture sees times late."""
        end, acked, asked, last = [None, None], [0, 0], [None, None], None
        for p in self.packets[:self.packets.index(at)]:
            if p.out or p.flags & SYN:
                continue
            side, behind = p.side, ahead(p.end(), end[p.side]) if end[p.side] is not None else 1
            if behind < (len(p.payload) > 0):
                key = p.ack, acked[1 - side]
                if asked[side] and asked[side][0] == key:
                    last = p.when if p.when - asked[side][1] > 0.2 else last
                else:
                    asked[side] = key, p.when
            end[side] = p.end() if behind > 0 else end[side]
            acked[side] = p.ack
        return last is not None and at.when - last < 2

    def run(self, moves=()):
        """MOVES: when sessions have moved to another relay; of two, the order is not certain."""
        waiting, grafted, ended, returned = [], False, 0, False
        for p in self.packets if moves else ():
            if not p.out and p.clocks():
                self.sent_clocks[p.side].add(p.clocks()[0])
        for p in self.packets:
            if not p.out:
                waiting.append(p)
                if p.clocks():
                    self.sent_clocks[p.side].add(p.clocks()[0])
                p.expected = (grafted and not ended and
                              not any(-MOVING < p.when - at < MOVING for at in moves))
                self.tally["in, grafted"] += p.expected
                continue
            if not p.traffic & TOS:
                if p.clocks():
                    self.own_clock[p.side] = p.clocks()[0]
                if grafted and moves and not p.payload and p.flags == ACK:
                    self.tally["probes of adopted sockets"] += 1
                elif grafted and self.asks_in_vain(p):
                    returned = True
                    break
                elif grafted:
                    self.fail("a packet of the relay itself", p)
                continue
            was = self.origin(waiting, p)
            if not was:
                # what came late to sockets that are closed is answered by the stack, with its TOS
                if grafted or p.flags != RST:
                    self.fail("sent on, but it did not come like this", p)
                continue
            was.used = grafted = True
            self.tally["pairs"] += 1
            self.check(was, p)
            ended += bool(p.flags & RST)
        for p in waiting:
            if p.expected and not p.used and not returned:
                self.fail("not sent on", p)
        self.tally["from the SYN on"] += self.from_syn
        self.tally[f"grafted IPv{self.families[0]} to IPv{self.families[1]}"] += grafted
        self.tally["returned"] += returned
        self.tally["sessions"] += 1


# ---- traffic


def mark_packets(sock, family):
    if family == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, TOS)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)


def exactly(sock, size):
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("the stream ended early")
        data += part
    return bytes(data)


def serve(sock):
    """Answer each request with as many bytes as it asks for, which follow from its own."""
    sock.settimeout(PATIENCE)
    with sock, contextlib.suppress(OSError):
        while True:
            size, wanted = struct.unpack("!II", exactly(sock, 8))
            request = exactly(sock, size)
            sock.sendall((request * (wanted // max(size, 1) + 1))[:wanted])


def listen(lab, family):
    sock = lab.socket("server", SERVERS[family])
    mark_packets(sock, family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((SERVERS[family], UPSTREAM_PORT))
    sock.listen(64)

    def run():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(sock.accept()[0],), daemon=True).start()
    threading.Thread(target=run, daemon=True).start()
    return sock


def converse(lab, families, chance, exchanges, stop=None):
    """Until there were so many EXCHANGES, or STOP is set: these are half a dozen a second."""
    family = families[0]
    sock = lab.socket("client", RELAYS[family])
    mark_packets(sock, family)
    sock.settimeout(PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.connect((RELAYS[family] if not stop else CLIENT_SIDE[family == 6], FORWARDS[families]))
    with sock:
        for _ in range(exchanges) if not stop else iter(lambda: stop.wait(0.15), True):
            size, wanted = (int(2 ** chance.uniform(0, 15)) for _ in range(2))
            request = chance.randbytes(size)
            sock.sendall(struct.pack("!II", size, wanted) + request)
            if exactly(sock, wanted) != (request * (wanted // size + 1))[:wanted]:
                raise ValueError("wrong bytes")
        if chance.random() < 0.3:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)


# ---- all of it


def connections_of(packets, side):
    """A list of packets for each, in the order of their SYNs.  Ports are used again."""
    found, current = [], {}
    for p in packets:
        if p.side != side:
            continue
        key = p.family, p.port()
        if p.flags & (SYN | ACK) == SYN and (key not in current or
                                             current[key][0].seq != p.seq):
            current[key] = []
            found.append(current[key])
        if key in current:
            current[key].append(p)
    return found


def sessions_of(packets, tally):
    """One after the other: the n-th connection of one wire is the n-th of the other."""
    for order, p in enumerate(packets):
        p.order = order
    wires = [connections_of(packets, side) for side in range(2)]
    # a SYN that was lost: the client's next one is served by sockets
    alive = [any(not p.out for p in far) for far in wires[1]]
    tally["given up"] = alive.count(False)
    wires[1] = list(itertools.compress(wires[1], alive))
    assert len(wires[0]) == len(wires[1])
    for near, far in zip(*wires):
        yield Session(sorted(near + far, key=lambda p: p.order), tally)


def expect_began(where, tally):
    labkit.expect((where == "kernel") == (tally["from the SYN on"] > 0),
                  f"where sessions began: {dict(tally)}")


# what, percent lost, settings of the client and of the server: see ends.set_up()
SCENES = (
    ("plain", 0, (), ()),
    ("loss", 2, (), ()),
    ("loss, the server without SACK and window scaling", 2, (), (NO_SACK, NO_SCALE)),
    ("loss, no timestamps, small buffers of the client", 2,
     (NO_TIMESTAMPS, "tcp_rmem=4096 16384 32768"), ()),
    ("loss, an old client", 2, OLD, ()),
    ("loss, a client with ECN and MSS 1360, the server without timestamps", 2,
     (ECN, "mss=1360"), (NO_TIMESTAMPS,)),
    ("loss, an old server", 2, (ECN,), OLD),
)


def prepare(lab, machine, loss, settings):
    no_offload(f"{lab.name}-{machine}")
    set_up(lab, machine, settings)
    if loss:
        lose(lab, machine, loss)


@pytest.mark.parametrize("where", ["sockets", "kernel"])
@pytest.mark.parametrize("loss, settings", [(loss, of) for _, loss, *of in SCENES],
                         ids=[scene[0] for scene in SCENES])
def test_scenes(request, culvert, loss, settings, where):
    sessions, tally = request.config.option.sessions or 40, collections.Counter()
    with labkit.Lab() as lab:
        for machine, of in zip(("client", "server"), settings):
            prepare(lab, machine, loss, of)
        no_offload(f"{lab.name}-relay")
        servers = [listen(lab, family) for family in SERVERS]
        forwards = [(place(RELAYS[here], port), place(SERVERS[there], UPSTREAM_PORT))
                    for (here, there), port in FORWARDS.items()]
        daemon = labkit.Daemon(lab, culvert, "graft", forwards, "--graft-pins", "none",
                               "--set-up", where)
        capture = Capture(lab)
        chance = random.Random(1)
        for n in range(sessions):
            # one forward after the other: a client is proven for 10 s
            converse(lab, list(FORWARDS)[n * len(FORWARDS) // sessions], chance, 30)
        time.sleep(1)
        packets = list(capture.packets(tally))
        daemon.stop()
        for server in servers:
            server.close()
    for session in sessions_of(packets, tally):
        session.run()
    print("#", ", ".join(f"{count} {what}" for what, count in tally.items()))
    # the first session of a forward may tell of options that its server lacks; and a SYN that is sent
    # again asks for no ECN, so that session is not grafted
    expect_began(where, tally)
    labkit.expect(not tally["faults"] and all(
        tally[f"grafted IPv{here} to IPv{there}"] >= sessions // len(FORWARDS) - (3 if loss else 1)
        for here, there in FORWARDS), f"{dict(tally)}")


class Relays(Pair):
    config = "".join(forward(port, port, place(SERVERS[there], UPSTREAM_PORT),
                             f"source = {SERVER_SIDE[there == 6]}")
                     for (_, there), port in FORWARDS.items())


@pytest.mark.parametrize("where", ["sockets", "kernel"])
def test_moves(culvert, where, sessions=12):
    """All packets of both relays, of sessions that live through four moves."""
    tally, moves, stop, failed = collections.Counter(), [], threading.Event(), []

    def talk(families, seed):
        try:
            converse(lab, families, random.Random(seed), 0, stop)
        except (OSError, ValueError) as error:
            failed.append(f"IPv{families[0]} to IPv{families[1]}: {error}")

    with labkit.Lab(two_relays=True) as lab:
        for machine in "client", "server", *PAIR:
            no_offload(f"{lab.name}-{machine}")
        pair = Relays(lab, culvert)
        pair.config = f"[culvert]\nset-up = {where}\n" + pair.config
        try:
            pair.begin()
            servers = [listen(lab, family) for family in SERVERS]
            captures = {relay: Capture(lab, relay) for relay in PAIR}
            threads = [threading.Thread(target=talk, args=(list(FORWARDS)[n % 3], n))
                       for n in range(sessions)]
            for thread in threads:  # one after the other, see sessions_of()
                thread.start()
                time.sleep(0.1)
            pair.wait_mirrored("relay", sessions)
            for turn, power in enumerate((False, False, True, True)):
                old, new = PAIR[turn % 2], PAIR[1 - turn % 2]
                moves.append(time.monotonic())
                pair.move(old, new, power)
                time.sleep(2 * MOVING)
                if power:
                    pair.come_back(old)
                pair.wait_mirrored(new, sessions)
            stop.set()
            for thread in threads:
                thread.join()
            time.sleep(1)
            packets = sorted((p for capture in captures.values() for p in capture.packets(tally)),
                             key=lambda p: p.when)
            for server in servers:
                server.close()
        finally:
            stop.set()
    for session in sessions_of(packets, tally):
        session.run(moves)
    tally["faults"] += len(failed)
    print("# moves at", *(f"{at:.3f}" for at in moves))
    print("#", ", ".join(f"{count} {what}" for what, count in tally.items()), *failed, sep="\n")
    expect_began(where, tally)
    labkit.expect(not tally["faults"] and tally["sessions"] == sessions, f"{dict(tally)}")
