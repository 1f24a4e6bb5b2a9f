# SPDX-License-Identifier: BSD-2-Clause
"""Several servers of one forward: which one gets a session, and who is served when they fail.

    clients from 16 addresses  -->  culvert  -->  servers, each says its name

Servers refuse, fall silent, are killed and started again under load; each client must be served as
long as one server lives.
"""

import collections
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from random import Random

import pytest
from labkit import RELAY, SERVER, Daemon, LabError, expect, wait_until

pytestmark = pytest.mark.needs("ip", "nft", "pgrep", "socat")
# "kernel": auto, and sessions of known clients begin in the kernel
ENGINES = "auto", "kernel"
LISTEN = 9100
PORTS = [7101, 7102, 7103, 7104]
NAMES = [f"{SERVER}:{port}" for port in PORTS]
A, B, C = NAMES[:3]
CLIENTS = [f"10.0.1.{n}" for n in range(11, 27)]
CALM = 0.8  # seconds of load before and after each fault
# At least one server is well at any time.
FAULTS = (("reject with tcp reset", (7101, 7102)), ("drop", (7103,)), ("kill", (7101, 7102)),
          ("drop", (7102, 7103)), ("kill", (7103,)))

# HOW COUNT: connections one after the other, or (load) 16 at a time until stdin ends; prints
# what became of them. "keep" keeps them open until stdin ends; HOW may be how many begin in a
# second. `lost`: refused before a server spoke; `late`: it has spoken after more than 150 ms.
CLIENT = """
import asyncio, json, sys, time
how, count = sys.argv[1], int(sys.argv[2])
clients = [f"10.0.1.{n}" for n in range(11, 27)]
did = {"servers": {}, "lost": 0, "cut": 0, "late": 0, "slowest_ms": 0}
kept = []
async def talk(source):
    start = time.monotonic()
    try:
        r, w = await asyncio.open_connection("10.0.1.2", 9100, local_addr=(source, 0))
        name = (await r.readuntil(b"\\n")).decode().strip()
    except (OSError, asyncio.IncompleteReadError):
        did["lost"] += 1
        return
    took_ms = (time.monotonic() - start) * 1000
    did["slowest_ms"] = max(did["slowest_ms"], took_ms)
    did["late"] += took_ms > 150
    did["servers"][name] = did["servers"].get(name, 0) + 1
    try:
        w.write(b"x" * 200)
        did["cut"] += await r.readexactly(200) != b"x" * 200
        if how == "keep":
            kept.append(w)
            return
        w.close()
        await w.wait_closed()
    except (OSError, asyncio.IncompleteReadError):
        did["cut"] += 1
async def load(source, ended):
    while not ended.is_set():
        await talk(source)
        await asyncio.sleep(0.02)
async def in_time(n, start):
    await asyncio.sleep(start + n / int(how) - time.monotonic())
    await talk(clients[n % len(clients)])
async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    if how == "load":
        await asyncio.gather(*(load(source, ended) for source in clients))
    elif how.isdigit():
        await asyncio.gather(*(in_time(n, time.monotonic()) for n in range(count)))
    else:
        for n in range(count):
            await talk(clients[n % len(clients)])
    print(json.dumps(did), flush=True)
    if how == "keep":
        await ended.wait()
asyncio.run(main())
"""

# By HTTP at 720n, and as Redis at 730n, by TCP and UDP: is 710n the primary that the file names?
CHECKED = """
import socketserver, sys, threading
def leads(port):
    with open(sys.argv[1]) as file:
        return int(file.read()) % 100 == port % 100
class Http(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip():
            pass
        status = b"200 OK" if leads(self.server.server_address[1]) else b"503 Replica"
        self.wfile.write(b"HTTP/1.1 " + status + b"\\r\\nContent-Length: 0\\r\\n\\r\\n")
class Redis(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            role = b"master" if leads(self.server.server_address[1]) else b"slave"
            self.wfile.write(b"$99\\r\\n# Replication\\r\\nrole:" + role + b"\\r\\n")
class Datagram(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        sock.sendto(b"master" if leads(self.server.server_address[1]) else b"slave", self.client_address)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.request_queue_size = 100
for n in 1, 2:
    for kind, how, port in ((socketserver.ThreadingTCPServer, Http, 7200 + n),
                            (socketserver.ThreadingUDPServer, Datagram, 7300 + n),
                            (socketserver.ThreadingTCPServer, Redis, 7300 + n)):
        threading.Thread(target=kind(("10.0.2.2", port), how).serve_forever).start()
"""


class Trial:
    """A lab with servers, and a daemon with a configuration file."""

    def __init__(self, lab, program, engine):
        self.lab = lab
        self.program = program
        self.options = ("--set-up", "kernel") if engine == "kernel" else ()
        self.daemon = None
        self.servers = {}
        for port in PORTS:
            self.serve(port)
        self.rules("add table inet faults")
        self.rules("add chain inet faults in { type filter hook input priority 0 ; }")

    def serve(self, port):
        self.servers[port] = self.lab.start_echo("server", port, str(port))

    def rules(self, text):
        self.lab.run("server", "nft", text)

    def fault(self, port, verdict):
        """New connections to PORT are refused ("reject with tcp reset") or unheard ("drop")."""
        self.rules(f"add rule inet faults in tcp dport {port} tcp flags & (syn|ack) == syn {verdict}")

    def heal(self):
        self.rules("flush chain inet faults in")

    def write_config(self, upstream, *lines):
        return self.lab.write("culvert.conf", "\n".join((
            "[forward web]", f"listen = {RELAY}:{LISTEN}", f"upstream = {upstream}", *lines, "")))

    def begin(self, upstream, *lines, options=()):
        self.daemon = Daemon(self.lab, self.program, "auto", (), "--config",
                             self.write_config(upstream, *lines), *options, *self.options)

    def reload(self, upstream, *lines):
        self.write_config(upstream, *lines)
        self.daemon.reload()

    def end(self):
        self.heal()
        if self.daemon:
            expect(self.daemon.stop() == 0, "the daemon did not stop in order")
        self.daemon = None

    def leave(self):
        for server in self.servers.values():
            self.lab.stop(server)
        self.rules("delete table inet faults")

    def server(self, where):
        """WHERE: a port of SERVER, or all of its name."""
        name = f"{SERVER}:{where}" if isinstance(where, int) else where
        return next(s for s in self.daemon.ask("forwards")["forwards"][0]["servers"]
                    if s["server"] == name)

    def wait_state(self, port, *states):
        wait_until(lambda: self.server(port)["state"] in states, f"{port} to be {states}")

    def counter(self, name):
        """The kernel's counter NAME of the servers' network namespace."""
        for table in ("snmp", "netstat"):
            path = f"/proc/{self.servers[7101].pid}/net/{table}"
            with open(path, encoding="ascii") as file:
                rows = [line.split() for line in file]
            for names, values in zip(rows[::2], rows[1::2]):
                if name in names:
                    return int(values[names.index(name)])
        raise LabError(f"no counter {name}")

    def errors(self):
        return self.daemon.ask("status")["errors"]

    def start_clients(self, how, count=0):
        return self.lab.start("client", sys.executable, "-c", CLIENT, how, str(count),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def finish_clients(self, process):
        process.stdin.close()
        line = process.stdout.readline()
        self.lab.finish(process, 30)
        return json.loads(line)

    def shares(self, count):
        did = self.finish_clients(self.start_clients("one", count))
        expect(not did["lost"] and not did["cut"], f"clients were not served: {did}")
        return {int(port): n for port, n in did["servers"].items()}

    def logged(self, text):
        log = self.daemon.log()
        expect(text in log, f"the log lacks {text!r}: {log[-2000:]}")

    def refused(self):
        """Clients that were refused because of a server; not: whose server has died meanwhile."""
        errors = self.errors()
        return {cause: errors[cause] for cause in (
            "connect-refused", "connect-timeout", "connect-unreachable", "connect-failed",
            "no-server", "no-address") if errors[cause]}

    def disturb(self):
        for kind, victims in FAULTS:
            for port in victims:
                if kind == "kill":
                    pids = subprocess.run(["pgrep", "-s", str(self.servers[port].pid)], text=True,
                                          stdout=subprocess.PIPE, check=True).stdout.split()
                    for pid in map(int, pids):
                        os.kill(pid, signal.SIGKILL)
                else:
                    self.fault(port, kind)
            time.sleep(CALM)  # of load
            for port in victims:
                if kind == "kill":
                    self.lab.stop(self.servers[port])
                    self.serve(port)
            self.heal()
            time.sleep(CALM)


@pytest.fixture(scope="module")
def trial(lab, culvert, engine):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    one = Trial(lab, culvert, engine)
    yield one
    one.leave()


# --- which server ---

def test_round_robin(trial):
    trial.begin(f"{A} weight=2 {B} {C} backup")
    for _ in range(4):  # clients are known from the second time on
        expect(trial.shares(30) == {7101: 20, 7102: 10}, "weights or backup are not kept")
    if trial.options:
        past = trial.daemon.ask("status")["set_up"]["past"]
        expect(sum(past.values()) < 40, f"most sessions began at sockets: {past}")


def test_least_sessions(trial):
    trial.begin(f"{A} {B}", "balance = least-sessions")
    kept = trial.start_clients("keep", 6)
    wait_until(lambda: trial.server(7101)["live"] == 3 and trial.server(7102)["live"] == 3,
               "six sessions, three each")
    trial.daemon.command("upstream", "web", A, "down")
    expect(trial.server(7101)["live"] == 0, "a server that is down has sessions")
    trial.daemon.command("upstream", "web", A, "ready")
    for _ in range(4):
        # servers of sessions in the kernel are chosen by what the daemon has heard of
        wait_until(lambda: trial.server(7101)["live"] == 0, "the session before to be counted out")
        expect(trial.shares(1) == {7101: 1}, "the idle server does not get the sessions")
    trial.finish_clients(kept)


# --- orders ---

def test_orders(trial):
    trial.begin(f"{A} {B}")
    kept = trial.start_clients("keep", 2)
    wait_until(lambda: trial.server(7101)["live"] == 1, "a session")
    expect("killed" not in trial.daemon.command("upstream", "web", A, "drain"), "a drain resets nothing")
    expect(trial.shares(4) == {7102: 4}, "a server that drains gets sessions")
    expect(trial.server(7101)["live"] == 1, "a server that drains has lost its session")
    trial.daemon.command("upstream", "web", A, "weight", "100")
    trial.reload(f"{A} weight=3 {B}")
    expect(trial.server(7101)["state"] == "drain", "an order does not survive a reload")
    expect(trial.server(7101)["weight"] == 100 and trial.server(7101)["weight_configured"] == 3, "nor a weight")
    trial.daemon.command("upstream", "web", B, "down")
    did = trial.finish_clients(trial.start_clients("one", 3))
    expect(did["lost"] == 3, f"clients of no server: {did}")
    expect(trial.errors()["no-server"] == 3, "they are not counted")
    trial.logged("has no server that can be used: by order of `culvert upstream`")
    trial.daemon.command("upstream", "web", A, "ready")
    expect(trial.shares(4) == {7101: 4}, "a server that is ready gets no sessions")
    trial.daemon.command("upstream", "web", B, "weight", "50")
    trial.daemon.command("upstream", "web", B, "ready")
    expect(trial.shares(30) == {7101: 20, 7102: 10}, "weights of orders are not kept")
    trial.daemon.command("upstream", "web", A, "as-configured")
    expect(trial.server(7101)["weight"] == 3, "an order stays")
    with pytest.raises(LabError):
        trial.daemon.command("upstream", "web", A, "weight")
    trial.finish_clients(kept)


@pytest.mark.engines("kernel")
def test_servers_come_and_go(trial):
    def order(*words):
        return trial.daemon.command("upstream", "web", *words)

    trial.begin(f"{A}, {B} backup")
    kept = trial.start_clients("keep", 1)
    wait_until(lambda: trial.server(7101)["live"] == 1, "a session")
    order("add", C, "weight=2", "max-sessions=50")
    expect(trial.shares(30) == {7101: 10, 7103: 20}, "a server that was added gets no share")
    trial.reload(f"{A}, {B} backup", "connect-timeout = 9")
    expect(trial.shares(30) == {7101: 10, 7103: 20}, "an added server does not survive a reload")
    expect("1" in order("remove", A), "the session of a removed server is not counted")
    forward = trial.daemon.ask("forwards")["forwards"][0]
    expect(forward["orders"] == [{"order": "add", "server": C, "words": "weight=2 max-sessions=50"},
                                 {"order": "remove", "server": A, "words": ""}], f"{forward}")
    expect(trial.shares(4) == {7103: 4}, "a removed server gets sessions")
    order(C, "remove")
    expect(trial.shares(2) == {7102: 2}, "the file's backup does not serve alone")
    for wrong in ([B, "remove"], ["10.9.9.9:1", "remove"], ["10.9.9.9:1", "as-configured"],
                  [A, "add", "wieght=2"], [A, "add", C], ["nowhere", "add"], [A, "remove", "backup"],
                  [f"{RELAY}:{LISTEN}", "add"], [f"{A} {C}", "add"]):
        with pytest.raises(LabError):
            order(*wrong)
    order(C, "add", "weight=3,max-sessions=9")  # all of the file's servers are replaced
    order(B, "remove")
    order(C, "add", "weight=4")
    expect(trial.shares(2) == {7103: 2}, "the added server does not serve alone")
    order(A, "add")  # in place of its removal
    trial.daemon.command("drain", "web")
    order(C, "as-configured")
    expect(trial.daemon.ask("forwards")["forwards"][0]["state"] == "draining", "an order has ended a drain")
    trial.daemon.command("drain", "web", "--undo")
    order(A, "as-configured")
    order(B, "as-configured")
    expect(trial.shares(2) == {7101: 2}, "the file does not count again")
    expect(trial.daemon.ask("forwards")["forwards"][0]["orders"] == [], "an order stays")
    order(C, "add")
    trial.reload(f"unix:{trial.lab.path('nobody')}")
    trial.logged("orders are dropped: forward web")
    trial.finish_clients(kept)


# --- places ---

@pytest.mark.engines("kernel")
def test_places(trial):
    trial.begin(f"{A} max-sessions=2 {B} max-sessions=1", "queue = 2", "queue-timeout = 2")
    kept = trial.start_clients("keep", 3)
    wait_until(lambda: trial.server(7101)["live"] == 2 and trial.server(7102)["live"] == 1, "full servers")
    did = trial.finish_clients(trial.start_clients("100", 3))  # three at a time, and nobody leaves
    expect(did["lost"] == 3, f"somebody is served beyond the limit: {did}")
    errors = trial.errors()
    expect(errors["queue-full"] == 1 and errors["queue-timeout"] == 2, f"{errors}")
    late = trial.start_clients("100", 2)
    wait_until(lambda: trial.daemon.ask("forwards")["forwards"][0]["waiting"] == 2, "two to wait")
    trial.reload(f"{A} max-sessions=9 {B}", "queue = 2")
    did = trial.finish_clients(late)
    expect(not did["lost"] and sum(did["servers"].values()) == 2, f"who has waited is not served: {did}")
    expect(trial.shares(2)[7101] == 1, "a reload that gives places does not help new clients")
    trial.finish_clients(kept)


@pytest.mark.engines("kernel")
@pytest.mark.parametrize("how", ["added", "raised", "reload", "removed"])
def test_change_brings_places(trial, how):
    """Two places for three that wait: the first two have them, and later clients none."""
    trial.begin(f"{A} max-sessions=1 {B} max-sessions=1", "queue = 9", "queue-timeout = 60")
    kept, socks = trial.start_clients("keep", 2), []

    def waiting():
        return sum(f["waiting"] for f in trial.daemon.ask("forwards")["forwards"])

    def connect():
        with trial.lab.inside("client"):
            socks.append(socket.create_connection((RELAY, LISTEN)))
        socks[-1].settimeout(20)

    wait_until(lambda: trial.server(7101)["live"] == 1 and trial.server(7102)["live"] == 1, "full servers")
    for n in range(3):
        connect()
        wait_until(lambda n=n: waiting() == n + 1, "one more to wait")
    if how == "removed":  # who waits for its servers goes on
        path = trial.write_config(A)
        with open(path, encoding="ascii") as file:
            text = file.read()
        trial.lab.write("culvert.conf", text.replace("forward web", "forward other"))
        trial.daemon.reload()
        expect(waiting() == 3, "they do not wait for the servers of a forward that is removed")
        trial.finish_clients(kept)
    elif how == "reload":
        trial.reload(f"{A} max-sessions=3 {B} max-sessions=1", "queue = 9", "queue-timeout = 60")
    else:
        words = (C, "add", "max-sessions=2") if how == "added" else (A, "add", "max-sessions=3")
        trial.daemon.command("upstream", "web", *words)
    if how != "removed":
        connect()
    for sock in socks[:2]:
        expect(sock.recv(5)[:3] == b"710", "who waits gets no place")
    wait_until(lambda: waiting() == len(socks) - 2, "the others to wait")
    for n, sock in enumerate(socks[2:]):  # each in its turn
        socks[n].close()
        expect(sock.recv(5)[:3] == b"710", "a place is lost")
    for sock in socks[-2:]:
        sock.close()
    if how != "removed":
        trial.finish_clients(kept)


@pytest.mark.engines("kernel")
def test_crowd_waits(trial):
    """Each is served once, in the order of arrival."""
    n, places = 10_000, 50
    trial.begin(f"{A} max-sessions={places}", "queue = 100000", "queue-timeout = 60",
                options=("--workers", "1", "--max-sessions-per-client", "0", "--accept-rate", "0"))
    poll, socks, order = select.epoll(), {}, []
    for number in range(n):
        with trial.lab.inside("client"):
            sock = socket.create_connection((RELAY, LISTEN))
        socks[sock.fileno()] = number, sock
        poll.register(sock, select.EPOLLIN)
    wait_until(lambda: trial.daemon.ask("forwards")["forwards"][0]["waiting"] == n - places, "a crowd")
    end = time.monotonic() + 60
    while socks and time.monotonic() < end:
        for fd, _ in poll.poll(1):
            number, sock = socks.pop(fd)
            expect(sock.recv(100) == b"7101\n", f"client {number} is refused")
            sock.close()
            order.append(number)
    expect(not socks, f"{len(socks)} are not served")
    apart = max(abs(number - at) for at, number in enumerate(order))
    expect(apart <= 4 * places, f"somebody has been passed by {apart} others")


# --- checks ---

def test_checks_are_no_connections(trial):
    before = trial.counter("PassiveOpens"), trial.counter("EmbryonicRsts")
    trial.begin(f"{A} {B}", "check = 0.1")

    def done():
        return (trial.counter("PassiveOpens") - before[0],
                trial.counter("EmbryonicRsts") - before[1])

    wait_until(lambda: sum(done()) >= 20, "20 checks")
    # the ACK leaves after 200 ms, on a machine that is so busy
    expect(done()[0] <= 4, f"servers accept checks: {done()[0]} of {sum(done())}")
    expect(trial.server(7101)["state"] == "up", "they fail")


def test_check_of_a_full_backlog(trial):
    path = trial.lab.path("full")
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as client:
        full.bind(path)
        os.chmod(path, 0o777)
        full.listen(0)
        client.connect(path)
        # the second one is checked after the first
        trial.begin(f"unix:{path} unix:{path}.gone", "check = 0.05")
        wait_until(lambda: trial.server(f"unix:{path}.gone")["state"] == "failed", "checks")
        full = trial.server(f"unix:{path}")
        expect(full["state"] == "up" and not full["last_error"], f"somebody listens: {full}")
        os.unlink(path)


def test_checks_of_many_servers(trial):
    trial.begin(" ".join(f"unix:{trial.lab.path(str(n))}" for n in range(64)), "check = 0.001")

    def say_failed():  # an order would wake the loop, which then checks more of them
        return trial.daemon.log().count("has failed its checks")

    wait_until(lambda: say_failed() == 64, "the last ones to be checked")


@pytest.fixture(scope="module")
def primary(trial):
    """Says which server is the primary: asks(PORT + 100) by HTTP, asks(PORT + 200) as Redis."""
    path = trial.lab.path("primary")
    server = trial.lab.start_server("server", 7301, sys.executable, "-c", CHECKED, path)

    def elect(port):
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(str(port))
        os.rename(path + ".new", path)
    yield elect
    trial.lab.stop(server)


@pytest.mark.engines("kernel")
@pytest.mark.parametrize("how", ["http", "words", "udp"])
def test_primary(trial, primary, how):
    """Each server is well, and one of them may be written to."""
    primary(7101)
    after = 100 if how == "http" else 200
    servers = " ".join(f"{SERVER}:{port} check-port={port + after}" for port in PORTS[:2])
    lines = {"http": ["check-http = /primary"],
             "words": ["check-send = INFO replication\\r\\n", "check-expect = role:master"],
             "udp": ["check-http = /primary"]}[how]
    if how == "udp":  # servers of UDP are asked by UDP
        lines = ["[forward names]", f"listen = {RELAY}:{LISTEN}/udp", "check = 0.1",
                 f"upstream = {SERVER}:7301 {SERVER}:7302", "check-send = who", "check-expect = master",
                 "fall = 1"]
        trial.begin(servers, *lines)
        for port, other in (7101, 7302), (7102, 7301):
            primary(port)
            wait_until(lambda: [s["state"] for s in trial.daemon.ask("forwards")["forwards"][1]["servers"]
                                if s["server"] == f"{SERVER}:{other}"] == ["failed"], f"{other} to fail")
        return
    trial.begin(servers, "check = 0.1", "fall = 1", "rise = 1", "on-down = reset", *lines)
    for old, new in (7101, 7102), (7102, 7101):
        trial.wait_state(new, "failed")
        kept = trial.start_clients("keep", 8)
        wait_until(lambda: trial.server(old)["live"] == 8, "eight sessions of the primary")
        before = trial.errors()["server-down"]
        primary(new)
        wait_until(lambda: trial.errors()["server-down"] == before + 8, "the old primary to lose them")
        trial.wait_state(new, "returning", "up")
        shares = trial.shares(8)
        expect(shares == {new: 8}, f"a replica is written to: {shares}")
        server = trial.server(old)
        good, bad = {"http": ("HTTP 200", "HTTP 503"),
                     "words": ("answers as expected", "answers otherwise")}[how]
        expect(server["check"] == bad, f"{server}")
        trial.logged(f"server {SERVER}:{old} has failed its checks: {bad}")
        trial.logged(f"server {SERVER}:{new} is back: {good}")
        trial.finish_clients(kept)


@pytest.mark.engines("kernel")
def test_agent(trial):
    """A line of HAProxy's agents."""
    path = trial.lab.path("said")

    def say(line):
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(line)
        os.rename(path + ".new", path)

    def told_again():
        seen = trial.counter("PassiveOpens")
        wait_until(lambda: trial.counter("PassiveOpens") >= seen + 4, "the agent to be asked again")

    def five():
        return trial.server(7101)["live"] + trial.server(7102)["live"] == 5

    say("ready up 100%\n")
    agent = trial.lab.start_server("server", 7401, "socat", "TCP-LISTEN:7401,fork,reuseaddr",
                                   f"SYSTEM:cat {path}")
    trial.begin(f"{A} weight=4 {B}", "check = 0.1", "check-agent = 7401", "on-down = reset")
    trial.wait_state(7101, "up")
    kept = trial.start_clients("keep", 5)
    wait_until(five, "five sessions")  # no server takes one while the agent says drain
    say("50% extraordinary\n")
    wait_until(lambda: trial.server(7101)["weight"] == 2, "half of the weight")
    for order, back in ("drain\n", "ready\n"), ("0%\n", "50%\n"):
        say(order)
        trial.wait_state(7101, "drain")
        say(back)
        trial.wait_state(7101, "up", "returning")
    say("0%\n")
    trial.wait_state(7101, "drain")
    trial.daemon.command("upstream", "web", A, "ready")
    told_again()
    expect(trial.server(7101)["state"] != "drain", "the agent repeats its order, and it counts again")
    say("Ready 100%\n")
    wait_until(lambda: trial.server(7101)["weight"] == 4, "the whole weight")
    trial.daemon.command("upstream", "web", A, "drain")
    trial.daemon.command("upstream", "web", A, "weight", "7")
    told_again()
    server = trial.server(7101)
    expect(server["state"] == "drain" and server["weight"] == 7, f"the operator's orders are lost: {server}")
    say("whatever\n")
    wait_until(lambda: trial.server(7101)["agent"] == "whatever", "the line to be shown")
    trial.logged(f"server {A}: not understood: agent: whatever")
    say("READY\n")
    trial.wait_state(7101, "up", "returning")
    expect(not trial.server(7101)["last_error"], f"an error without a fault: {trial.server(7101)}")
    say("DOWN # no space\n")
    trial.wait_state(7101, "failed")
    wait_until(lambda: trial.errors()["server-down"] == 5, "sessions of servers that are down to end")
    trial.logged(f"server {A} has failed its checks: agent: DOWN # no space")
    expect(trial.server(7101)["agent"] == "DOWN # no space", f"{trial.server(7101)}")
    say("maint\n")
    trial.wait_state(7101, "down")
    say("ready\n")
    trial.wait_state(7101, "failed")
    expect(trial.server(7101)["last_error"] == "agent: DOWN # no space", f"{trial.server(7101)}")
    say("up\n")
    trial.wait_state(7101, "up", "returning")
    trial.finish_clients(kept)
    kept = trial.start_clients("keep", 5)
    wait_until(five, "five sessions")
    say("maint\n")
    wait_until(lambda: trial.errors()["server-down"] == 10, "sessions of servers in maintenance to end")
    for line in ("gets no sessions: agent: drain", "is back: agent: ready", "is back: agent: up",
                 "gets no sessions: agent: maint"):
        trial.logged(f"server {A} {line}")
    trial.finish_clients(kept)
    trial.lab.stop(agent)


@pytest.mark.engines("kernel")
def test_backup_gives_way(trial, primary):
    primary(7102)
    trial.begin(f"{A} check-port=7201 {B} check-port=7202 backup", "check = 0.1", "check-http = /",
                "check-status = 200-503", "fall = 1", "rise = 1", "on-backup = reset")
    trial.wait_state(7101, "up")
    trial.rules("add rule inet faults in tcp dport 7201 tcp flags & (syn|ack) == syn "
                "reject with tcp reset")
    trial.wait_state(7101, "failed")
    kept = trial.start_clients("keep", 4)
    wait_until(lambda: trial.server(7102)["live"] == 4, "sessions of the backup")
    trial.heal()
    wait_until(lambda: trial.server(7102)["live"] == 0, "the backup to give way")
    expect(trial.errors()["server-down"] == 4, f"{trial.errors()}")
    trial.finish_clients(kept)


def test_checks_off_and_on(trial):
    trial.begin(f"{A} {B}", "check = 0.05", "rise = 100")
    trial.fault(7101, "reject with tcp reset")
    trial.wait_state(7101, "failed")
    trial.heal()
    trial.reload(f"{A} {B}")
    expect(trial.server(7101)["state"] != "failed", "checks count that are turned off")
    trial.reload(f"{A} {B}", "check = 3600", "rise = 100")
    expect(trial.server(7101)["state"] != "failed", "checks count that were turned off")


# --- faults ---

def test_all_down(trial):
    trial.begin(f"{A} {B} backup", "check = 0.1", "fall = 2")
    trial.wait_state(7102, "up")
    trial.fault(7101, "drop")
    trial.wait_state(7101, "failed")
    expect(trial.shares(3) == {7102: 3}, "the backup does not take over")
    trial.fault(7102, "reject with tcp reset")
    trial.wait_state(7102, "failed")
    did = trial.finish_clients(trial.start_clients("one", 2))
    expect(did["lost"] == 2 and trial.errors()["no-server"] == 2, f"all servers are down: {did}")
    # the error is of the latest check, which is of either
    trial.logged(f"has no server that can be used: {SERVER}:710")
    trial.heal()
    trial.wait_state(7101, "returning", "up")
    # the kernel may have a place for the backup, which was back some ms before
    wait_until(lambda: trial.shares(3) == {7101: 3}, "the server to be used again")


def test_silent_for_a_while(trial):
    trial.begin(f"{A} {B}")
    clients = trial.start_clients("200", 1200)
    wait_until(lambda: trial.server(7102)["sessions"] > 100, "load")
    trial.fault(7102, "drop")
    before = trial.server(7102)["sessions"]
    time.sleep(2)  # of load
    got = trial.server(7102)["sessions"] - before
    trial.heal()
    did = trial.finish_clients(clients)
    print(f"# {got} in 2 s of silence; {did['late']} late, slowest {did['slowest_ms']:.0f} ms")
    expect(not did["lost"] and not did["cut"], f"clients were not served: {did}")
    # half of all, if nothing is done: 200
    expect(got <= 100, f"a silent server gets {got} clients")


@pytest.mark.parametrize("lines", [(), ("check = 0.2s",)], ids=["alone", "with_checks"])
def test_failover(trial, lines):
    trial.begin(" ".join(NAMES[:3]), "connect-timeout = 2", *lines)
    load = trial.start_clients("load")
    trial.disturb()
    did = trial.finish_clients(load)
    print(f"# served {sum(did['servers'].values())}, lost {did['lost']}, cut {did['cut']}, "
          f"slowest {did['slowest_ms']:.0f} ms")
    expect(not trial.refused(), f"clients that could be served were refused: {trial.refused()}")
    # a server that is killed takes the sessions with it that it has at that moment
    expect(did["lost"] + did["cut"] <= 4 * len(CLIENTS), f"too many were lost: {did}")
    for port in PORTS[:3]:
        expect(trial.server(port)["failures"] > 0, f"{port} has not failed")
        expect(collections.Counter(did["servers"])[str(port)] > 50, f"{port} was not used")


# --- everything at once ---

def test_storm(trial, request):
    """Reloads, orders, scrapes and checks while servers die under load, for sanitizers."""
    end = time.monotonic() + request.config.option.storm
    random = Random(int(end))
    names = [*NAMES, "localhost:7101"]
    settings = ("check = 0.05 0 0.3", "rise = 1 3", "fall = 1 3", "engine = copy sockmap auto",
                "balance = source least-sessions round-robin", "keepalive = 1 0",
                "idle-timeout = 0.2 0", "bandwidth = 100K 0", "each-address = yes no",
                "resolve-interval = 1 2", "max-sessions = 8", "queue = 0 3 100",
                "queue-timeout = 0.05 3", "fin-timeout = 0.1 0")
    orders = (["kill", "--all"], ["sessions", "--json"], ["forwards"], ["drain", "web"],
              ["drain", "--undo", "web"], ["engine", "web", "splice"], ["engine", "web", "auto"],
              ["status", "--json"], ["log-level", "debug"], ["log-level", "info"])
    problems, done = [], collections.Counter()

    def settle():
        chosen = random.sample(names, random.randint(2, 4))
        chosen = [name + random.choice(("", " max-sessions=6")) for name in chosen]
        lines = [line.split(" = ") for line in random.sample(settings, 4)]
        lines = [f"{key} = {random.choice(values.split())}" for key, values in lines]
        if "check = 0.05" in lines:
            lines += ["on-down = reset", "on-backup = reset"]
        trial.write_config(" ".join(chosen), *lines)
        trial.daemon.command("reload")

    def order():
        words = [*random.choice(orders)]
        if not random.randrange(3):
            words = ["upstream", "web", random.choice(names[:4]),
                     random.choice(("drain", "down", "ready"))]
        # a server or forward may be gone by then
        subprocess.run([trial.program, *words, "--control", trial.daemon.control], timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def scrape():
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(metrics)
            if not random.randrange(4):
                return
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            expect(client.recv(15) == b"HTTP/1.1 200 OK", "a scrape has no answer")

    def load():
        process = trial.start_clients("load")
        time.sleep(random.uniform(1, 4))
        done["served"] += sum(trial.finish_clients(process)["servers"].values())

    def again(what):
        try:
            while time.monotonic() < end and not problems:
                what()
                done[what.__name__] += 1
        except Exception as error:  # pylint: disable=broad-exception-caught
            problems.append(f"{what.__name__}: {error}")

    metrics = trial.lab.path("metrics")
    trial.begin(" ".join(NAMES[:3]), "check = 0.1", options=(
        "--metrics", f"unix:{metrics}", "--session-log", trial.lab.path("sessions"), "--workers", "4"))
    threads = [threading.Thread(target=again, args=(what,))
               for what in (settle, order, scrape, load, load, trial.disturb)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"# {dict(done)}")
    code = trial.daemon.stop()
    problems += [line for line in trial.daemon.log().splitlines()
                 if "Sanitizer" in line or "runtime error" in line]
    trial.daemon = None
    expect(not code and not problems, f"exit code {code}; {problems[:9]}")
    expect(done["served"] > 100, "nobody was served")
