# SPDX-License-Identifier: BSD-2-Clause
"""Two relays with culvert, and Debian's keepalived, which moves an address from one to the other.

    clients from 16 addresses  -->  10.0.1.80: relay or relay2  -->  three servers, by `source`

The relay that has the address fails under load: its links, all that runs on it, culvert alone. Each
client must be served again by the same server, unless a relay has set one aside. What its
established sessions do is printed, and is what docs/operations.md says.
docs/examples/keepalived.conf is used.
"""

import collections
import contextlib
import socket
import threading
import time

import pytest
from labkit import SERVER, SLOW, Lab, enter, expect, tail, wait_until
from standby_rig import CLIENT_SIDE, RELAYS, forward
from standby_service import Kept

pytestmark = pytest.mark.needs("ip", "nsenter", "ss", "keepalived")
PORT, SERVERS = 9100, (7101, 7102, 7103)
CLIENTS = [f"10.0.1.{n}" for n in range(11, 27)]
OWN = {"relay": "10.0.2.1", "relay2": "10.0.2.3"}  # as servers see them


class Load:
    """A client's connections one after the other, each tried for 0.15 s, until ten have been served
    that have begun after end()."""

    ended = None  # an event

    def __init__(self, trial, source):
        self.trial, self.source, self.servers, self.first = trial, source, set(), None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        enter(self.trial.name("client"))
        later = 0
        while later < 10:
            is_late = self.ended.is_set()
            with contextlib.suppress(OSError):
                name, sock = self.trial.connect(self.source, 0.15)
                sock.close()
                self.servers.add(name)
                later += is_late
                if later == 1:
                    self.first = self.first or time.monotonic()
            time.sleep(0.01)


class Trial(Kept):
    config = forward("web", PORT, " ".join(f"{SERVER}:{port}" for port in SERVERS),
                     "balance = source")
    kept, servers_of = (), None

    def serve(self):
        for port in SERVERS:
            self.lab.start_echo("server", port, str(port))

    @staticmethod
    def connect(source, seconds):
        """The server's name, and a connection to it of this thread's namespace."""
        sock = socket.create_connection((CLIENT_SIDE[0], PORT), seconds, (source, 0))
        name = sock.recv(100)
        if not name.endswith(b"\n"):
            raise ConnectionResetError
        return name, sock

    def keep(self):
        """A connection of each client, instead of those that were kept."""
        for sock in self.kept:
            sock.close()
        with self.lab.inside("client"):
            self.kept = [self.connect(source, 5 * SLOW)[1] for source in CLIENTS]

    def talk_all(self):
        """How many of those that are kept answer, or do what."""
        became = collections.Counter()
        for sock in self.kept:
            try:
                sock.sendall(b"hello")
                became["answered" if sock.recv(5) == b"hello" else "ended"] += 1
            except TimeoutError:
                became["silent"] += 1
            except (ConnectionResetError, BrokenPipeError):
                became["reset"] += 1
        return became

    def keep_grafted(self, relay):
        self.keep()
        self.talk_all()
        # a load that ended as the relay died may have left a session, whose end was lost
        kept = {"%s:%d" % sock.getsockname() for sock in self.kept}
        wait_until(lambda: [f["carrier"] for s in self.sessions(relay) for f in s["flows"]
                            if s["client"] in kept] == ["graft"] * 2 * len(CLIENTS),
                   "a graft of all", 30)

    def fail(self, what, fault, most):
        """
        FAULT(relay) happens to the relay with the address, under load; which is returned.  MOST
        seconds are for a machine that does more than this: docs/operations.md has what it takes
        else.
        """
        old = self.holder()
        self.keep_grafted(old)
        Load.ended = threading.Event()
        loads = [Load(self, source) for source in CLIENTS]
        wait_until(lambda: all(load.servers for load in loads), "all to be served", 30)
        began = time.monotonic()
        fault(old)
        Load.ended.set()
        for load in loads:
            load.thread.join(30 * SLOW)
        firsts = sorted(load.first - began for load in loads)
        expect(self.holds(self.other(old)), f"{old}'s addresses were not taken")
        became = self.talk_all()
        left = len(self.inside("server", "ss", "-Htn", "state", "established", "dst",
                               OWN[old]).splitlines())
        print(f"# {what}: the first client is served again after {firsts[0]:.2f} s, the last one "
              f"after {firsts[-1]:.2f} s; grafted sessions: {dict(became)}; left of all at servers: "
              f"{left}", flush=True)
        expect(firsts[0] < most, f"new connections took {firsts[0]:.2f} s")
        # a SYN that is lost meanwhile is sent again after a second
        expect(firsts[-1] < most + 2, f"a client waited for {firsts[-1]:.2f} s")
        expect(became == {"reset": len(CLIENTS)}, f"what became of established sessions: {became}")
        expect(left >= len(CLIENTS), f"servers have {left} connections of the relay")
        servers_of = {load.source: load.servers for load in loads}
        # a connect that was under way as links died may have set a server aside, whose clients then
        # go elsewhere: the relays do not agree about which servers live
        aside = [line for relay in RELAYS for line in self.relays[relay].log().splitlines()
                 if " is set aside " in line]
        if aside:
            print("#", *aside, sep="\n# ", flush=True)
            return old
        expect(all(len(names) == 1 for names in servers_of.values()) and
               self.servers_of in (None, servers_of),
               f"a client has changed its server: {servers_of}, before: {self.servers_of}")
        self.servers_of = servers_of
        return old

    def kill_both(self, relay):
        """What keepalived has forked sees that keepalived is dead, and takes the address away."""
        self.relays[relay].process.kill()
        self.keepalived[relay].kill()


@pytest.fixture
def pair(culvert):
    with Lab(two_relays=True) as lab:
        one = Trial(lab, culvert)
        yield one
        for process in one.keepalived.values():
            print(tail(process.log))


def test_faults(pair):
    pair.begin_relays()
    for relay in RELAYS:
        pair.start_keepalived(relay)
    wait_until(pair.holder, "a relay to have the address", 30)
    old = pair.fail("both links down", lambda relay: pair.plug(relay, "down"), 5)
    pair.keep()
    pair.plug(old, "up")
    pair.wait_backup(old, 2)
    expect(pair.talk_all() == {"answered": len(CLIENTS)}, "who comes back breaks sessions")

    old = pair.fail("culvert and keepalived killed", pair.kill_both, 5)
    expect(not pair.holds(old), f"{old} has kept the address")
    pair.lab.stop(pair.keepalived[old])
    pair.start(old)
    pair.start_keepalived(old)

    pair.keep_grafted(pair.holder())
    pair.relays[pair.holder()].kill()  # and started again
    expect(pair.talk_all() == {"answered": len(CLIENTS)} and not pair.holds(old),
           "culvert cannot be started again without breaking sessions")

    pair.fail("culvert killed", lambda relay: pair.relays[relay].process.kill(), 10)
