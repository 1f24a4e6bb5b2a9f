#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The two ends of the benchmark's transfers over paths, as programs of their own.

    bench_paths_peer.py server ADDRESS PORT    a line {"number", "bytes", "ended", "wrong"} on
                                               stdout for each connection that it has received from
    bench_paths_peer.py client                 a task on each line of stdin, its outcome on stdout

A connection begins with a header: what is wanted. Both ends know what must be at each place of the
payload, and give up at the deadline in the header: CLOCK_MONOTONIC is the same for all namespaces.
"""

import json
import random
import socket
import struct
import sys
import threading
import time

HEADER = struct.Struct("<QQqQ16s16s")  # number, size, deadline in ns, message, kind, congestion
CHUNK = 1 << 18
# Of a prime length, so that no piece of it stands at a power of two again.
PATTERN_LENGTH = 1_048_573
PATTERN = random.Random(7).randbytes(PATTERN_LENGTH)
PATTERN_TWICE = memoryview(PATTERN + PATTERN[:CHUNK])
SAMPLE = 64
ABORT = struct.pack("ii", 1, 0)


def now():
    return time.monotonic_ns()


def set_congestion(sock, name):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def set_deadline(sock, deadline):
    """Raises TimeoutError once it is over."""
    left = (deadline - now()) / 1e9
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def is_wrong(chunk, offset):
    """Whether the first or the last bytes of CHUNK are not those of the pattern at OFFSET."""
    first = offset % PATTERN_LENGTH
    last = max(len(chunk) - SAMPLE, 0)
    place = (offset + last) % PATTERN_LENGTH
    return chunk[:SAMPLE] != PATTERN_TWICE[first:first + min(SAMPLE, len(chunk))] or \
        chunk[last:] != PATTERN_TWICE[place:place + len(chunk) - last]


def send_pattern(sock, size, deadline):
    offset = 0
    while offset < size:
        place = offset % PATTERN_LENGTH
        set_deadline(sock, deadline)
        offset += sock.send(PATTERN_TWICE[place:place + min(CHUNK, size - offset)])


class Received:
    """The bytes of one connection that have come."""

    def __init__(self):
        self.bytes = self.ended = self.wrong = 0

    def receive(self, sock, size, deadline):
        """Until SIZE bytes are there, or the deadline, or the peer's end."""
        buffer = memoryview(bytearray(CHUNK))
        try:
            while self.bytes < size:
                set_deadline(sock, deadline)
                count = sock.recv_into(buffer, min(CHUNK, size - self.bytes))
                if not count:
                    return
                self.wrong += is_wrong(buffer[:count], self.bytes)
                self.bytes += count
                self.ended = now()
        except OSError:
            pass


def receive_exactly(sock, size, deadline):
    buffer, got = bytearray(size), 0
    while got < size:
        set_deadline(sock, deadline)
        count = sock.recv_into(memoryview(buffer)[got:])
        if not count:
            raise OSError("the peer has ended")
        got += count
    return buffer


def converse(sock, message, deadline, begins):
    """Messages back and forth; returns how long each round took, in us, and how many were wrong."""
    said = bytes(PATTERN[:message])
    rounds, wrong = [], 0
    try:
        while True:
            began = now()
            if begins:
                sock.sendall(said)
            wrong += receive_exactly(sock, message, deadline) != said
            if not begins:
                sock.sendall(said)
            rounds.append((now() - began) // 1000)
    except OSError:
        return rounds, wrong


def transfer(sock, kind, size, deadline, is_client):
    """Both ways of one connection; returns what has come, and once all that is to go has gone."""
    received = Received()
    sends = kind == "both" or (kind == "upload") == is_client
    receives = kind == "both" or (kind == "download") == is_client
    thread = threading.Thread(target=received.receive, args=(sock, size, deadline))
    if receives:
        thread.start()
    if sends:
        try:
            send_pattern(sock, size, deadline)
        except OSError:
            pass
    if receives:
        thread.join()
    return received


def close(sock, deadline):
    """In order if there is time left: else what is under way must not disturb the next one."""
    try:
        set_deadline(sock, deadline)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(CHUNK):
            set_deadline(sock, deadline)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    sock.close()


# ---- the server ---------------------------------------------------------------------------------

_output = threading.Lock()


def say(**what):
    with _output:
        print(json.dumps(what), flush=True)


def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.settimeout(10)
        header = sock.recv(HEADER.size, socket.MSG_WAITALL)
        number, size, deadline, message, kind, congestion = HEADER.unpack(header)
        set_congestion(sock, congestion.rstrip(b"\0").decode())
    except (OSError, struct.error):
        sock.close()
        return
    kind = kind.rstrip(b"\0").decode()
    if kind == "converse":
        converse(sock, message, deadline, False)
    else:
        received = transfer(sock, kind, size, deadline, False)
        if kind != "download":
            say(number=number, bytes=received.bytes, ended=received.ended, wrong=received.wrong)
    close(sock, deadline)


def run_server(address, port):
    listener = socket.create_server((address, int(port)), backlog=1024)
    while True:
        sock, _peer = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


# ---- the client ---------------------------------------------------------------------------------


def connect(task, number, deadline):
    sock = socket.socket()
    set_congestion(sock, task["congestion"])
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_deadline(sock, deadline)
    sock.connect((task["address"], task["port"]))
    set_deadline(sock, deadline)
    sock.sendall(HEADER.pack(number, task["size"], deadline, task["size"], task["kind"].encode(),
                             task["congestion"].encode()))
    return sock


def run_connection(task, number, began, outcome):
    """OUTCOME, a list, gets {"number", "bytes", "ended", "wrong", "rounds", "error"}."""
    deadline = began + int(task["seconds"] * 1e9)
    found = {"number": number, "bytes": 0, "ended": 0, "wrong": 0, "rounds": [], "error": None}
    try:
        sock = connect(task, number, deadline)
    except OSError as error:
        outcome.append({**found, "error": f"{type(error).__name__}: {error}"})
        return
    if task["kind"] == "converse":
        found["rounds"], found["wrong"] = converse(sock, task["size"], deadline, True)
    else:
        received = transfer(sock, task["kind"], task["size"], deadline, True)
        found.update(bytes=received.bytes, ended=received.ended, wrong=received.wrong)
    outcome.append(found)
    close(sock, deadline)


def run_task(task):
    outcome, began = [], now()
    threads = [threading.Thread(target=run_connection, args=(task, number, began, outcome))
               for number in task["numbers"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"began": began, "connections": outcome}


def run_client():
    for line in sys.stdin:
        say(**run_task(json.loads(line)))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        run_server(*sys.argv[2:])
    else:
        run_client()
