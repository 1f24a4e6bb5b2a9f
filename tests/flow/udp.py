# SPDX-License-Identifier: BSD-2-Clause
"""Datagrams through culvert in the lab, on `--engine auto` and on `--engine copy`.

    clients that know every byte  -->  culvert  -->  servers that answer as they are asked

Each answer must be of the client's own question, whole, and in order. Carriers change, the daemon
is killed and started again, servers die, limits are met, and answers come late.
"""

import os
import random
import re
import select
import signal
import socket
import sys
import time

import pytest
from labkit import RELAY, SERVER, expect, place, wait_until
from udp_rig import (LISTEN, PAIRS, PEER, PORTS, TCP, Client, Rig, expect_refused, forge_error,
                     forwards_of, proxy_header, spoof)

pytestmark = pytest.mark.needs("ip", packages="demo", ipv6=True)
ENGINES = "auto", "copy"
CLOSED = 7199
SIZES = 0, 1, 1472, 1473, 9000, 65507


@pytest.fixture(scope="module")
def lab(lab):
    lab.start_server("server", PORTS[-1], sys.executable, "-B", PEER, "serve", *map(str, PORTS),
                     protocol="udp")
    for namespace in "client", "relay", "server":  # each error is to be told
        lab.run(namespace, "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0")
    return lab


@pytest.fixture(scope="module")
def trial(lab, culvert, engine):
    return Rig(lab, culvert, engine)


# --- carriers ---

@pytest.mark.quick
def test_sizes(trial):
    """What is too big for the other family may be lost once: its sender is told."""
    trial.begin("max-reply-factor = 0")
    for pair in PAIRS:
        client = trial.client(pair)
        for size in SIZES + (64,):
            for _ in range(3):
                client.ask(size, tries=1 if pair[0] == pair[1] else 3)
    trial.expect_carried(4)


def test_order(trial):
    """
    Flows that are handed over while 32 datagrams each are on their way.  If no look finds a socket
    empty for 20 ms, the hand-over may reorder datagrams once: so graft has three tries.
    """
    trial.begin()
    for ordered in (True,) if trial.engine == "copy" else (False, False, True):
        load = trial.load(1, window=32, pace=0, answers=3000, sizes=(64, 1200))
        trial.expect_carried(4)
        did = trial.said(load, ordered)[0]
        trial.expect_whole(did)
        if not did["disordered"]:
            return
        print(f"# {did['disordered']} of {did['answered']} answers are disordered")
        trial.daemon.command("kill", "--all")
        trial.wait_sessions(0)


@pytest.mark.quick("auto")
def test_moves(trial):
    trial.begin("max-reply-factor = 0", options=("--session-log", "-", "--idle-timeout", "1"))
    load = trial.load(5, pace=0.005, window=2, sizes=(64, 500, 1400))
    for _ in range(15):
        for engine, graft in ("copy", 0), (trial.engine, 40 * (trial.engine == "auto")):
            trial.set_engine(engine)
            wait_until(lambda n=graft: n == sum(
                flow["carrier"] == "graft" for s in trial.sessions() for flow in s["flows"]),
                f"{graft} flows on graft")
    did = trial.said(load)[0]
    trial.expect_whole(did)
    trial.wait_sessions(0)
    forwards = trial.daemon.ask("status")["forwards"]
    counted = [sum(forward[f"{what}_to_{whom}"] for forward in forwards)
               for what in ("bytes", "datagrams") for whom in ("upstream", "client")]
    # see udp_activate_leave(): the count of a flow that leaves its slot may lack a datagram
    most = 8 if trial.engine == "auto" else 0
    missing = [did["bytes"] - n for n in counted[:2]] + [did["sent"] - n for n in counted[2:]]
    expect(all(0 <= n <= most * size for n, size in zip(missing, (1400, 1400, 1, 1))),
           f"counted {counted}: {did}")
    trial.daemon.stop()  # which writes what waits for the session log
    ended = trial.daemon.ended()
    logged = sum(flow["datagrams"] for line in ended for flow in line["flows"])
    expect(logged == sum(counted[2:]) and {line["protocol"] for line in ended} == {"udp"},
           f"{logged} datagrams in {len(ended)} lines of the session log, but {counted}")


# --- restarts ---

@pytest.mark.quick("auto")
def test_killed(trial):
    """Packet programs need no daemon: 48 flows outlive each end of it, and are over in time."""
    def pause():
        os.kill(trial.daemon.pid, signal.SIGSTOP)
        time.sleep(1)  # of load
        os.kill(trial.daemon.pid, signal.SIGCONT)

    trial.begin("idle-timeout = 1")
    load = trial.load(12, direct=True, patience=3 if trial.engine == "auto" else 0.3)
    trial.expect_carried(48)
    for end in pause, trial.daemon.kill, trial.daemon.restart, trial.daemon.kill:
        end()
        if trial.engine == "auto":
            time.sleep(0.5)  # of load: at first the daemon looks whether ways have changed
            trial.expect_carried(48)
            if end != pause:
                wait_until(lambda: re.search("48 .*adopted", trial.daemon.log()), "an adoption")
        else:  # each datagram may begin a session
            trial.wait_sessions(48)
    did, around = trial.said(load)
    if trial.engine == "auto":
        trial.expect_whole(did, around)
    trial.wait_sessions(0)
    expect(trial.finished() >= 48, "how the sessions ended is not counted")


@pytest.mark.quick("auto")
def test_reload(trial):
    """Forwards are added, changed and removed."""
    trial.begin()
    load = trial.load(5, pairs=("44", "66"))
    trial.expect_carried(10)
    ids = {s["id"] for s in trial.sessions()}
    kept = dict(trial.one(), new=(place(RELAY, 9110), place(SERVER, PORTS[1])))
    for lines in ("idle-timeout = 100",), ("max-sessions = 1000", "balance = source"), ():
        trial.reload(*lines, forwards=kept)  # which removes three
        expect(Client(trial.lab, RELAY, 9110).who()[2] == PORTS[1], "it leads elsewhere")
        trial.reload(*lines)
    now = [(s["id"], s["forward"], s["worker"], s["age_ms"]) for s in trial.sessions()
           if s["forward"] in ("44", "66")]
    expect({session[0] for session in now} == ids, f"not {ids}: {now}")
    trial.expect_whole(trial.said(load)[0])


# --- ends of sessions ---

def test_idle_timeout(trial):
    trial.begin("idle-timeout = 1")
    busy, _ = trial.proven(), trial.proven(pair="64")
    trial.expect_carried(2)
    first = [s["id"] for s in trial.sessions() if s["forward"] == "44"]

    def is_over():
        busy.ask()
        return len(trial.sessions()) == 1

    wait_until(is_over, "the silent session to end", 4)
    expect([s["id"] for s in trial.sessions()] == first, "the busy session was ended")
    trial.wait_sessions(0, 4)
    expect(trial.finished() == 2, "ends are not counted")


def test_responses(trial):
    trial.begin("responses = 1")
    client, seen = trial.client(), set()
    for _ in range(5):
        seen.add(client.who()[1])
        trial.wait_sessions(0)
    expect(len(seen) == 5, f"a session goes on after its answer: {seen}")
    trial.end()
    trial.begin("responses = 2")
    client = trial.proven()
    trial.expect_carried(1, "responses")
    client.ask(copies=3)  # 6 for 4 questions; with two questions more, 12 for 6, it is over
    client.ask(copies=3)
    client.ask(copies=3)
    trial.wait_sessions(0)


def test_drain(trial):
    trial.begin()
    old = trial.proven()
    trial.daemon.command("drain", "44")
    new = trial.client()
    expect(not new.is_heard(), "a forward that drains takes clients")
    old.ask()
    trial.daemon.command("drain", "--undo", "44")
    wait_until(new.is_heard, "new clients")
    old.ask()
    trial.wait_sessions(2, 1)


# --- limits ---

@pytest.mark.quick("auto")
def test_limits_of_sessions(trial):
    trial.begin("max-sessions = 2", forwards=trial.one())
    first, second = trial.proven(), trial.proven()
    expect(not trial.client().is_heard(), "a third session")
    expect(trial.errors("forward-limit"), "not counted as forward-limit")
    first.ask()
    trial.daemon.command("kill", "--all")
    trial.proven()
    trial.reload("max-sessions-per-client = 3", forwards=trial.one())
    third, other = trial.proven(), trial.proven(source="10.0.1.11")
    for _ in range(2):  # a question after an answer proves the session, which then stays
        second.ask()
    expect(not trial.client().is_heard(), "a fourth session of a client")
    expect(trial.errors("client-limit"), "not counted as client-limit")
    for client in second, third, other:
        client.ask()


def test_accept_rate(trial):
    trial.begin("accept-rate = 20", forwards=trial.one())
    old = trial.proven()
    clients = [trial.client() for _ in range(60)]
    for client in clients:
        client.send()
    heard = sum(client.hear(0.05) is not None for client in clients)
    expect(heard < 50, f"{heard} of 60 new clients within a moment")
    expect(trial.errors("accept-rate"), "not counted")
    old.ask()
    wait_until(clients[-1].is_heard, "the rate to allow one")


def test_rules(trial):
    trial.begin("deny = 10.0.1.11", "allow = 10.0.1.0/24", "allow = fd00:1::/64",
                "deny = all")
    trial.proven()
    trial.proven(pair="66")
    expect(not trial.client(source="10.0.1.11").is_heard(), "who is denied has an answer")
    expect(trial.daemon.ask("forwards")["forwards"][0]["denied"] == 1, "denied: not counted")
    expect(len(trial.sessions()) == 2, "more than two sessions")


def test_bandwidth(trial):
    trial.begin("bandwidth = 100K", "max-reply-factor = 0", forwards=trial.one())
    client = trial.proven()
    start, heard = time.monotonic(), 0
    for _ in range(400):
        client.send(1000)
        heard += client.hear(0.002) is not None
    while client.hear(0.3):
        heard += 1
    rate = heard * 1000 / (time.monotonic() - start - 0.3)
    expect(50 << 10 < rate < 115 << 10, f"{heard} of 400 answers, {rate:.0f} bytes a second")
    expect(trial.errors("bandwidth") >= 400 - heard, "what was dropped is not counted")
    client.ask(20000, tries=5)  # more than comes at a time
    trial.expect_carried(1, "bandwidth limit")


@pytest.mark.quick
def test_reply_factor(trial):
    trial.begin("max-reply-factor = 5")
    client = trial.client(source="10.0.1.11")
    client.send(64, delay_ms=500)
    if trial.engine == "auto":
        wait_until(lambda: trial.sessions()[0]["flows"][0]["carrier"] == "graft", "its grafting")
    for _ in range(30):
        client.send(400)
    expect(all(client.hear() for _ in range(31)), "what packet programs carry does not count")
    for pair in "44", "66":
        client = trial.client(pair)
        client.send(100, reply=5000)
        expect(client.hear(0.3) is None, f"{pair}: a large answer to who is not proven")
        client.send(100, reply=50)
        expect(client.hear(), "a small answer is limited, too")
        client.ask(100)
        client.ask(100, reply=5000)
    expect(trial.errors("reply-limit") == 2, "not counted")
    expect("max-reply-factor" in trial.daemon.log(), "not logged")
    trial.end()
    trial.listen_tcp()
    trial.begin("max-reply-factor = 5", options=TCP)
    trial.connect_tcp("10.0.1.11")
    wait_until(trial.sessions, "the session of TCP")
    trial.client(source="10.0.1.11").ask(100, reply=5000)  # whose address has a session


def test_flood(trial):
    trial.ip("client", "route add blackhole 10.9.0.0/16", "route del blackhole 10.9.0.0/16")
    trial.ip("relay", "route add 10.9.0.0/16 via 10.0.1.1", "route del 10.9.0.0/16")
    listener = trial.listen_tcp()
    trial.begin(top=("max-sessions = 1000",), options=TCP)
    clients = [trial.proven() for _ in range(20)]
    for number, _ in enumerate(spoof(trial.lab, LISTEN["44"], 20000)):
        clients[number % 20].ask(tries=1 if trial.engine == "auto" else 3)
        if number % 10 == 0:
            trial.connect_tcp().close()
            listener.accept()[0].close()
    ids = {place(*client.sock.getsockname()) for client in clients}
    kept = [s for s in trial.sessions() if s["client"] in ids]
    expect(len(kept) == 20, f"{len(kept)} of 20 sessions are there after the flood")
    expect(len(trial.sessions()) <= 300, f"{len(trial.sessions())} sessions")
    expect(trial.errors("crowded-out") > 100, "who gives way is not counted")
    for client in clients:
        client.ask()
    trial.proven()


def test_forged_clients(trial):
    """Forged datagrams of clients that have sessions of TCP leave room for others."""
    trial.server(7150)  # which answers nobody
    trial.listen_tcp()
    trial.begin(top=("max-sessions = 400",), forwards=trial.one(f"{SERVER}:7150"),
                options=TCP)
    sources = ["10.0.1.11", "10.0.1.12"]
    for source in sources:
        trial.connect_tcp(source)
    for _ in spoof(trial.lab, LISTEN["44"], 2000, sources):
        pass
    wait_until(lambda: trial.errors("crowded-out") > 100, "some to give way")
    expect(len(trial.sessions()) <= 102, f"{len(trial.sessions())} sessions")
    trial.connect_tcp()


@pytest.mark.quick
def test_late_answers(trial):
    """Answers to sessions that are no more, while there are many new ones, and few ports."""
    trial.run("relay", "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40399")
    trial.undo.callback(trial.run, "relay", "sysctl", "-qw",
                        "net.ipv4.ip_local_port_range=16384 65535")
    trial.begin("max-reply-factor = 0", forwards=trial.one())
    socks = []
    for number in range(8):
        clients = [trial.client() for _ in range(40)]
        for client in clients:
            client.send(delay_ms=150 + 10 * number, copies=2)
        wait_until(lambda: len(trial.sessions()) >= 40, "sessions")
        trial.daemon.command("kill", "--all")
        socks += clients
    end = time.monotonic() + 0.6
    while (left := end - time.monotonic()) > 0:
        for sock in select.select([c.sock for c in socks], [], [], left)[0]:
            next(c for c in socks if c.sock is sock).hear(0)  # must be its own
    trial.proven()


def test_rested_ports(trial):
    """A port serves nobody else for a while, and none if a late answer came there."""
    server = trial.server(7150)
    trial.begin("responses = 1", forwards=trial.one(f"{SERVER}:7150"))
    seen, late, number, start = {}, set(), 0, time.monotonic()
    while (now := time.monotonic()) < start + 1.8:
        client = trial.client()
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


def test_resting_ports_count(trial):
    """A port that rests after a stream counts as a session of its client."""
    trial.begin(top=("max-sessions-per-client = 3",), forwards=trial.one())
    for _ in range(3):
        trial.proven()
        trial.daemon.command("kill", "--all")
    expect(not trial.client().is_heard(), "three ports rest, and a session is a fourth one")
    expect(trial.errors("client-limit"), "not counted as client-limit")
    trial.proven(source="10.0.1.11")


# --- servers ---

@pytest.mark.quick
def test_servers(trial):
    alive = place(SERVER, PORTS[0])
    trial.begin(forwards=trial.one(f"{alive} {place(SERVER, PORTS[1])}"))
    seen = [trial.client().who()[2] for _ in range(6)]
    expect(sorted(seen) == sorted(PORTS * 3), f"who got sessions: {seen}")
    trial.reload("balance = source", forwards=trial.one(f"{alive} {place(SERVER, PORTS[1])}"))
    seen = {trial.client(source=f"10.0.1.{n}").who()[2] for n in (11, 11, 11, 11)}
    expect(len(seen) == 1, "balance = source: a client changes its server")
    trial.reload(forwards=trial.one(f"{alive} {place(SERVER, CLOSED)}"))
    for _ in range(2):
        trial.client().who(tries=3)
    servers = trial.daemon.ask("forwards")["forwards"][0]["servers"]
    expect(servers[1]["failures"] and not servers[0]["failures"], f"set aside: {servers}")
    for _ in range(4):
        expect(trial.client().who(tries=3)[2] == PORTS[0], "a dead server is used")


def test_server_dies(trial):
    """A session of a client that goes on sending does not stay at a dead server."""
    server = trial.server(7150)
    trial.begin(forwards=trial.one(f"{SERVER}:7150 {SERVER}:{PORTS[0]} backup"))
    client = trial.client()
    client.converse(server)
    trial.expect_carried(1)
    server.close()
    wait_until(lambda: client.who(tries=4)[2] == PORTS[0], "another server", 3)


def test_silence(trial):
    """A session whose server falls silent begins anew, and goes on trying."""
    server = trial.server(7150)
    trial.begin("idle-timeout = 1", forwards=trial.one(f"{SERVER}:7150"))
    client = trial.client()
    peer = client.converse(server)
    trial.expect_carried(1)

    def begins_anew():
        client.send()
        return server.recvfrom(1000)[1] != peer

    for _ in range(2):
        wait_until(begins_anew, "another session", 5)
        client.send()
        peer = server.recvfrom(1000)[1]
    expect(client.converse(server) == peer, "a session that is answered begins anew")


def test_one_way(trial):
    """Servers that never answer are not blamed; `replies = no`: nor is one that has answered."""
    for n in range(2):
        trial.server(7150 + n)
    trial.begin("idle-timeout = 1", forwards=trial.one(f"{SERVER}:7150 {SERVER}:7151"))
    clients = [trial.client() for _ in range(6)]
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        for client in clients:
            client.send()
        time.sleep(0.1)  # of load
    servers = trial.daemon.ask("forwards")["forwards"][0]["servers"]
    expect({server["state"] for server in servers} == {"up"}, f"a server is blamed: {servers}")
    expect(not trial.errors("upstream-lost") and len(trial.sessions()) == 6, "sessions ended")
    trial.end()
    server = trial.server(7150)
    trial.begin("idle-timeout = 1", "replies = no", forwards=trial.one(f"{SERVER}:7150"))
    client = trial.client()
    peer, end = client.converse(server), time.monotonic() + 3.5
    while time.monotonic() < end:
        client.send()
        expect(server.recvfrom(1000)[1] == peer, "its session began anew")
        time.sleep(0.1)  # of load


@pytest.mark.quick
def test_refused(trial):
    """Closed ports of either end are told to the other one."""
    trial.begin(forwards=forwards_of(*PAIRS, port=7150))
    for pair in PAIRS:
        address = "::" if pair[1] == "6" else "0.0.0.0"
        # of copies, the kernel may tell another worker than theirs that a client has gone
        for who in ("server", "client") if trial.engine == "auto" else ("server",):
            server, client = trial.server(7150, address), trial.client(pair)
            peer = client.converse(server)
            trial.expect_carried(1)
            if who == "server":
                server.close()
                expect_refused(client.sock, f"{pair}: the client")
            else:
                client.sock.close()
                server.connect(peer)
                expect_refused(server, f"{pair}: the server")
                server.close()
            trial.wait_sessions(0, 3)


def test_forged_errors(trial):
    """ICMP errors about clients that talk end no session."""
    trial.begin(forwards=trial.one())
    clients = [trial.proven() for _ in range(8)]
    trial.expect_carried(8)
    ids = {s["id"] for s in trial.sessions()}
    with trial.lab.inside("client"), \
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        for n in range(60):
            for code in 0, 1, 2, 3, 13:
                for client in clients:
                    forge_error(raw, code, (RELAY, LISTEN["44"]), client.sock.getsockname())
            if n % 10 == 9:
                time.sleep(0.15)  # long enough for two refusals
                for client in clients:
                    client.ask()
    expect({s["id"] for s in trial.sessions()} == ids, f"{trial.errors('client-lost')} ended")


# --- addresses and ways ---

def test_two_addresses(trial):
    """One refuses, or is silent: its name's other one serves, whether a client keeps its port."""
    other = "10.0.2.66"
    for is_silent, keeps_port in (False, True), (True, True), (True, False):
        trial.ip("server", f"address add {other}/24 dev to-relay",
                 f"address del {other}/24 dev to-relay")
        trial.name("two.test", other, SERVER)
        server = trial.server(7150, address=SERVER)
        if is_silent:
            trial.server(7150, address=other)
        trial.begin(forwards=trial.one("two.test:7150"))
        client = trial.client()

        def is_there(server=server, keeps_port=keeps_port, client=client):
            (client if keeps_port else trial.client()).send()
            return select.select([server], [], [], 0.1)[0]

        wait_until(is_there, "the other address to be asked", 5)
        data, peer = server.recvfrom(1000)
        server.sendto(data, peer)
        wait_until(lambda: any(s["flows"][1]["datagrams"] for s in trial.sessions()),
                   "the answer")
        for _ in range(3):
            trial.client().converse(server)
        trial.end()


def test_range(trial):
    """10,000 ports cost at most 3 times the CPU time of TCP's to open."""
    ticks = {}
    for protocol in "tcp", "udp":
        trial.begin(forwards={}, options=("--workers", "1", f"{RELAY}:20000-29999/{protocol}",
                                          f"{SERVER}:{PORTS[0]}-{PORTS[0] + 9999}"))
        with open(f"/proc/{trial.daemon.pid}/stat", encoding="ascii") as file:
            ticks[protocol] = sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
        if protocol == "udp":
            expect(Client(trial.lab, RELAY, 20001).who()[2] == PORTS[1], "who is asked")
        trial.end()
    print(f"# {ticks} ticks of CPU time", flush=True)
    expect(ticks["udp"] <= 3 * max(ticks["tcp"], 15), f"ticks of CPU time: {ticks}")


def test_wildcard(trial):
    """One client, two of our addresses: each answers for itself (the client's sockets are connected)."""
    for n in 3, 4:
        trial.ip("relay", f"address add 10.0.1.{n}/24 dev to-client",
                 f"address del 10.0.1.{n}/24 dev to-client")
    trial.begin(forwards=trial.one(listen=f":{LISTEN['44']}"))
    port = 0
    for address in "10.0.1.4", "10.0.1.3", "10.0.1.4":
        client = Client(trial.lab, address, LISTEN["44"], own_port=port)
        port = client.sock.getsockname()[1]
        for _ in range(3):
            client.ask()
        client.sock.close()


# --- the PROXY protocol ---

def expect_header(client, server, head, size):
    """HEAD comes to SERVER before a question of SIZE bytes."""
    client.send(size)
    data, peer = server.recvfrom(65536)
    expect(data == head + client.asked[client.seq], f"{size} bytes: {data[:60]}")
    server.sendto(data[len(head):], peer)
    expect(client.hear() is not None, "no answer")


def test_proxy_send(trial):
    server = trial.server(7150)
    trial.begin("proxy-protocol = send-v2", forwards=trial.one(f"{SERVER}:7150"))
    client = trial.client()
    head = proxy_header(client.sock.getsockname(), (RELAY, LISTEN["44"]))
    for size in 0, 1, 64, 1400, 9000:
        expect_header(client, server, head, size)
    trial.expect_carried(1, "proxy protocol")


def test_proxy_receive(trial):
    trial.begin("proxy-protocol = receive", forwards=trial.one())
    client = trial.client()
    client.prefix = proxy_header(("192.0.2.7", 777), ("192.0.2.8", 53))
    for size in 64, 0, 1400:
        client.ask(size)
    trial.expect_carried(1, "proxy protocol")
    expect(trial.sessions()[0]["client"] == "192.0.2.7:777", f"client: {trial.sessions()}")
    bad = trial.client()
    expect(not bad.is_heard(), "a datagram without header has an answer")
    expect(trial.errors("proxy-header-bad"), "not counted")
    trial.end()
    server = trial.server(7150)
    trial.begin("proxy-protocol = receive, send-v2", forwards=trial.one(f"{SERVER}:7150"))
    client = trial.client()
    for address in "192.0.2.7", "2001:db8::7":
        client.prefix = proxy_header((address, 777), ("2001:db8::8" if ":" in address
                                                     else "192.0.2.8", 53))
        expect_header(client, server, client.prefix, 100)


# --- the long run ---

@pytest.mark.engines("auto")
def test_storm(trial, request):
    """10,000 flows, while the daemon is killed, stopped and started at random."""
    chance, minutes = random.Random(request.config.option.seed), request.config.option.storm
    options = "--max-sessions", "41000", "--max-sessions-per-client", "0"
    end, ends = time.monotonic() + minutes * 60, 0
    trial.begin("idle-timeout = 20", "max-reply-factor = 0", options=options)
    while time.monotonic() < end:
        load = trial.load(2500, pace=1.5, ramp=4, answers=4)
        wait_until(lambda: trial.carried() >= 10000, "10,000 grafted sessions", 60)
        stop = min(time.monotonic() + 60, end)
        while time.monotonic() < stop:
            chance.choice((trial.daemon.kill, trial.daemon.restart))()
            # of load; at first the daemon has doubts of all ways, and each flow passes once
            time.sleep(3 + 2 * chance.random())
            ends += 1
        wait_until(lambda: trial.carried() >= 10000, "10,000 adopted sessions", 60)
        did, _ = trial.said(load)
        print(f"# {ends} ends of the daemon: {did}", flush=True)
        expect(not did.get("lost"), f"datagrams were lost: {did}")
        trial.daemon.command("kill", "--all")
        trial.wait_sessions(0, 30)
