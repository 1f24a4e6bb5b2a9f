# SPDX-License-Identifier: BSD-2-Clause
"""Sessions that begin in the kernel, in numbers: with each kind of end, with losses, beside a flood.

    culvert-bench crr --ends each, forged SYNs  -->  culvert  -->  culvert-bench sink

Each byte of both ways is compared.  `--sessions N` is the size; copy is the control.
"""

import collections
import contextlib
import json
import random
import socket
import struct
import subprocess
import sys

import pytest
from from_syn import BENCH, FORWARDS, LISTEN, PORT, Trial
from graft_wire import SYN, sum16
from labkit import RELAY, Daemon, Lab, call_of, expect, wait_until

pytestmark = pytest.mark.needs("ip", "nft", "curl", packages="demo", ipv6=True)
ENGINES = ("auto",)
CLIENTS = 64
SIZE, FLOOD = 100_000, 200_000  # at least
SLICE = 5      # seconds of a run of the generator
OPENING = 1.5  # seconds of a slice: a SYN that was lost at its begin is sent again after one
# Seconds of a client.  With losses, a connection whose SYN|ACK was lost begins with 3 s, and waits for
# 3, 6, 12, ... s as its next packets are lost in turn: a session from the SYN on loses on both ways.
PATIENCE = 200
AGAIN = 5      # SYNs of each forged address
FORGED = "100.64.0.0/10"
MISHAPS = "TCPSynRetrans", "TCPChallengeACK", "ListenDrops"


def read(name):
    """The lines of a file of this thread, in words."""
    with open(f"/proc/thread-self/{name}", encoding="ascii") as file:
        return [line.split() for line in file]


class Crowd(Trial):
    """Clients in slices, and all that counts them."""

    def __init__(self, lab, program):
        super().__init__(lab, program)
        self.engine, self.before = None, {}

    def begin_with(self, engine):
        self.engine = engine
        self.lab.stop(self.sink)  # its counts are of one case
        self.start_sink()
        # a RST is not sent again if it is lost: keepalive finds that its sender is gone
        self.daemon = Daemon(self.lab, self.program, engine, FORWARDS, "--graft-pins", self.pins,
                             "--set-up", "kernel", "--keepalive", "60", "--metrics", "127.0.0.1:9209",
                             "--max-sessions-per-client", "0")
        wait_until(lambda: self.crr(1, SLICE) and (engine == "copy" or self.reasons() > 0),
                   "a session from the SYN on", PATIENCE)
        self.wait_for_ends()  # of sessions that began before, which new() would count
        self.before = self.counts()

    def wait_for_ends(self):
        wait_until(lambda: not self.forward()["live"], lambda: f"sessions to end: {self.forward()}",
                   PATIENCE)

    def counts(self):
        forward = self.forward()
        counts = {name: forward[name] for name in ("accepted", "finished", "live")}
        counts["from the SYN on"] = self.reasons() / 2
        counts.update(self.mishaps())
        return counts

    def mishaps(self):
        """What was sent again; what queues of the lab's devices dropped, as those of a busy CPU do."""
        found = collections.Counter()
        for namespace in ("client", "relay", "server"):
            with self.lab.inside(namespace):
                names, values = (line for line in read("net/netstat") if line[0] == "TcpExt:")
                for name in MISHAPS:
                    found[f"{namespace} {name}"] = int(values[names.index(name)])
                found["dropped"] += sum(int(line[12]) for line in read("net/dev")[2:])
        return found

    def new(self):
        return {name: n - self.before[name] for name, n in self.counts().items()}

    def expect_none_lost(self, names="TCP"):
        """A packet that was dropped may cost a SYN, a SYN|ACK and a challenge."""
        new = self.new()
        again = sum(n for name, n in new.items() if names in name)
        expect(again <= 3 * new["dropped"], f"packets were lost: {new}")

    def set_up(self):
        return self.daemon.ask("status")["set_up"]

    def past(self):
        return {why: n for why, n in (self.set_up() or {"past": {}})["past"].items() if n}

    def serve(self, enough, clients=CLIENTS, size=64, may_fail=0):
        """Clients until ENOUGH; returns how many, and their latencies.  MAY_FAIL: a share of them."""
        requests, failed, buckets = 0, 0, {}
        while not requests or not enough(requests):
            before = self.mishaps()
            process = self.lab.start(
                "client", BENCH, "crr", "--connect", FORWARDS[0][0], "--ends", "each", "--size",
                str(size), "--connections", str(clients), "--warmup", "0", "--seconds", str(SLICE),
                "--timeout", str(PATIENCE), stdout=subprocess.PIPE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(OPENING)
            opening = self.mishaps() - before
            text = process.communicate()[0]
            self.lab.finish(process, 1)
            after, said = self.mishaps() - before - opening, json.loads(text)
            if opening or after:
                print(f"slice after {requests}: {dict(opening)} in its opening, then {dict(after)}")
            requests += said["requests"]
            failed += sum(said["errors"].values())
            expect(failed <= may_fail * requests and not said["wrong"],
                   f"errors {said['errors']}, {said['wrong']} wrong, of {requests}: {self.new()}"
                   f" {self.past()}")
            for upper, n in said["histogram"]:
                buckets[upper] = buckets.get(upper, 0) + n
        return requests, buckets

    def finish(self):
        """No session is left, and the sink has nothing to complain of.  Returns its count."""
        wait_until(lambda: not (self.set_up() or {}).get("half_open"), "half-open sessions to end")
        # with losses it has connections whose clients' resets were lost
        expect(self.lab.stop(self.sink) == 0, "the sink failed")
        self.wait_for_ends()
        with open(self.sink.log, encoding="utf-8") as file:
            said = json.loads(file.read().splitlines()[-1])
        expect(not said["wrong"] and not said["cut"] and not said["bad_headers"], f"sink: {said}")
        new = self.new()
        expect(new["finished"] == new["accepted"], f"not counted: {new}")
        return said["connections"]


def show(trial, requests, buckets):
    """For -s."""
    shares, seen, text = [0.5, 0.99, 0.999, 1], 0, []
    for upper in sorted(buckets):
        seen += buckets[upper]
        while shares and seen >= shares[0] * sum(buckets.values()):
            text.append(f"{shares.pop(0):.1%} {upper / 1000:.1f} ms")
    print(f"{trial.engine}: {requests} requests; {', '.join(text)}; {trial.new()}, {trial.past()}")


@pytest.fixture(name="trial", scope="module")
def _trial(lab, culvert):
    return Crowd(lab, culvert)


@pytest.fixture(name="size", scope="session")
def _size(request):
    return request.config.option.sessions or SIZE


@pytest.mark.parametrize("length, share", [(64, 1), (10000, 4)])
def test_ends(trial, engine, size, length, share):
    """Ports wrap; client or server ends, half-closes or resets first."""
    trial.begin_with(engine)
    requests, buckets = trial.serve(lambda n: n >= size // share, size=length)
    served = trial.finish()
    show(trial, requests, buckets)
    new = trial.new()
    expect(requests <= new["accepted"] <= served, f"{served} at the sink: {new}")
    if engine == "auto":
        expect(new["from the SYN on"] > 0.9 * new["accepted"], f"by sockets: {trial.past()}")
        expect(trial.past().get("challenged", 0) <= new["dropped"], f"{trial.past()}, {new}")
        trial.expect_none_lost()


@pytest.mark.parametrize("loss", [1, 5])
def test_losses(culvert, engine, size, loss):
    with Lab(loss=(loss, loss)) as lab:
        trial = Crowd(lab, culvert)
        trial.begin_with(engine)
        # a SYN may be lost each time until connect-timeout
        requests, buckets = trial.serve(lambda n: n >= size // 20, 8 * CLIENTS, 2000, 0.001)
        trial.finish()
        show(trial, requests, buckets)
        new = trial.new()
        # a SYN that is lost makes no server silent
        expect(engine != "auto" or new["from the SYN on"] > 0.5 * new["accepted"],
               f"by sockets: {trial.past()}")


def test_flood(trial, engine, size):
    """Forged SYNs take no slot, reach no server, and hinder no client."""
    n = max(FLOOD, size // 10)
    trial.begin_with(engine)
    trial.lab.run("relay", "ip", "route", "add", FORGED, "via", "10.0.1.1")
    trial.lab.run("server", "nft", "add table ip watch; add chain ip watch in "
                  "{ type filter hook input priority 0 ; };"
                  f"add rule ip watch in tcp dport {PORT} tcp flags & (syn|ack) == syn counter")
    try:
        forger = trial.lab.start("client", *call_of("endurance", "flood"), str(n))
        requests, buckets = trial.serve(lambda _: forger.poll() is not None, CLIENTS // 4)
        trial.lab.finish(forger, 1)
        served = trial.finish()
        rules = json.loads(trial.lab.run("server", "nft", "-j", "list", "table", "ip", "watch"))
    finally:
        trial.lab.run("relay", "ip", "route", "del", FORGED)
        trial.lab.run("server", "nft", "delete table ip watch")
    show(trial, requests, buckets)
    new, syns = trial.new(), next(r["rule"]["expr"][-1]["counter"]["packets"]
                                  for r in rules["nftables"] if "rule" in r)
    expect(new["accepted"] <= served and syns <= served, f"{syns} SYNs, {served} clients: {new}")
    trial.expect_none_lost("client TCPSynRetrans")
    if engine == "auto":
        expect(trial.past().get("unproven", 0) > 0.9 * n, f"the flood did not come: {trial.past()}")
        expect(new["from the SYN on"] > 0.9 * new["accepted"], f"by sockets: {trial.past()}")


def flood():
    """Sends N SYNs of forged addresses, AGAIN of each while the last one may be answered."""
    n, chance, batch = int(sys.argv[1]), random.Random(1), 1000
    relay = socket.inet_aton(RELAY)
    options = b"\2\4\5\xb4\4\2\x08\x0a" + bytes(8) + b"\1\3\3\7"
    head = struct.pack("!BBHHHBBH", 0x45, 0, 60, 0, 0x4000, 64, 6, 0)
    base = sum16(relay + struct.pack("!HH", 6, 40) +
                 struct.pack("!HHLLBBHHH", 0, LISTEN, 0, 0, 0xa0, SYN, 64240, 0, 0) + options)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        for first in range(0, n, batch * AGAIN):
            addresses = range(0x64400000 + first // AGAIN, 0x64400000 + first // AGAIN + batch)
            for _ in range(AGAIN):
                for address in addresses:
                    port, seq = chance.getrandbits(15) + 16384, chance.getrandbits(32)
                    check = base + (address >> 16) + (address & 0xffff) + port + (seq >> 16) + \
                        (seq & 0xffff)
                    check = (check & 0xffff) + (check >> 16)
                    check = ~((check & 0xffff) + (check >> 16)) & 0xffff
                    raw.sendto(head + struct.pack("!L", address) + relay +
                               struct.pack("!HHLLBBHHH", port, LISTEN, seq, 0, 0xa0, SYN, 64240,
                                           check, 0) + options, (RELAY, 0))
