# SPDX-License-Identifier: BSD-2-Clause
"""Connections that begin in the kernel (`set-up = kernel`), in the lab.

    culvert-bench crr, SYNs by hand, conversations  -->  culvert  -->  culvert-bench sink, echo server

Each case begins with a session by sockets, which proves client and server; those after it are to
begin in the kernel.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
from labkit import RELAY, SERVER, SLOW, TOP, Daemon, expect, wait_until
from networks import no_offload
from standby_rig import PEER

pytestmark = pytest.mark.needs("ip", packages="demo", ipv6=True)
BENCH = os.path.join(TOP, "build/culvert-bench")
PORT, ECHO = 7200, 7201
METRICS = 9209
LISTEN, LISTEN_ECHO = 9200, 9201
RELAY6, SERVER6 = "[fd00:1::2]", "[fd00:2::2]"
FORWARDS = ((f"{RELAY}:{LISTEN}", f"{SERVER}:{PORT}"), (f"{RELAY}:{LISTEN_ECHO}", f"{SERVER}:{ECHO}"),
            (f"{RELAY6}:{LISTEN}", f"{SERVER6}:{PORT}"), (f"{RELAY6}:{LISTEN + 2}", f"{SERVER}:{PORT}"),
            (f"{RELAY}:{LISTEN + 3}", f"{SERVER6}:{PORT}"))


class Trial:
    def __init__(self, lab, program):
        self.lab, self.program = lab, program
        self.pins = os.path.join(lab.mount_bpf(), "culvert")
        lab.start_server("server", ECHO, sys.executable, "-B", PEER, "serve", str(ECHO))
        self.sink = self.daemon = None
        self.start_sink()

    def start_sink(self):
        self.sink = self.lab.start_server("server", PORT, BENCH, "sink", "--listen",
                                          f"{SERVER}:{PORT}", "--listen", f"{SERVER6}:{PORT}")

    def begin(self, *options, set_up="kernel"):
        self.daemon = Daemon(self.lab, self.program, "auto", FORWARDS, "--graft-pins", self.pins,
                             "--set-up", set_up, "--metrics", f"127.0.0.1:{METRICS}", *options)
        return self.daemon

    def end(self):
        self.daemon.stop()
        self.lab.run("relay", self.program, "graft", "--remove", "--control", self.daemon.control,
                     "--graft-pins", self.pins)

    def crr(self, connections, seconds=1.0, address=FORWARDS[0][0]):
        """Connections that end after an exchange; none may fail, or have wrong bytes."""
        said = json.loads(self.lab.run("client", BENCH, "crr", "--connect", address,
                                       "--connections", str(connections), "--seconds",
                                       str(seconds)))
        expect(not any(said["errors"].values()) and not said["wrong"], f"errors: {said['errors']}")
        return said

    def prove(self, address=FORWARDS[0][0]):
        """Client and server of a forward are proven.  The server may still wait for the last ACK of
        an earlier daemon's session, from the same port: then the client sends its SYN again."""
        wait_until(lambda: self.crr(1, 1.2, address) and self.reasons() > 0,
                   "a session from the SYN on")

    def forward(self, i=0):
        return self.daemon.ask("forwards")["forwards"][i]

    def reasons(self):
        """Sessions from the SYN on that have ended or go on, by the counter of hand-overs."""
        text = self.lab.run("relay", "curl", "-s", f"http://127.0.0.1:{METRICS}/metrics")
        return sum(int(line.split()[-1]) for line in text.splitlines()
                   if line.startswith("culvert_handovers_total") and "SYN on" in line)

    def past(self):
        """SYNs that went to the listener, by cause."""
        return self.daemon.ask("status")["set_up"]["past"]

    def retransmitted(self, namespace):
        names, values = (line.split()[1:] for line in self.lab.run(
            namespace, "grep", "^TcpExt:", "/proc/net/netstat").splitlines())
        return int(values[names.index("TCPSynRetrans")])


@pytest.fixture(scope="module")
def trial(lab, culvert):
    return Trial(lab, culvert)


@pytest.fixture(autouse=True)
def _end(trial):
    yield
    trial.end()


@pytest.mark.quick
def test_ports_wrap(trial):
    """The client's ports and ours are used again many times; no SYN is lost, none is counted twice."""
    trial.begin()
    trial.prove()
    before, reasons, lost = trial.forward(), trial.reasons(), trial.retransmitted("client")
    said = trial.crr(64, 3)
    wait_until(lambda: not trial.forward()["live"], "no session to be left")
    after = trial.forward()
    new = after["accepted"] - before["accepted"]
    expect(new >= said["requests"], f"{new} sessions, {said['requests']} requests")
    expect(after["finished"] == after["accepted"], f"not counted: {after}")
    expect((trial.reasons() - reasons) / 2 > 0.9 * new, "most sessions went by sockets")
    expect(after["bytes_to_client"] - before["bytes_to_client"] == 64 * new, f"bytes: {after}")
    expect(trial.retransmitted("client") == lost, "a SYN was lost")


@pytest.mark.parametrize("forward", range(2, len(FORWARDS)))
def test_families(trial, forward):
    trial.begin()
    trial.prove(FORWARDS[forward][0])
    trial.crr(16, 1, FORWARDS[forward][0])
    trial.lab.stop(trial.sink)
    host, port = FORWARDS[forward][0].rsplit(":", 1)
    connects(trial, 20, host.strip("[]"), int(port))
    trial.start_sink()


@pytest.mark.quick
def test_refused(trial):
    """A server that is gone is refused like by sockets, at once; when it is back, so are its clients."""
    trial.begin()
    trial.prove()
    trial.lab.stop(trial.sink)
    expect(connects(trial, 200) < 0.5 * SLOW, "a refusal takes long")
    trial.start_sink()
    before = trial.reasons()
    wait_until(lambda: trial.crr(1, 0.2) and trial.reasons() > before, "the server to be back")


@pytest.mark.parametrize("address, reject", [
    (RELAY, "icmp port-unreachable"), (RELAY, "icmp host-unreachable"),
    ("fd00:1::2", "icmpv6 admin-prohibited")])
def test_unreachable(trial, address, reject):
    """An ICMP error about a SYN is a refusal."""
    trial.begin()
    trial.prove(f"[{address}]:{LISTEN}" if ":" in address else f"{address}:{LISTEN}")
    trial.lab.run("server", "nft", "add table inet faults; add chain inet faults in "
                  "{ type filter hook input priority 0 ; };"
                  f"add rule inet faults in tcp dport {PORT} reject with {reject}")
    try:
        # Linux may take the error for a soft one where it comes within connect(2): tcp_v4_err()
        connects(trial, 1, address)
        expect(trial.past()["unreachable"] == 1, f"no ICMP error was heard: {trial.past()}")
    finally:
        trial.lab.run("server", "nft", "delete table inet faults")


def test_sessions_at_most(trial):
    """What is prepared takes no client's place."""
    trial.begin("--max-sessions", "12", "--max-sessions-per-client", "0")
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(talker(trial)) for _ in range(12)]
        expect(trial.forward(1)["live"] == 12, f"{trial.forward(1)}")
        late = stack.enter_context(trial.lab.socket("client", RELAY))
        late.connect((RELAY, LISTEN_ECHO))
        late.sendall(b"e")
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.recv(1)
        socks.pop().close()
        late.settimeout(5 * SLOW)
        expect(late.recv(1) == b"!", "a client that waits does not get the free place")


def test_sessions_of_a_client(trial):
    trial.begin("--max-sessions-per-client", "3")
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(talker(trial))
        wait_until(lambda: trial.forward(1)["live"] == 3, "three sessions")
        for _ in range(3):
            # the first one lasts until the next sweep, and hears of its end when it speaks
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                sock = stack.enter_context(talker(trial))
                wait_until(partial(say, sock), "the session to be reset")
        expect(trial.forward(1)["live"] == 3, f"{trial.forward(1)}")


def test_accept_rate(trial):
    """Sessions from the SYN on have no burst of their own."""
    trial.begin("--accept-rate", "20")
    for _ in range(2):  # the second one's server is chosen before the first one has shown the way
        conversation(trial)
    # what is prepared needs a token as well, so clients must leave some
    wait_until(lambda: trial.daemon.ask("status")["set_up"]["prepared"] and
               conversation(trial) == "graft", "a session from the SYN on")
    before, began = trial.forward()["accepted"], time.monotonic()
    trial.crr(4, 3)
    took = time.monotonic() - began
    new = trial.forward()["accepted"] - before
    expect(new <= 20 * (took + 1) + 1, f"{new} sessions in {took:.1f} s")


@pytest.mark.quick
def test_auto(trial):
    """No session begins in the kernel where netfilter would see it."""
    trial.begin(set_up="auto")
    trial.prove()
    for rules in ("add table ip f; add chain ip f in { type filter hook input priority 0 ; }",
                  "add table netdev f; add chain netdev f in "
                  "{ type filter hook ingress device to-client priority 0 ; }"):
        trial.lab.run("relay", "nft", rules)
        try:
            wait_until(lambda: trial.forward()["set_up_hindrance"] == "hooks of netfilter" or
                       trial.crr(1, 0.1) and trial.past()["netfilter"], "the hook to be seen")
            before = trial.reasons()
            trial.crr(4, 0.5)
            expect(trial.reasons() == before, "netfilter did not see sessions")
        finally:
            trial.lab.run("relay", "nft", "flush ruleset")
        before = trial.reasons()
        wait_until(lambda b=before: trial.crr(1, 0.1) and trial.reasons() > b, "sessions to be back", 20)


@pytest.mark.quick
def test_lives_on(trial, request):
    """The daemon dies under load.  What has begun goes on, and is the next daemon's."""
    deaths = 1 if request.config.option.quick else 20 // SLOW ** 2  # an emulated CPU starts a daemon in 25 s
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    socks = [talker(trial)]
    talks = [talk(trial, kind, 2) for kind in "eduh"]
    for death in range(deaths):
        wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
        socks.append(talker(trial))
        load = Load(trial, 16 << death % 3)
        load.wait_from_syn()
        trial.daemon.die()
        for sock in socks:
            say(sock)
        nobody_begins(trial)
        trial.daemon.start()
        load.wait_from_syn()
        load.end()
        for sock in socks:
            say(sock)
    wait_until(lambda: all(session_of(trial, sock) for sock in socks), "adoptions")
    trial.daemon.command("kill", str(session_of(trial, socks[0])["id"]))
    with pytest.raises(ConnectionResetError):
        wait_until(partial(say, socks[0]), "the session to be reset")
    for sock in socks:
        sock.close()
    for process in talks:
        did = json.loads(process.communicate("")[0].splitlines()[-1])
        expect(did["ended"] == 2 and not did.get("wrong") and not did.get("reset") and
               not did.get("silent"), f"{did}")
    wait_until(lambda: not trial.daemon.ask("sessions")["sessions"], "no session to be left")
    status = trial.daemon.ask("status")
    expect(not status["resources"]["sessions"] and not status["set_up"]["half_open"], f"{status}")
    trial.daemon.stop()
    expect(not os.path.exists(trial.pins) or not os.listdir(trial.pins), "pins are left")


@pytest.mark.quick
def test_sockets(trial):
    """After two seconds a session has its sockets: a vanished client is noticed, a kill is heard."""
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    sock = talker(trial)
    wait_until(lambda: sockets(trial, sock) == 2, "both sockets", 5)
    say(sock)
    young = talker(trial)  # the daemon has not looked at it yet
    trial.daemon.command("engine", FORWARDS[1][0], "copy")
    for one in sock, young:
        wait_until(lambda s=one: say(s) or session_of(trial, s)["flows"][0]["carrier"] == "copy",
                   "the session to be at its sockets")
    for _ in range(20):
        say(sock)
    young.close()
    trial.daemon.command("engine", FORWARDS[1][0], "default")
    trial.daemon.command("kill", str(session_of(trial, sock)["id"]))
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    sock.close()


def test_closed_first(trial):
    """S8: a server takes a port again in TIME_WAIT, whatever the clocks of its clients are."""
    trial.begin("--set-up-ports", "20000-20063")
    trial.prove()
    trial.lab.stop(trial.sink)
    try:
        with trial.lab.socket("server", SERVER) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((SERVER, PORT))
            listener.listen(64)
            before, sent_again = trial.reasons(), trial.retransmitted("client")
            for n in range(400):
                with trial.lab.socket("client", RELAY) as sock:
                    sock.settimeout(5 * SLOW)
                    # each has a clock: secure_tcp_ts_off()
                    sock.bind((f"10.0.1.{11 + n * 7 % 16}", 0))
                    sock.connect((RELAY, LISTEN))
                    with listener.accept()[0] as its:
                        its.sendall(b"first")
                    expect(sock.recv(6) + sock.recv(1) == b"first", "not all of an answer")
            expect((trial.reasons() - before) / 2 > 200, "few began in the kernel")
            # a SYN that the machine delays is sent again: it leaves the server a half-open connection
            delayed, past = trial.retransmitted("client") - sent_again, trial.past()
            expect(max(past["challenged"], past["silent"], delayed) < 20, f"{delayed} delayed, {past}")
    finally:
        trial.start_sink()


@pytest.mark.parametrize("machine, hook", [("client", "ingress"), ("server", "egress")])
def test_lost_answer(trial, machine, hook):
    """S9: one SYN|ACK is lost.  The next SYN goes to the same server, which had answered."""
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    wait_until(lambda: not trial.forward(1)["live"], "no session")
    before, past = trial.forward(1)["accepted"], trial.past()
    trial.lab.run(machine, "nft", "add table netdev faults; add chain netdev faults c "
                  f"{{ type filter hook {hook} device to-relay priority 0 ; }};"
                  "add rule netdev faults c tcp flags & (syn | ack) == syn | ack "
                  "limit rate 1/hour burst 1 packets counter drop")
    try:
        with talker(trial) as sock:
            session = session_of(trial, sock)
            expect("packets 1 " in trial.lab.run(machine, "nft", "list ruleset"), "none was lost")
            if machine == "client":
                expect(session["flows"][0]["reason"] == "from the SYN on" and
                       trial.past() == past, f"{session}, {trial.past()}")
            expect(trial.forward(1)["accepted"] == before + 1, "not one session")
    finally:
        trial.lab.run(machine, "nft", "delete table netdev faults")


def test_killed_young(trial):
    """A session has no sockets at first: it gets them, so that a silent client hears of its end."""
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    with talker(trial) as sock:
        sock.settimeout(5 * SLOW)
        # no ACK is owed, which a reset would answer
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        expect(session_of(trial, sock)["flows"][0]["reason"] == "from the SYN on", "by sockets")
        trial.daemon.command("kill", "--all")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    wait_until(lambda: not trial.lab.run("server", "ss", "-tnH", "state", "established",
                                         f"sport = :{ECHO}"), "the server to hear of it, too")


def test_few_ports(trial):
    """Proofs are written again by each session by sockets, while SYNs that believe them come."""
    trial.begin("--set-up-ports", "20000-20007")
    trial.prove()
    trial.crr(16, 4)
    expect(trial.past().get("stock"), "no session went by sockets")


def test_late_packets(trial):
    """S10: all packets of earlier sessions come again, to sessions with the same ports of ours."""
    trial.begin("--set-up-ports", "20000-20015")
    trial.prove()
    wires = []
    for machine in "client", "server":
        no_offload(f"{trial.lab.name}-{machine}")  # or the checksums are not there
        with trial.lab.inside(machine):
            wires.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
        wires[-1].bind(("to-relay", 0))
        wires[-1].setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        wires[-1].setblocking(False)
    trial.crr(4, 0.5)
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    late = []
    for wire in wires:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, (_, _, kind, *_) = wire.recvfrom(65536)
                if kind == socket.PACKET_OUTGOING and packet[12:14] == b"\x08\0":
                    late.append((wire, packet))
    with contextlib.ExitStack() as stack:
        for wire in wires:
            stack.enter_context(wire)
        socks = [stack.enter_context(talker(trial)) for _ in range(5)]
        ours = trial.lab.run("server", "ss", "-tnH", "state", "established", f"sport = :{ECHO}")
        expect(":200" in ours, f"no port of ours is used again: {ours}")
        for n, (wire, packet) in enumerate(late):
            wire.send(packet)
            if not n % 100:
                for sock in socks:
                    say(sock)
        for sock in socks:
            say(sock)
    print(f"# {len(late)} late packets, {trial.past()}")
    wait_until(lambda: not trial.forward()["live"] and not trial.forward(1)["live"] and
               not trial.daemon.ask("status")["set_up"]["half_open"], "nothing to be left")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_two_cpus(trial):
    """S14: sessions are of the worker of the CPU on which their SYNs came."""
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    cpus, workers = os.sched_getaffinity(0), []
    with contextlib.ExitStack() as stack:
        for cpu in sorted(cpus)[:2]:
            os.sched_setaffinity(0, {cpu})
            stack.callback(os.sched_setaffinity, 0, cpus)
            socks = [stack.enter_context(talker(trial)) for _ in range(8)]
            workers.append({session["worker"] for session in map(partial(session_of, trial), socks)
                            if session["flows"][0]["reason"] == "from the SYN on"})
    expect(all(len(of) == 1 for of in workers) and workers[0] != workers[1], f"{workers}")


def test_wildcard(trial):
    """S15: a listener of all addresses has those of this machine, and none that is only routed."""
    trial.daemon = Daemon(trial.lab, trial.program, "auto",
                          [(f":{LISTEN_ECHO}", f"{SERVER}:{ECHO}")], "--graft-pins", trial.pins,
                          "--set-up", "kernel")
    for address in RELAY, "10.0.2.1":
        wait_until(lambda a=address: conversation(trial, a) == "graft", "a session from the SYN on")
    for _ in range(3):
        own_answer(trial, "server", SERVER)


def connects(trial, n, address=RELAY, port=LISTEN):
    """N clients, whose server answers nothing: the slowest end, in seconds."""
    slowest = 0.0
    for _ in range(n):
        began = time.monotonic()
        with trial.lab.socket("client", address) as sock:
            sock.settimeout(5 * SLOW)
            with contextlib.suppress(ConnectionResetError):
                sock.connect((address, port))
                expect(not sock.recv(1), "an answer of nobody")
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def sockets(trial, sock):
    """How many sockets the daemon has for the session of SOCK."""
    port = session_of(trial, sock)["upstream"].rsplit(":", 1)[1], sock.getsockname()[1]
    return trial.lab.run("relay", "ss", "-tnH", "state", "established", f"( dport = :{port[1]} or "
                         f"dport = :{port[0]} )").count("\n")


def talker(trial, address=RELAY):
    sock = trial.lab.socket("client", address)
    sock.settimeout(10 * SLOW)
    sock.connect((address, LISTEN_ECHO))
    sock.sendall(b"e")
    if sock.recv(1) != b"!":
        raise ConnectionResetError
    say(sock)
    return sock


def say(sock):
    text = os.urandom(100)
    sock.sendall(text)
    got = b""
    while len(got) < len(text):
        more = sock.recv(1000)
        if not more:
            raise ConnectionResetError
        got += more
    expect(got == text, "wrong bytes")


def talk(trial, kind, n):
    """N clients of a kind of standby_peer.py, which go on until their stdin ends."""
    process = trial.lab.start("client", sys.executable, "-B", PEER, "talk", RELAY, str(LISTEN_ECHO),
                              kind, str(n), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
    expect(process.stdout.readline() == "ready\n", f"{kind}: no client is ready")
    return process


class Load:
    """Short connections, all the time."""

    def __init__(self, trial, n):
        self.trial, self.n = trial, n
        self.process = trial.lab.start("client", BENCH, "crr", "--connect", FORWARDS[0][0],
                                       "--connections", str(n), "--seconds", str(60 * SLOW),
                                       stdout=subprocess.PIPE)

    def wait_from_syn(self):
        before = self.trial.reasons()
        wait_until(lambda: self.trial.reasons() > before + 100, "the load to be from the SYN on")

    def end(self):
        """No byte was wrong.  What was half open, or at sockets, may be reset."""
        self.process.terminate()
        said = json.loads(self.process.communicate()[0])
        errors = said["errors"]
        expect(not said["wrong"] and not errors["timeout"] and not errors["short"] and
               errors["reset"] <= self.n, f"{said}")


def nobody_begins(trial):
    """No daemon lives: a SYN is refused, or goes to another program that has the port now."""
    with trial.lab.socket("client", RELAY) as sock, pytest.raises(ConnectionRefusedError):
        sock.connect((RELAY, LISTEN_ECHO))
    own_answer(trial, "relay", RELAY)


def own_answer(trial, machine, address):
    """A client of MACHINE's own program at ADDRESS, which has the port of a forward, gets to it."""
    with trial.lab.socket(machine, address) as listener, \
            trial.lab.socket("client", address) as sock:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, LISTEN_ECHO))
        listener.listen()
        sock.settimeout(5 * SLOW)
        sock.connect((address, LISTEN_ECHO))
        with listener.accept()[0] as its:
            its.sendall(b"own")
            expect(sock.recv(3) == b"own", "another's answer")


def session_of(trial, sock):
    client = "%s:%d" % sock.getsockname()[:2]
    return next((s for s in trial.daemon.ask("sessions")["sessions"] if s["client"] == client), None)


def conversation(trial, address=RELAY):
    with talker(trial, address) as sock:
        session = session_of(trial, sock)
        reason = session and session["flows"][0]["reason"]
    return "graft" if reason == "from the SYN on" else reason
