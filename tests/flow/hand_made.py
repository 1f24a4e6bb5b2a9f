# SPDX-License-Identifier: BSD-2-Clause
"""A TCP made by hand, which looks and behaves like that of some other system than Linux.

A Wire is a tun device in a namespace of the lab: the kernel there only forwards, so that nobody
else answers.  An End is one connection on it.  It retransmits what is lost, obeys the windows that
it is told, and judges each packet that comes: an end without culvert would get none of those that
it calls a fault.
"""

import dataclasses
import fcntl
import ipaddress
import os
import random
import select
import struct
import threading
import time

from graft_wire import ACK, DEFAULT_MSS, FIN, RST, SYN, TOS, Packet, sum16

PSH, ECE, CWR = 8, 64, 128
MASK = 0xffffffff
MTU = 1500
RTO, PROBE = 0.3, 0.3
PATIENCE = 30
ROOM = 1 << 18  # an end with a window scale has so large a buffer
FLIGHT = 1 << 16


@dataclasses.dataclass(frozen=True)
class Kind:
    """A signature of p0f's list."""

    name: str
    layout: str       # options of its SYN, in their order
    window: int
    scale: int = 0
    ttl: int = 64
    mss: int = 1460   # by IPv4
    ecn: bool = False
    hz: int = 1000    # of its clock

    def has(self, option):
        return option in self.layout.split(",")


def signed(number):
    return ((number + (1 << 31)) & MASK) - (1 << 31)


class Fault(Exception):
    """Something came that may not come."""


class Wire:
    """DEVICE in MACHINE, behind which ADDRESSES are; the relay reaches them by the machine."""

    def __init__(self, lab, machine, net):
        self.addresses = {4: f"10.0.{net}.9", 6: f"fd00:{net}::9"}
        via = {"client": "1::1", "server": "2::2"}[machine]
        with lab.inside(machine):
            self.fd = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(self.fd, 0x400454ca, struct.pack("16sH22x", b"hand", 0x1001))  # TUNSETIFF
        lab.run(machine, "sh", "-ec", f"""
            ip link set hand mtu {MTU} up
            ip route add 10.0.{net}.0/24 dev hand
            ip -6 route add fd00:{net}::/64 dev hand
            echo 1 >/proc/sys/net/ipv4/ip_forward
            echo 1 >/proc/sys/net/ipv6/conf/all/forwarding""")
        lab.run("relay", "sh", "-ec", f"""
            ip route add 10.0.{net}.0/24 via 10.0.{via.replace('::', '.')}
            ip -6 route add fd00:{net}::/64 via fd00:{via}""")
        self.end, self.open = None, True
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while self.open:
            ready = select.select([self.fd], [], [], 0.02)[0]
            raw = os.read(self.fd, 65536) if ready else None
            end = self.end
            if not end:
                continue
            with end.changed:
                if not end.fault:
                    try:
                        if raw and raw[9 if raw[0] >> 4 == 4 else 6] == 6:
                            kind = b"\x08\0" if raw[0] >> 4 == 4 else b"\x86\xdd"
                            end.take(Packet(bytes(12) + kind + raw, 0, False, time.monotonic(), ""))
                        end.tick()
                    except (Fault, LookupError, struct.error) as error:
                        end.fault = f"{end.kind.name}: {error!r}"
                end.changed.notify_all()

    def close(self):
        self.open = False
        self.thread.join()
        os.close(self.fd)


class End:  # pylint: disable=too-many-instance-attributes
    """A connection of KIND.  Positions in a stream are counted from its SYN, at 0."""

    def __init__(self, wire, kind, family, port, remote=None, seed=1):
        self.wire, self.kind, self.family, self.changed = wire, kind, family, threading.Condition()
        self.chance, self.lost = random.Random(seed), 0.0
        self.local, self.remote = (wire.addresses[family], port), remote
        self.passive = remote is None
        self.first, self.clock0 = self.chance.getrandbits(32), self.chance.getrandbits(32)
        self.mss = kind.mss - 20 * (family == 6) if kind.has("mss") else DEFAULT_MSS[family]
        self.size = 0                          # of the largest segment that the other one takes
        self.sack, self.clocks, self.ecn = kind.has("sok"), kind.has("ts"), kind.ecn
        self.scale = kind.scale if kind.has("ws") else 0
        self.their_scale, self.options = 0, kind.layout.split(",") if kind.layout else []
        # what goes
        self.out, self.closing = bytearray(), False
        self.acked, self.next, self.allowed, self.top = 0, 0, 1, 0
        self.again, self.recover, self.due, self.probes = 0, 0, None, 0
        # what comes
        self.theirs, self.inp, self.gaps, self.got, self.fin_at = None, bytearray(), {}, 0, None
        self.read, self.taken, self.holds = 0, 0, False
        self.edge, self.probed = kind.window + 1, 0
        self.recent, self.sent_clocks = 0, set()
        self.must_echo = self.reduced = self.marked = False
        self.reset, self.fault, self.identity = False, None, 0
        wire.end = self
        if remote:
            with self.changed:
                self._syn()

    # ---- what a test calls

    def until(self, condition, what, seconds=PATIENCE):
        with self.changed:
            self.changed.wait_for(lambda: self.fault or condition(), seconds)
            if self.fault or not condition():
                raise Fault(self.fault or f"{self.kind.name}: {what}: {len(self.inp)} bytes came, "
                            f"{self.acked} of {1 + len(self.out)} acknowledged")

    def send(self, data):
        with self.changed:
            self.out += data
            self.push()

    def receive(self, size):
        """The next SIZE bytes."""
        self.until(lambda: len(self.inp) >= self.taken + size, f"{size} bytes to come")
        self.taken += size
        return bytes(self.inp[self.taken - size:self.taken])

    def close(self):
        with self.changed:
            self.closing = True
            self.push()

    def hold(self, holds):
        """The program reads, or not."""
        with self.changed:
            self.holds = holds
            if not holds:
                self.read = len(self.inp)
                self.answer()

    def abort(self):
        with self.changed:
            self.transmit(RST | ACK, self.next)
            self.fault = "it was reset"

    # ---- what goes

    def handshake(self):
        """The options of its SYN, in the order of its system; of its answer, those that both have."""
        mss, shift = struct.pack("!H", self.mss), bytes([self.kind.scale])
        made = {"mss": b"\2\4" + mss, "ws": b"\3\3" + shift, "sok": b"\4\2", "nop": b"\1",
                "eol+1": b"\0\0"}
        text = b"".join(self.clock_option() if o == "ts" else made[o] for o in self.options)
        return text + bytes(-len(text) % 4)

    def clock_option(self):
        now = (int(time.monotonic() * self.kind.hz) + self.clock0) & MASK
        self.sent_clocks.add(now)
        return struct.pack("!BBII", 8, 10, now, self.recent)

    def transmit(self, flags, at, payload=b""):
        options = self.handshake() if flags & SYN else b""
        if self.clocks and not flags & (SYN | RST):
            options = b"\1\1" + self.clock_option()
        if self.sack and self.gaps and not flags & (SYN | FIN | RST) and not payload:
            start = next(iter(reversed(self.gaps)))  # the latest
            options += struct.pack("!BBBBII", 1, 1, 5, 10, (self.theirs + start) & MASK,
                                   (self.theirs + start + len(self.gaps[start][0])) & MASK)
        window = self.kind.window
        if not flags & SYN:
            free = max(0, self.buffer() - (len(self.inp) - self.read))
            self.edge = max(self.edge, self.got + (min(65535, free >> self.scale) << self.scale))
            window = (self.edge - self.got) >> self.scale
            flags |= ECE if self.must_echo else 0
        ack = (self.theirs + self.got) & MASK if flags & ACK else 0
        tcp = bytearray(struct.pack("!HHIIBBHHH", self.local[1], self.remote[1],
                                    (self.first + at) & MASK, ack, (20 + len(options)) << 2, flags,
                                    window, 0, 0) + options + payload)
        source, target = (ipaddress.ip_address(e[0]).packed for e in (self.local, self.remote))
        struct.pack_into("!H", tcp, 16, 0xffff ^ (sum16(source + target) + 6 + len(tcp) +
                                                  sum16(bytes(tcp))) % 65535)
        tos = TOS | (2 if self.ecn and payload and at >= self.top else 0)  # ECT
        self.identity = (self.identity + 1) & 0xffff
        if self.family == 4:
            ip = bytearray(struct.pack("!BBHHHBBH", 0x45, tos, 20 + len(tcp), self.identity, 0x4000,
                                       self.kind.ttl, 6, 0) + source + target)
            struct.pack_into("!H", ip, 10, 0xffff ^ sum16(bytes(ip)))
        else:
            ip = struct.pack("!IHBB", 6 << 28 | tos << 20, len(tcp), 6, self.kind.ttl) + source + target
        if self.chance.random() >= self.lost:
            os.write(self.wire.fd, ip + tcp)

    def buffer(self):
        return max(self.kind.window, min(self.kind.window << self.scale, ROOM))

    def _syn(self):
        flags = SYN | ACK if self.passive else SYN
        if self.ecn:
            flags |= ECE if self.passive else ECE | CWR
        self.transmit(flags, 0)
        self.next = self.top = 1
        self.due = time.monotonic() + 1

    def segment(self, at):
        """Sends what begins AT, as much as one segment holds; returns its end."""
        room = self.size - 12 * self.clocks
        data = bytes(self.out[at - 1:at - 1 + max(0, min(room, self.allowed - at))])
        ends = at + len(data)
        flags = ACK | (PSH if data else 0)
        if self.closing and ends == 1 + len(self.out):
            flags, ends = flags | FIN, ends + 1
        if self.reduced and data:
            flags, self.reduced = flags | CWR, False
        if ends > at:
            self.transmit(flags, at, data)
        return ends

    def push(self):
        """All that the other end's window holds."""
        while self.acked and self.next < 1 + len(self.out) + self.closing:
            before = self.next
            if self.next - self.acked < FLIGHT and (self.next < self.allowed or
                                                   self.next == 1 + len(self.out)):
                self.next = self.segment(self.next)
            if self.next == before:
                break
            self.due = self.due or time.monotonic() + RTO
        if self.next < 1 + len(self.out):
            self.due = self.due or time.monotonic() + PROBE
        self.top = max(self.top, self.next)

    def tick(self):
        if self.due is None or time.monotonic() < self.due:
            return
        self.due = time.monotonic() + RTO
        if self.theirs is None or not self.acked:
            self._syn()
        elif self.acked < self.next:
            self.recover = self.next
            self.segment(self.acked)
        elif self.next < 1 + len(self.out):  # as BSD and Windows do: a byte behind the window
            self.probes += 1
            self.transmit(ACK, self.next, bytes(self.out[self.next - 1:self.next]))
            self.top = max(self.top, self.next + 1)

    def answer(self):
        self.transmit(ACK, self.next)

    # ---- what comes

    def need(self, condition, what, p):
        if not condition:
            raise Fault(f"{what}: {p}; in {self.got} of {self.theirs}, edge {self.edge}, "
                        f"out {self.acked} to {self.next} of {self.first}")

    def take(self, p):
        if p.dport != self.local[1] or (self.remote and p.sport != self.remote[1]):
            return  # of a session before
        self.need(p.ip_ok and p.tcp_ok, "checksum", p)
        if p.flags & SYN:
            self.take_syn(p)
            return
        if self.theirs is None:
            return
        self.judge(p)
        if self.chance.random() < self.lost:
            return
        if p.flags & RST:
            self.reset = True
            return
        if self.ecn and p.traffic & 3 and self.lost and not self.marked:
            self.must_echo = self.marked = True  # as if a router had marked it
        if p.flags & CWR:
            self.must_echo = False
        if p.flags & ECE and self.ecn:
            self.reduced = True
        self.take_ack(p)
        self.take_payload(p)
        self.push()

    def take_syn(self, p):
        if self.theirs is not None:
            self.need(p.seq == self.theirs, "another SYN", p)
            if self.passive:
                self._syn()
            else:
                self.answer()
            return
        self.theirs, self.got = p.seq, 1
        has = {kind for kind, _ in p.walk()}
        mine = {"mss": 2, "ws": 3, "sok": 4, "ts": 8}
        for option in ("ws", "sok", "ts"):
            self.need(self.passive or mine[option] not in has or self.kind.has(option),
                      f"{option} that was not asked for", p)
        if self.passive:
            self.remote = (str(ipaddress.ip_address(p.src)), p.sport)
            self.options = [o for o in self.options if o not in mine or mine[o] in has or o == "mss"]
        self.sack, self.clocks = self.sack and 4 in has, self.clocks and 8 in has
        self.scale = self.scale if 3 in has else 0
        self.their_scale = p.option(3)[0] if 3 in has and self.kind.has("ws") else 0
        mss = int.from_bytes(p.option(2), "big") if 2 in has else DEFAULT_MSS[self.family]
        self.size = min(mss, MTU - (40 if self.family == 4 else 60))
        asked = p.flags & (ECE | CWR)
        self.need(self.passive or self.kind.ecn or not asked, "ECN that was not asked for", p)
        self.ecn = self.ecn and asked == (ECE | CWR if self.passive else ECE)
        self.recent = p.clocks()[0] if self.clocks else 0
        self.allowed = 1 + p.window
        if self.passive:
            self._syn()
        else:
            self.need((p.ack - self.first) & MASK == 1, "ACK of the SYN", p)
            self.acked, self.due = 1, None
            self.answer()

    def judge(self, p):
        """A packet that no end of this kind would get from an honest one."""
        at = self.got + signed(p.seq - self.theirs - self.got)
        ends = at + len(p.payload)
        self.need(len(p.payload) + len(p.options) <= self.mss, f"MSS {self.mss}", p)
        self.need(0 <= at and ends <= self.edge, "sequence number", p)
        self.need(not p.urgent and not p.reserved, "urgent", p)
        self.need(self.ecn or not p.traffic & 3, "ECT", p)
        self.need(self.ecn or not p.flags & (ECE | CWR), "ECE or CWR", p)
        self.need(self.sack or p.option(5) is None, "SACK that was not asked for", p)
        if p.flags & ACK:
            ack = self.acked + signed(p.ack - self.first - self.acked)
            self.need(1 <= ack <= self.top, "ACK", p)
        if p.option(5):
            for edge, in struct.iter_unpack("!I", p.option(5)):
                self.need(1 <= self.acked + signed(edge - self.first - self.acked) <= self.top,
                          "SACK", p)
        self.need(self.clocks or not p.option(8), "timestamps that were not asked for", p)
        if self.clocks and not p.flags & RST:
            self.need(p.option(8), "no timestamps", p)
            self.need(not p.flags & ACK or p.clocks()[1] in self.sent_clocks, "TSecr", p)
            self.need(signed(p.clocks()[0] - self.recent) >= 0, "TSval goes back", p)

    def take_ack(self, p):
        if not p.flags & ACK:
            return
        ack = self.acked + signed(p.ack - self.first - self.acked)
        edge = ack + (p.window << self.their_scale)
        if ack > self.acked:
            self.acked, self.again = ack, 0
            self.next = max(self.next, ack)
            self.allowed = max(self.allowed, edge)
            self.due = time.monotonic() + RTO if ack < self.next else None
            if ack < self.recover:
                self.segment(ack)
        elif ack == self.acked < self.next and not p.payload and (p.option(5) or
                                                                  edge <= self.allowed):
            self.again += 1
            if self.again == 3 and ack >= self.recover:
                self.recover = self.next
                self.segment(ack)
        self.allowed = max(self.allowed, edge)

    def take_payload(self, p):
        at = self.got + signed(p.seq - self.theirs - self.got)
        if self.clocks and at <= self.got and signed(p.clocks()[0] - self.recent) > 0:
            self.recent = p.clocks()[0]
        self.probed += self.holds and at < self.got
        if not p.payload and not p.flags & FIN:
            if at < self.got:  # somebody asks
                self.answer()
            return
        if at + len(p.payload) + bool(p.flags & FIN) > self.got:
            if len(self.gaps.get(at, (b"",))[0]) <= len(p.payload):
                self.gaps.pop(at, None)
                self.gaps[at] = p.payload, bool(p.flags & FIN)
        for start in sorted(self.gaps):
            if start > self.got:
                break
            data, fin = self.gaps.pop(start)
            self.inp += data[self.got - start:]
            self.got = max(self.got, start + len(data))
            if fin and start + len(data) == self.got and self.fin_at is None:
                self.fin_at, self.got = self.got, self.got + 1
        if not self.holds:
            self.read = len(self.inp)
        self.answer()
