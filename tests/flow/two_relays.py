# SPDX-License-Identifier: BSD-2-Clause
"""Two relays with culvert, and Debian's keepalived, which moves an address from one to the other.

    clients from 16 addresses  -->  192.0.2.80: relay or relay2  -->  three servers, by `source`

The relay that has the address fails under load: its links, all that runs on it, culvert alone. Each
client must be served again by the same server. What its established sessions do is printed, and is
what docs/operations.md says. docs/examples/keepalived.conf is used.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import time

import pytest
from labkit import SERVER, TOP, Daemon, Lab, expect, tail, wait_until

pytestmark = pytest.mark.needs("ip", "ss", "keepalived")
NAMING_SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "naming_server.py")
ADDRESS, PORT = "192.0.2.80", 9100  # the address is the one of the example
SERVERS = [7101, 7102, 7103]
CLIENTS = 16
OWN = {"relay": "10.0.2.1", "relay2": "10.0.2.3"}  # as servers see them

# Clients of 10.0.1.11-26 at once, each with one connection.
#
# load: one after the other, tried for 0.15 s each. Prints "served" once all have
# been. When stdin has ended, goes on until each was served ten times more; prints the servers of
# each, and when the first connection that began after the end of stdin was served.
# keep: one for each, kept. Prints "served"; for each line on stdin, how each of them answers.
CLIENT = """
import asyncio, json, sys, time
address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sources = [f"10.0.1.{n}" for n in range(11, 27)]
async def connect(source):
    r, w = await asyncio.open_connection(address, port, local_addr=(source, 0))
    return (await r.readuntil(b"\\n")).decode().strip(), r, w
async def load(source, did, ended):
    later = 0
    while later < 10:
        is_late = ended.is_set()
        try:
            name, r, w = await asyncio.wait_for(connect(source), 0.15)
            w.close()
            did["servers"][name] = True
            later += is_late
            if later == 1:
                did.setdefault("first", time.monotonic())
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            did["failed"] += 1
        await asyncio.sleep(0.01)
async def talk(r, w):
    try:
        w.write(b"hello")
        await w.drain()
        data = await asyncio.wait_for(r.read(5), 5)
        return "answered" if data == b"hello" else "ended"
    except asyncio.TimeoutError:
        return "silent"
    except ConnectionResetError:
        return "reset"
async def main():
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    if how == "load":
        did = {source: {"servers": {}, "failed": 0} for source in sources}
        ended = asyncio.Event()
        tasks = [asyncio.create_task(load(source, did[source], ended)) for source in sources]
        while not all(d["servers"] for d in did.values()):
            await asyncio.sleep(0.01)
        print("served", flush=True)
        await lines.read()
        ended.set()
        await asyncio.gather(*tasks)
        print(json.dumps(did), flush=True)
        return
    kept = [await connect(source) for source in sources]
    print("served", flush=True)
    while await lines.readline():
        print(json.dumps(await asyncio.gather(*(talk(r, w) for _, r, w in kept))), flush=True)
asyncio.run(main())
"""


class Trial:
    """A lab with servers, and two relays with culvert and keepalived."""

    def __init__(self, lab, program):
        self.lab = lab
        self.program = program
        self.daemons = {}
        self.keepaliveds = {}
        self.servers_of = None
        self.pins = lab.path("bpf")

    def begin(self):
        os.mkdir(self.pins)
        subprocess.run(["mount", "-t", "bpf", "bpf", self.pins], check=True)
        for port in SERVERS:
            self.lab.start_server("server", port, sys.executable, NAMING_SERVER, str(port))
        with open(self.lab.path("culvert.conf"), "w", encoding="ascii") as file:
            file.write(f"[forward web]\nlisten = :{PORT}\nbalance = source\n"
                       f"upstream = {' '.join(f'{SERVER}:{port}' for port in SERVERS)}\n")
        self.ip("client", "route", "add", ADDRESS, "dev", "to-relay")
        for relay in OWN:
            self.start_culvert(relay)
            self.start_keepalived(relay)
        wait_until(self.holder, "a relay to have the address", 30)

    def ip(self, role, *words):
        return subprocess.run(["ip", "-n", f"{self.lab.name}-{role}", *words], check=True,
                              stdout=subprocess.PIPE, text=True).stdout

    def start_culvert(self, relay):
        self.daemons[relay] = Daemon(
            self.lab, self.program, "auto", (), "--config", self.lab.path("culvert.conf"),
            "--graft-pins", os.path.join(self.pins, relay), namespace=relay)

    def start_keepalived(self, relay):
        """With the file of the example, and with the interface and culvert of this lab."""
        with open(os.path.join(TOP, "docs/examples/keepalived.conf"), encoding="ascii") as file:
            text = file.read()
        # who owns the sources, which culvert is a part of, is not the example's concern
        for old, new in (("eth0", "to-client"), ("eth1", "to-server"),
                         ("enable_script_security", ""),
                         ("/usr/local/sbin/culvert status",
                          f"{self.program} status --control {self.daemons[relay].control}")):
            expect(text.count(old) == 1, f"the example does not have one {old}")
            text = text.replace(old, new)
        home = tempfile.mkdtemp(prefix="keepalived.", dir=self.lab.home)
        with open(os.path.join(home, "conf"), "w", encoding="ascii") as file:
            file.write(text)
        self.keepaliveds[relay] = self.lab.start(
            relay, "keepalived", "--dont-fork", "--log-console", "--no-syslog", "--vrrp",
            "--use-file", os.path.join(home, "conf"), "--pid", os.path.join(home, "pid"),
            "--vrrp_pid", os.path.join(home, "vrrp"))
        self.wait_backups(relay, 1)

    def wait_backups(self, relay, times):
        """Until RELAY has become a backup as often as TIMES."""
        def has_become():
            with open(self.keepaliveds[relay].log, encoding="utf-8") as file:
                return file.read().count("Entering BACKUP STATE") >= times

        wait_until(has_become, f"keepalived of {relay} to be a backup", 30)

    def has_address(self, relay):
        return ADDRESS in self.ip(relay, "address", "show", "dev", "to-client")

    def holder(self):
        """The relay that has the address, if one alone has."""
        found = [relay for relay in OWN if self.has_address(relay)]
        return found[0] if len(found) == 1 else None

    def start_clients(self, how):
        process = self.lab.start("client", sys.executable, "-c", CLIENT, ADDRESS, str(PORT), how,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        expect(process.stdout.readline() == "served\n", f"clients fail: {tail(process.log)}")
        return process

    def talk(self, kept):
        kept.stdin.write("talk\n")
        kept.stdin.flush()
        return dict(collections.Counter(json.loads(kept.stdout.readline())))

    def is_grafted(self, relay):
        flows = [flow for session in self.daemons[relay].ask("sessions")["sessions"]
                 for flow in session["flows"] if session["forward"] == "web"]
        return sum(flow["carrier"] == "graft" for flow in flows) >= 2 * CLIENTS

    def server_side(self, relay):
        """Connections from RELAY that servers still have."""
        return len(subprocess.run(
            ["ip", "netns", "exec", f"{self.lab.name}-server", "ss", "-Htn", "state", "established",
             "dst", OWN[relay]], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines())

    def start_grafted(self, relay):
        kept = self.start_clients("keep")
        self.talk(kept)
        wait_until(lambda: self.is_grafted(relay), "kept sessions to be grafted", 30)
        return kept

    def fail(self, what, fault, most):
        """
        FAULT(relay) happens to the relay with the address, under load; which is returned.  MOST
        seconds are for a machine that does more than this: docs/operations.md has what it takes
        else.
        """
        old = self.holder()
        new = next(relay for relay in OWN if relay != old)
        kept = self.start_grafted(old)
        load = self.start_clients("load")
        began = time.monotonic()
        fault(old)
        load.stdin.close()
        did = json.loads(load.stdout.readline())
        self.lab.finish(load, 30)
        firsts = [client["first"] - began for client in did.values()]
        expect(self.has_address(new), f"{new} has not taken the address")
        became = self.talk(kept)
        at_servers = self.server_side(old)
        self.lab.stop(kept)
        print(f"# {what}: the first client is served again after {min(firsts):.2f} s, the last one "
              f"after {max(firsts):.2f} s; {CLIENTS} grafted "
              f"sessions: {became}; left of all at servers: {at_servers}", flush=True)
        expect(min(firsts) < most, f"new connections took {min(firsts):.2f} s")
        # a SYN that is lost meanwhile is sent again after a second
        expect(max(firsts) < most + 2, f"a client waited for {max(firsts):.2f} s")
        expect(became == {"reset": CLIENTS}, f"what became of established sessions: {became}")
        expect(at_servers >= CLIENTS, f"servers have {at_servers} connections of the relay")
        servers_of = {source: list(client["servers"]) for source, client in did.items()}
        expect(all(len(names) == 1 for names in servers_of.values()),
               f"a client has changed its server: {servers_of}")
        expect(self.servers_of in (None, servers_of), "clients have changed their servers")
        self.servers_of = servers_of
        return old

    # --- faults ---

    def links(self, relay, state):
        port = "relay1" if relay == "relay" else relay
        for role in ("client", "server"):
            self.ip(role, "link", "set", port, state)

    def kill_both(self, relay):
        """What keepalived has forked sees that keepalived is dead, and takes the address away."""
        self.daemons[relay].process.kill()
        self.keepaliveds[relay].kill()


@pytest.fixture
def trial(culvert):
    with Lab(two_relays=True) as lab:
        one = Trial(lab, culvert)
        yield one
        for process in one.keepaliveds.values():
            print(tail(process.log))
        subprocess.run(["umount", "-l", one.pins], check=False)


def test_faults(trial):
    trial.begin()
    old = trial.fail("both links down", lambda relay: trial.links(relay, "down"), 5)
    kept = trial.start_clients("keep")
    trial.links(old, "up")
    trial.wait_backups(old, 2)
    expect(trial.talk(kept) == {"answered": CLIENTS}, "a relay that comes back breaks sessions")
    trial.lab.stop(kept)

    old = trial.fail("culvert and keepalived killed", trial.kill_both, 5)
    expect(not trial.has_address(old), f"{old} has kept the address")
    trial.lab.stop(trial.keepaliveds[old])
    trial.start_culvert(old)
    trial.start_keepalived(old)

    kept = trial.start_grafted(trial.holder())
    trial.daemons[trial.holder()].kill()  # and started again
    expect(trial.talk(kept) == {"answered": CLIENTS} and not trial.has_address(old),
           "culvert cannot be started again without breaking sessions")
    trial.lab.stop(kept)

    trial.fail("culvert killed", lambda relay: trial.daemons[relay].process.kill(), 10)
