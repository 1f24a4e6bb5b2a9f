# SPDX-License-Identifier: BSD-2-Clause
"""Real databases, their direct connections, and clients that note each answer with its time."""

import contextlib
import glob
import http.server
import itertools
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time

from labkit import REDIS_PORT, RELAY, SERVER, LabError, expect, tail, wait_until

POSTGRES_PORT, PATRONI_PORT = 5432, 8008
ADDRESSES = [SERVER, "10.0.2.3", "10.0.2.4"]
PRIMARY_NAME = "primary.test"
TLS_REQUEST = bytes((0, 0, 0, 8, 4, 210, 22, 47))
AS_POSTGRES = ("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups")


def postgres_folder():
    """Where Debian has the programs of its newest PostgreSQL; None: nowhere."""
    folders = glob.glob("/usr/lib/postgresql/*/bin")
    return max(folders, key=lambda folder: int(folder.split("/")[4]), default=None)


class Refused(Exception):
    """The server's answer to one request is an error, args[0]."""


class Ended(ConnectionError):
    """The stream has ended in order."""


class Talk:
    """A connection. The words of Redis and PostgreSQL are those of the classes below."""

    def __init__(self, sock, address):
        self.sock = sock
        try:
            sock.settimeout(10)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
            self.stream = sock.makefile("rb")
            self.greet()
        except OSError:
            self.sock.close()
            raise

    def greet(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.sock.close()

    def read(self, n):
        data = self.stream.read(n)
        if len(data) < n:
            raise Ended("the stream has ended")
        return data

    def is_over(self):
        """Whether the other end has ended a connection that is silent."""
        return bool(select.select([self.sock], (), (), 0)[0])


class RedisTalk(Talk):
    def ask(self, *words):
        self.sock.sendall(b"*%d\r\n" % len(words) + b"".join(
            b"$%d\r\n%s\r\n" % (len(word), word) for word in (str(word).encode() for word in words)))
        return self.answer()

    def answer(self):
        line = self.stream.readline()
        if not line.endswith(b"\r\n"):
            raise Ended("the stream has ended")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise Refused(rest.split()[0])
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == "-1" else self.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        expect(kind == b"+", f"no answer of Redis: {line}")
        return rest


class PostgresTalk(Talk):
    def greet(self):
        self.log_in()

    def log_in(self):
        said = struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0\0"
        self.sock.sendall(struct.pack("!I", len(said) + 4) + said)
        try:
            self.answer()
        except Refused as error:  # as while it starts
            raise Ended(str(error)) from None

    def ask(self, query):
        """The rows of QUERY, of text."""
        said = query.encode() + b"\0"
        self.sock.sendall(b"Q" + struct.pack("!I", len(said) + 4) + said)
        return self.answer()

    def answer(self):
        rows = []
        error = None
        while True:
            kind, length = struct.unpack("!cI", self.read(5))
            body = self.read(length - 4)
            if kind == b"D":
                rows.append(self.row(body))
            elif kind == b"E":
                fields = {field[:1]: field[1:].decode() for field in body.split(b"\0") if field}
                error = fields[b"C"]
                if fields[b"V"] != "ERROR":  # it ends the connection
                    raise Ended(error)
            elif kind == b"Z":
                if error:
                    raise Refused(error)
                return rows

    @staticmethod
    def row(body):
        values, at = [], 2
        while at < len(body):
            length = struct.unpack_from("!i", body, at)[0]
            at += 4
            values.append(None if length < 0 else body[at:at + length].decode())
            at += max(length, 0)
        return values


class PostgresTls(PostgresTalk):
    """A client that asks for TLS, and then for the server PRIMARY_NAME."""

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def greet(self):
        self.sock.sendall(TLS_REQUEST)
        expect(self.read(1) == b"S", "TLS is refused")
        self.stream.close()
        self.sock = self.context.wrap_socket(self.sock, server_hostname=PRIMARY_NAME)
        self.stream = self.sock.makefile("rb")
        self.log_in()


# --- servers ---

class Redis:
    """redis-server at ADDRESS."""

    def __init__(self, lab, address):
        self.address = address
        os.mkdir(lab.path(f"redis-{address}"))
        self.process = lab.start(
            "server", "redis-server", "--bind", address, "--port", str(REDIS_PORT), "--save", "", "--dir",
            lab.path(f"redis-{address}"), "--protected-mode", "no", "--repl-diskless-sync-delay", "0")
        with contextlib.ExitStack() as stack:
            self.talk = stack.enter_context(wait_until(lambda: self.connect(lab), "Redis to answer"))
            self.close = stack.pop_all().close

    def connect(self, lab):
        try:
            return RedisTalk(lab.socket("server", self.address), (self.address, REDIS_PORT))
        except ConnectionRefusedError:
            expect(self.process.poll() is None, f"redis-server has ended:\n{tail(self.process.log)}")
            return None

    def info(self):
        return dict(line.split(":", 1) for line in
                    self.talk.ask("INFO", "replication").splitlines() if ":" in line)


class Postgres:
    """PostgreSQL at ADDRESS, and at its side what answers as Patroni does."""

    def __init__(self, lab, address, name):
        self.lab, self.address, self.name = lab, address, name
        self.programs = postgres_folder()
        self.folder, self.sockets = lab.path(f"{name}.data"), lab.path(f"{name}.sockets")
        self.process = None
        for folder in self.folder, self.sockets:
            os.mkdir(folder, 0o700)
            shutil.chown(folder, "postgres", "postgres")
        self.certificate()
        with lab.inside("server"):
            self.patroni = http.server.ThreadingHTTPServer((address, PATRONI_PORT), Patroni)
        self.patroni.postgres = self
        threading.Thread(target=self.patroni.serve_forever, args=(0.05,)).start()

    def certificate(self):
        key, crt = self.lab.path(f"{self.name}.key"), self.lab.path(f"{self.name}.crt")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", key,
                        "-out", crt, "-days", "2", "-subj", f"/CN={self.name}", "-addext",
                        f"subjectAltName=DNS:{self.name}"], check=True, stderr=subprocess.DEVNULL)
        shutil.chown(key, "postgres", "postgres")

    def run(self, program, *options):
        return self.lab.run("server", *AS_POSTGRES, f"{self.programs}/{program}", "-D", self.folder, *options)

    def create(self):
        self.run("initdb", "--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8")
        with open(f"{self.folder}/pg_hba.conf", "a", encoding="ascii") as file:
            file.write("host all all 10.0.0.0/16 trust\nhost replication all 10.0.0.0/16 trust\n")

    def copy(self, primary):
        self.run("pg_basebackup", "--host", primary.address, "--username=postgres", "--no-sync",
                 "--checkpoint=fast")

    def start(self, follows=None):
        """As a replica if it FOLLOWS one, else as a primary."""
        settings = {
            "listen_addresses": self.address, "port": POSTGRES_PORT, "unix_socket_directories": self.sockets,
            "fsync": "off", "ssl": "on", "ssl_cert_file": self.lab.path(f"{self.name}.crt"),
            "ssl_key_file": self.lab.path(f"{self.name}.key"), "wal_retrieve_retry_interval": "100ms",
            "max_connections": 100, "shared_buffers": "16MB", "wal_keep_size": "256MB"}
        if follows:
            settings["primary_conninfo"] = f"host={follows.address} port={POSTGRES_PORT} user=postgres"
            with open(f"{self.folder}/standby.signal", "w", encoding="ascii"):
                pass
        self.process = self.lab.start(
            "server", *AS_POSTGRES, f"{self.programs}/postgres", "-D", self.folder,
            *(word for key, value in settings.items() for word in ("-c", f"{key}={value}")))

    def stop(self, how="fast"):
        if self.process and self.process.poll() is None:
            self.run("pg_ctl", "stop", "--wait", f"--mode={how}")
        self.lab.stop(self.process)

    def ask(self, query):
        """The rows of QUERY, asked by its unix socket."""
        with PostgresTalk(socket.socket(socket.AF_UNIX), f"{self.sockets}/.s.PGSQL.{POSTGRES_PORT}") as talk:
            return talk.ask(query)

    def role(self):
        try:
            return "replica" if self.ask("SELECT pg_is_in_recovery()") == [["t"]] else "primary"
        except (OSError, Refused):
            return None

    def wait_role(self, role):
        def has_come():
            expect(self.process.poll() is None, f"PostgreSQL has ended:\n{tail(self.process.log)}")
            return self.role() == role
        wait_until(has_come, f"{self.name} to be a {role}", 60)

    def streams(self):
        """Whether a replica has all that this primary has."""
        return self.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'") == [["1"]]

    def leave(self):
        self.patroni.shutdown()
        self.patroni.server_close()
        if self.process:
            self.stop("immediate")


class Patroni(http.server.BaseHTTPRequestHandler):
    """200 for GET /ROLE at a server of this role, else 503."""

    def do_GET(self):
        self.send_response(200 if self.path == f"/{self.server.postgres.role()}" else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


# --- clients ---

class Client(threading.Thread):
    """Asks without end, and connects again when its connection ends, or after MOST requests.

    `notes`: (time, number of the request, "ok" or what was wrong) of each answer; `breaks`: how
    connections have ended. ASK(talk, number) gives what is noted.
    """

    def __init__(self, lab, port, talk, ask, pace=0.0, most=None):
        super().__init__(daemon=True)
        self.lab, self.port, self.talk, self.ask, self.pace, self.most = lab, port, talk, ask, pace, most
        self.notes, self.breaks, self.failure = [], [], None
        self.over = threading.Event()
        self.start()

    def one_connection(self, numbers):
        with self.talk(self.lab.socket("client", RELAY), (RELAY, self.port)) as talk:
            for number in numbers if self.most is None else itertools.islice(numbers, self.most):
                if self.over.wait(self.pace):
                    return
                said = self.ask(talk, number)
                self.notes.append((time.monotonic(), number, said))

    def run(self):
        numbers = itertools.count()
        try:
            while not self.over.is_set():
                try:
                    self.one_connection(numbers)
                except OSError as error:
                    self.breaks.append((time.monotonic(), type(error).__name__))
                    self.over.wait(0.005)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.failure = error

    def stop(self):
        self.over.set()
        self.join()
        if self.failure:
            raise LabError(f"a client: {self.failure!r}")

    def is_served(self, since):
        return self.notes and self.notes[-1][0] > since and self.notes[-1][2] == "ok"


class Delays(threading.Thread):
    """How late this machine wakes programs up."""

    def __init__(self):
        super().__init__(daemon=True)
        self.notes = []
        self.over = threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            before = time.monotonic()
            time.sleep(0.002)
            self.notes.append((before, time.monotonic() - before - 0.002))

    def allowance(self, since):
        """What is not culvert's: a check, its answer and a reset need programs to be woken."""
        return 0.05 + 4 * max(late for begin, late in self.notes if begin >= since - 0.1)


class Crowd:
    """Clients, of which each is served while roles change."""

    def __init__(self, clients):
        self.clients, self.delays = clients, Delays()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.over.set()
        self.delays.over.set()
        for client in self.clients:
            client.join()

    def lasting(self):
        """How many of them keep their connection."""
        return sum(client.most is None for client in self.clients)

    def wait_served(self, since):
        """Each of them, since SINCE. Returns how long the last one has waited."""
        wait_until(lambda: all(client.is_served(since) for client in self.clients),
                   lambda: f"all to be served: {[(c.notes[-1:], c.breaks[-2:]) for c in self.clients]}", 30)
        return max(next(at for at, _, said in client.notes if at > since and said == "ok")
                   for client in self.clients) - since

    def misled(self, since):
        """How long after SINCE the last answer of a wrong server has come, and how many have."""
        times = [at for client in self.clients for at, _, said in list(client.notes)
                 if said != "ok" and at > since]
        return max(times, default=since) - since, len(times)

    def finish(self):
        """The acknowledged requests: (number of the client, number of the request)."""
        for client in self.clients:
            client.stop()
        return {(which, number) for which, client in enumerate(self.clients)
                for _, number, said in client.notes if said == "ok"}
