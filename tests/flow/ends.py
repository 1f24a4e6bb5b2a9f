# SPDX-License-Identifier: BSD-2-Clause
"""Ends of any kind: with and without timestamps, ECN, SACK, window scale; with any MSS.

A row says how client, server and relay differ from Linux's defaults, and from which session on
sessions are grafted. Each session converses and carries bulk both ways; every byte is compared.
The SYNs of other programs on the relay stay as they were, byte by byte.
"""

import socket

import pytest
from distance import PORT, Client
from labkit import Daemon, Lab, call_of, expect, place, wait_until

pytestmark = pytest.mark.needs("ip", ipv6=True)
ENGINES = ("auto",)  # also "kernel": auto, and more sessions, which begin in the kernel
BULK = 300_000
TCP_SAVE_SYN, TCP_SAVED_SYN = 27, 28
# The port of the relay by the families of client and server.
FORWARDS = {"4": 9044, "6": 9066, "46": 9046, "64": 9064}
RELAYS = {"4": "10.0.1.2", "6": "fd00:1::2"}
SERVERS = {"4": "10.0.2.2", "6": "fd00:2::2"}

NO_TIMESTAMPS, ECN = "tcp_timestamps=0", "tcp_ecn=1"
NO_SACK, NO_SCALE = "tcp_sack=0", "tcp_window_scaling=0"
SMALL = "mss=536"
OLD = (NO_TIMESTAMPS, NO_SACK, NO_SCALE, SMALL)

# name, settings of client, server, relay; the first session that is grafted; of which families
ROWS = (
    ("defaults", (), (), (), 1),
    ("a client without timestamps", (NO_TIMESTAMPS,), (), (), 1),
    ("a client with ECN", (ECN,), (), (), 1),
    ("a client with ECN, and no timestamps", (ECN, NO_TIMESTAMPS), (), (), 1),
    ("a client without SACK", (NO_SACK,), (), (), 1),
    ("a client without window scale", (NO_SCALE,), (), (), 1),
    ("an old client", OLD, (), (), 1),
    ("an old client with a window of 2 KB", (*OLD, "tcp_rmem=4096 4096 4096"), (), (), 1),
    ("a client with MSS 1360", ("mss=1360",), (), (), 1),
    ("a client with MSS 536", (SMALL,), (), (), 1),
    ("a server without timestamps", (), (NO_TIMESTAMPS,), (), 2),
    ("a server without ECN", (ECN,), ("tcp_ecn=0",), (), 2),
    ("a firewall that drops SYNs with ECN", (ECN,), ("drop=ecn",), (), 2),
    ("a server with MSS 1360", (), ("mss=1360",), (), 2),
    ("a server with MSS 536", (), (SMALL,), (), 2),
    ("an old server", (ECN,), (*OLD, "tcp_ecn=0"), (), 2),
    ("a server with MTU 9000", (), ("mtu=9000",), ("mtu=9000",), 1),
    ("a client with MTU 9000", ("mtu=9000",), (), (), 2),
    ("an old client and an old server", OLD, OLD, (), 2),
    ("a relay that probes for black holes", (), (), ("tcp_mtu_probing=1",), 1),
    ("a relay with ECN", (ECN,), (), ("tcp_ecn=1",), 1),
    ("a relay without ECN", (ECN,), (), ("tcp_ecn=0",), 1),
    ("a relay with buffers of a tuning guide", (), (), ("tcp_rmem=4096 87380 16777216",), 1),
    ("a relay without timestamps", (), (), (NO_TIMESTAMPS,), 1),
)


def set_up(lab, machine, settings):
    toward = {"client": "to-relay", "server": "to-relay", "relay": "to-server"}[machine]
    net = "1" if machine == "client" else "2"
    for setting in settings:
        key, value = setting.split("=")
        if key == "drop":
            lab.run(machine, "nft", "add table inet t; add chain inet t i { type filter hook input "
                    f"priority 0; }}; add rule inet t i tcp flags & (syn | ack | ecn) == (syn | {value}) "
                    "drop")
        elif key == "mtu":
            lab.run(machine, "ip", "link", "set", toward, "mtu", value)
            if machine == "client":
                lab.run("relay", "ip", "link", "set", "to-client", "mtu", value)
        elif key == "mss":
            lab.run(machine, "ip", "route", "change", f"10.0.{net}.0/24", "dev", toward, "advmss",
                    value)
            lab.run(machine, "ip", "-6", "route", "change", f"fd00:{net}::/64", "dev", toward,
                    "metric", "256", "advmss", value)
        else:
            lab.run(machine, "sh", "-c", f"echo {value} >/proc/sys/net/ipv4/{key}")


def syn_of_other(lab, machine, source, address):
    """The SYN of a connection to another program on MACHINE, without what differs each time."""
    with lab.inside(machine):
        listener = socket.create_server(("", 7300))
    listener.setsockopt(socket.IPPROTO_TCP, TCP_SAVE_SYN, 1)
    with listener, lab.inside(source), socket.create_connection((address, 7300)):
        syn = bytearray(listener.accept()[0].getsockopt(socket.IPPROTO_TCP, TCP_SAVED_SYN, 128))
    for first, last in (4, 6), (10, 12), (20, 22), (24, 28), (36, 38):  # ID, sum, port, number, sum
        syn[first:last] = bytes(last - first)
    at = 40
    while at < len(syn) and syn[at]:
        if syn[at] == 8:  # the value of the timestamp
            syn[at + 2:at + 6] = bytes(4)
        at += 1 if syn[at] == 1 else syn[at + 1]
    return syn.hex()


def syns_of_others(lab):
    """Of a connection to another program on the relay, and of one that such a program makes."""
    return [syn_of_other(lab, "relay", "client", RELAYS["4"]),
            syn_of_other(lab, "server", "relay", SERVERS["4"])]


class Run:
    def __init__(self, lab, daemon, engine):
        self.lab, self.daemon, self.engine = lab, daemon, engine
        self.from_syn = 0  # sessions that have begun in the kernel

    def state(self):
        """The carriers of the one session, why it is not grafted, and what was shaped."""
        row = self.daemon.ask("sessions")["sessions"][0]
        return ({flow["carrier"] for flow in row["flows"]}, row["not_grafted"],
                row.get("shaped"), row["flows"][0]["reason"])

    def session(self, families, grafted):
        client = Client(self.lab, RELAYS[families[0]], FORWARDS[families])
        must = grafted and self.engine != "copy"
        for n in range(205):
            client.step("both", 200)
            state = self.state()
            if n > 4 and (state[0] == {"graft"} or not must):
                break
        expect(state[0] == {"graft"} or not must, f"IPv{families}: {state}")
        client.step("both", BULK)
        client.step("both", 200)
        state = self.state()
        expect(state[0] == {"graft"} or not must, f"IPv{families}, after bulk: {state}")
        self.from_syn += state[3] == "from the SYN on"
        client.step("half", 200)
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "the session to end")
        return state


@pytest.mark.parametrize("client, server, relay, first", [row[1:] for row in ROWS],
                         ids=[row[0] for row in ROWS])
def test_ends(culvert, engine, client, server, relay, first):
    with Lab() as lab:
        for machine, settings in ("client", client), ("server", server), ("relay", relay):
            set_up(lab, machine, settings)
        lab.start_server("server", PORT, *call_of("distance", "serve"))
        others = syns_of_others(lab)
        kernel = engine == "kernel"
        daemon = Daemon(lab, culvert, "auto" if kernel else engine,
                        [(place(RELAYS[f[0]], port), place(SERVERS[f[-1]], PORT))
                         for f, port in FORWARDS.items()], *("--set-up", "kernel") * kernel)
        run = Run(lab, daemon, engine)
        for families in FORWARDS:
            for n in range(1, (at := max(first, 1 + (families == "46"))) + 1):
                state = run.session(families, n >= at)
            for _ in range(2 * kernel):  # the first one tells of the server, or tries it again
                state = run.session(families, True)
        # a SYN with ECN is not heard, and the client's next one goes to the listener
        expect(run.from_syn or not kernel or "drop=ecn" in server, "no session began in the kernel")
        syns = syns_of_others(lab)
        expect(syns == others, f"SYNs of other programs: {syns}, before: {others}")
        print(f"# {state}, from the SYN on: {run.from_syn}")
