# SPDX-License-Identifier: BSD-2-Clause
"""A daemon takes another one over, by `run --take-over` and by systemd's store, under sessions of each kind.

    clients, each byte compared  -->  culvert, again and again another one  -->  servers

No session ends, and no client is refused.  If the next daemon fails, the one of before goes on.
"""

import array
import collections
import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import resource
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from labkit import RELAY, SERVER, TOP, Daemon, LabError, call_of, expect, wait_until
from server_names import hello_of

pytestmark = pytest.mark.needs("ip", "nft", packages="demo")
ENGINES = "copy", "splice", "sockmap", "auto"
BENCH = os.path.join(TOP, "build/culvert-bench")
SINK, ECHO, DEAF, PARTS, BLOCKED = range(7600, 7605)
LISTEN, DATAGRAMS, TALK, HELD, PARTED, CONNECTS, TOLD, NAMED, SLOW, GONE, ORDERS, PLACES, PATIENCE = range(9600, 9613)
ADDRESS, UDP_ADDRESS = f"{RELAY}:{LISTEN}", f"{RELAY}:{DATAGRAMS}"
ROUNDS = 8
PATTERN = random.Random(7).randbytes(1 << 20)
PARTING = 60_000
CONFIG = f"""[culvert]
session-log = -
max-sessions-per-client = 0
[forward bench]
listen = {ADDRESS}
upstream = {SERVER}:{SINK}
[forward datagrams]
listen = {UDP_ADDRESS}/udp
upstream = {SERVER}:{SINK}
[forward talk]
listen = {RELAY}:{TALK}
upstream = {SERVER}:{ECHO}
[forward orders]
listen = {RELAY}:{ORDERS}
upstream = {SERVER}:{ECHO} {SERVER}:{DEAF}
[forward places]
listen = {RELAY}:{PLACES}
upstream = {SERVER}:{ECHO} max-sessions=1
queue-timeout = 60
[forward patience]
listen = {RELAY}:{PATIENCE}
upstream = {SERVER}:{ECHO} max-sessions=1
queue-timeout = 8
[forward held]
listen = {RELAY}:{HELD}
upstream = {SERVER}:{DEAF}
[forward parted]
listen = {RELAY}:{PARTED}
upstream = {SERVER}:{PARTS}
[forward connects]
listen = {RELAY}:{CONNECTS}
connect-timeout = 30
upstream = {SERVER}:{BLOCKED}
[forward told]
listen = {RELAY}:{TOLD}
proxy-protocol = receive
proxy-timeout = 30
upstream = {SERVER}:{ECHO}
[forward named]
listen = {RELAY}:{NAMED}
hello-timeout = 30
[sni named example.org]
upstream = {SERVER}:{ECHO}
[forward slow]
listen = {RELAY}:{SLOW}
bandwidth = 400k
upstream = {SERVER}:{ECHO}
[forward unix]
listen = {{unix}}
upstream = {SERVER}:{ECHO}
"""
GOING = f"""[forward gone]
listen = {RELAY}:{GONE}
drain-timeout = 60
upstream = {SERVER}:{ECHO}
"""


# --- servers ---

def echo(c):
    while data := c.recv(65536):
        c.sendall(data)


def deaf(c):
    """Reads when there is a file `read`; answers with the digest."""
    digest = hashlib.sha256()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    while data := c.recv(65536):
        digest.update(data)
    c.sendall(digest.digest())


def parts(c):
    c.recv(1)
    c.sendall(PATTERN[:PARTING])
    while fcntl.ioctl(c, termios.TIOCOUTQ, bytes(4)) != bytes(4):
        time.sleep(0.001)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def serve():
    def run(listener, how):
        while True:
            threading.Thread(target=serve_one, args=(listener.accept()[0], how)).start()

    def serve_one(c, how):
        with c, contextlib.suppress(OSError):
            how(c)

    for port, how in (ECHO, echo), (DEAF, deaf), (PARTS, parts), (BLOCKED, echo):
        listener = socket.create_server((SERVER, port), backlog=128)
        threading.Thread(target=run, args=(listener, how)).start()


# --- the lab ---

class Trial:
    def __init__(self, lab, program, engine, pins):
        self.lab, self.engine = lab, engine
        self.unix = lab.path("unix.sock")
        self.read = lab.path("read")
        self.config = lab.write("culvert.conf", CONFIG.format(unix="unix:" + self.unix))
        self.daemon = Daemon(lab, program, engine, (), "--config", self.config, "--graft-pins", pins)
        self.before = []

    def take_over(self):
        self.before.append(self.daemon.take_over())

    def end(self):
        if os.path.exists(self.read):
            os.unlink(self.read)
        self.daemon.stop()
        for process in self.before:
            self.lab.finish(process, 30)

    def connect(self, port, data=b"", room=0):
        with self.lab.inside("client"):
            sock = socket.socket()
        if room:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        sock.settimeout(20)
        sock.connect((RELAY, port))
        sock.sendall(data)
        return sock

    def bench(self, workload, *options, seconds):
        return self.lab.start("client", BENCH, workload, "--seconds", str(seconds), "--verify",
                              "full", *options)


@pytest.fixture(scope="module")
def pins(lab):
    return os.path.join(lab.mount_bpf(), "culvert")


@pytest.fixture(scope="module", autouse=True)
def servers(lab):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    lab.start_server("server", SINK, BENCH, "sink", "--listen", f"{SERVER}:{SINK}")
    lab.start("server", BENCH, "sink", "--protocol", "udp", "--listen", f"{SERVER}:{SINK}")
    lab.start_server("server", ECHO, *call_of("take_over", "serve"), lab.path("read"))


@pytest.fixture
def trial(lab, culvert, engine, pins):
    return Trial(lab, culvert, engine, pins)


def take(sock, n):
    got = b""
    while len(got) < n:
        data = sock.recv(n - len(got))
        expect(data, f"the stream ends after {len(got)} of {n} bytes")
        got += data
    return got


def expect_echo(sock, data):
    sock.sendall(data)
    expect(take(sock, len(data)) == data, "other bytes came back")


def said_of(lab, process, seconds=90):
    process.wait(seconds)
    lab.stop(process)
    with open(process.log, encoding="utf-8") as file:
        text = file.read()
    return json.JSONDecoder().raw_decode(text, text.index("{"))[0]  # a message may follow


def expect_faultless(lab, process, seconds):
    said = said_of(lab, process, seconds)
    expect(not any(said["errors"].values()) and not said["wrong"], f"{process.title}: {said}")


# --- load ---

WORKLOADS = {
    "conversations": ("rr", "--connect", ADDRESS, "--connections", "30"),
    "connections": ("crr", "--connect", ADDRESS, "--connections", "8"),
    "bulk": ("bulk-both", "--connect", ADDRESS, "--connections", "4"),
    "slow": ("slow", "--connect", ADDRESS, "--connections", "4"),
    "datagrams": ("rr", "--protocol", "udp", "--connect", UDP_ADDRESS, "--connections", "10")}


@pytest.mark.parametrize("workload", [
    pytest.param(name, marks=[pytest.mark.quick] if name == "conversations" else [])
    for name in WORKLOADS])
def test_under_load(trial, workload):
    load = trial.bench(*WORKLOADS[workload], seconds=ROUNDS)
    for _ in range(ROUNDS):
        time.sleep(0.3)  # the load goes on
        trial.take_over()
    expect_faultless(trial.lab, load, 60)
    with contextlib.suppress(LabError):  # of TCP none is left
        trial.daemon.command("kill", "--all")
    wait_until(lambda: trial.daemon.ask("status")["resources"]["sessions"] == 0,
               lambda: f"each session to be counted: {trial.daemon.ask('status')['resources']}")


@pytest.mark.engines("copy")
def test_many(trial):
    """20,000 descriptors, or as many as the limit allows. Prints how long sessions have waited."""
    n = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 100)
    with contextlib.ExitStack() as stack:  # cases after a failure need low descriptors
        socks = []
        for _ in range(n):  # one after the other: the server's queue is short
            socks.append(stack.enter_context(trial.connect(TALK)))
            expect_echo(socks[-1], b"before")
        load = trial.bench("rr", "--connect", ADDRESS, "--connections", "16", seconds=ROUNDS)
        for _ in range(ROUNDS):
            time.sleep(0.3)  # the load goes on
            trial.take_over()
            # until then it may accept the next one's request, and refuse that
            trial.before[-1].wait(30)
            print("#", re.search(r"\d+ sessions are taken over.*", trial.daemon.log())[0])
        expect_faultless(trial.lab, load, 60)
        for sock in socks:
            expect_echo(sock, b"after")


# --- sessions of each kind, half way ---

def half_header(trial):
    sock = trial.connect(TOLD, b"PROXY TCP4 10.9.8.7 10.0.1.2 1234")
    yield
    sock.sendall(f" {TOLD}\r\n".encode())
    expect_echo(sock, b"after a header")


def whole_header(trial):
    sock = trial.connect(TOLD, f"PROXY TCP4 10.9.8.7 10.0.1.2 1234 {TOLD}\r\n".encode())
    expect_echo(sock, b"after a header")
    yield
    clients = {s["client"] for s in trial.daemon.ask("sessions")["sessions"]}
    # a grafted session is adopted as one of the proxy, as at each restart
    expect("10.9.8.7:1234" in clients or trial.engine in ("graft", "auto"), f"forgotten: {clients}")
    expect_echo(sock, b"after a hand-over")


def half_hello(trial):
    hello = hello_of("example.org")
    sock = trial.connect(NAMED, hello[:60])
    yield
    sock.sendall(hello[60:])
    expect(take(sock, len(hello)) == hello, "another hello")


def connecting(trial):
    """A SYN is sent again each second."""
    trial.lab.run("server", "nft", "add table ip deaf; add chain ip deaf in { type filter hook input "
                  f"priority 0 ; }}; add rule ip deaf in tcp dport {BLOCKED} drop")
    sock = trial.connect(CONNECTS, b"early bytes")
    time.sleep(0.2)
    yield
    trial.lab.run("server", "nft", "delete table ip deaf")
    expect(take(sock, 11) == b"early bytes", "other bytes came back")


def parting(trial):
    """The server's RST has come, and the client has not read all of its bytes."""
    sock = trial.connect(PARTED, b".", room=4096)
    wait_until(lambda: any(s["forward"] == "parted" and s["state"] == "parting"
                           for s in trial.daemon.ask("sessions")["sessions"]), "the RST")
    yield
    expect(take(sock, PARTING) == PATTERN[:PARTING], "other bytes have come")
    with pytest.raises(ConnectionResetError):
        sock.recv(1)


def held(trial):
    """Buffers, pipes and the backlog of sockmap are full."""
    sock = trial.connect(HELD)
    sock.setblocking(False)
    sent, last = 0, time.monotonic()
    while time.monotonic() < last + 0.5:
        with contextlib.suppress(BlockingIOError):
            sent += sock.send(PATTERN[sent % len(PATTERN):][:65536])
            last = time.monotonic()
        time.sleep(0.001)
    yield
    digest = hashlib.sha256()
    for at in range(0, sent, len(PATTERN)):
        digest.update(PATTERN[:sent - at])
    with open(trial.read, "w", encoding="ascii"):
        pass
    sock.settimeout(30)
    sock.shutdown(socket.SHUT_WR)
    expect(take(sock, 32) == digest.digest(), f"other bytes have come than the {sent} sent")


def half_closed(trial):
    sock = trial.connect(HELD, b"all")
    sock.shutdown(socket.SHUT_WR)
    yield
    with open(trial.read, "w", encoding="ascii"):
        pass
    expect(take(sock, 32) == hashlib.sha256(b"all").digest(), "other bytes have come")
    expect(not sock.recv(1), "no end")


def limited(trial):
    sock = trial.connect(SLOW)
    data = PATTERN[:300_000]
    sender = threading.Thread(target=sock.sendall, args=(data,))
    begin = time.monotonic()
    sender.start()
    yield
    expect(take(sock, len(data)) == data, "other bytes came back")
    sender.join()
    expect(time.monotonic() - begin > 0.4, "the limit is forgotten")


def by_unix(trial):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(trial.unix)
    expect_echo(sock, b"before")
    yield
    expect_echo(sock, b"after")
    again = socket.socket(socket.AF_UNIX)
    again.connect(trial.unix)
    expect_echo(again, b"another")


def ordered(trial):
    """The order of an operator outlives the daemon."""
    trial.daemon.command("upstream", "orders", f"{SERVER}:{DEAF}", "drain")
    trial.daemon.command("upstream", "orders", f"{SERVER}:{DEAF}", "weight", "7")
    sock = trial.connect(ORDERS)
    expect_echo(sock, b"before")
    trial.daemon.command("upstream", "orders", "remove", f"{SERVER}:{ECHO}")
    trial.daemon.command("upstream", "orders", "add", f"{SERVER}:{PARTS}", "backup")
    yield
    servers = next(f for f in trial.daemon.ask("forwards")["forwards"] if f["name"] == "orders")
    expect([(o["order"], o["server"], o["words"]) for o in servers["orders"]][-2:] ==
           [("remove", f"{SERVER}:{ECHO}", ""), ("add", f"{SERVER}:{PARTS}", "backup")],
           f"servers that came and went: {servers}")
    expect(f"{SERVER}:{DEAF}" in json.dumps(servers) and "drain" in json.dumps(servers)
           and '"weight": 7' in json.dumps(servers),
           f"forgotten: {servers}")
    expect_echo(sock, b"after")


def waiting(trial):
    """They have places in the order of before, and wait no longer than they would have."""
    def count():
        return sum(f["waiting"] for f in trial.daemon.ask("forwards")["forwards"])

    def wait_long():
        with pytest.raises(ConnectionResetError):
            late.recv(1)
        waited.append(time.monotonic() - begin)

    has, served, waited = trial.connect(PATIENCE), trial.connect(PLACES), []
    for sock in has, served:
        expect_echo(sock, b"before")
    begin, late = time.monotonic(), trial.connect(PATIENCE)
    late.settimeout(60)
    waiter = threading.Thread(target=wait_long)
    waiter.start()
    socks = []
    for n in range(12):
        wait_until(lambda n=n: count() == n + 1, "one more to wait")
        socks.append(trial.connect(PLACES, b"."))
    time.sleep(max(0, begin + 3 - time.monotonic()))  # of the time-out
    yield
    for n, sock in enumerate(socks):
        served.close()
        ready = select.select(socks[n:], [], [], 20)[0]
        expect(ready == [sock], f"number {n} is passed by {[socks.index(one) for one in ready]}")
        served = sock
    waiter.join()
    expect(7.9 < waited[0] < 10.5, f"one has waited for {waited[0]} s")
    expect_echo(has, b"after")


HALF = (half_header, whole_header, half_hello, connecting, parting, held, half_closed, limited, by_unix,
        ordered, waiting)


@pytest.mark.quick
@pytest.mark.parametrize("kind", HALF)
def test_half_way(trial, kind, request):
    steps = kind(trial)
    next(steps)
    for _ in range(1 if request.config.option.quick else 3):
        trial.take_over()
    for _ in steps:
        pass


def test_gone(trial):
    """A forward that the next daemon has not: its sessions stay at the old one."""
    with open(trial.config, "a", encoding="utf-8") as file:
        file.write(GOING)
    trial.daemon.reload()
    stays, moves = trial.connect(GONE), trial.connect(TALK)
    for sock in stays, moves:
        expect_echo(sock, b"before")
    trial.lab.write("culvert.conf", CONFIG.format(unix="unix:" + trial.unix))
    ended = threading.Event()

    def talk():  # a grafted session returns to its sockets by its packets
        while not ended.wait(0.01):
            expect_echo(stays, b"meanwhile")
    talker = threading.Thread(target=talk)
    talker.start()
    trial.take_over()
    ended.set()
    talker.join()
    for sock in stays, moves:
        expect_echo(sock, b"after")
    with pytest.raises(ConnectionRefusedError):
        trial.connect(GONE)
    expect(trial.before[-1].poll() is None, "the old daemon has ended")
    stays.close()
    trial.lab.finish(trial.before.pop(), 20)
    expect_echo(moves, b"at the end")


@pytest.mark.engines("auto")
def test_other_engine(trial):
    """A daemon that grafts follows one that does not, and back: a grafted session goes on without it."""
    trial.daemon.engine = "copy"
    trial.take_over()
    sock = trial.connect(TALK)
    for engine in "auto", "copy", "auto":
        trial.daemon.engine = engine
        trial.take_over()
        talks = trial.connect(TALK)
        wait_until(lambda: [expect_echo(one, b"on") for one in (sock, talks)] and
                   (grafted(trial) > 0) == (engine == "auto"), f"{engine} to carry")
        talks.close()


# --- faults ---

def start_next(trial, *options, files=None):
    return trial.lab.start("relay", *(["prlimit", f"--nofile={files}"] if files else []),
                           *trial.daemon.call("--take-over", trial.daemon.control, *options))


@pytest.mark.parametrize("fault", ("bad option", "descriptors", "address"))
def test_all_or_nothing(trial, fault):
    """The daemon of before goes on as if nothing had been; a third one can take over."""
    load = trial.bench("rr", "--connect", ADDRESS, "--connections", "20", seconds=3)
    if fault == "address":
        with trial.lab.inside("relay"):
            busy = socket.create_server((RELAY, GONE))
        with open(trial.config, "a", encoding="utf-8") as file:
            file.write(GOING)
    other = start_next(trial, *(["--idle-timeout", "x"] if fault == "bad option" else []),
                       files=40 if fault == "descriptors" else None)
    other.wait(20)
    trial.lab.stop(other)
    expect(other.returncode and trial.daemon.process.poll() is None, "it has taken over")
    if fault == "address":
        busy.close()
    trial.take_over()
    expect_faultless(trial.lab, load, 60)


@pytest.mark.quick
def test_two_at_once(trial):
    """One of two takes over; or one takes the other one over. A third one does, then."""
    load = trial.bench("rr", "--connect", ADDRESS, "--connections", "20", seconds=8)
    sock = trial.connect(TALK)
    for pause in 0, 0, 0.02, 0.1:
        first = trial.daemon.process
        others = [start_next(trial)]
        time.sleep(pause)
        others.append(start_next(trial))
        wait_until(lambda ps=(first, *others): sum(p.poll() is None for p in ps) == 1,
                   "one daemon to be left", 30)
        last = next(p for p in others if p.poll() is None)
        loser = next(p for p in others if p is not last)
        trial.daemon.process = last
        with open(loser.log, encoding="utf-8") as file:
            text = file.read()
        expect(first.returncode == 0 and bool(loser.returncode) == ("are handed over" not in text),
               f"{first.returncode}, {loser.returncode}: {text}")
        for process in first, loser:
            trial.lab.stop(process)
        expect_echo(sock, b"on")
        expect({trial.daemon.ask("status")["pid"] for _ in range(8)} == {last.pid}, "who answers?")
        trial.take_over()
        trial.lab.finish(trial.before.pop(), 20)
        expect_echo(sock, b"after")
    expect_faultless(trial.lab, load, 60)


def pass_bundle(sock, records=b""):
    """See user/base/bundle.c."""
    fd = os.memfd_create("bundle")
    os.write(fd, records)
    socket.send_fds(sock, [struct.pack("=QQQ", 0, len(records), 1)], [fd])
    os.close(fd)


def get_bundle(sock):
    fds, n_fds = [], 1
    while len(fds) < n_fds:
        data, more, _, _ = socket.recv_fds(sock, 24, 253)
        at, n, n_fds = struct.unpack("=QQQ", data)
        fds += more
    records = os.pread(fds[0], n, at)
    for fd in fds:
        os.close(fd)
    return records


def test_refused(trial):
    """A daemon hands itself over to one at a time, and says so if it goes on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(trial.daemon.control)
        sock.sendall(b'{"command":"hand-over"}\n')
        line = b""
        while not line.endswith(b"\n"):
            line += sock.recv(1)
        expect(json.loads(line)["pid"] == trial.daemon.process.pid, f"{line}")
        get_bundle(sock)
        other = start_next(trial)
        other.wait(20)
        with open(other.log, encoding="utf-8") as file:
            expect(other.returncode == 1 and "another take-over is under way" in file.read(),
                   f"{other.returncode}")
        trial.lab.stop(other)
        with open(trial.config, "a", encoding="utf-8") as file:
            file.write(GOING)
        trial.daemon.reload()
        pass_bundle(sock)
        expect(b"the configuration has changed" in get_bundle(sock), "another word")
        expect(not sock.recv(1), "no end")
    trial.take_over()


def test_killed(trial, request):
    """So it does if the next one is killed, unless that one has all already."""
    chance, survived = random.Random(request.config.option.seed), 0
    for _ in range(12):
        sock = trial.connect(TALK)
        expect_echo(sock, b"before")
        other = start_next(trial)
        time.sleep(chance.uniform(0, 0.06 if trial.engine != "auto" else 0.2))
        other.kill()
        trial.lab.stop(other)
        with contextlib.suppress(subprocess.TimeoutExpired):
            trial.daemon.process.wait(0.2)
        if trial.daemon.process.poll() is None:
            expect_echo(sock, b"after")
            survived += 1
        else:
            trial.daemon.start()
    expect(survived, "each time the next one had all")


def test_storm(trial, request):
    """`--storm SECONDS`: another daemon each 200 ms under all workloads; either is killed at random."""
    chance, end = random.Random(request.config.option.seed), \
        time.monotonic() + request.config.option.storm
    rounds = collections.Counter()
    while time.monotonic() < end:
        loads = [trial.bench(*WORKLOADS[name], seconds=2) for name in WORKLOADS]
        killed = False
        for _ in range(8):
            begin = time.monotonic()
            fault = chance.choice(("", "", "next", "old"))
            old, other = trial.daemon.process, start_next(trial)
            if fault:
                time.sleep(chance.uniform(0, 0.2))
                (other if fault == "next" else old).kill()
            # one of both is left, or none
            wait_until(lambda: old.poll() is not None or other.poll() is not None, "an end", 30)
            if fault == "next" and old.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    old.wait(1)  # the other one may have had all
            if old.poll() is not None:
                trial.lab.stop(old)
                trial.daemon.process = other
            else:
                trial.lab.stop(other)
            rounds[fault] += 1
            if fault and old.poll() is not None and other.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    other.wait(1)  # it may yet find out that it has nothing
            killed = killed or bool(fault) and old.poll() is not None
            if trial.daemon.process.poll() is not None:
                trial.daemon.start()
            time.sleep(max(0, begin + 0.2 - time.monotonic()))
        for load in loads:
            said = said_of(trial.lab, load)
            expect(not said["wrong"], f"{load.title}: {said}")
            expect(killed or not any(said["errors"].values()), f"{load.title}: {said}")
    print("#", trial.engine, dict(rounds))


# --- systemd's store ---

BECOME = """import os, sys
os.environ["NOTIFY_SOCKET"], at = sys.argv[1], 2
if sys.argv[2].isdigit():
    at = 3
    os.dup2(int(sys.argv[2]), 3)
    os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="culvert-hand-over")
os.execv(sys.argv[at], sys.argv[at:])
"""


class Store:
    """The end of systemd to which NOTIFY_SOCKET leads."""

    def __init__(self, path):
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(path)
        os.chmod(path, 0o777)
        self.sock.settimeout(20)

    def by(self, fd=None):
        return (sys.executable, "-c", BECOME, self.path, *([str(fd)] if fd else []))

    def get(self):
        """The descriptor that a daemon has left."""
        while True:
            data, more, _, _ = self.sock.recvmsg(4096, socket.CMSG_SPACE(4))
            fds = array.array("i")
            for _, _, part in more:
                fds.frombytes(part)
            if b"FDSTORE=1" in data.split(b"\n"):
                expect(b"FDNAME=culvert-hand-over" in data, f"its name: {data}")
                return fds[0]


    def restart(self, trial, program):
        before = trial.daemon.process
        trial.daemon.command("hand-over", "--store")
        fd = self.get()
        trial.lab.finish(before, 20)
        trial.daemon.program = program
        trial.daemon.start(by=self.by(fd), fds=(fd,))
        os.close(fd)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_store(trial, workload):
    """As `systemctl restart` does; new clients wait."""
    store = Store(trial.lab.path(f"notify.{trial.engine}.{workload}"))
    trial.daemon.stop()
    trial.daemon.start(by=store.by())
    load = trial.bench(*WORKLOADS[workload], seconds=ROUNDS)
    for _ in range(3):
        time.sleep(0.3)  # the load goes on
        store.restart(trial, trial.daemon.program)
    if (trial.engine, workload) != ("sockmap", "slow"):
        expect_faultless(trial.lab, load, 60)
        return
    said = said_of(trial.lab, load)  # nobody can read sockmap's queues: their sessions end
    expect(not said["wrong"] and not said["errors"]["short"], f"{said}")


# --- versions ---

@pytest.fixture(name="other", scope="session")
def _other(tmp_path_factory):
    """This version, but for the number of its layout: it has maps of its own."""
    top = tmp_path_factory.mktemp("other")
    for name in "Makefile", "bpf", "user", "include", "vmlinux", "scripts", "docs":
        subprocess.run(["cp", "-r", os.path.join(TOP, name), top], check=True)
    for name in "graft_contract.h", "udp_contract.h":
        path = top / "include" / name
        path.write_text(re.sub(r"(GRAFT_LAYOUT (== )?)\d+", r"\g<1>999", path.read_text()))
    subprocess.run(["make", "-s", "-j2", "-C", top, "build/culvert"], check=True)
    return str(top / "build/culvert")


def start_load(trial):
    load = trial.bench("rr", "--connect", ADDRESS, "--connections", "30", seconds=20)
    wait_until(lambda: grafted(trial) >= 30, "grafted sessions")
    return load


def grafted(trial):
    return sum(s["flows"][0]["carrier"] == "graft" for s in trial.daemon.ask("sessions")["sessions"])


@pytest.mark.engines("auto")
def test_other_layout(trial, other):
    """Grafted sessions get new maps, there and back."""
    load, own = start_load(trial), trial.daemon.program
    for program in other, own, other, own:
        trial.daemon.program = program
        trial.take_over()
        trial.lab.finish(trial.before.pop(), 20)
        wait_until(lambda: grafted(trial) >= 30, "adoptions")
    expect_faultless(trial.lab, load, 60)


@pytest.mark.engines("auto")
def test_other_layout_of_store(trial, other):
    """The same by `systemctl restart`, as after an upgrade."""
    store, own = Store(trial.lab.path("notify.layout")), trial.daemon.program
    trial.daemon.stop()
    trial.daemon.start(by=store.by())
    load = start_load(trial)
    for program in other, own:
        store.restart(trial, program)
        wait_until(lambda: grafted(trial) >= 30, "adoptions")
    expect_faultless(trial.lab, load, 60)
