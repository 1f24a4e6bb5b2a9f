# SPDX-License-Identifier: BSD-2-Clause
"""Servers that are chosen by the name in a TLS hello ([sni FORWARD NAME...]), on each engine.

Hellos are made by OpenSSL, or were captured: Chromium's and Node's have post-quantum key shares, Go's
has none.  The server sends back what it gets, behind the port that it has, so each byte is compared.
Then OpenSSL, GnuTLS and curl speak through it.
"""

import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import time

import pytest
from labkit import RELAY, SERVER, Daemon, LabError, expect, wait_until

pytestmark = pytest.mark.needs("openssl", "curl", "gnutls-cli", "nsenter", packages="demo")
DEFAULT, EXACT, PATTERN, DEEPER, H2, OTHER = range(7440, 7446)
UNRECOGNIZED_NAME, DECODE_ERROR = 112, 50
CONFIG = f"""[culvert]
session-log = {{log}}
max-sessions = 8000
max-sessions-per-client = 8000
[forward https]
listen = :9443
upstream = {SERVER}:{DEFAULT}
[sni https example.org WWW.Example.ORG]
upstream = {SERVER}:{EXACT}
[sni https *.example.org]
upstream = {SERVER}:{PATTERN}
[sni https *.deeper.example.org]
upstream = {SERVER}:{DEEPER}
[sni https *.h2.test]
alpn = h2 http/1.1
upstream = {SERVER}:{H2}
[forward strict]
listen = :9444
hello-timeout = 0.5
[sni strict example.org]
upstream = {SERVER}:{EXACT}
[forward proxied]
listen = :9445
proxy-protocol = receive
upstream = {SERVER}:{DEFAULT}
[sni proxied example.org]
upstream = {SERVER}:{EXACT}
proxy-protocol = send-v1
[forward real]
listen = :9446
[sni real one.test]
upstream = {SERVER}:7450
[sni real two.test]
upstream = {SERVER}:7451
[forward mixed]
listen = :9447
hello-timeout = 0.5
upstream = {SERVER}:{DEFAULT}
[sni mixed example.org]
upstream = {SERVER}:{EXACT}
[sni mixed not-tls]
upstream = {SERVER}:{OTHER}
[sni mixed pg.test]
upstream = {SERVER}:7447
[sni mixed plain.test]
upstream = {SERVER}:7448
[forward needed]
listen = :9451
proxy-protocol = receive
allow-client = 192.0.2.0/24
upstream = {SERVER}:{OTHER}
[forward optional]
listen = :9452
proxy-protocol = receive
proxy-protocol-in = optional
allow-client = 192.0.2.0/24
upstream = {SERVER}:{OTHER}
[forward behind]
listen = :9448
proxy-protocol = receive
proxy-protocol-in = optional
proxy-timeout = 0.5
deny-client = 192.0.2.0/24
upstream = {SERVER}:{OTHER}
"""


def hello_of(name, alpn=(), most=ssl.TLSVersion.TLSv1_3):
    """What OpenSSL says first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = most
    if alpn:
        context.set_alpn_protocols(list(alpn))
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def captured(name):
    """What another client has said."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fuzz/corpus/tls_hello", name)
    with open(path, "rb") as file:
        return file.read()


def in_records(hello, size):
    """The same message in records of SIZE bytes."""
    body = hello[5:]
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(body[at:at + size])) +
                    body[at:at + size] for at in range(0, len(body), size))


def renamed(hello, old, new):
    """Another name of the same length, which OpenSSL would not send."""
    expect(len(old) == len(new) and hello.count(old) == 1, "the name")
    return hello.replace(old, new)


def padded(hello, size):
    """With an extension nobody knows, so that the message has SIZE bytes."""
    body = bytearray(hello[9:])
    at = 34 + 1 + body[34]
    at += 2 + int.from_bytes(body[at:at + 2], "big")
    at += 1 + body[at]
    more = size - 4 - len(body) - 4
    body += struct.pack("!HH", 0xfafa, more) + bytes(more)
    body[at:at + 2] = struct.pack("!H", len(body) - at - 2)
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack("!H", len(message)) + message


class Trial:
    def __init__(self, lab, program, engine):
        self.lab, self.program, self.engine = lab, program, engine
        self.log = lab.path(f"log.{engine}")
        self.config = lab.write("culvert.conf", CONFIG.format(log=self.log))
        self.daemon = Daemon(lab, program, engine, (), "--config", self.config)

    # --- what clients do ---

    def connect(self, port=9443, where="client"):
        s = self.lab.socket(where, RELAY)
        s.settimeout(10)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.connect((RELAY, port))
        return s

    def answer(self, sock, n):
        data = b""
        while len(data) < n + 5:
            more = sock.recv(65536)
            expect(more, f"the stream ended after {data[:20]}")
            data += more
        return int(data[:4]), data[5:]

    def ask(self, hello, port=9443, cuts=()):
        """Which server gets HELLO, sent in pieces that end at CUTS?"""
        with self.connect(port) as s:
            ends = [0, *cuts, len(hello)]
            for begin, end in zip(ends, ends[1:]):
                if begin:
                    time.sleep(0.001)
                s.sendall(hello[begin:end])
            server, got = self.answer(s, len(hello))
            expect(got == hello, f"{len(hello)} bytes have changed")
            s.sendall(b"more")  # what follows is carried as any stream
            expect(s.recv(10) == b"more", "no echo")
            return server

    def refused(self, data, alert, port=9444, end=False):
        """An alert and a reset."""
        with self.connect(port) as s:
            s.sendall(data)
            if end:
                s.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while more := s.recv(100):
                    got += more
                expect(False, f"no reset after {got.hex()}")
            except ConnectionResetError:
                pass
            expect(got == bytes([21, 3, 1, 0, 2, 2, alert]), f"the alert is {got.hex()}")

    def errors(self, cause):
        return self.daemon.ask("status")["errors"][cause]

    def end(self):
        """What one case has begun is not counted in the next."""
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], lambda:
                   f"all sessions to be over: {self.daemon.ask('sessions')['sessions'][:3]}")

    def write(self, config):
        self.lab.write("culvert.conf", config.replace("{log}", self.log))
        self.daemon.reload()

    def cpu_seconds(self):
        with open(f"/proc/{self.daemon.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run_client(self, *command):
        return subprocess.run(["nsenter", f"--net=/run/netns/{self.lab.name}-client", *command],
                              input="GET / HTTP/1.0\r\n\r\n", text=True, timeout=20, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


@pytest.fixture(scope="module")
def lab(lab):
    """With certificates and servers."""
    subprocess.run(["openssl", "genpkey", "-algorithm", "ED25519", "-out", lab.path("key")], check=True,
                   stderr=subprocess.DEVNULL)
    for name in "one.test", "two.test":
        subprocess.run(["openssl", "req", "-x509", "-key", lab.path("key"), "-out", lab.path(name),
                        "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"],
                       check=True)
    for port in range(DEFAULT, OTHER + 1):
        lab.start_echo("server", port, str(port))
    return lab


@pytest.fixture(scope="module")
def trial(lab, culvert, engine):
    one = Trial(lab, culvert, engine)
    yield one
    one.daemon.stop()


HELLO = hello_of("example.org")


# --- the cases ---

def test_names(trial):
    for name, server in (
            ("example.org", EXACT), ("www.example.org", EXACT), ("EXAMPLE.org", EXACT),
            ("a.example.org", PATTERN), ("b.a.example.org", PATTERN), ("xexample.org", DEFAULT),
            ("deeper.example.org", PATTERN), ("x.deeper.example.org", DEEPER),
            ("unknown.test", DEFAULT), ("org", DEFAULT), (None, DEFAULT)):
        for most in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
            got = trial.ask(hello_of(name, most=most))
            expect(got == server, f"{name} goes to {got}")
    for other in b"example.or.", b"example or", b"exam\0le.org", b"255.255.255", b"exampl\xc3\xa9or":
        got = trial.ask(renamed(HELLO, b"example.org"[:len(other)], other))
        expect(got == DEFAULT, f"{other} goes to {got}")


def test_alpn(trial):
    for alpn, server in (("h2",), H2), (("spdy/1", "http/1.1"), H2), ((), DEFAULT), (("h3",), DEFAULT):
        got = trial.ask(hello_of("a.h2.test", alpn))
        expect(got == server, f"{alpn} goes to {got}")


def test_pieces(trial):
    for whole in HELLO, *map(captured, ("chromium_156", "node_24", "go_1_19")):
        for cut in range(1, len(whole)):
            got = trial.ask(whole, cuts=(cut,))
            expect(got == EXACT, f"{whole[:60]} cut at {cut} goes to {got}")
        got = trial.ask(whole, cuts=range(1, len(whole)))
        expect(got == EXACT, f"{whole[:60]} byte by byte goes to {got}")
        for size in 1, 2, 100, 16384:
            got = trial.ask(in_records(whole, size))
            expect(got == EXACT, f"{whole[:60]} in records of {size} goes to {got}")
    for size in 1, 2, 100, 16384:
        got = trial.ask(in_records(padded(HELLO, 16384), size))
        expect(got == EXACT, f"16 KiB in records of {size} go to {got}")


def test_refused(trial):
    before = {cause: trial.errors(cause)
              for cause in ("hello-bad", "hello-large", "hello-late", "name-unknown")}
    for bad in (b"GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\1\3\1" + bytes(40), b"\x16\x03\x01\0\0",
                HELLO[:9] + b"\x04" + HELLO[10:], HELLO[:5] + b"\2" + HELLO[6:],
                HELLO[:-1] + b"\0\0" if HELLO[-1] else HELLO[:20] + b"\xff" * 200 + HELLO[220:]):
        trial.refused(bad, DECODE_ERROR)
    trial.refused(HELLO[:100], DECODE_ERROR, end=True)
    trial.refused(in_records(padded(HELLO, 16385), 16384), DECODE_ERROR)
    trial.refused(HELLO[:100], DECODE_ERROR)  # too late
    trial.refused(b"", DECODE_ERROR)
    trial.refused(hello_of("other.test"), UNRECOGNIZED_NAME)
    trial.refused(hello_of(None), DECODE_ERROR)
    expect(trial.ask(HELLO, 9444) == EXACT, "a good one is refused")
    for cause, more in ("hello-bad", 7), ("hello-large", 1), ("hello-late", 2), ("name-unknown", 2):
        got = trial.errors(cause) - before[cause]
        expect(got == more, f"{got} of {cause}")
    wait_until(lambda: trial.daemon.ask("status")["resources"]["clients"] == 0,
               "no place of max-sessions-per-client to be taken")


def test_checks_from_outside(trial):
    """Who connects and closes, in whatever way, is counted as a session and as no error."""
    def finished():
        return sum(f["finished"] for f in trial.daemon.ask("status")["forwards"])

    errors, before = trial.daemon.ask("status")["errors"], finished()
    for reset in False, True:
        with trial.connect(9444) as s:
            if reset:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: finished() == before + 2, "two sessions to be over")
    errors["client-reset"] += 1
    expect(trial.daemon.ask("status")["errors"] == errors, "a check is an error")


def test_proxy(trial):
    header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 443\r\n"
    for cut in 0, 1:
        with trial.connect(9445) as s:
            s.sendall(header)
            time.sleep(0.02 * cut)
            s.sendall(HELLO)
            server, got = trial.answer(s, len(header) + len(HELLO))
            expect(server == EXACT and got == header + HELLO, f"{server}: {got[:60]}")


def test_not_tls(trial):
    """Clients of ssh, OpenVPN and HTTP at the port, and such that wait for the server."""
    for first in b"SSH-2.0-x\r\n", b"\0\x0e\x38" + bytes(12), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x09xyz":
        expect(trial.ask(first, 9447) == OTHER, f"{first} goes elsewhere")
    expect(trial.ask(HELLO, 9447) == EXACT, "TLS goes elsewhere")
    for name in "not-tls", "other.test":
        expect(trial.ask(hello_of(name), 9447) == DEFAULT, f"{name} goes elsewhere")
    with trial.connect(9447) as s:  # it says nothing
        expect(trial.answer(s, 0)[0] == OTHER, "the silent client goes elsewhere")
    trial.refused(HELLO[:100], DECODE_ERROR, port=9447)  # it speaks TLS, too slowly


# As PostgreSQL: it says whether it speaks TLS, when it is asked.
POSTGRES = """
import socketserver, sys, threading
class Server(socketserver.StreamRequestHandler):
    def handle(self):
        if self.rfile.read(8) != bytes((0, 0, 0, 8, 4, 210, 22, 47)):
            return
        if self.server.server_address[1] == 7448:
            self.wfile.write(b"N")
            return
        self.wfile.write(b"S")
        while data := self.rfile.read1(65536):
            self.wfile.write(data)
socketserver.ThreadingTCPServer.allow_reuse_address = True
for port in 7447, 7448:
    threading.Thread(target=socketserver.ThreadingTCPServer(("10.0.2.2", port), Server).serve_forever).start()
"""
TLS_REQUEST, GSS_REQUEST = (bytes((0, 0, 0, 8, 4, 210, 22, last)) for last in (47, 48))


@pytest.fixture(name="postgres")
def fixture_postgres(trial):
    """Begins a session with a request for TLS, and perhaps one for GSS, and sends a hello."""
    server = trial.lab.start_server("server", 7447, sys.executable, "-c", POSTGRES)

    def begin(name, gss=False, cut=8):
        s = trial.connect(9447)
        if gss:
            s.sendall(GSS_REQUEST)
            expect(s.recv(1) == b"N", "a request for GSS is not refused")
        s.sendall(TLS_REQUEST[:cut])
        time.sleep(0.01)
        s.sendall(TLS_REQUEST[cut:])
        expect(s.recv(1) == b"S", "a request for TLS is not granted")
        hello = hello_of(name)
        s.sendall(hello)
        return s, hello

    yield begin
    trial.lab.stop(server)


def expect_echo(s, data):
    got = b""
    while len(got) < len(data):
        more = s.recv(4096)
        expect(more, f"the stream ends after {len(got)} bytes")
        got += more
    expect(got == data, "other bytes come back")


def expect_end(s):
    """Some words more, which the kernel may carry, and an end in order."""
    for _ in range(3):
        s.sendall(b"more")
        expect_echo(s, b"more")
    s.shutdown(socket.SHUT_WR)
    expect(s.recv(10) == b"", "bytes besides the echo")


def test_postgres(trial, postgres):
    for gss, cut in (False, 8), (True, 8), (False, 3), (False, 7):
        s, hello = postgres("pg.test", gss, cut)
        with s:
            expect_echo(s, hello)
            expect_end(s)
    expect(trial.errors("handover-unproved") == 0, "the requests are in the books of the stream")
    with postgres("plain.test")[0] as s, pytest.raises(ConnectionResetError):
        s.recv(1)
    expect(trial.errors("server-no-tls") == 1, "the refusal is not counted")
    expect(trial.ask(TLS_REQUEST + b"x", 9447) == OTHER, "who does not wait is taken for PostgreSQL")
    with trial.connect(9447) as s:
        s.sendall(GSS_REQUEST)
        expect(s.recv(1) == b"N", "a request for GSS is not refused")
        s.sendall(GSS_REQUEST)
        expect(trial.answer(s, 8) == (OTHER, GSS_REQUEST), "the second one is taken for PostgreSQL, too")


def test_behind_a_proxy(trial):
    """Rules for the client that a PROXY header names; clients that send none."""
    def served(header, silent=False, port=9448):
        with trial.connect(port) as s:
            s.sendall(header + (b"" if silent else b"payload"))
            try:
                wanted = b"" if silent else (b"" if b"\r\n" in header else header) + b"payload"
                expect(trial.answer(s, len(wanted)) == (OTHER, wanted), "other bytes came back")
                return True
            except ConnectionResetError:
                return False

    denied = trial.daemon.ask("forwards")["forwards"][-1]["denied"]
    expect(served(b"PROXY TCP4 198.51.100.7 192.0.2.2 1 2\r\n"), "an allowed client is refused")
    expect(not served(b"PROXY TCP4 192.0.2.7 192.0.2.2 1 2\r\n"), "a denied client is served")
    expect(trial.daemon.ask("forwards")["forwards"][-1]["denied"] == denied + 1, "it is not counted")
    expect(served(b"PROXY UNKNOWN\r\n"), "a check of the proxy is refused")
    expect(not served(b"PROXY TCP4 x\r\n"), "a bad header is payload")
    expect(served(b"") and served(b"PROXIES"), "a client without a header is refused")
    expect(served(b"", silent=True), "a client that waits is refused")
    for port in 9451, 9452:  # the connection's own address is not allowed
        expect(served(b"PROXY TCP4 192.0.2.7 192.0.2.2 1 2\r\n", port=port), "a proxy is refused")
        for header in b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0":
            expect(served(header, port=port) == (port == 9451),
                   f"{header} hides a refused address, or a check of the proxy is refused")


def test_shown(trial):
    with trial.connect() as s:
        hello = hello_of("www.example.org")
        s.sendall(hello)
        trial.answer(s, len(hello))
        rows = [r for r in trial.daemon.ask("sessions")["sessions"] if r["server_name"]]
        expect(len(rows) == 1 and rows[0]["server_name"] == "www.example.org" and
               rows[0]["forward"] == "https/example.org", f"{rows}")
        killed = trial.daemon.ask("kill", "--server-name", "WWW.example.org")
        expect(killed["killed"] == 1, killed)
    with open(trial.log, encoding="ascii") as file:
        wait_until(lambda: any('"server_name":"www.example.org"' in line and '"killed"' in line
                               for line in file), "the log")
    forwards = {f["name"]: f for f in trial.daemon.ask("forwards")["forwards"]}
    one = forwards["https/example.org"]
    expect(one["names"] == "example.org www.example.org" and
           one["accepted"] == one["finished"] > 0, f"{one}")
    wait_until(lambda: all(f["live"] == 0 and f["accepted"] == f["finished"]
                           for f in trial.daemon.ask("forwards")["forwards"]), "all to be over")


def test_grafted(trial):
    """A session whose hello was looked at is carried as others are."""
    with trial.connect() as s:
        s.sendall(HELLO)
        trial.answer(s, len(HELLO))

        def carriers():
            s.sendall(b"x")
            expect(s.recv(1) == b"x", "the stream")
            row = [r for r in trial.daemon.ask("sessions")["sessions"] if r["server_name"]][0]
            return [f["carrier"] for f in row["flows"]], row["not_grafted"]

        wanted = "graft" if trial.engine == "auto" else trial.engine
        wait_until(lambda: wanted in carriers()[0], f"{wanted}, not {carriers()}")


def test_reload(trial):
    with trial.connect() as old, trial.connect() as late:
        old.sendall(HELLO)
        expect(trial.answer(old, len(HELLO))[0] == EXACT, "before")
        late.sendall(HELLO[:50])
        trial.write(CONFIG.replace(f"upstream = {SERVER}:{EXACT}", f"upstream = {SERVER}:{OTHER}", 1))
        late.sendall(HELLO[50:])
        expect(trial.answer(late, len(HELLO))[0] == OTHER, "a hello that has begun before")
        expect(trial.ask(HELLO) == OTHER, "after")
        old.sendall(b"still")
        expect(old.recv(10) == b"still", "an old session")
    trial.write(re.sub(r"\[sni https (\*|example).*\n(.*\n)?upstream.*\n", "", CONFIG))
    expect(trial.ask(HELLO) == DEFAULT, "without the section")
    trial.write(CONFIG)
    expect(trial.ask(HELLO) == EXACT, "again")
    # nobody knows any more whose it is: not the default's
    before = trial.errors("name-unknown")
    with trial.connect() as late:
        late.sendall(HELLO[:50])
        wait_until(lambda: trial.daemon.ask("sessions")["sessions"], "the session")
        trial.write(CONFIG.replace("forward https]", "forward other]").replace("sni https", "sni other"))
        late.sendall(HELLO[50:])
        expect(late.recv(100) == bytes([21, 3, 1, 0, 2, 2, UNRECOGNIZED_NAME]), "no alert")
    expect(trial.errors("name-unknown") == before + 1, "it is not counted")
    trial.write(trial.lab.run("relay", trial.program, "convert", trial.config))
    expect(trial.ask(HELLO) == EXACT, "as culvert convert writes it")
    trial.write(CONFIG)


def test_drain(trial):
    """A forward drains with its sections, which have no sockets of their own."""
    with trial.connect() as s:
        s.sendall(HELLO)
        trial.answer(s, len(HELLO))
        with pytest.raises(LabError):  # not a section
            trial.daemon.command("drain", "https/example.org")
        said = trial.daemon.ask("drain", "https", "--drain-timeout", "1")
        expect(said["live"] == 1, f"{said}")
        s.settimeout(5)
        try:
            expect(s.recv(1), "an end instead of a reset")
        except ConnectionResetError:
            pass
        trial.daemon.command("drain", "https", "--undo")
    expect(trial.ask(HELLO) == EXACT, "after all")


def test_crowd(trial):
    """Half a hello each: others notice nothing."""
    crowd = [trial.connect() for _ in range(2000)]
    for s in crowd:
        s.sendall(HELLO[:200])
    start = time.monotonic()
    for _ in range(100):
        expect(trial.ask(HELLO) == EXACT, "beside a crowd")
    took = time.monotonic() - start
    print(f"# 100 sessions beside 2,000 half hellos: {took:.2f} s")
    # the receive buffer has no room for a segment of the loopback: no reason to look again
    with trial.connect(where="relay") as s:
        s.sendall(in_records(padded(HELLO, 16384), 1)[:-1])
        time.sleep(0.2)
        before = trial.cpu_seconds()
        time.sleep(0.5)
        used = trial.cpu_seconds() - before
        expect(used < 0.25, f"to wait takes {used} s of CPU in 0.5 s")
    for s in crowd[:1000]:
        s.sendall(HELLO[200:])
    for s in crowd[:1000]:
        expect(trial.answer(s, len(HELLO))[0] == EXACT, "one of the crowd")
    for s in crowd:
        s.close()


def test_many(trial):
    """What a hello costs does not depend on how many names there are."""
    used = []
    for sections in 0, 4000:
        trial.write(CONFIG + "".join(
            f"[sni https {' '.join(f'n{number}-{word}.many.test' for word in range(8))}]\n"
            f"upstream = {SERVER}:{OTHER}\n" for number in range(sections)))
        before = trial.cpu_seconds()
        for _ in range(500):
            expect(trial.ask(HELLO) == EXACT, f"beside {sections} sections")
        used.append(trial.cpu_seconds() - before)
    print(f"# 500 sessions take {used[0]:.2f} s of CPU, and with 32,000 names {used[1]:.2f} s")
    expect(trial.ask(hello_of("n3999-7.many.test")) == OTHER, "the last name")
    expect(used[1] < 2 * used[0] + 0.05, "names are gone through")
    trial.write(CONFIG)


def test_real(trial):
    """OpenSSL's server, by OpenSSL, GnuTLS and curl."""
    servers = [trial.lab.start_server(
        "server", port, "openssl", "s_server", "-quiet", "-www", "-key", trial.lab.path("key"), "-cert",
        trial.lab.path(name), "-accept", str(port)) for name, port in (("one.test", 7450),
                                                                       ("two.test", 7451))]
    for name in "one.test", "two.test":
        said = trial.run_client("openssl", "s_client", "-connect", f"{RELAY}:9446", "-servername", name,
                                "-CAfile", trial.lab.path(name), "-verify_return_error", "-ign_eof")
        expect(f"CN = {name}" in said and "New, TLSv1.3" in said, f"{name}: {said[:1500]}")
        said = trial.run_client("gnutls-cli", "-p", "9446", "--x509cafile", trial.lab.path(name),
                                "--sni-hostname", name, "--verify-hostname", name, RELAY)
        expect("Handshake was completed" in said, f"{name}: {said[:1500]}")
        said = trial.run_client("curl", "-sS", "--cacert", trial.lab.path(name), "--resolve",
                                f"{name}:9446:{RELAY}", f"https://{name}:9446/")
        expect("Ciphers supported" in said, f"{name}: {said[:1500]}")
    for server in servers:
        trial.lab.stop(server)


def test_take_over(trial, postgres):
    """The next daemon knows what was before the stream."""
    s, hello = postgres("pg.test", gss=True)
    with s:
        expect_echo(s, hello)
        before = trial.daemon.take_over()
        expect_end(s)
    trial.lab.finish(before, 30)
    expect(trial.errors("handover-unproved") == 0, "the requests are in the books of the stream")
