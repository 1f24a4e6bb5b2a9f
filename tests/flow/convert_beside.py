# SPDX-License-Identifier: BSD-2-Clause
"""What `culvert convert` makes of a haproxy.cfg or nginx.conf does what the original does.

    clients  -->  10.0.1.2: haproxy or nginx  -->  10.0.2.11, .12, .13: servers, each says its name,
             -->  10.0.1.3: culvert           -->                       the client it sees, and the
                                                                        PROXY header it got

The files of convert/ have the shapes of well-known ones. Both programs run at the same time, so both
see the same checks and faults; the same clients must see the same.
"""

import asyncio
import collections
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys

import pytest
from labkit import RELAY, Daemon, call_of, expect, wait_until
from server_names import hello_of

pytestmark = pytest.mark.needs("ip", "nft", "haproxy", "nginx", packages="demo bench")
NGINX_STREAM = "/usr/lib/nginx/modules/ngx_stream_module.so"
THEIRS, OURS = RELAY, "10.0.1.3"
A, B, C = HOSTS = [f"10.0.2.{n}" for n in (11, 12, 13)]
CLIENTS = [f"10.0.1.{n}" for n in range(11, 27)]
TCP_PORTS, HTTP_PORTS, REDIS_PORT, DNS_PORT = (53, 443, 3306, 5432), (8008, 9200), 6379, 53
SSH = b"SSH-2.0-OpenSSH_9.2\r\n"
V2 = b"\r\n\r\n\0\r\nQUIT\n"


# --- the servers ---

async def read_header(reader, data):
    """The source in a PROXY header, or None, and what follows it."""
    if data.startswith(b"PROXY "):
        line, _, rest = data.partition(b"\r\n")
        return line.decode().split()[2], rest or await reader.read(65536)
    if data.startswith(V2):
        size = int.from_bytes(data[14:16], "big")
        source = socket.inet_ntop(*((socket.AF_INET, data[16:20]) if data[13] == 0x11 else
                                    (socket.AF_INET6, data[16:32])))
        return source, data[16 + size:] or await reader.read(65536)
    return None, data


async def say_name(reader, writer):
    """To who has said something, as a line of JSON; then all comes back."""
    source, rest = await read_header(reader, await reader.read(65536))
    host, port = writer.get_extra_info("sockname")
    if rest:
        writer.write(json.dumps({"server": f"{host}:{port}", "header": source,
                                 "peer": writer.get_extra_info("peername")[0]}).encode() + b"\n")
    while data := await reader.read(65536):
        writer.write(data)


def leads(host):
    with open(sys.argv[1], encoding="ascii") as file:
        return host in file.read().split()


async def check_http(reader, writer):
    line = await reader.readline()
    while (await reader.readline()).strip():
        pass
    good = leads(writer.get_extra_info("sockname")[0]) != (line.split()[1:2] == [b"/replica"])
    writer.write(b"HTTP/1.0 %s\r\nContent-Length: 0\r\n\r\n" % (b"200 OK" if good else b"503 No"))


async def redis(reader, writer):
    host, port = writer.get_extra_info("sockname")
    role = b"master" if leads(host) else b"slave"
    answers = {b"PING": b"+PONG\r\n", b"QUIT": b"+OK\r\n",
               b"info replication": b"$99\r\n# Replication\r\nrole:%s\r\n" % role,
               b"who": json.dumps({"server": f"{host}:{port}", "header": None,
                                   "peer": "?"}).encode() + b"\n"}
    while line := await reader.readline():
        writer.write(answers.get(line.strip(), b""))


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport  # pylint: disable=attribute-defined-outside-init

    def datagram_received(self, data, addr):
        self.transport.sendto(self.transport.get_extra_info("sockname")[0].encode(), addr)


async def serve_all():
    loop = asyncio.get_running_loop()

    def closing(answer):
        async def handle(reader, writer):
            with contextlib.suppress(OSError):
                await answer(reader, writer)
            writer.close()
        return handle

    for host in HOSTS:
        await loop.create_datagram_endpoint(Datagrams, (host, DNS_PORT))
        for answer, ports in ((say_name, TCP_PORTS), (redis, (REDIS_PORT,)), (check_http, HTTP_PORTS)):
            for port in ports:
                await asyncio.start_server(closing(answer), host, port)
    await loop.create_future()


def serve():
    asyncio.run(serve_all())


# --- both programs ---

class Trial:
    """NAME, a file of convert/, on the original, and converted on culvert."""

    original = daemon = None

    def __init__(self, lab):
        self.lab, self.kept = lab, []

    def begin(self, program, name):
        lab = self.lab
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "convert")
        with open(os.path.join(folder, name), encoding="ascii") as file:
            text = file.read()
        path = lab.write(name, text)
        self.lead(*CASES[name].start)
        self.original = lab.start_server(
            "relay", CASES[name].port, *(
                ("haproxy", "-db", "-f", path) if name.endswith(".cfg") else
                ("nginx", "-p", lab.home, "-e", lab.path("nginx.log"), "-c", path, "-g",
                 f"daemon off; pid {lab.path('nginx.pid')};")))
        result = subprocess.run([program, "convert", path], text=True, stdout=subprocess.PIPE, check=False)
        expect(result.returncode == (name in LOSSY), f"{result.returncode}:\n{result.stdout}")
        config = lab.write("culvert.conf", result.stdout.replace(f"{THEIRS}:", f"{OURS}:"))
        lab.run("relay", program, "check", config)
        self.daemon = Daemon(lab, program, "auto", (), "--config", config, "--probe", "no")

    def leave(self):
        self.release()
        self.rules("flush chain inet faults in")
        if self.original:
            self.lab.stop(self.original)
        expect(not self.daemon or self.daemon.stop() == 0, "culvert did not stop in order")

    # --- what happens to servers ---

    def lead(self, *hosts):
        """Checks find HOSTS good, and the others bad."""
        os.rename(self.lab.write("leaders.new", " ".join(hosts)), self.lab.path("leaders"))

    def rules(self, text):
        self.lab.run("server", "nft", text)

    def refuse(self, *hosts):
        for host in hosts:
            self.rules(f"add rule inet faults in ip daddr {host} tcp flags & (syn|ack) == syn "
                       "reject with tcp reset")

    # --- what clients see ---

    def connect(self, at, port, source, hello=b"who\n"):
        """A connection, and what the server says of itself."""
        sock = self.lab.socket("client", at)
        sock.settimeout(20)
        sock.bind((source, 0))
        try:
            sock.connect((at, port))
            sock.sendall(hello)
            line = sock.makefile("rb").readline()
            if line:
                return sock, json.loads(line)
        except (ConnectionResetError, ConnectionRefusedError, BrokenPipeError):
            pass
        sock.close()
        return None, "refused"

    def told(self, at, port, source=CLIENTS[0], hello=b"who\n"):
        sock, told = self.connect(at, port, source, hello)
        if sock:
            sock.close()
        return told

    def server(self, at, port, **how):
        told = self.told(at, port, **how)
        return told if told == "refused" else told["server"]

    def shares(self, at, port, count, **how):
        return collections.Counter(self.server(at, port, **how) for _ in range(count))

    def crowd(self, at, port, count):
        """Which servers have COUNT connections at a time."""
        became = [self.connect(at, port, CLIENTS[0]) for _ in range(count)]
        for sock in [sock for sock, _ in became if sock]:
            sock.sendall(b"x")
            expect(sock.recv(1) == b"x", "a session has ended")
            sock.close()
        return collections.Counter(told["server"] if sock else told for sock, told in became)

    def keep(self, port, count=1):
        """Connections through both that stay."""
        became = [self.connect(at, port, CLIENTS[0]) for at in (THEIRS, OURS) for _ in range(count)]
        self.kept += [sock for sock, _ in became if sock]
        expect(all(sock for sock, _ in became), f"{became}")

    def release(self):
        while self.kept:
            self.kept.pop().close()

    def all_ended(self):
        """All that were kept."""
        def has_ended(sock):
            try:
                sock.settimeout(0.01)
                return not sock.recv(1)
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True
        wait_until(lambda: all(map(has_ended, self.kept)), "sessions to end")

    @staticmethod
    def same(see, *args, **kwargs):
        """What both let a client SEE."""
        theirs, ours = (see(at, *args, **kwargs) for at in (THEIRS, OURS))
        expect(ours == theirs, f"{args} {kwargs}: the original: {theirs}, culvert: {ours}")
        return theirs

    def agree(self, wanted, see, *args, **kwargs):
        """After a while, both let a client SEE what is WANTED."""
        seen = {}

        def as_wanted():
            seen.update({at: see(at, *args, **kwargs) for at in (THEIRS, OURS)})
            return all(one == wanted for one in seen.values())
        wait_until(as_wanted, lambda: f"{args} {kwargs}: {wanted}: {seen}", 20)


# --- the cases ---

def of(port, *hosts):
    """As Trial.shares() has it: one session each."""
    return {f"{host}:{port}": 1 for host in hosts}


def patroni(t):
    t.agree(f"{A}:5432", t.server, 5000)
    t.agree(of(5432, B, C), t.shares, 5001, 2)
    t.keep(5000, 3)
    t.lead(B)
    t.all_ended()
    t.agree(f"{B}:5432", t.server, 5000)
    t.agree(of(5432, A, C), t.shares, 5001, 2)
    t.lead()
    t.agree("refused", t.server, 5000)
    t.agree(of(5432, *HOSTS), t.shares, 5001, 3)
    t.lead(A, B, C)
    t.agree(of(5432, *HOSTS), t.shares, 5000, 3)
    t.agree("refused", t.server, 5001)


def galera(t):
    t.agree({f"{A}:3306": 2, f"{B}:3306": 2}, t.crowd, 3307, 4)
    t.agree(f"{A}:3306", t.server, 3306)
    t.keep(3306, 3)
    t.lead(B)
    t.all_ended()
    t.agree(f"{B}:3306", t.server, 3306)
    t.keep(3306, 2)
    t.lead(A, B)
    t.all_ended()  # of the backup
    t.agree(f"{A}:3306", t.server, 3306)
    t.lead()
    t.agree("refused", t.server, 3306)


def redis_master(t):
    t.agree(f"{A}:6379", t.server, 6379)
    t.lead(C)
    t.agree(f"{C}:6379", t.server, 6379)
    t.lead()
    t.agree("refused", t.server, 6379)
    t.agree(of(6379, A, B), t.shares, 6380, 2)
    t.refuse(A)
    t.agree({f"{B}:6379": 2}, t.shares, 6380, 2)


def by_name(t, names, header):
    for name, wanted in names.items():
        told = t.same(t.told, 443, source=CLIENTS[3], hello=SSH if name == "ssh" else hello_of(name))
        expect(told["server"] == wanted, f"{name}: {told}")
        expect(told["header"] == (CLIENTS[3] if header(name) else None), f"{name}: {told}")


def names(t):
    by_name(t, {"shop.example.org": f"{A}:443", "WWW.shop.example.ORG": f"{A}:443",
                "x.shop.example.org": f"{C}:443", "www.example.org": f"{C}:443", None: f"{C}:443",
                "ssh": f"{C}:5432"}, lambda name: name and "shop" in name and name[0] != "x")
    for hello, wanted in ((hello_of("shop.example.org"), f"{A}:443"), (hello_of(None), f"{C}:443"),
                          (SSH, "refused")):
        expect(t.same(t.server, 5000, hello=hello) == wanted, wanted)
    for name in "a.app.example.org", "a.b.app.example.org", "app.example.org", "old.example.org":
        got = t.same(t.shares, 443, 2, hello=hello_of(name))
        expect(got == {f"{B}:443": 1, f"{B}:5432": 1}, f"{name}: {got}")


def preread(t):
    by_name(t, {"shop.example.org": f"{A}:443", "www.shop.example.org": f"{A}:443",
                "x.shop.example.org": f"{C}:443", "app.example.org": f"{B}:443",
                "a.b.app.example.org": f"{B}:443", "old.example.org": f"{C}:443",
                "a.old.example.org": f"{B}:5432", None: f"{C}:443", "ssh": f"{C}:443"},
            lambda name: True)


def header_of(source, version):
    """Of PROXY."""
    family, kind = (socket.AF_INET6, "TCP6") if ":" in source else (socket.AF_INET, "TCP4")
    if version == 1:
        return f"PROXY {kind} {source} {source} 1 2\r\n".encode()
    address = socket.inet_pton(family, source)
    return V2 + struct.pack("!BBH", 0x21, 0x21 if ":" in source else 0x11, 2 * len(address) + 4) + \
        2 * address + bytes(4)


def access(t):
    seen = collections.Counter()
    for client in CLIENTS:
        for port in 3306, 3307, 3308:
            told = t.same(t.told, port, source=client)
            seen[port, told == "refused"] += 1
            expect(told == "refused" or told["header"] == (client if port < 3308 else None), f"{told}")
    expect(seen == {(3306, False): 7, (3306, True): 9, (3307, False): 3, (3307, True): 13,
                    (3308, False): 6, (3308, True): 10}, f"{seen}")
    for client in CLIENTS[:4]:
        for source in "192.0.2.6", "192.0.2.7", "192.0.3.1", "2001:db8::7", "2001:db9::1":
            for version in 1, 2:
                told = t.same(t.told, 3309, source=client, hello=header_of(source, version) + b"who\n")
                good = client in CLIENTS[:2] and source in ("192.0.2.6", "2001:db8::7")
                expect(told == "refused" if not good else told["header"] == source, f"{source}: {told}")
    has_a_place_later(t)
    t.keep(3311)
    t.all_ended()  # timeout client, timeout server


def has_a_place_later(t):
    """`maxconn`: a third client waits until another one has gone."""
    t.keep(3310, 2)
    late = [t.lab.socket("client", at) for at in (THEIRS, OURS)]
    for at, sock in zip((THEIRS, OURS), late):
        sock.settimeout(0.3)
        sock.connect((at, 3310))
        sock.sendall(b"who\n")
    for sock in late:
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(20)
    t.release()
    for sock in late:
        expect(A in sock.makefile().readline(), "no place")
        sock.close()


def upstreams(t):
    for _ in range(2):
        t.same(t.shares, 5000, 30)
    expect(t.same(t.shares, 5000, 30) == {f"{A}:5432": 20, f"{B}:5432": 10}, "weights")
    t.refuse(A)
    t.agree({f"{B}:5432": 4}, t.shares, 5000, 4)
    t.refuse(B)
    t.agree({f"{C}:5432": 4}, t.shares, 5000, 4)
    t.rules("flush chain inet faults in")
    t.agree({f"{A}:3306": 3, f"{B}:3306": 5}, t.crowd, 5001, 8)  # least_conn, max_conns
    expect(t.same(lambda at: t.told(at, 5001)["header"]) == CLIENTS[0], "a PROXY header")
    t.agree({f"{C}:443": 2, "refused": 1}, t.crowd, 5003, 3)
    for client in CLIENTS:
        seen = [t.shares(at, 5002, 2, source=client) for at in (THEIRS, OURS)]
        expect(seen[0] == seen[1] if "refused" in seen[0] else len(seen[0]) == len(seen[1]) == 1, f"{seen}")
        expect(("refused" in seen[0]) == (client not in (*CLIENTS[:3], CLIENTS[4], CLIENTS[9])), f"{client}")
    t.keep(5004)
    t.all_ended()  # proxy_timeout


def dns(t):
    def ask(sock, patient=5):
        sock.settimeout(patient)
        sock.send(b"?")
        return sock.recv(100).decode()

    def reach(at, port, source):
        sock = t.lab.socket("client", at, socket.SOCK_DGRAM)
        sock.bind((source, 0))
        sock.connect((at, port))
        t.kept.append(sock)
        return sock

    def questions(at, port):
        sock = reach(at, port, CLIENTS[0])
        return collections.Counter(ask(sock) for _ in range(8))

    def is_silent(at, client, patient):
        with contextlib.suppress(TimeoutError, ConnectionRefusedError):
            ask(reach(at, 54, client), patient)
            return False
        return True

    expect(t.same(questions, 53) == {A: 4, B: 4}, "each answer ends a session")
    expect(set(t.same(questions, 54).values()) == {8}, "a session goes on")
    t.agree(of(53, A, B), t.shares, 53, 2)
    for client in CLIENTS[:4]:
        refused = client not in CLIENTS[:2]
        expect(t.same(is_silent, client, 0.2 if refused else 5) == refused, client)


# DO it; the PORT that the original opens last; servers that are good from the START.
Case = collections.namedtuple("Case", "do port start", defaults=((A,),))
CASES = {
    "patroni.cfg": Case(patroni, 5001),
    "galera.cfg": Case(galera, 3307, (A, B)),
    "redis.cfg": Case(redis_master, 6380),
    "names.cfg": Case(names, 5000),
    "access.cfg": Case(access, 3311),
    "upstreams.conf": Case(upstreams, 5004),
    "preread.conf": Case(preread, 443),
    "dns.conf": Case(dns, 53),
}
# Exit code 1: another program's statistics, ways of talking, and servers that are left out.
LOSSY = {"patroni.cfg", "galera.cfg", "redis.cfg", "upstreams.conf"}


@pytest.fixture(scope="module")
def lab(lab):
    """With the servers, and a second address of the relay."""
    if not os.path.exists(NGINX_STREAM):
        pytest.skip("missing: libnginx-mod-stream (scripts/deps bench)")
    lab.run("relay", "ip", "address", "add", f"{OURS}/24", "dev", "to-client")
    for host in HOSTS:
        lab.run("server", "ip", "address", "add", f"{host}/24", "dev", "to-relay")
    lab.run("server", "nft", "add table inet faults")
    lab.run("server", "nft", "add chain inet faults in { type filter hook input priority 0 ; }")
    lab.write("leaders", A)
    lab.start_server("server", HTTP_PORTS[-1], *call_of("convert_beside", "serve"), lab.path("leaders"))
    return lab


@pytest.fixture
def trial(lab, culvert, name):
    one = Trial(lab)
    try:
        one.begin(culvert, name)
        yield one
    finally:
        one.leave()


@pytest.mark.parametrize("name", CASES)
def test_beside(trial, name):
    CASES[name].do(trial)
