#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The ends of sessions whose relay dies: each byte is known, each end is told.

standby_peer.py serve PORT...
standby_peer.py talk ADDRESS PORT KIND N [SOURCE...]

A connection begins with the letter of its KIND:

  e  echo: what comes goes back
  d  download: the server sends the pattern until a byte comes, then ends
  s  slow download: the client reads each second alone, so its window is zero between
  u  upload: the server answers the end with how much came, and how much of it was wrong
  n  "e" for two seconds at most, and then a new connection, again and again
  g  "e", slowly, until "fin"; then 400 kB at once go both ways
  h  half: what comes goes back; the server answers the end, five seconds later, with "bye"

A PROXY header (v2) before it is skipped.  "talk" keeps N connections, each to an address of its own
where ADDRESS is a network.  On stdin, one a line:
"ask": idle ones (KIND "i", which is "e" to the server) say something; "fin": see above; "gap":
the longest gap is counted anew.  At the end of stdin all end.  It prints "ready", a line of JSON
for each word, and one at the end:
{"answered", "wrong", "reset", "silent", "ended", "bytes", "gap_ms", "ports": local ones, but of
KIND "n"; "lost": [[local port, "reset" or "silent", when it began, was connected (or null), and was
lost]]}.
"""

import asyncio
import collections
import ipaddress
import json
import os
import random
import socket
import sys
import threading
import time

PERIOD = 1000003
CHUNK = 1 << 17
PATTERN = random.Random(7).randbytes(PERIOD)
PATTERN += PATTERN[:CHUNK]
PATIENCE = 15


def wrong_bytes(at, data):
    if PATTERN[at % PERIOD:at % PERIOD + len(data)] == data:
        return 0
    return sum(a != b for a, b in zip(data, PATTERN[at % PERIOD:]))


# --- servers ---

def echo(c):
    while data := c.recv(65536):
        c.sendall(data)


def download(c):
    stop = threading.Event()

    def listen():
        try:
            c.recv(1)
        except OSError:
            pass
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    at = 0
    while not stop.is_set():
        at += c.send(memoryview(PATTERN)[at % PERIOD:at % PERIOD + CHUNK])


def upload(c):
    at = wrong = 0
    while data := c.recv(CHUNK):
        wrong += wrong_bytes(at, data)
        at += len(data)
    c.sendall(b"%d %d" % (at, wrong))


def half(c):
    while data := c.recv(1000):
        c.sendall(data)
    time.sleep(5)
    c.sendall(b"bye")


SERVE = {b"e": echo, b"g": echo, b"d": download, b"s": download, b"u": upload, b"h": half}


def read(c, n):
    data = b""
    while len(data) < n:
        more = c.recv(n - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def serve_one(c):
    try:
        kind = read(c, 1)
        if kind == b"\r":
            head = read(c, 15)
            read(c, int.from_bytes(head[13:15], "big"))
            kind = read(c, 1)
        c.sendall(b"!")
        SERVE[kind](c)
        c.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    c.close()


def serve(port):
    listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=4096,
                                    dualstack_ipv6=True)
    while True:
        c, _ = listener.accept()
        threading.Thread(target=serve_one, args=(c,), daemon=True).start()


# --- clients ---

class Clients:
    """N connections of a kind."""

    def __init__(self, address, port, kind, sources):
        self.address, self.port, self.kind, self.sources = address, port, kind, sources
        self.did = collections.Counter()
        self.gap = 0.0
        self.lost, self.ports = [], []
        self.stop = asyncio.Event()
        self.fin = asyncio.Event()
        self.asked = asyncio.Event()

    async def connect(self, number):
        source = (self.sources[number % len(self.sources)], 0) if self.sources else None
        address = (str(ipaddress.ip_network(self.address)[number]) if "/" in self.address
                   else self.address)
        r, w = await asyncio.open_connection(address, self.port, local_addr=source,
                                             limit=1 << 20)
        w.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return r, w

    async def greet(self, r, w):
        w.write(b"e" if self.kind in "in" else self.kind.encode())
        if await asyncio.wait_for(r.readexactly(1), PATIENCE) != b"!":
            raise ConnectionResetError
        for _ in range(3):  # both ways, so that it can be grafted even if routes change meanwhile
            if self.kind in "egihn":
                w.write(b"hello")
                await asyncio.wait_for(r.readexactly(5), PATIENCE)

    async def exchange(self, r, w, size=0):
        data, start = os.urandom(size or random.randrange(1, 3000)), time.monotonic()
        w.write(data)
        got = await asyncio.wait_for(r.readexactly(len(data)), PATIENCE)
        self.did["wrong"] += got != data
        self.did["answered"] += 1
        self.did["bytes"] += 2 * len(data)
        self.gap = max(self.gap, time.monotonic() - start)

    async def expect_end(self, r, said=b""):
        got = await asyncio.wait_for(r.read(), PATIENCE)
        self.did["wrong"] += got != said
        self.did["ended"] += 1

    async def e(self, r, w):
        while not self.stop.is_set():
            await self.exchange(r, w)
            await asyncio.sleep(0.002)
        w.write_eof()
        await self.expect_end(r)

    async def g(self, r, w):
        while not self.fin.is_set():
            await self.exchange(r, w)
            await asyncio.sleep(0.05)
        await self.exchange(r, w, 400_000)
        await self.stop.wait()
        w.write_eof()
        await self.expect_end(r)

    async def i(self, r, w):
        while not self.stop.is_set():
            await self.asked.wait()
            if not self.stop.is_set():
                await self.exchange(r, w)
            await asyncio.sleep(0.05)  # until all were asked
        w.write_eof()
        await self.expect_end(r)

    async def d(self, r, w):
        at = 0
        while not self.stop.is_set():
            at += await self.take(r, at)
            await asyncio.sleep(self.kind == "s")
        w.write(b".")
        while n := await self.take(r, at):
            at += n
        self.did["bytes"] += at
        self.did["ended"] += 1

    s = d

    async def take(self, r, at):
        start = time.monotonic()
        data = await asyncio.wait_for(r.read(CHUNK), PATIENCE)
        self.gap = max(self.gap, time.monotonic() - start)
        self.did["wrong"] += wrong_bytes(at, data)
        return len(data)

    async def u(self, r, w):
        at = 0
        while not self.stop.is_set():
            start = time.monotonic()
            w.write(PATTERN[at % PERIOD:at % PERIOD + CHUNK])
            await asyncio.wait_for(w.drain(), PATIENCE)
            self.gap = max(self.gap, time.monotonic() - start)
            at += CHUNK
        w.write_eof()
        self.did["bytes"] += at
        await self.expect_end(r, b"%d 0" % at)

    async def h(self, r, w):
        await self.fin.wait()
        w.write_eof()
        await self.expect_end(r, b"bye")

    async def n(self, r, w):
        end = time.monotonic() + 2 * random.random()
        while not self.stop.is_set() and time.monotonic() < end:
            await self.exchange(r, w)
            await asyncio.sleep(0.02)
        w.write_eof()
        await self.expect_end(r)

    async def run(self, number, ready):
        while True:
            began, connected, w = time.monotonic(), None, None
            try:
                r, w = await self.connect(number)
                connected = time.monotonic()
                if self.kind != "n":
                    self.ports.append(w.get_extra_info("sockname")[1])
                await self.greet(r, w)
                ready.release()
                await getattr(self, self.kind)(r, w)
                w.close()
            except asyncio.TimeoutError:
                self.lose("silent", w, began, connected)
            except (OSError, asyncio.IncompleteReadError):
                self.lose("reset", w, began, connected)
            ready.release()
            if self.kind != "n" or self.stop.is_set():
                return

    def lose(self, how, w, *times):
        self.did[how] += 1
        self.lost.append((w.get_extra_info("sockname")[1] if w else 0, how, *times,
                          time.monotonic()))

    def report(self):
        print(json.dumps({"gap_ms": round(self.gap * 1000), "lost": self.lost,
                          "ports": self.ports, **self.did}),
              flush=True)

    async def main(self, n):
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        ready = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(self.run(number, ready)) for number in range(n)]
        for _ in range(n):
            await ready.acquire()
        print("ready", flush=True)
        while line := (await lines.readline()).strip():
            if line == b"fin":
                self.fin.set()
            elif line == b"ask":
                before = self.did["answered"]
                self.asked.set()
                await asyncio.sleep(0.04)
                self.asked.clear()
                end = time.monotonic() + PATIENCE
                while self.did["answered"] - before < n - self.did["reset"] - self.did["silent"] \
                        and time.monotonic() < end:
                    await asyncio.sleep(0.01)
            self.report()
            if line == b"gap":
                self.gap = 0.0
        self.stop.set()
        self.fin.set()
        self.asked.set()
        await asyncio.gather(*tasks)
        self.report()


def main():
    if sys.argv[1] == "serve":
        threading.stack_size(1 << 17)
        for port in sys.argv[2:]:
            threading.Thread(target=serve, args=(int(port),)).start()
        return
    address, port, kind, n, *sources = sys.argv[2:]
    asyncio.run(Clients(address, int(port), kind, sources).main(int(n)))


main()
