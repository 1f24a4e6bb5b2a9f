# SPDX-License-Identifier: BSD-2-Clause
"""Datagrams for networks.py: a server that sends them back, and programs that ask it and count.

A datagram: what it is, who asks, which one of it this is; and bytes that follow from these.
"""

import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time

from labkit import SLOW

HEADER = struct.Struct("!4s8sQ")
BURST = 20
SOL_UDP, UDP_SEGMENT, UDP_GRO = socket.IPPROTO_UDP, 103, 104
SO_NO_CHECK, SO_RCVBUFFORCE = 11, 33
# Of a socket of the family: level; options IP_MTU_DISCOVER, IP_MTU; bytes of the headers.
PATH = {socket.AF_INET: (socket.IPPROTO_IP, 10, 14, 28),
        socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 24, 48)}
IP_PMTUDISC_DO = 2


class Ended(Exception):
    """A conversation did not end as it should: args are the kind of end, and details."""


def datagram(kind, who, number, size):
    head = HEADER.pack(kind, who, number)
    return (head + head[4:] * (size // 16))[:max(size, len(head))]


def receive_much(sock):
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)


# --- the server ---

def send_parts(sock, parts, control, *peer):
    """In one call if they are of one size (UDP_SEGMENT), and that can be."""
    if len(parts) > 1 and len({len(part) for part in parts}) == 1:
        with contextlib.suppress(OSError):
            segment = SOL_UDP, UDP_SEGMENT, struct.pack("H", len(parts[0]))
            sock.sendmsg(parts, [*control, segment], 0, *peer)
            return
    for part in parts:
        with contextlib.suppress(OSError):
            sock.sendmsg([part], control, 0, *peer)


def serve(sock, no_checks):
    """Sends all back, or says whom it sees; from the address that was asked, some of it late."""
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    sock.setsockopt(SOL_UDP, UDP_GRO, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, no_checks)  # over IPv4
    receive_much(sock)
    while True:
        data, info, _, peer = sock.recvmsg(65536, 200)
        segment, control, parts = len(data) or 1, [], []
        for level, kind, value in info:
            if (level, kind) == (SOL_UDP, UDP_GRO):
                segment = struct.unpack("i", value)[0]
            elif level == socket.IPPROTO_IPV6:  # any interface, but of a link
                index = value[16:] if value.startswith(b"\xfe\x80") else bytes(4)
                control.append((level, kind, value[:16] + index))
        for at in range(0, len(data), segment):
            kind, rest = data[at:at + 4], data[at + 4:at + segment]
            if kind == b"seen":
                address = peer[0].removeprefix("::ffff:").encode()
                rest = rest[:16] + address.ljust(len(rest) - 16, b"\0")
            part = b"answ" + rest
            if kind[:2] == b"in":  # tenths of a second
                threading.Timer(int(kind[2:]) / 10 * SLOW, send_parts,
                                (sock, [part], control, peer)).start()
            else:
                parts.append(part)
        send_parts(sock, parts, control, peer)


def watch_checksums(tap, wrong):
    """Appends to WRONG what arrives at TAP, a packet socket, with a checksum that is not right."""
    tap.setsockopt(263, 8, 1)  # PACKET_AUXDATA
    seen = 0
    while True:
        packet, info, _, address = tap.recvmsg(70000, 100)
        if address[2] == socket.PACKET_OUTGOING:
            continue
        if address[1] == 0x0800 and packet[9] == 17 and not int.from_bytes(
                packet[6:8], "big") & 0x3fff:
            ends, data = packet[12:20], packet[packet[0] % 16 * 4:int.from_bytes(packet[2:4],
                                                                                 "big")]
            if data[6:8] == b"\0\0":
                continue
        elif address[1] == 0x86dd and packet[6] == 17:
            ends, data = packet[8:40], packet[40:40 + int.from_bytes(packet[4:6], "big")]
        else:
            continue
        if info and struct.unpack_from("I", info[0][2])[0] & 8:  # TP_STATUS_CSUMNOTREADY
            continue
        data = ends + struct.pack("!HH", 17, len(data)) + data + b"\0" * (len(data) % 2)
        total = sum(struct.unpack(f"!{len(data) // 2}H", data))
        seen += 1
        if total % 0xffff or packet[6:8] == b"\0\0" and address[1] == 0x86dd:
            wrong.append(f"checksum of datagram {seen}: {packet[:60].hex()}")


# --- those who ask ---

class Asker:
    """A program with a socket of its own."""

    def __init__(self, address, port, df, local_port, before):
        info = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        self.sock = sock = socket.socket(info[0], socket.SOCK_DGRAM)
        self.level, discover, self.mtu_option, self.headers = PATH[info[0]]
        self.df = df
        if df:
            sock.setsockopt(self.level, discover, IP_PMTUDISC_DO)
        receive_much(sock)
        before(sock)
        sock.bind(("", local_port))
        sock.connect(info[4])
        self.who, self.number = os.urandom(8), 0
        self.first_mtu = self.mtu()
        self.waiting = {}  # what is to come, by number
        self.last = 0  # number of the last answer
        self.reordered = 0
        self.seen = ""

    def mtu(self):
        return self.sock.getsockopt(self.level, self.mtu_option)

    def make(self, kind, size):
        if self.df:
            size = min(size, self.mtu() - self.headers)
        self.number += 1
        data = datagram(kind, self.who, self.number, size)
        self.waiting[self.number] = b"" if kind == b"seen" else data[4:]
        return data

    def send(self, kind, size):
        """Errors of those before are told first."""
        for _ in range(3):
            with contextlib.suppress(OSError):
                self.sock.send(self.make(kind, size))
                return
            del self.waiting[self.number]  # that was not sent

    def post_late(self, tenths):
        """A question whose answer is for nobody."""
        self.send(f"in{tenths:02}".encode(), 100)
        self.waiting.clear()

    def ask(self, count, size, seconds, kind=b"ques"):
        """Until COUNT datagrams of SIZE were answered; asks again what is not."""
        deadline, gso = time.monotonic() + seconds * SLOW, not self.df
        while count > 0:
            if time.monotonic() > deadline:
                raise Ended("timeout", f"{count} datagrams of {size} bytes had no answer")
            first = self.number + 1
            if gso and count > 1:
                gso = False
                parts = [self.make(kind, size) for _ in range(count)]
                with contextlib.suppress(OSError):
                    self.sock.sendmsg(parts, [(SOL_UDP, UDP_SEGMENT,
                                               struct.pack("H", len(parts[0])))])
                    parts = []
                if parts:
                    for number in range(first, self.number + 1):
                        del self.waiting[number]
                    continue
            else:
                for _ in range(count):
                    self.send(kind, size)
            count -= self.hear(first)

    def hear(self, first, seconds=0.3):
        """How many of those from FIRST on were answered, until no more come for SECONDS."""
        found = 0
        while any(number >= first for number in self.waiting) or not first:
            if not select.select([self.sock], [], [], seconds * SLOW)[0]:
                break
            try:
                data = self.sock.recv(65536)
            except OSError as error:
                if error.errno == errno.EBADF:
                    raise
                continue
            found += self.take(data, first)
        return found

    def take(self, data, first):
        kind, who, number = HEADER.unpack_from(data.ljust(HEADER.size, b"\0"))
        expected = self.waiting.pop(number, None)
        if (kind, who) != (b"answ", self.who):
            raise Ended("wrong", f"datagram of another: {data[:60]}")
        if expected is None:
            raise Ended("wrong", f"datagram {number} of {self.number} came twice, or late")
        if not expected:
            self.seen = data[HEADER.size:].rstrip(b"\0").decode(errors="replace")
        elif data[4:] != expected:
            raise Ended("wrong", f"{len(data)} bytes came back, but others: {data[:60]}")
        self.reordered += self.last > number >= first
        self.last = number
        return number >= first

    def close(self):
        """Those that were lost: number and bytes."""
        self.hear(0 if self.waiting else self.number + 1)
        self.sock.close()
        return [(number, len(data) + 4) for number, data in self.waiting.items()]
