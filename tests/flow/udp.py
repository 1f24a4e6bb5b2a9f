#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Datagrams through culvert in the lab, on `--engine auto` and on `--engine copy`.

    clients that know every byte  -->  culvert  -->  servers that answer as they are asked

Each answer must be of the client's own question, whole, and in order. Carriers change, the daemon
is killed and started again, servers die, limits are met, and answers come late. Exits with 77 and
the reason where this cannot run.
"""

import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../scripts/lib")]
# pylint: disable=wrong-import-position
from labkit import (ONLY, RELAY, SERVER, SLOW, Lab, begin_or_skip, cases_of, expect,
                    run_cases, run_test, tail, test_options, wait_until)
from networks import inside
from udp_peer import question
from udp_rig import (LISTEN, PAIRS, PEER, PORTS, Client, Rig, expect_refused, forge_error, is_bound,
                     place, proxy_header, spoof)

CLOSED = 7199
SIZES = 0, 1, 1472, 1473, 9000, 65507
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_DONT, PMTUDISC_DO = 10, 23, 0, 2
SOL_UDP, UDP_SEGMENT, SO_NO_CHECK = 17, 103, 11
# Those that belong before each push.
QUICK = {"auto": ("sizes", "moves", "killed", "servers", "refused", "limits_of_sessions",
                  "late_answers", "reply_factor", "reload"),
         "copy": ("sizes", "servers", "refused", "late_answers", "reply_factor")}


class Trial(Rig):
    """One engine; each method named test_* is one case."""

    # --- carriers ---

    def test_sizes(self):
        """What is too big for the other family may be lost once: its sender is told."""
        self.begin("max-reply-factor = 0")
        for pair in PAIRS:
            client = self.client(pair)
            for size in SIZES + (64,):
                for _ in range(3):
                    client.ask(size, tries=1 if pair[0] == pair[1] else 3)
        self.expect_carried(4)

    def test_carriers(self):
        self.begin()
        clients = [self.client(pair) for pair in PAIRS]
        for client in clients:
            client.ask()
            client.ask()
        for client in clients:
            client.ask()
        self.expect_carried(4)
        for client in clients:
            for _ in range(20):
                client.ask(1000)
        if self.engine == "auto":
            for session in self.sessions():
                expect(all(flow["kernel_bytes"] >= 20000 for flow in session["flows"]),
                       f"what packet programs carry is not counted: {session}")

    def test_order(self):
        """Flows that are handed over while 32 datagrams each are on their way."""
        self.begin()
        load = self.load(1, window=32, pace=0, answers=3000, sizes=(64, 1200))
        self.expect_carried(4)
        self.expect_whole(self.said(load)[0])

    def test_bursts(self):
        """Many datagrams in one packet of the sender's."""
        self.begin("max-reply-factor = 0")
        for pair in PAIRS:
            client = self.client(pair)
            for _ in range(6):
                asked = [question(client.number, client.seq + n + 1, 1200) for n in range(30)]
                client.asked.update({client.seq + n + 1: data for n, data in enumerate(asked)})
                client.seq += 30
                client.sock.sendmsg([b"".join(asked)], [(SOL_UDP, UDP_SEGMENT,
                                                         struct.pack("H", 1200))])
                heard = [client.hear() for _ in asked]
                expect(heard == asked, f"{pair}: {30 - heard.count(None)} of 30, or in disorder")
        self.expect_carried(4)

    def test_moves(self):
        self.begin("max-reply-factor = 0", options=("--session-log", "-", "--idle-timeout", "1"))
        load = self.load(5, pace=0.005, window=2, sizes=(64, 500, 1400))
        for _ in range(15):
            for engine, graft in ("copy", 0), (self.engine, 40 * (self.engine == "auto")):
                self.set_engine(engine)
                wait_until(lambda n=graft: n == sum(
                    flow["carrier"] == "graft" for s in self.sessions() for flow in s["flows"]),
                    f"{graft} flows on graft")
        did = self.said(load)[0]
        self.expect_whole(did)
        self.wait_sessions(0)
        forwards = self.daemon.ask("status")["forwards"]
        counted = [sum(forward[key] for forward in forwards)
                   for key in ("bytes_to_upstream", "bytes_to_client")]
        counted += [sum(forward[key] for forward in forwards)
                    for key in ("datagrams_to_upstream", "datagrams_to_client")]
        expect(counted == [did["bytes"]] * 2 + [did["sent"]] * 2, f"counted {counted}: {did}")
        self.daemon.stop()  # which writes what waits for the session log
        with open(self.daemon.process.log, encoding="utf-8") as file:
            ended = [json.loads(line) for line in file if line.startswith("{")]
        logged = sum(flow["datagrams"] for line in ended for flow in line["flows"])
        expect(logged == 2 * did["sent"] and {line["protocol"] for line in ended} == {"udp"},
               f"{logged} datagrams in {len(ended)} lines of the session log, but {did}")

    def test_no_checksum(self):
        """None is needed over IPv4; over IPv6 there must be one."""
        self.begin()
        for pair in "44", "46":
            client = self.client(pair)
            client.sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
            for size in 64, 65, 1400, 3000:
                client.ask(size, tries=1 if pair == "44" else 3)
        self.expect_carried(2)

    # --- restarts ---

    def outlive(self, *ends):
        """50 flows outlive each of ENDS, and are over in time."""
        self.begin("idle-timeout = 1")
        load = self.load(12, direct=True, patience=3 if self.engine == "auto" else 0.3)
        self.expect_carried(48)
        for end in ends:
            end()
            if self.engine == "auto":
                time.sleep(0.5)  # of load: at first the daemon looks whether ways have changed
                self.expect_carried(48)
                wait_until(lambda: re.search("48 .*adopted", tail(self.daemon.process.log, 30)),
                           "an adoption")
            else:  # each datagram may begin a session
                self.wait_sessions(48)
        did, around = self.said(load)
        if self.engine == "auto":
            self.expect_whole(did, around)
        self.wait_sessions(0)
        expect(self.finished() >= 48, "how the sessions ended is not counted")

    def test_killed(self):
        self.outlive(self.kill, self.kill)

    def test_paused(self):
        """Packet programs need no daemon."""
        self.begin()
        load = self.load(12, direct=True)
        self.expect_carried(48)
        os.kill(self.daemon.pid, signal.SIGSTOP)
        time.sleep(1)  # of load
        os.kill(self.daemon.pid, signal.SIGCONT)
        self.expect_carried(48)
        did, around = self.said(load)
        self.expect_whole(did, around if self.engine == "auto" else None)

    def test_stopped(self):
        self.outlive(self.restart, self.kill, self.restart)

    def test_reload(self):
        """Forwards are added, changed and removed."""
        self.begin()
        load = self.load(5, pairs=("44", "66"))
        self.expect_carried(10)
        ids = {s["id"] for s in self.sessions()}
        kept = dict(self.one(), new=(place(RELAY, 9110), place(SERVER, PORTS[1])))
        for lines in ("idle-timeout = 100",), ("max-sessions = 1000", "balance = source"), ():
            self.reload(*lines, forwards=kept)  # which removes three
            expect(Client(self.lab, RELAY, 9110).who()[2] == PORTS[1], "it leads elsewhere")
            self.reload(*lines)
        now = [(s["id"], s["forward"], s["worker"], s["age_ms"]) for s in self.sessions()
               if s["forward"] in ("44", "66")]
        expect({session[0] for session in now} == ids, f"not {ids}: {now}")
        self.expect_whole(self.said(load)[0])

    # --- ends of sessions ---

    def test_idle_timeout(self):
        self.begin("idle-timeout = 1")
        busy, still = self.client(), self.client("64")
        for _ in range(3):
            busy.ask()
            still.ask()
        self.expect_carried(2)
        first = [s["id"] for s in self.sessions() if s["forward"] == "44"]

        def is_over():
            busy.ask()
            return len(self.sessions()) == 1

        wait_until(is_over, "the silent session to end", 4)
        expect([s["id"] for s in self.sessions()] == first, "the busy session was ended")
        self.wait_sessions(0, 4)
        expect(self.finished() == 2, "ends are not counted")

    def test_responses(self):
        self.begin("responses = 1")
        client, seen = self.client(), set()
        for _ in range(5):
            seen.add(client.who()[1])
            self.wait_sessions(0)
        expect(len(seen) == 5, f"a session goes on after its answer: {seen}")
        self.end()
        self.begin("responses = 2")
        client = self.client()
        for _ in range(3):
            client.ask()
        self.expect_carried(1, "responses")
        client.ask(copies=3)  # 6 for 4 questions; with two questions more, 12 for 6, it is over
        client.ask(copies=3)
        client.ask(copies=3)
        self.wait_sessions(0)

    def test_kill(self):
        self.begin()
        clients = [self.client(pair) for pair in PAIRS]
        ports = set()
        for _ in range(2):
            for client in clients:
                for _ in range(3):
                    ports.add((client.number, client.who()[1]))
            self.expect_carried(4)
            self.command("kill", "--all")
            self.wait_sessions(0, 2)
        expect(len(ports) == 8, f"a session was not ended, or had two ports: {ports}")

    def test_drain(self):
        self.begin()
        old = self.client()
        for _ in range(3):
            old.ask()
        self.command("drain", "44")
        new = self.client()
        expect(not new.is_heard(), "a forward that drains takes clients")
        old.ask()
        self.command("drain", "--undo", "44")
        wait_until(new.is_heard, "new clients")
        old.ask()
        self.wait_sessions(2, 1)

    # --- limits ---

    def test_limits_of_sessions(self):
        self.begin("max-sessions = 2", forwards=self.one())
        first, second = self.proven(), self.proven()
        expect(not self.client().is_heard(), "a third session")
        expect(self.errors("forward-limit"), "not counted as forward-limit")
        first.ask()
        self.command("kill", "--all")
        self.proven()
        self.reload("max-sessions-per-client = 3", forwards=self.one())
        third, other = self.proven(), self.proven(source="10.0.1.11")
        for _ in range(2):  # a question after an answer proves the session, which then stays
            second.ask()
        expect(not self.client().is_heard(), "a fourth session of a client")
        expect(self.errors("client-limit"), "not counted as client-limit")
        for client in second, third, other:
            client.ask()

    def test_accept_rate(self):
        self.begin("accept-rate = 20", forwards=self.one())
        old = self.proven()
        clients = [self.client() for _ in range(60)]
        for client in clients:
            client.send()
        heard = sum(client.hear(0.05) is not None for client in clients)
        expect(heard < 50, f"{heard} of 60 new clients within a moment")
        expect(self.errors("accept-rate"), "not counted")
        old.ask()
        wait_until(clients[-1].is_heard, "the rate to allow one")

    def test_rules(self):
        self.begin("deny = 10.0.1.11", "allow = 10.0.1.0/24", "allow = fd00:1::/64",
                   "deny = all")
        self.proven()
        self.proven(pair="66")
        expect(not self.client(source="10.0.1.11").is_heard(), "who is denied has an answer")
        expect(self.daemon.ask("forwards")["forwards"][0]["denied"] == 1, "denied: not counted")
        expect(len(self.sessions()) == 2, "more than two sessions")

    def test_bandwidth(self):
        self.begin("bandwidth = 100K", "max-reply-factor = 0", forwards=self.one())
        client = self.proven()
        start, heard = time.monotonic(), 0
        for _ in range(400):
            client.send(1000)
            heard += client.hear(0.002) is not None
        while client.hear(0.3):
            heard += 1
        rate = heard * 1000 / (time.monotonic() - start - 0.3)
        expect(50 << 10 < rate < 115 << 10, f"{heard} of 400 answers, {rate:.0f} bytes a second")
        expect(self.errors("bandwidth") >= 400 - heard, "what was dropped is not counted")
        client.ask(20000, tries=5)  # more than comes at a time
        self.expect_carried(1, "bandwidth limit")

    def test_reply_factor(self):
        self.begin("max-reply-factor = 5")
        client = self.client(source="10.0.1.11")
        client.send(64, delay_ms=500)
        if self.engine == "auto":
            wait_until(lambda: self.sessions()[0]["flows"][0]["carrier"] == "graft", "its grafting")
        for _ in range(30):
            client.send(400)
        expect(all(client.hear() for _ in range(31)), "what packet programs carry does not count")
        for pair in "44", "66":
            client = self.client(pair)
            client.send(100, reply=5000)
            expect(client.hear(0.3) is None, f"{pair}: a large answer to who is not proven")
            client.send(100, reply=50)
            expect(client.hear(), "a small answer is limited, too")
            client.ask(100)
            client.ask(100, reply=5000)
        expect(self.errors("reply-limit") == 2, "not counted")
        expect("max-reply-factor" in tail(self.daemon.process.log, 30), "not logged")
        self.end()
        with inside(f"{self.lab.name}-server"), socket.create_server(("", 7120)):
            self.begin("max-reply-factor = 5", options=(f"{RELAY}:9120", f"{SERVER}:7120"))
            with inside(f"{self.lab.name}-client"), \
                    socket.create_connection((RELAY, 9120), 2 * SLOW, ("10.0.1.11", 0)):
                wait_until(lambda: self.daemon.ask("sessions")["sessions"], "the session of TCP")
                self.client(source="10.0.1.11").ask(100, reply=5000)  # whose address has a session

    def test_flood(self):
        self.ip("client", "route add blackhole 10.9.0.0/16", "route del blackhole 10.9.0.0/16")
        self.ip("relay", "route add 10.9.0.0/16 via 10.0.1.1", "route del 10.9.0.0/16")
        tcp = RELAY, 9120
        with inside(f"{self.lab.name}-server"):
            listener = socket.create_server(("", 7120))
        listener.settimeout(2 * SLOW)
        self.undo.callback(listener.close)
        self.begin(top=("max-sessions = 1000",), options=(f"{RELAY}:9120", f"{SERVER}:7120"))
        clients = [self.proven() for _ in range(20)]
        for number, _ in enumerate(spoof(self.lab, LISTEN["44"], 20000)):
            clients[number % 20].ask(tries=1 if self.engine == "auto" else 3)
            if number % 10 == 0:
                with inside(f"{self.lab.name}-client"):
                    socket.create_connection(tcp, 2 * SLOW).close()
                listener.accept()[0].close()
        ids = {place(*client.sock.getsockname()) for client in clients}
        kept = [s for s in self.sessions() if s["client"] in ids]
        expect(len(kept) == 20, f"{len(kept)} of 20 sessions are there after the flood")
        expect(len(self.sessions()) <= 300, f"{len(self.sessions())} sessions")
        expect(self.errors("crowded-out") > 100, "who gives way is not counted")
        for client in clients:
            client.ask()
        self.proven()

    def test_forged_clients(self):
        """Forged datagrams of clients that have sessions of TCP leave room for others."""
        self.server(7150)  # which answers nobody
        with inside(f"{self.lab.name}-server"):
            listener = socket.create_server(("", 7120))
        self.undo.callback(listener.close)
        self.begin(top=("max-sessions = 400",), forwards=self.one(f"{SERVER}:7150"),
                   options=(f"{RELAY}:9120", f"{SERVER}:7120"))
        sources = ["10.0.1.11", "10.0.1.12"]
        with inside(f"{self.lab.name}-client"):
            for source in sources:
                self.undo.callback(
                    socket.create_connection((RELAY, 9120), 2 * SLOW, (source, 0)).close)
        for _ in spoof(self.lab, LISTEN["44"], 2000, sources):
            pass
        wait_until(lambda: self.errors("crowded-out") > 100, "some to give way")
        expect(len(self.sessions()) <= 102, f"{len(self.sessions())} sessions")
        with inside(f"{self.lab.name}-client"):
            socket.create_connection((RELAY, 9120), 2 * SLOW).close()

    def test_late_answers(self):
        """Answers to sessions that are no more, while there are many new ones, and few ports."""
        self.run("relay", "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40399")
        self.undo.callback(self.run, "relay", "sysctl", "-qw",
                           "net.ipv4.ip_local_port_range=16384 65535")
        self.begin("max-reply-factor = 0", forwards=self.one())
        socks = []
        for number in range(8):
            clients = [self.client() for _ in range(40)]
            for client in clients:
                client.send(delay_ms=150 + 10 * number, copies=2)
            wait_until(lambda: len(self.sessions()) >= 40, "sessions")
            self.command("kill", "--all")
            socks += clients
        end = time.monotonic() + 0.6
        while (left := end - time.monotonic()) > 0:
            for sock in select.select([c.sock for c in socks], [], [], left)[0]:
                next(c for c in socks if c.sock is sock).hear(0)  # must be its own
        self.proven()

    def test_rested_ports(self):
        """A port serves nobody else for a while, and none if a late answer came there."""
        server = self.server(7150)
        self.begin("responses = 1", forwards=self.one(f"{SERVER}:7150"))
        seen, late, number, start = {}, set(), 0, time.monotonic()
        while (now := time.monotonic()) < start + 1.8:
            client = self.client()
            client.send()
            data, peer = server.recvfrom(1000)
            expect(peer not in late, "a port where a late answer came is used again")
            rested = now - seen.get(peer, 0)
            expect(rested > 0.2, f"port {peer[1]} is used again after {rested:.3f} s")
            server.sendto(data, peer)
            expect(client.hear(), "no answer")
            client.sock.close()
            seen[peer] = now
            number += 1
            recent = [peer for peer, at in seen.items() if 0.05 < now - at < 0.1]
            if number % 20 == 0 and recent:  # whose session has ended by now
                server.sendto(data, recent[0])
                if time.monotonic() - seen[recent[0]] < 0.15:
                    late.add(recent[0])

    def test_resting_ports_count(self):
        """A port that rests after a stream counts as a session of its client."""
        self.begin(top=("max-sessions-per-client = 3",), forwards=self.one())
        for _ in range(3):
            self.proven()
            self.command("kill", "--all")
        expect(not self.client().is_heard(), "three ports rest, and a session is a fourth one")
        expect(self.errors("client-limit"), "not counted as client-limit")
        self.proven(source="10.0.1.11")

    # --- servers ---

    def test_servers(self):
        alive = place(SERVER, PORTS[0])
        self.begin(forwards=self.one(f"{alive} {place(SERVER, PORTS[1])}"))
        seen = [self.client().who()[2] for _ in range(6)]
        expect(sorted(seen) == sorted(PORTS * 3), f"who got sessions: {seen}")
        self.reload("balance = source", forwards=self.one(f"{alive} {place(SERVER, PORTS[1])}"))
        seen = {self.client(source=f"10.0.1.{n}").who()[2] for n in (11, 11, 11, 11)}
        expect(len(seen) == 1, "balance = source: a client changes its server")
        self.reload(forwards=self.one(f"{alive} {place(SERVER, CLOSED)}"))
        for _ in range(2):
            self.client().who(tries=3)
        servers = self.daemon.ask("forwards")["forwards"][0]["servers"]
        expect(servers[1]["failures"] and not servers[0]["failures"], f"set aside: {servers}")
        for _ in range(4):
            expect(self.client().who(tries=3)[2] == PORTS[0], "a dead server is used")

    def test_server_dies(self):
        """A session of a client that goes on sending does not stay at a dead server."""
        server = self.server(7150)
        self.begin(forwards=self.one(f"{SERVER}:7150 {SERVER}:{PORTS[0]} backup"))
        client = self.client()
        client.converse(server)
        self.expect_carried(1)
        server.close()
        wait_until(lambda: client.who(tries=4)[2] == PORTS[0], "another server", 3)

    def test_silence(self):
        """A session whose server falls silent begins anew, and goes on trying."""
        server = self.server(7150)
        self.begin("idle-timeout = 1", forwards=self.one(f"{SERVER}:7150"))
        client = self.client()
        peer = client.converse(server)
        self.expect_carried(1)

        def begins_anew():
            client.send()
            return server.recvfrom(1000)[1] != peer

        for _ in range(2):
            wait_until(begins_anew, "another session", 5)
            client.send()
            peer = server.recvfrom(1000)[1]
        expect(client.converse(server) == peer, "a session that is answered begins anew")

    def test_one_way(self):
        """Servers that never answer are not blamed; `replies = no`: nor is one that has answered."""
        for n in range(2):
            self.server(7150 + n)
        self.begin("idle-timeout = 1", forwards=self.one(f"{SERVER}:7150 {SERVER}:7151"))
        clients = [self.client() for _ in range(6)]
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            for client in clients:
                client.send()
            time.sleep(0.1)  # of load
        servers = self.daemon.ask("forwards")["forwards"][0]["servers"]
        expect({server["state"] for server in servers} == {"up"}, f"a server is blamed: {servers}")
        expect(not self.errors("upstream-lost") and len(self.sessions()) == 6, "sessions ended")
        self.end()
        server = self.server(7150)
        self.begin("idle-timeout = 1", "replies = no", forwards=self.one(f"{SERVER}:7150"))
        client = self.client()
        peer, end = client.converse(server), time.monotonic() + 3.5
        while time.monotonic() < end:
            client.send()
            expect(server.recvfrom(1000)[1] == peer, "its session began anew")
            time.sleep(0.1)  # of load

    def test_refused(self):
        """Closed ports of either end are told to the other one."""
        ports = {pair: 7150 + n for n, pair in enumerate(PAIRS)}
        self.begin(forwards={pair: (place(PAIRS[pair][0], LISTEN[pair]),
                                    place(PAIRS[pair][1], port)) for pair, port in ports.items()})
        for pair, port in ports.items():
            family = socket.AF_INET6 if pair[1] == "6" else socket.AF_INET
            # of copies, the kernel may tell another worker than theirs that a client has gone
            for who in ("server", "client") if self.engine == "auto" else ("server",):
                server, client = self.server(port, family), self.client(pair)
                peer = client.converse(server)
                self.expect_carried(1)
                if who == "server":
                    server.close()
                    expect_refused(client.sock, f"{pair}: the client")
                else:
                    client.sock.close()
                    server.connect(peer)
                    expect_refused(server, f"{pair}: the server")
                    server.close()
                self.wait_sessions(0, 3)

    def test_forged_errors(self):
        """ICMP errors about clients that talk end no session."""
        self.begin(forwards=self.one())
        clients = [self.proven() for _ in range(8)]
        self.expect_carried(8)
        ids = {s["id"] for s in self.sessions()}
        with inside(f"{self.lab.name}-client"), \
                socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
            for n in range(60):
                for code in 0, 1, 2, 3, 13:
                    for client in clients:
                        forge_error(raw, code, (RELAY, LISTEN["44"]), client.sock.getsockname())
                if n % 10 == 9:
                    time.sleep(0.15)  # long enough for two refusals
                    for client in clients:
                        client.ask()
        expect({s["id"] for s in self.sessions()} == ids, f"{self.errors('client-lost')} ended")

    def test_too_big(self):
        """The network behind the relay has a smaller MTU."""
        for where, link in ("relay", "to-server"), ("server", "to-relay"):
            self.ip(where, f"link set {link} mtu 1300", f"link set {link} mtu 1500")
        self.begin("max-reply-factor = 0")
        for pair in PAIRS:
            client = self.client(pair)
            for _ in range(3):
                client.ask()
            level, name = (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER) if pair[0] == "6" else \
                (socket.IPPROTO_IP, IP_MTU_DISCOVER)
            client.sock.setsockopt(level, name, PMTUDISC_DONT)
            client.ask(1400, tries=1 if pair[0] == "4" else 3)
            client.sock.setsockopt(level, name, PMTUDISC_DO)
            if self.engine == "auto":
                wait_until(lambda c=client: c.is_too_big(), f"{pair}: EMSGSIZE", 2)
            client.ask(1200, tries=2)

    # --- addresses and ways ---

    def test_names(self):
        peer = self.lab.start("relay", sys.executable, "-B", PEER, "serve", "7160")
        self.undo.callback(self.lab.stop, peer)
        wait_until(lambda: is_bound(peer.pid, 7160), "the server")
        self.begin(forwards=self.one("localhost:7160"))
        wait_until(self.client().is_heard, "the name to be looked up")
        self.proven()

    def test_two_addresses(self):
        """One refuses, or is silent: its name's other one serves, whether a client keeps its port."""
        other = "10.0.2.66"
        for is_silent, keeps_port in (False, True), (True, True), (True, False):
            self.ip("server", f"address add {other}/24 dev to-relay",
                    f"address del {other}/24 dev to-relay")
            self.name("two.test", other, SERVER)
            server = self.server(7150, address=SERVER)
            if is_silent:
                self.server(7150, address=other)
            self.begin(forwards=self.one("two.test:7150"))
            client = self.client()

            def is_there(server=server, keeps_port=keeps_port, client=client):
                (client if keeps_port else self.client()).send()
                return select.select([server], [], [], 0.1)[0]

            wait_until(is_there, "the other address to be asked", 5)
            data, peer = server.recvfrom(1000)
            server.sendto(data, peer)
            wait_until(lambda: any(s["flows"][1]["datagrams"] for s in self.sessions()),
                       "the answer")
            for _ in range(3):
                self.client().converse(server)
            self.end()

    def test_range(self):
        """10,000 ports cost at most 3 times the CPU time of TCP's to open."""
        ticks = {}
        for protocol in "tcp", "udp":
            self.begin(forwards={}, options=("--workers", "1", f"{RELAY}:20000-29999/{protocol}",
                                             f"{SERVER}:{PORTS[0]}-{PORTS[0] + 9999}"))
            with open(f"/proc/{self.daemon.pid}/stat", encoding="ascii") as file:
                ticks[protocol] = sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
            if protocol == "udp":
                expect(Client(self.lab, RELAY, 20001).who()[2] == PORTS[1], "who is asked")
            self.end()
        print(f"# {ticks} ticks of CPU time", flush=True)
        expect(ticks["udp"] <= 3 * max(ticks["tcp"], 10), f"ticks of CPU time: {ticks}")

    def test_source_and_mark(self):
        for n in 77, 78:
            self.ip("relay", f"address add 10.0.2.{n}/24 dev to-server",
                    f"address del 10.0.2.{n}/24 dev to-server")
        self.ip("relay", "route add 10.0.2.0/24 dev to-server src 10.0.2.78 table 7",
                "route flush table 7")
        self.ip("relay", "rule add fwmark 7 table 7", "rule del fwmark 7 table 7")
        self.begin("source = 10.0.2.77", forwards=self.one())
        expect(self.proven().who()[0] == "10.0.2.77", "source")
        self.expect_carried(1)
        self.reload("mark = 7", forwards=self.one())
        self.command("kill", "--all")
        expect(self.proven().who()[0] == "10.0.2.78", "mark")
        self.expect_carried(1)
        self.reload("interface = to-server", forwards=self.one())
        self.command("kill", "--all")
        expect(self.proven().who()[0] == "10.0.2.1", "interface")
        self.reload("interface = nowhere", forwards=self.one())
        self.command("kill", "--all")
        expect(not self.client().is_heard(), "an interface that there is not")

    def test_transparent(self):
        for family in "-4", "-6":
            self.ip("relay", f"{family} rule add iif to-server lookup 100",
                    f"{family} rule del iif to-server lookup 100")
            self.ip("relay", f"{family} route add local default dev lo table 100",
                    f"{family} route flush table 100")
        own = {pair: (place(PAIRS[pair][0], LISTEN[pair]), place(PAIRS[pair][1], PORTS[0]))
               for pair in ("44", "66")}
        self.begin("transparent = yes", forwards=own)
        for pair, address in ("44", "10.0.1.1"), ("66", "fd00:1::1"):
            expect(self.proven(pair=pair).who()[0] == address, "the server sees another client")
        self.expect_carried(2)
        expect(self.proven(source="10.0.1.11").who()[0] == "10.0.1.11", "another client's address")

    def test_wildcard(self):
        """The answer comes from the address that was asked: the client's sockets are connected."""
        for n in 3, 4:
            self.ip("relay", f"address add 10.0.1.{n}/24 dev to-client",
                    f"address del 10.0.1.{n}/24 dev to-client")
            self.ip("relay", f"address add fd00:1::{n}/64 dev to-client nodad",
                    f"address del fd00:1::{n}/64 dev to-client")
        self.begin(forwards=self.one(listen=f":{LISTEN['44']}"))
        clients = [Client(self.lab, address, LISTEN["44"])
                   for n in (2, 3, 4) for address in (f"10.0.1.{n}", f"fd00:1::{n}")]
        for _ in range(4):
            for client in clients:
                client.ask()
        self.expect_carried(6)
        port = clients[0].sock.getsockname()[1]
        clients[0].sock.close()
        for address in "10.0.1.4", "10.0.1.3", "10.0.1.4":  # one client, two of our addresses
            client = Client(self.lab, address, LISTEN["44"], own_port=port)
            for _ in range(3):
                client.ask()
            client.sock.close()

    # --- the PROXY protocol ---

    def test_proxy_send(self):
        server = self.server(7150)
        self.begin("proxy-protocol = send-v2", forwards=self.one(f"{SERVER}:7150"))
        client = self.client()
        head = proxy_header(client.sock.getsockname(), (RELAY, LISTEN["44"]))
        for size in 0, 1, 64, 1400, 9000:
            client.send(size)
            data, peer = server.recvfrom(65536)
            expect(data == head + client.asked[client.seq], f"{size} bytes: {data[:60]}")
            server.sendto(data[len(head):], peer)
            expect(client.hear() is not None, "no answer")
        self.expect_carried(1, "proxy protocol")

    def test_proxy_receive(self):
        self.begin("proxy-protocol = receive", forwards=self.one())
        client = self.client()
        client.prefix = proxy_header(("192.0.2.7", 777), ("192.0.2.8", 53))
        for size in 64, 0, 1400:
            client.ask(size)
        self.expect_carried(1, "proxy protocol")
        expect(self.sessions()[0]["client"] == "192.0.2.7:777", f"client: {self.sessions()}")
        bad = self.client()
        expect(not bad.is_heard(), "a datagram without header has an answer")
        expect(self.errors("proxy-header-bad"), "not counted")
        self.end()
        server = self.server(7150)
        self.begin("proxy-protocol = receive, send-v2", forwards=self.one(f"{SERVER}:7150"))
        client = self.client()
        for address in "192.0.2.7", "2001:db8::7":
            client.prefix = proxy_header((address, 777), ("2001:db8::8" if ":" in address
                                                         else "192.0.2.8", 53))
            client.send(100)
            data, peer = server.recvfrom(65536)
            expect(data == client.prefix + client.asked[client.seq], f"{data[:60]}")
            server.sendto(data[len(client.prefix):], peer)
            expect(client.hear(), "no answer")

    # --- the long run ---

    def storm(self, minutes, seed):
        """10,000 flows, while the daemon is killed, stopped and started at random."""
        chance = random.Random(seed)
        options = "--max-sessions", "41000", "--max-sessions-per-client", "0"
        end, ends = time.monotonic() + minutes * 60, 0
        self.begin("idle-timeout = 20", "max-reply-factor = 0", options=options)
        while time.monotonic() < end:
            load = self.load(2500, pace=1.5, ramp=4, answers=4)
            wait_until(lambda: self.carried() >= 10000, "10,000 grafted sessions", 60)
            stop = min(time.monotonic() + 60, end)
            while time.monotonic() < stop:
                chance.choice((self.kill, self.restart))()
                # of load; at first the daemon has doubts of all ways, and each flow passes once
                time.sleep(3 + 2 * chance.random())
                ends += 1
            wait_until(lambda: self.carried() >= 10000, "10,000 adopted sessions", 60)
            did, _ = self.said(load)
            print(f"# {ends} ends of the daemon: {did}", flush=True)
            expect(not did.get("lost"), f"datagrams were lost: {did}")
            self.command("kill", "--all")
            self.wait_sessions(0, 30)


def run(options):
    failed = []
    with Lab() as lab:
        server = lab.start("server", sys.executable, "-B", PEER, "serve", *map(str, PORTS))
        wait_until(lambda: is_bound(server.pid, PORTS[-1]), "the server")
        for namespace in "client", "relay", "server":  # each error is to be told
            lab.run(namespace, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0",
                    "net.ipv6.icmp.ratelimit=0")
        for engine in options.engine or (("auto",) if options.storm else ("auto", "copy")):
            trial = Trial(lab, options.culvert, engine)
            cases = {name: trial.in_order(case)
                     for name, case in cases_of(trial, options.only).items()
                     if name in QUICK[engine] or not options.quick}
            if options.storm:
                print(f"seed {options.seed}")
                cases = {"storm": trial.in_order(
                    lambda t=trial: t.storm(options.storm, options.seed))}
            try:
                failed += run_cases(trial, cases, f"{engine}: {{}}")
            finally:
                subprocess.run(["umount", "-l", trial.pins], check=False)
    return failed


def main():
    options = test_options(
        __doc__, ONLY, ("--engine", {"choices": ("auto", "copy"), "action": "append",
                                     "help": "default: both"}),
        ("--quick", {"action": "store_true", "help": "the cases that matter most"}),
        ("--storm", {"type": float, "metavar": "MINUTES", "help": "instead of the cases"}),
        ("--seed", {"type": int, "default": int(time.time())}))
    begin_or_skip(["ip"], "demo", ipv6=True)
    return run_test(lambda: run(options))


sys.exit(main())
