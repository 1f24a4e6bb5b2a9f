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
import sys
import time

import pytest
from labkit import RELAY, SERVER, SLOW, TOP, Daemon, expect, wait_until
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
        """Client and server of a forward are proven."""
        wait_until(lambda: self.crr(1, 0.2, address) and self.reasons() > 0,
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
                for _ in range(100):
                    say(sock)
                    time.sleep(0.05)
        expect(trial.forward(1)["live"] == 3, f"{trial.forward(1)}")


def test_accept_rate(trial):
    """Sessions from the SYN on have no burst of their own."""
    trial.begin("--accept-rate", "20")
    # what is prepared needs a token as well, so clients must leave some
    wait_until(lambda: time.sleep(0.2) or conversation(trial) == "graft", "a session from the SYN on")
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
def test_lives_on(trial):
    """A session without sockets survives SIGKILL, is shown, and is killed by command."""
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    sock = talker(trial)
    session = wait_until(lambda: session_of(trial, sock), "the session to be shown")
    expect(session["flows"][0]["reason"] == "from the SYN on", f"{session}")
    trial.daemon.kill()
    wait_until(lambda: session_of(trial, sock), "an adoption")
    say(sock)
    trial.daemon.command("kill", str(session_of(trial, sock)["id"]))
    with pytest.raises(ConnectionResetError):
        for _ in range(100):
            say(sock)
            time.sleep(0.1)
    sock.close()


@pytest.mark.quick
def test_sockets(trial):
    """After two seconds a session has its sockets: a vanished client is noticed, a kill is heard."""
    trial.begin()
    wait_until(lambda: conversation(trial) == "graft", "a session from the SYN on")
    sock = talker(trial)
    wait_until(lambda: sockets(trial, sock) == 2, "both sockets", 5)
    say(sock)
    trial.daemon.command("engine", FORWARDS[1][0], "copy")
    wait_until(lambda: say(sock) or session_of(trial, sock)["flows"][0]["carrier"] == "copy",
               "the session to be at its sockets")
    for _ in range(20):
        say(sock)
    trial.daemon.command("engine", FORWARDS[1][0])
    trial.daemon.command("kill", str(session_of(trial, sock)["id"]))
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    sock.close()


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


def talker(trial):
    sock = trial.lab.socket("client", RELAY)
    sock.settimeout(10 * SLOW)
    sock.connect((RELAY, LISTEN_ECHO))
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


def session_of(trial, sock):
    client = "%s:%d" % sock.getsockname()[:2]
    return next((s for s in trial.daemon.ask("sessions")["sessions"] if s["client"] == client), None)


def conversation(trial):
    with talker(trial) as sock:
        session = session_of(trial, sock)
        reason = session and session["flows"][0]["reason"]
    return "graft" if reason == "from the SYN on" else reason
