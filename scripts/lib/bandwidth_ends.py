# SPDX-License-Identifier: BSD-2-Clause
"""Both ends of the connections that lib/bandwidth.py measures: who sends always sends.

    bandwidth_ends.py server HOST PORT...
    bandwidth_ends.py client HOST SECONDS PORT:CONNECTIONS:WAYS...

WAYS is of up, down and both; the client says it with the first byte of each connection. Each end
counts what it receives in steps of 10 ms of the monotonic clock, which both share, and prints it as
JSON: {port: [{"first": step, "counts": [bytes, ...]} for each connection]}. The client ends after
SECONDS, the server when it is told to (TERM), and both with resets: what is under way then would
take a slow limit minutes.
"""

import json
import select
import signal
import socket
import struct
import sys
import time

STEPS_PER_SECOND = 100
PIECE = 256 << 10
SENDS = {"client": (b"u", b"b"), "server": (b"d", b"b")}
RESET = struct.pack("ii", 1, 0)


class Ends:
    def __init__(self, role):
        self._sends = SENDS[role]
        self._data = memoryview(bytes(PIECE))
        self._buffer = memoryview(bytearray(PIECE))
        self._epoll = select.epoll()
        self._handlers = {}
        self._sockets = []
        self.received = {}

    def watch(self, sock, events, handler):
        self._handlers[sock.fileno()] = handler
        self._sockets.append(sock)
        self._epoll.register(sock.fileno(), events)

    def connection(self, sock, port, word):
        """WORD: which ways it is used, if that is known."""
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        record = {"first": int(time.monotonic() * STEPS_PER_SECOND), "counts": []}
        self.received.setdefault(port, []).append(record)
        events = select.EPOLLIN | (select.EPOLLOUT if word in self._sends else 0)
        self.watch(sock, events, lambda found: self._transfer(sock, record, found))

    def _transfer(self, sock, record, found):
        try:
            if found & select.EPOLLOUT:
                sock.send(self._data)
            if found & ~select.EPOLLOUT:
                self._receive(sock, record)
        except BlockingIOError:
            pass

    def _receive(self, sock, record):
        n = sock.recv_into(self._buffer)
        if not n:
            raise ConnectionError("a connection has ended")
        counts = record["counts"]
        if not record.setdefault("word", None) and self._sends == SENDS["server"]:
            record["word"] = bytes(self._buffer[:1])
            if record["word"] in self._sends:
                self._epoll.modify(sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            n -= 1
        step = int(time.monotonic() * STEPS_PER_SECOND) - record["first"]
        counts.extend([0] * (step + 1 - len(counts)))
        counts[step] += n

    def run(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for fd, found in self._epoll.poll(left):
                self._handlers[fd](found)

    def close(self):
        for sock in self._sockets:
            sock.close()

    def report(self):
        return {port: [{"first": record["first"], "counts": record["counts"]}
                       for record in records] for port, records in self.received.items()}


def serve(ends, host, ports):
    def accepter(listener, port):
        def accept(_):
            ends.connection(listener.accept()[0], port, None)
        return accept

    for port in ports:
        listener = socket.create_server((host, int(port)), backlog=1024)
        ends.watch(listener, select.EPOLLIN, accepter(listener, port))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        ends.run(3600)
    except (ConnectionError, SystemExit):
        pass  # the client has ended


def connect(ends, host, seconds, flows):
    for flow in flows:
        port, connections, ways = flow.split(":")
        for _ in range(int(connections)):
            sock = socket.create_connection((host, int(port)), timeout=10)
            sock.send(ways[:1].encode())
            ends.connection(sock, port, ways[:1].encode())
    ends.run(float(seconds))


def main():
    role, host, *rest = sys.argv[1:]
    ends = Ends(role)
    if role == "server":
        serve(ends, host, rest)
    else:
        connect(ends, host, rest[0], rest[1:])
    report = ends.report()
    ends.close()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
