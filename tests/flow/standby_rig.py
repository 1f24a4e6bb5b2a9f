# SPDX-License-Identifier: BSD-2-Clause
"""What the cases of standby.py stand on: two relays that tell each other of their sessions."""

import json
import os
import shutil
import subprocess
import sys
import time

from labkit import SERVER, Daemon, expect, tail, wait_until

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standby_peer.py")
# What moves: where clients connect, and what servers see.
CLIENT_SIDE, SERVER_SIDE = ("10.0.1.80", "fd00:1::80"), ("10.0.2.80", "fd00:2::80")
SERVER6 = "fd00:2::2"
RELAYS = "relay", "relay2"
OWN = {"relay": ("10.0.1.2", "fd00:1::2"), "relay2": ("10.0.1.3", "fd00:1::3")}
PORTS = {"relay": "20000 29999", "relay2": "30000 39999"}
FROM_IPV4 = f"source = {SERVER_SIDE[0]}"


def forward(name, listen, upstream, *lines):
    """A section of the file."""
    lines = f"[forward {name}]", f"listen = :{listen}", f"upstream = {upstream}", *lines, ""
    return "\n".join(lines)


CONFIG = "[culvert]\nmax-sessions = 4000\n" + "".join(forward(*one) for one in (
    ("plain", 9100, f"{SERVER}:7100", FROM_IPV4),
    ("six", 9101, f"[{SERVER6}]:7100", f"source = {SERVER_SIDE[1]}"),
    ("balanced", 9102, f"{SERVER}:7100 {SERVER}:7101", FROM_IPV4, "balance = least-sessions"),
    ("header", 9103, f"{SERVER}:7100", FROM_IPV4, "proxy-protocol = send-v2"),
    ("clear", 9104, f"{SERVER}:7102", "transparent = yes"),
    ("probed", 9105, f"{SERVER}:7100", FROM_IPV4, "keepalive = 2s"),
    ("datagrams", "9153/udp", f"{SERVER}:7153", FROM_IPV4),
    ("short", "9154/udp", f"{SERVER}:7153", FROM_IPV4, "idle-timeout = 3s"),
    ("gone", 9109, f"{SERVER}:7100", FROM_IPV4, "idle-timeout = 3s", "connect-timeout = 60s")))
# Ethernet frames that say who has the addresses now: gratuitous ARP, and neighbour advertisements.
ANNOUNCE = """
import socket, struct, sys, time
def pseudo(a, b, data): return a + b + struct.pack("!II", len(data), 58)
def csum(b):
    t = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    while t >> 16: t = (t & 65535) + (t >> 16)
    return ~t & 65535
def announce(dev, ip):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind((dev, 0x806))
    mac = s.getsockname()[4]
    if ":" not in ip:
        a = socket.inet_aton(ip)
        for op in 1, 2:
            s.send(b"\\xff" * 6 + mac + b"\\x08\\x06" + struct.pack("!HHBBH", 1, 0x800, 6, 4, op)
                   + mac + a + b"\\xff" * 6 + a)
        return
    a, all = socket.inet_pton(socket.AF_INET6, ip), socket.inet_pton(socket.AF_INET6, "ff02::1")
    na = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + a + b"\\2\\1" + mac
    na = na[:2] + struct.pack("!H", csum(pseudo(a, all, na) + na)) + na[4:]
    s.send(b"\\x33\\x33\\0\\0\\0\\1" + mac + b"\\x86\\xdd" + struct.pack("!IHBB", 6 << 28, len(na), 58, 255)
           + a + all + na)
for _ in range(3):  # one may be lost
    for dev, ip in zip(sys.argv[1::2], sys.argv[2::2]):
        announce(dev, ip)
    time.sleep(0.02)
"""
# One packet of a hundred is lost between the relays and the ends, either way.
LOSS = """table netdev loss {
chain in { type filter hook ingress devices = { relay1, relay2 } priority 0;
meta l4proto tcp numgen random mod 100 < 1 drop; }
chain out { type filter hook egress devices = { relay1, relay2 } priority 0;
meta l4proto tcp numgen random mod 100 < 1 drop; }
}
"""


class Pair:
    """A lab with two relays, and two links between them, which are started for ever."""

    config = CONFIG
    engine = "auto"

    def __init__(self, lab, program):
        self.lab = lab
        self.program = program
        self.pins = lab.mount_bpf()
        self.relays = {}
        self.links = {}
        self.clients = []
        self.daemon = None  # whose log is shown

    # --- set-up ---

    def name(self, role):
        return f"{self.lab.name}-{role}"

    def ip(self, role, *words, check=True):
        return subprocess.run(["ip", "-n", self.name(role), *words], check=check, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    def inside(self, role, *words, **options):
        return subprocess.run(["nsenter", f"--net=/run/netns/{self.name(role)}", *words],
                              check=True, stdout=subprocess.PIPE, text=True, **options).stdout

    def serve(self):
        self.lab.start_server("server", 7102, sys.executable, "-B", PEER, "serve", "7100", "7101",
                              "7102")

    def write_config(self):
        self.lab.write("culvert.conf", self.config)

    def begin_relays(self):
        self.serve()
        self.write_config()
        for relay in RELAYS:
            self.inside(relay, "sysctl", "-qw", "net.ipv4.ip_nonlocal_bind=1",
                        "net.ipv6.ip_nonlocal_bind=1",
                        f"net.ipv4.ip_local_port_range={PORTS[relay]}")
            # of clients' addresses only what comes back from the server is for this relay
            self.ip(relay, "rule", "add", "iif", "to-server", "ipproto", "6", "sport", "7102",
                    "lookup", "100")
            self.ip(relay, "route", "add", "local", "default", "dev", "lo", "table", "100")
        self.ip("server", "route", "replace", "10.0.1.0/24", "via", SERVER_SIDE[0])
        for relay in RELAYS:
            self.start(relay)

    def begin(self):
        self.begin_relays()
        self.take("relay")
        self.daemon = self.relays["relay"]
        for relay in RELAYS:
            self.link(relay)

    def expect_sane(self, relay):
        """A build with a sanitizer has said nothing."""
        said = tail(self.relays[relay].process.log)
        expect("Sanitizer:" not in said, said)

    def start(self, relay, *options):
        if relay in self.relays:
            self.expect_sane(relay)
        self.relays[relay] = Daemon(
            self.lab, self.program, self.engine, (), "--config", self.lab.path("culvert.conf"),
            "--graft-pins", os.path.join(self.pins, relay), "--session-log", "-",
            *options, namespace=relay)

    def logged(self, relay, text):
        """How often RELAY's log has TEXT."""
        return self.relays[relay].log().count(text)

    def other(self, relay):
        return RELAYS[relay == RELAYS[0]]

    def link(self, to, after="0.5"):
        """TO imports what the other one exports, again and again."""
        source, target = self.relays[self.other(to)].control, self.relays[to].control
        self.links[to] = self.lab.start(
            "client", "sh", "-c",
            f"while :; do {self.program} export --after {after} --control {source} |"
            f" {self.program} import --name peer --control {target}; sleep 0.1; done")
        self.wait_synced(to)

    def link_all(self, links=RELAYS):
        for to in links:
            if to not in self.links:
                self.link(to)

    def unlink(self, to):
        self.lab.stop(self.links.pop(to))

    def standby(self, relay):
        return self.relays[relay].ask("status")["standby"]

    def wait_synced(self, relay):
        wait_until(lambda: any(s["in_sync"] and s["stream"] == "import"
                               for s in self.standby(relay)["streams"]), f"{relay} in sync", 20)

    # --- what happens to a relay ---

    def change_addresses(self, relay, action, *flags):
        for address, dev in zip(CLIENT_SIDE + SERVER_SIDE,
                                ("to-client", "to-client", "to-server", "to-server")):
            size, more = (64, flags) if ":" in address else (24, ())
            self.ip(relay, "address", action, f"{address}/{size}", "dev", dev, *more, check=False)

    def take(self, relay):
        self.change_addresses(relay, "add", "nodad")
        self.announce(relay)

    def release(self, relay):
        self.change_addresses(relay, "del")

    def announce(self, relay, sides="12"):
        words = []
        for side, dev, addresses in ("1", "to-client", CLIENT_SIDE), ("2", "to-server", SERVER_SIDE):
            if side in sides:
                words += [word for address in addresses for word in (dev, address)]
        self.inside(relay, sys.executable, "-c", ANNOUNCE, *words)

    def lose(self, some):
        """Packets of TCP, of both sides, from now on, or no more."""
        for role in "client", "server":
            self.inside(role, "nft", "-f", "-", input=LOSS if some else "delete table netdev loss")

    def plug(self, relay, state):
        port = "relay1" if relay == "relay" else relay
        for role in ("client", "server"):
            self.ip(role, "link", "set", port, state)
            # the bridge forwards once the kernel has told of the carrier, up to a second later
            wait_until(lambda r=role: f" state {state.upper()} " in self.ip(r, "link", "show", port),
                       f"{port} to be {state}")

    def die(self, relay):
        """As by loss of power: nothing is told to anybody."""
        self.relays[relay].process.kill()  # its sockets end in silence: they are frozen
        self.plug(relay, "down")
        self.flush(relay)
        for to in list(self.links):
            self.unlink(to)
        self.lab.stop(self.relays[relay].process)

    def flush(self, relay):
        """What waits for a neighbour is gone, too."""
        for dev in "to-client", "to-server":
            self.ip(relay, "neigh", "flush", "dev", dev, "nud", "all")

    def forget(self, relay):
        """What a daemon that is dead has left."""
        self.inside(relay, self.program, "graft", "--remove", "--control",
                    self.relays[relay].control, "--graft-pins", os.path.join(self.pins, relay))

    def come_back(self, relay, links=RELAYS):
        """As after a reboot: what was pinned is gone, so are sockets, and the address is elsewhere."""
        self.release(relay)
        self.forget(relay)
        if shutil.which("ss"):  # guests have none
            self.inside(relay, "ss", "-K", "-t", "state", "connected")
        self.flush(relay)
        self.plug(relay, "up")
        self.start(relay)
        self.link_all(links)

    def move(self, old, new, power):
        if power:
            self.die(old)
        else:
            self.release(old)
        self.take(new)
        self.daemon = self.relays[new]

    # --- sessions ---

    def talk(self, port, kind, n, address=CLIENT_SIDE[0], sources=()):
        process = self.lab.start("client", sys.executable, "-B", PEER, "talk", address, str(port),
                                 kind, str(n), *sources, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        process.kind, process.n = kind, n
        self.clients.append(process)
        expect(process.stdout.readline() == "ready\n", f"clients: {tail(process.log)}")
        return process

    def say(self, process, word):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def end_of(self, process):
        """What PROCESS has done."""
        self.clients.remove(process)
        process.stdin.close()
        line = process.stdout.readline()
        expect(line.startswith("{"), f"clients: {tail(process.log)}")
        self.lab.finish(process, 10)
        return json.loads(line)

    def finish(self, process):
        """What PROCESS has done; no byte may be wrong, no session lost."""
        did = self.end_of(process)
        expect(not did.get("wrong") and not did.get("reset") and not did.get("silent") and
               did.get("ended") == process.n, f"{process.n} of {process.kind}: {did}")
        return did

    def sessions(self, relay):
        return self.relays[relay].ask("sessions")["sessions"]

    def wait_mirrored(self, relay, n):
        self.wait_standby(relay, lambda knows: sum(knows) >= n, f"{n} sessions")

    def wait_all_mirrored(self, relay):
        """What RELAY has adopted, too."""
        self.wait_standby(relay, all, f"all sessions of {relay}")

    def wait_standby(self, relay, enough, sessions):
        def unknown():
            return [s for s in self.sessions(relay) if s["standby"] != "yes"]

        wait_until(lambda: enough([s["standby"] == "yes" for s in self.sessions(relay)]),
                   lambda: f"{sessions} to be known to the standby; not: {unknown()[:3]}", 20)

    def wait_empty(self, relay, seconds=30):
        def is_empty():
            return not self.sessions(relay) and not self.standby(relay)["held"]

        # twice: what is taken over just then is seen by neither
        wait_until(lambda: is_empty() and not time.sleep(0.2) and is_empty(), lambda:
                   f"nothing to be left at {relay}: {self.standby(relay)}, sessions: "
                   f"{self.sessions(relay)[:3]}", seconds)

    def counts(self, relay):
        """Of all forwards: what has begun here, and what has become of it."""
        forwards = self.relays[relay].ask("status")["forwards"]
        return [{key: f[key] for key in ("name", "accepted", "adopted", "finished", "moved", "live")}
                for f in forwards]

    def adds_up(self, relay):
        return all(f["accepted"] + f["adopted"] == f["finished"] + f["moved"] + f["live"]
                   for f in self.counts(relay))

    def expect_sums(self, relay):
        wait_until(lambda: self.adds_up(relay),
                   lambda: f"{relay}'s counters to add up: {self.counts(relay)}")

    def end(self):
        """After each case: as before it."""
        for relay in RELAYS:
            if self.relays[relay].process.poll() is None:
                self.expect_sums(relay)
        for process in list(self.clients):
            self.lab.stop(process)
        self.clients.clear()
        for relay in RELAYS:
            if self.relays[relay].process.poll() is None:
                self.relays[relay].command("kill", "--all")
        for relay in RELAYS:
            if self.relays[relay].process.poll() is not None:
                self.come_back(relay)
        self.release("relay2")
        self.take("relay")
        self.link_all()
        for to in RELAYS:
            self.wait_synced(to)
        self.daemon = self.relays["relay"]
        for relay in RELAYS:
            self.expect_sane(relay)
