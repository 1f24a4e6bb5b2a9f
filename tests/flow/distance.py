# SPDX-License-Identifier: BSD-2-Clause
"""Sessions over a long way: grafted while they converse, at their sockets while they carry bulk.

    client  --10 ms-->  culvert  --2 ms-->  server

One connection converses, carries bulk, and converses again; every byte is compared. With losses, the
way is short and graft-rtt long, so losses alone send a session back.
"""

import re
import socket
import threading

import pytest
from labkit import RELAY, SERVER, Daemon, Lab, call_of, expect, wait_until

pytestmark = pytest.mark.needs("ss")
ENGINES = ("auto", "kernel")  # kernel: auto, and sessions begin in the kernel
PORT, LISTEN = 7100, 9100
TURNS = 12  # a round is two turns
BULK = 3_000_000
FAR, NEAR, LOSS = (10, 2), (1, 0), (1, 1)

BLOCK = bytes(range(251)) * 256


class End:
    """An end of a connection: both ends know byte N of a direction."""

    def __init__(self, sock):
        self.sock, self.sent, self.got, self.wrong = sock, 0, 0, 0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def put(self, n):
        while n:
            at = self.sent % 251
            k = self.sock.send(BLOCK[at:at + min(n, 251 * 200)])
            n, self.sent = n - k, self.sent + k

    def get(self, n):
        while n:
            data = self.sock.recv(min(n, 251 * 200))
            if not data:
                raise ConnectionError(f"ended {n} bytes early")
            at = self.got % 251
            self.wrong += data != BLOCK[at:at + len(data)]
            n, self.got = n - len(data), self.got + len(data)

    def both(self, n):
        thread = threading.Thread(target=self.put, args=(n,))
        thread.start()
        self.get(n)
        thread.join()


def serve():
    """Does what clients ask for: a letter, and how many bytes."""
    def answer(sock):
        end = End(sock)
        for line in sock.makefile("rb", 0):
            what, n = line.split()
            {b"g": end.put, b"p": end.get, b"b": end.both}[what](int(n))
            if what == b"p":
                sock.sendall(b"%d\n" % end.wrong)

    listener = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


class Client(End):
    def __init__(self, lab, address=RELAY, port=LISTEN):
        with lab.inside("client"):
            super().__init__(socket.create_connection((address, port), 60))

    def talk(self, turns):
        for _ in range(turns):
            self.step("get", 64)

    def step(self, what, n):
        """get, put or both; half: get, with our FIN before."""
        self.sock.sendall(f"{'g' if what == 'half' else what[0]} {n}\n".encode())
        if what == "half":
            self.sock.shutdown(socket.SHUT_WR)
        {"put": self.put, "both": self.both}.get(what, self.get)(n)
        if what == "put":
            expect(self.sock.makefile("rb", 0).readline() == b"0\n", "the server got wrong bytes")
        elif what == "half":
            expect(self.sock.recv(1) == b"", "bytes after the last one")
        expect(not self.wrong, f"{what}: {self.wrong} times wrong bytes came")


class Trial:
    def __init__(self, lab, program, engine, *options, rtt, reason="far bulk"):
        self.lab, self.program, self.reason = lab, program, reason
        self.from_syn = engine == "kernel"
        self.engine = "auto" if self.from_syn else engine
        self.rtt = rtt  # of the client's leg, in ms
        self.lossy = reason == "lossy bulk"
        self.options = options + (("--set-up", "kernel") if self.from_syn else ())
        self.daemon = self.client = None
        lab.start_server("server", PORT, *call_of("distance", "serve"))

    def start(self, *options):
        self.daemon = Daemon(self.lab, self.program, self.engine,
                             [(f"{RELAY}:{LISTEN}", f"{SERVER}:{PORT}")], *self.options, *options,
                             near=())
        if self.from_syn:
            wait_until(self.connect, "a session from the SYN on")
        else:
            self.connect()

    def connect(self):
        """True: the session of the new client has begun in the kernel."""
        if self.client:
            self.client.sock.close()
        self.client = Client(self.lab)
        if self.from_syn:
            self.client.talk(3)
        return any(reason == "from the SYN on" for _carrier, reason in self.flows())

    def end(self):
        if self.client:
            self.client.sock.close()
        if self.daemon:
            self.daemon.stop()
        self.client = self.daemon = None

    def flows(self):
        """(carrier, reason) of each flow of the session."""
        rows = self.daemon.ask("sessions")["sessions"]
        return [(flow["carrier"], flow["reason"]) for row in rows for flow in row["flows"]]

    def carriers(self):
        return {carrier for carrier, _reason in self.flows()}

    def expect_graft(self, when):
        if self.engine == "auto":
            wait_until(lambda: self.carriers() == {"graft"}, lambda: f"{when}: {self.flows()}")

    def expect_sockets(self, when):
        """One of the flows carried the bulk, and says why it was not grafted."""
        if self.engine == "auto":
            wait_until(lambda: "graft" not in self.carriers() and
                       self.reason in dict(map(reversed, self.flows())),
                       lambda: f"{when}: {self.flows()}")

    def expect_no_memory(self, when):
        """A socket that was frozen has measured no round trip to the packet programs, and has seen
        no congestion there: it is free to start slowly, from ten segments."""
        said = self.lab.run("relay", "ss", "-tinH", "state", "established", f"sport = :{LISTEN}")
        least = float(re.search(r"minrtt:([0-9.]+)", said)[1])
        # the socket sends what may be under way already: that is acknowledged earlier
        expect(least >= 0.5 * self.rtt, f"{when}: the socket has seen {least} ms")
        slow = re.search(r"\sssthresh:([0-9]+)", said)
        expect(self.lossy or not slow or int(slow[1]) > 10, f"{when}: congestion: {said}")

    def converse(self, when, turns=TURNS):
        self.client.talk(turns)
        self.expect_graft(when)


@pytest.fixture(scope="module", params=["far", "lossy"])
def trial(request, culvert, engine):
    if request.param == "lossy":
        with Lab(rtt=NEAR, loss=LOSS) as lab:
            yield Trial(lab, culvert, engine, "--graft-rtt", "1000000", rtt=NEAR[0],
                        reason="lossy bulk")
        return
    with Lab(rtt=FAR) as lab:
        lab.mount_bpf()
        yield Trial(lab, culvert, engine, rtt=FAR[0])


far_alone = pytest.mark.parametrize("trial", ["far"], indirect=True)


def test_turns(trial):
    """Bulk of each kind sends it to its sockets, a conversation back.  What begins at sockets is not
    grafted before it converses."""
    trial.start()
    turns = TURNS
    trial.client.step("get", BULK)
    if not (trial.from_syn and trial.lossy):  # it may be over before it has sockets
        trial.expect_sockets("at once")
    for what in ("get", "put", "both", "get"):
        trial.converse(f"before {what}", turns)
        turns *= 2
        trial.client.step(what, BULK)
        trial.expect_sockets(what)
        trial.expect_no_memory(what)


@far_alone
def test_silent(trial):
    """Nobody sends a byte, so keepalive probes have to begin the graft."""
    trial.start()
    trial.client.step("get", BULK)
    trial.expect_graft("silent")
    trial.client.step("put", BULK)
    trial.expect_sockets("after silence")


def test_half_closed(trial):
    """A client that has sent FIN cannot go back, and must not be kept waiting."""
    trial.start()
    trial.converse("before")
    trial.client.step("half", BULK)


@far_alone
@pytest.mark.engines("auto", "kernel")  # nothing else outlives the daemon
def test_killed(trial):
    """Without a daemon there are no sockets to go back to."""
    trial.start("--graft-pins", trial.lab.path("bpf"))
    trial.converse("before")
    trial.daemon.process.kill()
    trial.daemon.process.wait()
    trial.client.step("get", BULK)
    trial.client.talk(3)


@far_alone
@pytest.mark.engines("auto", "kernel")
def test_any(trial):
    """graft-rtt = 0: any way is near, as with engine graft."""
    trial.start("--graft-rtt", "0")
    trial.client.talk(3)
    trial.client.step("get", BULK)
    trial.expect_graft("after bulk")
