#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Both ends of datagrams whose every byte is known, for udp.py.

    udp_peer.py serve PORT...   answers as each datagram asks, until it is ended
    udp_peer.py load JSON       many flows of questions, until stdin ends; says "ready" once every
                                flow has had three answers, and at the end what became of all
"""

import collections
import heapq
import json
import random
import select
import socket
import struct
import sys
import time

# Who asks, its how manieth question, bytes of the answer (0: the question itself), answers, ms.
HEAD = struct.Struct("!4sIIIHH")
MAGIC = b"cudp"
WHO = 0xffffffff  # instead of bytes: the answer says whom the server has seen, and its own port
BLOCK = random.Random(28).randbytes(1 << 17)
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
BUFFER = 8 << 20


def pattern(flow, seq, size):
    at = (flow * 7919 + seq * 104729) % 65521
    return BLOCK[at:at + size]


def question(flow, seq, size, reply=0, copies=1, delay_ms=0):
    """One without room for a head is sent back as it is."""
    if size < HEAD.size:
        return pattern(flow, seq, size)
    return HEAD.pack(MAGIC, flow, seq, reply, copies, delay_ms) + \
        pattern(flow, seq, size - HEAD.size)


def answer(data, peer=("", 0), port=0):
    """The answer to DATA of PEER, how often, and after how many ms."""
    if len(data) < HEAD.size or data[:4] != MAGIC:
        return data, 1, 0
    _, flow, seq, reply, copies, delay_ms = HEAD.unpack_from(data)
    if reply == WHO:
        text = f"{peer[0].removeprefix('::ffff:')} {peer[1]} {port}"
        data = data[:HEAD.size] + text.encode()
    elif reply:
        data = data[:HEAD.size] + pattern(flow, seq, reply - HEAD.size)
    return data, copies, delay_ms


def serve(ports):
    late, number = [], 0
    poll = select.epoll()
    socks = {}
    for port in ports:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for room in SO_RCVBUFFORCE, SO_SNDBUFFORCE:  # an answer is not sent a second time
            sock.setsockopt(socket.SOL_SOCKET, room, BUFFER)
        sock.bind(("::", port))
        sock.setblocking(False)
        poll.register(sock, select.EPOLLIN)
        socks[sock.fileno()] = sock, port

    def send(sock, data, peer, copies):
        try:
            for _ in range(copies):
                sock.sendto(data, peer)
        except OSError:  # of an earlier one; or no room
            pass

    while True:
        wait = late[0][0] - time.monotonic() if late else -1
        for fd, _ in poll.poll(max(wait, 0) if late else None):
            sock, port = socks[fd]
            for _ in range(64):
                try:
                    data, peer = sock.recvfrom(65536)
                except OSError:
                    break
                data, copies, delay_ms = answer(data, peer, port)
                if delay_ms:
                    number += 1
                    heapq.heappush(late, (time.monotonic() + delay_ms / 1000, number, sock, data,
                                          peer, copies))
                else:
                    send(sock, data, peer, copies)
        while late and late[0][0] <= time.monotonic():
            send(*heapq.heappop(late)[2:])


class Flow:
    """One socket of the client; at most WINDOW questions have no answer yet."""

    def __init__(self, load, number, target):
        self.load, self.number = load, number
        address, port, *source = target
        self.did = load.did[address]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
        if source:
            self.sock.bind((source[0], 0))
        self.sock.connect((address, port))
        self.sock.setblocking(False)
        self.waiting = {}  # by sequence: bytes, when asked
        self.seq = self.last = self.answers = 0
        self.given_up = set()

    def ask(self, now):
        self.seq += 1
        size = self.load.sizes[(self.number + self.seq) % len(self.load.sizes)]
        data = question(self.number, self.seq, size)
        self.waiting[self.seq] = size, now
        for _ in range(2):
            try:
                self.sock.send(data)
                self.did["sent"] += 1
                self.did["bytes"] += size
                return
            except OSError as error:  # of an earlier one, perhaps
                self.did[f"errno {error.errno}"] += 1

    def hear(self, now):
        """How many questions are answered now."""
        heard = 0
        while True:
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                return heard
            except OSError as error:
                self.did[f"errno {error.errno}"] += 1
                continue
            heard += self.take(data, now)

    def take(self, data, now):
        did = self.did
        flow, seq = HEAD.unpack_from(data)[1:3] if len(data) >= HEAD.size else (0, 0)
        if flow != self.number:
            did["strange"] += 1
        elif seq in self.waiting:
            size, asked = self.waiting.pop(seq)
            did["wrong"] += data != question(flow, seq, size)
            did["disordered"] += seq < self.last
            self.last = max(self.last, seq)
            did["answered"] += 1
            took_ms = (now - asked) * 1000
            if self.load.is_ready:
                did["slowest_ms"] = max(did["slowest_ms"], took_ms)
                did["over_20_ms"] += took_ms > 20
            self.answers += 1
            return 1
        elif seq in self.given_up:
            self.given_up.remove(seq)
            did["late"] += 1
            did["lost" if self.load.is_ready else "lost_early"] -= 1
        else:
            did["wrong" if seq > self.seq else "doubled"] += 1
        return 0

    def give_up(self, before):
        lost = [seq for seq, (_, asked) in self.waiting.items() if asked < before]
        for seq in lost:
            del self.waiting[seq]
            self.given_up.add(seq)
            self.did["lost" if self.load.is_ready else "lost_early"] += 1
        return len(lost)


class Load:
    """TARGETS: addresses, ports, and sources perhaps; FLOWS of each; PACE, RAMP: seconds."""

    def __init__(self, targets, flows, pace, window=1, sizes=(64,), patience=3.0, ramp=0.0,
                 answers=3):
        self.pace, self.sizes, self.patience = pace, sizes, patience
        self.answers = answers
        self.did = collections.defaultdict(collections.Counter)
        self.is_ready = False
        self.flows = [Flow(self, i * len(targets) + n + 1, target)
                      for i in range(flows) for n, target in enumerate(targets)]
        self.poll = select.epoll()
        self.by_fd = {flow.sock.fileno(): flow for flow in self.flows}
        for fd in self.by_fd:
            self.poll.register(fd, select.EPOLLIN)
        start, n = time.monotonic(), len(self.flows)
        self.due = collections.deque((start + ramp * i / n, flow)
                                     for i, flow in enumerate(self.flows) for _ in range(window))

    def turn(self, asking):
        now = time.monotonic()
        while asking and self.due and self.due[0][0] <= now:
            self.due.popleft()[1].ask(now)
        wait = self.due[0][0] - now if asking and self.due else 0.05
        for fd, _ in self.poll.poll(min(max(wait, 0), 0.05)):
            if fd == 0:
                return False
            flow = self.by_fd[fd]
            now = time.monotonic()
            for _ in range(flow.hear(now)):
                self.due.append((now + self.pace, flow))
        return True

    def look_after(self):
        now = time.monotonic()
        for flow in self.flows:
            for _ in range(flow.give_up(now - self.patience) if flow.waiting else 0):
                self.due.append((now + self.pace, flow))
        if not self.is_ready and all(flow.answers >= self.answers for flow in self.flows):
            self.is_ready = True
            print("ready", flush=True)

    def run(self):
        self.poll.register(0, select.EPOLLIN | select.EPOLLHUP)
        looked = time.monotonic()
        while self.turn(True):
            if time.monotonic() > looked + 0.1:
                self.look_after()
                looked = time.monotonic()
        self.poll.unregister(0)
        end = time.monotonic() + self.patience
        while time.monotonic() < end and any(flow.waiting for flow in self.flows):
            self.turn(False)
        for flow in self.flows:
            flow.give_up(float("inf"))
        print(json.dumps(self.did))


def main():
    if sys.argv[1] == "serve":
        serve([int(port) for port in sys.argv[2:]])
    else:
        Load(**json.loads(sys.argv[2])).run()


if __name__ == "__main__":
    main()
