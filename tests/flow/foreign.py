# SPDX-License-Identifier: BSD-2-Clause
"""Clients and servers that are not Linux: packets made by hand, with the SYNs of p0f's list.

Each kind is a client, and a server, of conversations, bulk with and without loss, half-closes,
resets and closed windows.  The end judges each packet that comes, and every byte is compared.
"""

import contextlib
import itertools
import random
import socket
import threading
import time

import graft_wire
import pytest
from ends import set_up
from graft_wire import FORWARDS, RELAYS, SERVERS, exactly, mark_packets
from hand_made import End, Fault, Kind, Wire
from labkit import Daemon, Lab, expect, place, wait_until

pytestmark = pytest.mark.needs("ip", ipv6=True)
ENGINES = ("auto",)
KINDS = (
    Kind("Windows XP", "mss,nop,nop,sok", 16384, ttl=128),
    Kind("Windows 7", "mss,nop,ws,nop,nop,sok", 8192, 2, ttl=128),
    Kind("Windows 10", "mss,nop,ws,nop,nop,sok", 64240, 8, ttl=128),
    Kind("Windows 11", "mss,nop,ws,nop,nop,sok", 65535, 8, ttl=128, mss=1360),
    Kind("macOS", "mss,nop,ws,nop,nop,ts,sok,eol+1", 65535, 6, ecn=True),
    Kind("iOS", "mss,nop,ws,nop,nop,ts,sok,eol+1", 65535, 2, mss=1400),
    Kind("Android", "mss,sok,ts,nop,ws", 64240, 3),
    Kind("FreeBSD", "mss,nop,ws,sok,ts", 65535, 6),
    Kind("Solaris 8", "nop,ws,nop,nop,ts,nop,nop,sok,mss", 32850, 1, hz=100),
    Kind("Solaris 10", "mss,nop,ws,nop,nop,sok", 49640),
    Kind("Linux 2.0", "mss", 16384),
    Kind("Linux 2.4", "mss,sok,ts,nop,ws", 5840, hz=100),
    Kind("Linux 2.6", "mss,sok,ts,nop,ws", 5840, 6, hz=250),
    Kind("no options", "", 2048, ttl=255),
)
QUICK = ("Windows 10", "macOS", "no options")
PORT = graft_wire.UPSTREAM_PORT
NETS = {"client": 9, "server": 10}
LOSS = 0.01
# On a busy machine an end answers late, and Linux sends again: that counts as loss.
AFTER_LOSS = ("loss", "never quiet", "no packet seen yet")


class Grafted:
    """A session of `trial` that can ask a `question()`: is it grafted?"""

    def state(self):
        row = self.trial.daemon.ask("sessions")["sessions"][0]
        return ({flow["carrier"] for flow in row["flows"]}, row["not_grafted"], row["shaped"])

    def is_from_syn(self):
        row = self.trial.daemon.ask("sessions")["sessions"][0]
        return row["flows"][0]["reason"] == "from the SYN on"

    def expect_grafted(self, when, or_not=()):
        """Or refused for one of OR_NOT.  Questions go on until then: an offer needs packets."""
        if self.trial.engine == "copy":
            return
        for _ in range(50):
            state = self.state()
            if state[0] == {"graft"} or state[1] in or_not:
                return
            self.question()
        expect(False, f"{when}: {state}")

    def talk(self, must):
        """Until it is grafted, if it MUST be; returns what was shaped."""
        for _ in range(20):
            self.question()
        if must:
            self.expect_grafted("conversation")
        return self.state()[2]


class Session(Grafted):
    """An end made by hand, and a socket of Linux: either is the client."""

    def __init__(self, trial, families, seed):
        self.trial, self.chance = trial, random.Random(seed)
        near, far = families
        address = RELAYS[near], FORWARDS[families]
        if trial.role == "client":
            self.end = End(trial.wire, trial.kind, near, next(trial.ports), address, seed)
            trial.listeners[far].settimeout(10)
            self.sock = trial.listeners[far].accept()[0]
        else:
            self.end = End(trial.wire, trial.kind, far, PORT, seed=seed)
            self.sock = trial.lab.socket("client", address[0])
            mark_packets(self.sock, near)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
            self.sock.settimeout(10)
            self.sock.connect(address)
        self.sock.settimeout(graft_wire.PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end.until(lambda: self.end.acked, "no connection")

    def question(self):
        data = self.chance.randbytes(200)
        self.end.send(data)
        expect(exactly(self.sock, 200) == data, "a question is wrong")
        self.sock.sendall(data[::-1])
        expect(self.end.receive(200) == data[::-1], "an answer is wrong")

    @contextlib.contextmanager
    def sending(self, size):
        """The socket sends, and the end has it all afterwards."""
        data = self.chance.randbytes(size)
        thread = threading.Thread(target=self.sock.sendall, args=(data,))
        thread.start()
        yield
        expect(self.end.receive(size) == data, "wrong bytes for the end")
        thread.join()

    def bulk(self, size):
        data = self.chance.randbytes(size)
        with self.sending(size):
            self.end.send(data)
            expect(exactly(self.sock, size) == data, "wrong bytes from the end")

    def end_closes(self):
        self.end.close()
        expect(self.sock.recv(1) == b"", "no end of the stream")
        with self.sending(50_000):
            pass
        self.sock.close()
        self.end.until(lambda: self.end.fin_at, "no FIN")

    def socket_closes(self):
        self.sock.shutdown(socket.SHUT_WR)
        self.end.until(lambda: self.end.fin_at, "no FIN")
        data = self.chance.randbytes(50_000)
        self.end.send(data)
        self.end.close()
        expect(exactly(self.sock, len(data)) == data, "wrong bytes after a FIN")
        expect(self.sock.recv(1) == b"", "no end of the stream")
        self.sock.close()


# ---- scenarios: what happens once a session is grafted


def half_close(session):
    session.end_closes()


def bulk(session):
    session.bulk(session.trial.size)
    session.expect_grafted("after bulk", AFTER_LOSS)
    session.socket_closes()


def lossy(session):
    session.end.lost = LOSS
    session.bulk(session.trial.size)
    session.question()
    end = session.end
    if end.marked:
        end.until(lambda: not end.must_echo, "no CWR after ECE")
    expect(not end.ecn or end.marked, "nothing came with ECT")
    session.end_closes()


def closed_windows(session):
    end = session.end
    end.hold(True)
    with session.sending(end.buffer() + 100_000):
        end.until(lambda: end.probed >= 2, "the window was not probed")
        end.hold(False)
    # as much as all buffers of the way do not hold
    data = session.chance.randbytes(8_000_000 if session.trial.engine == "copy" else 500_000)
    end.send(data)
    end.until(lambda: end.probes >= 2 and end.acked == end.next >= end.allowed,
              "the socket's window did not close")
    expect(exactly(session.sock, len(data)) == data, "wrong bytes after a window was closed")
    session.question()
    session.expect_grafted("after closed windows", AFTER_LOSS)
    session.socket_closes()


def reset(session):
    session.end.abort()
    try:
        session.sock.recv(1)
    except ConnectionResetError:
        return
    raise Fault("the end's reset did not come")


def reset_by_socket(session):
    session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, graft_wire.ABORT)
    session.sock.close()
    session.end.until(lambda: session.end.reset, "the socket's reset did not come")


SCENARIOS = (half_close, bulk, lossy, closed_windows, reset, reset_by_socket)


def limit_buffers(lab):
    """closed_windows() fills them."""
    for machine in "client", "relay", "server":
        lab.run(machine, "sh", "-c", "cd /proc/sys/net/ipv4; echo 4096 131072 500000 >tcp_rmem; "
                "echo 4096 16384 500000 >tcp_wmem")


class Trial:
    """One kind of end in one role."""

    def __init__(self, lab, options, engine, kind, role):
        self.lab, self.kind, self.role, self.engine = lab, kind, role, engine
        limit_buffers(lab)
        self.size = (options.size or 1_000_000) // (4 if options.quick else 1)
        self.ports = itertools.count(random.randrange(20000, 50000))
        self.wire = Wire(lab, role, NETS[role])
        self.listeners = {}
        if role == "client":
            targets = SERVERS
            for family, address in SERVERS.items():
                sock = lab.socket("server", address)
                mark_packets(sock, family)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
                sock.bind((address, PORT))
                sock.listen()
                self.listeners[family] = sock
        else:
            targets = self.wire.addresses
        if kind.ecn:
            set_up(lab, {"client": "server", "server": "client"}[role], ("tcp_ecn=1",))
        self.daemon = Daemon(lab, options.culvert, self.engine, [
            (place(RELAYS[near], port), place(targets[far], PORT))
            for (near, far), port in FORWARDS.items()])

    def expected(self):
        """The options that are shaped for a client of this kind."""
        return {what for what, is_shaped in (
            ("timestamps", not self.kind.has("ts")), ("ecn", self.kind.ecn)) if is_shaped}

    def run(self, families):
        seeds = itertools.count(1)
        # the relay learns what the server takes: one by IPv6 takes smaller segments
        if self.role == "server" or families == (4, 6):
            session = Session(self, families, next(seeds))
            session.talk(False)
            session.end_closes()
            self.wait_ended()
        for scenario in SCENARIOS:
            began = time.monotonic()
            try:
                session = Session(self, families, next(seeds))
                shaped = set(session.talk(True))
                # from the SYN on the handshake is that of both ends
                if self.role == "client" and self.engine != "copy" and not session.is_from_syn():
                    expect(self.expected() == shaped - {"mss"}, f"shaped: {shaped}")
                scenario(session)
                self.wait_ended()
            except Exception as error:
                raise Fault(f"{scenario.__name__}: {error!r}") from error
            if time.monotonic() - began > 3:
                print(f"# {scenario.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        return shaped

    def wait_ended(self):
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "the session to end")
        expect(not self.wire.end.fault or self.wire.end.fault == "it was reset",
               self.wire.end.fault)

    def close(self):
        self.daemon.stop()
        self.wire.close()
        for sock in self.listeners.values():
            sock.close()


def rows():
    """Of some kinds one pair of families each is quick."""
    pairs = itertools.cycle(FORWARDS)
    for kind, role in itertools.product(KINDS, NETS):
        quick = next(pairs) if kind.name in QUICK else None
        for families in FORWARDS:
            yield pytest.param(kind, role, families, marks=[pytest.mark.quick] * (families == quick),
                               id=f"{kind.name}, {role}, IPv{families[0]} to IPv{families[1]}")


@pytest.mark.parametrize("kind, role, families", rows())
def test_kinds(request, engine, kind, role, families):
    options = request.config.option
    with Lab() as lab:
        trial = Trial(lab, options, engine, kind, role)
        try:
            print(f"# shaped: {trial.run(families)}")
        finally:
            trial.close()
