# SPDX-License-Identifier: BSD-2-Clause
"""A matrix of networks: what `--engine copy` carries in a network, `auto` must carry.

    client [- front] - relay - [back -] server      rows: networks_rows.py, one entry of data each

Surroundings x engine x who speaks first x family. Engine "kernel" (--engine kernel) is auto whose
sessions begin in the kernel: with --set-up kernel, and after sessions that prove both ends. One
row with one engine is a run: a lab and a daemon of its own, and in it all cells (speaker, family)
side by side. A cell is right if all bytes arrive in time, both ways, with a clean end, or if it
ends as the row says. Datagrams are two speakers more: "udp", and "df", whose packets may not be
fragmented.
"""

import collections
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import traceback

import networks_udp as udp
import pytest
from labkit import (LIBC, SLOW, LabError, call, enter, expect, inside, place, tail, wait_until)
from networks_rows import ROWS
from networks_udp import Ended

pytestmark = pytest.mark.needs("ip", packages="demo", ipv6=True)
HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = ("copy", "auto")
FAMILIES = ("4", "6", "64", "46")  # of the client's connection, and of the upstream's if it differs
SPEAKERS = ("client", "greets", "late", "waits", "udp", "df")  # these two: of datagrams
GREETING = b"220 hello\r\n"
PLEASE_END = b"please fin"
RUN_SECONDS = 120  # after which a run is ended
PAUSE = 1.0  # of who speaks late
HOME = "/run/lab"
CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG = 1


# How a conversation ends by an error of its socket.
ENDS = {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "reset", errno.EPIPE: "reset",
        errno.EHOSTUNREACH: "timeout", errno.ENETUNREACH: "timeout"}


class Skip(Exception):
    """This kernel or machine cannot show the row: args[0]."""


def start_thread(function, *arguments):
    threading.Thread(target=function, args=arguments, daemon=True).start()


def pick(words, *of):
    """The first word of WORDS, or that of the last "KEY:WORD" whose KEY is one of OF."""
    choice, *others = words.split()
    for other in others:
        key, word = other.split(":")
        choice = word if key in of else choice
    return choice


def to_ipv6(text):
    """What TEXT says of 10.0.N.M, of fd00:N::M."""
    length = {None: "", "/24": "/64", "/32": "/128"}
    return re.sub(r"\b10\.0\.(\d+)\.(\d+)(/\d+)?",
                  lambda m: f"fd00:{m[1]}::{m[2]}{length[m[3]]}", text)


def address_of(address, family):
    return address if ":" in address or family == "4" else to_ipv6(address).replace(
        "127.0.0.1", "::1")


# --- the ends of a conversation ---

def exchange(sock, data, seconds, sip=0):
    """Sends DATA and takes as much, which must be the same; so many bytes at a time, with pauses."""
    deadline, out, got = time.monotonic() + seconds * SLOW, memoryview(data), bytearray()
    sock.setblocking(False)
    while len(got) < len(data):
        left = deadline - time.monotonic()
        readable, writable, _ = select.select([sock], [sock] if out else [], [], max(left, 0))
        if left <= 0:
            raise Ended("timeout", f"{len(got)} of {len(data)} bytes came back")
        if readable:
            block = sock.recv(sip or 1 << 20)
            if not block:
                raise Ended("eof", f"after {len(got)} of {len(data)} bytes")
            got += block
            time.sleep(0.01 if sip else 0)
        if writable:
            out = out[sock.send(out[:1 << 20]):]
    if got != data:
        raise Ended("wrong", f"{len(data)} bytes came back, but others")


def take_all(sock, seconds):
    """What comes until the end."""
    sock.settimeout(seconds * SLOW)
    got = b""
    while block := sock.recv(1000):
        got += block
    return got


@contextlib.contextmanager
def named_ends():
    try:
        yield
    except OSError as error:
        kind = "timeout" if isinstance(error, TimeoutError) else ENDS.get(error.errno, "error")
        raise Ended(kind, str(error)) from None


def answer(sock, speaker):
    """Sends back what comes, and at the end how much it was and from whom; or ends as asked to."""
    size = 0
    try:
        peer = sock.getpeername()[0].removeprefix("::ffff:")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if speaker == "late":
            select.select([sock], [], [], PAUSE)
        if speaker in ("greets", "late"):
            sock.sendall(GREETING)
        while data := sock.recv(1 << 20):
            if data.endswith(PLEASE_END):
                break
            if data.endswith(b"please rst"):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
                return
            size += len(data)
            sock.sendall(data)
        sock.sendall(f"bye {size} {peer}".encode())
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    except OSError:
        pass
    sock.close()


def serve(namespace, speaker, port, no_checks):
    with inside(namespace):
        if speaker in SPEAKERS[4:]:
            sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            sock.bind(("::", port))
            start_thread(udp.serve, sock, no_checks)
            return
        listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=512,
                                        dualstack_ipv6=True)

    def accept():
        while True:
            start_thread(answer, listener.accept()[0], speaker)

    start_thread(accept)


class Talk(threading.Thread):
    """The client of one cell."""

    def __init__(self, run, family, speaker):
        super().__init__(daemon=True)
        self.run_, self.row = run, run.row
        self.family, self.speaker = family, speaker
        self.port = 9000 + 10 * FAMILIES.index(family) + SPEAKERS.index(speaker)
        self.upstream_port = 7001 + SPEAKERS.index(speaker)
        self.forward = f":{self.port}"
        cell = (family, speaker, run.engine, *["kernel"] * run.from_syn)
        self.expected = pick(run.row.graft, *cell)
        self.ends = pick(run.row.ends, *cell).split("|")
        self.sock = None
        self.rounds = 0
        self.arrived = threading.Event()  # where the row's action is to be
        self.end, self.details, self.seconds = "", "", 0.0
        self.grafted = False  # at that time
        self.faults = []
        self.why_not = set()
        self.proofs = 0

    def run(self):
        start = time.monotonic()
        enter(self.row.client_in)
        try:
            try:
                if self.run_.from_syn and self.row.kind == "converse":
                    self.prove()
                getattr(self, self.row.kind)()
                self.end = "whole"
            except Ended as error:
                self.end, self.details = error.args
            except LabError as error:
                self.end, self.details = "error", str(error).splitlines()[0]
            self.arrived.set()
            if self.row.again:
                self.run_.done.wait()
                self.start_again()
        except Exception:  # pylint: disable=broad-exception-caught
            self.end, self.details = "error", traceback.format_exc()
        self.arrived.set()
        self.seconds = time.monotonic() - start

    def start_again(self):
        """A new session, after all that has happened."""
        try:
            self.finish(self.open())
        except Ended as error:
            if self.end == "|".join(self.ends):
                self.end, self.details = f"again {error.args[0]}", error.args[1]

    def connect(self, port=0):
        row = self.row
        address = address_of(row.dial or self.run_.relay, self.family[0])
        with named_ends():
            info = socket.getaddrinfo(address, self.port + row.dial_port,
                                      type=socket.SOCK_STREAM)[0]
            sock = socket.socket(info[0], socket.SOCK_STREAM)
            sock.settimeout(row.wait * SLOW)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not row.late_sockopts:
                self.set_sockopts(sock)
            if port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(("", port))
            sock.connect(info[4])
        return sock

    def open(self, port=0):
        """A connection, over which the first words have been said."""
        sock = self.connect(port or (self.port + 20000 if self.row.last == "fin" else 0))
        with named_ends():
            if self.speaker in ("greets", "late"):
                got = sock.makefile("rb", 0).readline()
                if got != GREETING:
                    raise Ended("wrong" if got.endswith(b"\n") else "eof", f"greeting: {got}")
            elif self.speaker == "waits" and self.row.at != "idle":
                time.sleep(PAUSE)
        return sock

    def set_sockopts(self, sock):
        for family, level, name, value in self.row.sockopts:
            if family == self.family[0]:
                sock.setsockopt(level, name, value)

    def exchange(self, sock, size):
        with named_ends():
            exchange(sock, os.urandom(size), self.row.wait, self.row.sip)
        self.rounds += 1

    def prove(self):
        """Sessions by sockets, so that the next one may begin in the kernel: the second one is chosen
        before the first one has shown the way."""
        for _ in range(2):
            with self.connect() as sock, named_ends():
                sock.sendall(PLEASE_END)
                take_all(sock, self.row.wait)
            self.proofs += 1

    def converse(self):
        """Rounds until the run says so; the row's action; what the row wants to be said."""
        sock = self.sock = self.open()
        run, row, size = self.run_, self.row, 0
        while row.at != "idle" and (self.rounds < 3 or not run.warm.is_set()):
            self.exchange(sock, 200)
            size += 200
            time.sleep(0.05)
        self.arrived.set()
        run.go.wait()
        if row.late_sockopts:
            self.set_sockopts(sock)
        while not run.done.is_set():
            self.exchange(sock, row.sizes[0])
            size += row.sizes[0]
            time.sleep(row.pace)
        start = time.monotonic()
        for part in row.sizes:
            self.exchange(sock, part)
        seconds = time.monotonic() - start
        if seconds < row.at_least:
            raise Ended("too fast", f"{sum(row.sizes)} bytes in {seconds:.2f} s")
        self.finish(sock, size + sum(row.sizes))

    def finish(self, sock, size=None):
        """Ends it in order, SIZE bytes after its begin."""
        if size is None:
            size = 30000
            self.exchange(sock, size)
        with named_ends():
            sock.settimeout(self.row.wait * SLOW)
            if self.row.last == "fin":
                sock.sendall(PLEASE_END)
            else:
                sock.shutdown(socket.SHUT_WR)
            got = take_all(sock, self.row.wait).decode().split()
        sock.close()
        if got[:2] != ["bye", str(size)]:
            raise Ended("wrong", f"{size} bytes were sent, the server said {got}")
        seen = self.row.seen and address_of(self.row.seen, self.family[-1])
        if seen and got[2] != seen:
            raise Ended("wrong", f"the server saw {got[2]} instead of {seen}")

    def use_ports_again(self):
        """Sessions from one port, one after the other; then many, for the relay's own ports."""
        for number in range(4):
            sock = self.open(self.port + 20000)
            self.exchange(sock, 100)
            deadline = time.monotonic() + 3 * SLOW
            while self.run_.engine == "auto" and time.monotonic() < deadline:
                self.exchange(sock, 100)
                if self.forward in self.run_.look_grafted():
                    self.grafted = True
                    break
                time.sleep(0.02)
            self.end_as_told([sock], f"session {number + 1} from one port")
        for batch in range(self.row.batches):
            socks = []
            for _ in range(8):
                socks.append(self.open())
                self.exchange(socks[-1], 100)
            for _ in range(3):
                for sock in socks:
                    self.exchange(sock, 100)
            self.end_as_told(socks, f"batch {batch + 1}")

    def end_as_told(self, socks, what):
        how, daemon = self.row.end, self.run_.daemon
        ends = collections.Counter()
        if how == "copy":
            daemon.ask("engine", self.forward, "copy")
            deadline = time.monotonic() + 10 * SLOW
            while self.forward in self.run_.look_grafted() and time.monotonic() < deadline:
                for sock in socks:  # a silent session returns with its next packet
                    self.exchange(sock, 100)
        if how == "kill":
            daemon.ask("kill", "--forward", self.forward)
        if how in ("kill", "idle") and self.run_.from_syn:
            wait_until(lambda: self.forward not in {s["forward"] for s in self.run_.look()},
                       f"{what} to be over", 10)
        for sock in socks:
            try:
                with named_ends():
                    sock.settimeout(5 * SLOW)
                    if how in ("kill", "idle") and self.run_.from_syn:
                        sock.sendall(b"?")  # without sockets it hears of its end when it speaks
                    if how == "client-rst":
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                        struct.pack("ii", 1, 0))
                    elif how == "client-fin":
                        sock.shutdown(socket.SHUT_WR)
                    elif how in ("copy", "server-fin"):
                        sock.sendall(PLEASE_END)
                    elif how == "server-rst":
                        sock.sendall(b"please rst")
                    if how != "client-rst":
                        take_all(sock, 8)
                    ends["fin"] += 1
            except Ended as error:
                ends[error.args[0]] += 1
            sock.close()
        want = "reset" if how in ("kill", "server-rst", "idle") else "fin"
        if ends != {want: len(socks)}:
            raise Ended("reset", f"{what} ended by {dict(ends)} instead of {want}")
        wait_until(lambda: not [s for s in self.run_.look() if s["forward"] == self.forward],
                   f"{what} to be over in the daemon", 10)
        if how == "copy":
            daemon.ask("engine", self.forward, "default")
        if how == "client-fin":
            time.sleep(1.1)  # for tcp_tw_reuse


class DatagramTalk(Talk):
    """The same for datagrams, of three programs at once."""

    def __init__(self, run, family, speaker):
        super().__init__(run, family, speaker)
        self.forward += "/udp"
        self.expected = pick(run.row.udp or run.row.graft.replace(" 46:any", ""), family, speaker,
                             run.engine)
        self.ends = [run.row.udp_ends]
        self.lost, self.reordered = [], 0
        self.told = False

    def open(self, port=0, count=3):
        row = self.row
        return [udp.Asker(address_of(row.dial or self.run_.relay, self.family[0]),
                          self.port + row.dial_port, self.speaker == "df", port,
                          (lambda sock: None) if row.late_sockopts else self.set_sockopts)
                for _ in range(count)]

    def set_sockopts(self, sock):
        for one in [asker.sock for asker in sock] if isinstance(sock, list) else [sock]:
            super().set_sockopts(one)

    def exchange(self, sock, size):
        for asker in sock:
            if size < 10000:
                asker.ask(3, size, self.row.wait)
                continue
            for _ in range(size // (1200 * udp.BURST * len(sock)) + 1):
                asker.ask(udp.BURST, 1200, self.row.wait)
            for big in self.row.big:
                asker.ask(1, big, self.row.wait)
        self.rounds += 1

    def finish(self, sock, size=None):
        if size is None:
            self.exchange(sock, 30000)
        for asker in sock:
            asker.ask(1, 100, self.row.wait, b"seen")
            self.reordered += asker.reordered
            self.told = self.told or asker.mtu() < asker.first_mtu
            self.lost += asker.close()
            seen = self.row.seen and address_of(self.row.seen, self.family[-1])
            if seen and asker.seen != seen:
                raise Ended("wrong", f"the server saw {asker.seen} instead of {seen}")
        self.faults = []
        if any(number > 3 or not self.row.routers for number, _ in self.lost) and \
                self.row.lossless(self.run_.engine):  # first ones may wait for a neighbour
            self.faults.append(f"lost, number and bytes: {self.lost}")
        if self.reordered > 2:  # at a hand-over, by two CPUs
            self.faults.append(f"{self.reordered} datagrams came out of order")

    def use_ports_again(self):
        """Flows of one program after the other at one port; then many, for the relay's ports."""
        how, daemon = self.row.end, self.run_.daemon
        for number in range(4 + self.row.batches):
            askers = self.open(*((self.port + 20000, 1) if number < 4 else (0, 8)))
            deadline = time.monotonic() + 3 * SLOW
            while time.monotonic() < deadline:
                self.exchange(askers, 100)
                if self.run_.engine != "auto" or self.forward in self.run_.look_grafted():
                    self.grafted = self.run_.engine == "auto"
                    break
            if how == "copy":
                daemon.ask("engine", self.forward, "copy")
                self.exchange(askers, 100)
                daemon.ask("engine", self.forward, "default")
            for asker in askers:
                self.exchange([asker], 100)
            if how != "copy":  # its port rests for long
                askers[0].post_late(5 if how == "kill" else 15)
            for asker in askers:
                asker.close()
            if how != "idle":
                daemon.ask("kill", "--forward", self.forward)
            wait_until(lambda: not [s for s in self.run_.look() if s["forward"] == self.forward],
                       f"flows {number + 1} to be over in the daemon", 10)


# --- the relay ---

def ethtool(namespace, *requests):
    """Each of REQUESTS to all devices, as far as they can; what the last one has answered."""
    value = None
    with inside(namespace), socket.socket() as sock:
        for _, name in socket.if_nameindex():
            for request in requests:
                value = ctypes.create_string_buffer(request)
                with contextlib.suppress(OSError):
                    fcntl.ioctl(sock, 0x8946, struct.pack("16sP16x", name.encode(),
                                                          ctypes.addressof(value)))
    return value


def no_offload(namespace):
    """Packets are on the wire one by one, with whole checksums: else a veth carries those of any size."""
    ethtool(namespace, *(struct.pack("II", command, 0) for command in (
        0x17, 0x1f, 0x24, 0x2c)))  # ETHTOOL_STXCSUM, STSO, SGSO, SGRO


class Daemon:
    """culvert in NAMESPACE; its control socket may be a name in the folder where it is started."""

    def __init__(self, run, namespace, number, forwards):
        self.run, self.namespace, self.forwards = run, namespace, forwards
        self.home = f"{HOME}/{number}"
        os.mkdir(self.home)
        os.chmod(self.home, 0o777)  # it may be started as the account
        self.control = run.row.control or f"{self.home}/control"
        self.log, self.sessions = f"{self.home}/log", f"{self.home}/sessions"
        self.process = None

    def start(self, *options, before=(), seconds=None):
        row = self.run.row
        with inside(self.namespace), open(self.log, "ab") as log, \
                open(self.sessions, "ab") as sessions:
            begin = log.tell()
            self.process = subprocess.Popen(
                [*row.before, *before, f"{HOME}/culvert", "run", "--engine", self.run.engine, "--control",
                 self.control, "--graft-rtt", "0", "--workers", "1", "--max-sessions", "1000",
                 "--user", "nobody",
                 "--session-log", "-", "--log-level", "debug",
                 *(("--set-up", "kernel") if self.run.from_syn else ()),
                 *row.options, *options, *self.forwards],
                stdin=subprocess.DEVNULL, stdout=sessions, stderr=log, cwd=self.home)
        wait_until(lambda: self._is_ready(begin), "culvert to be ready",
                   seconds or row.ready)

    def _is_ready(self, begin):
        if self.process.poll() is not None:
            raise LabError(f"culvert ended with {self.process.returncode}:\n{tail(self.log)}")
        with open(self.log, encoding="utf-8", errors="replace") as file:
            file.seek(begin)
            text = file.read()
        return "culvert: ready" in text and (  # and it knows its carriers
            "kernel path is tried" not in text or "kernel path was tried" in text)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(20 * SLOW)

    def ask(self, command, *arguments):
        result = subprocess.run(
            [f"{HOME}/culvert", command, *arguments, "--json", "--control", self.control],
            capture_output=True, timeout=20 * SLOW, check=False, text=True, cwd=self.home)
        expect(result.returncode == 0, f"culvert {command}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    def ended(self):
        """The lines of the session log."""
        with open(self.sessions, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]


class Run:
    """A row with an engine, alone in its namespaces."""

    LINE = re.compile(r"(\??)(client|front|relay|back|server)( nft| nft46)?: ?(.*)")

    def __init__(self, row, engine):
        self.from_syn = engine == "kernel"
        self.row = dataclasses.replace(row, udp="-") if self.from_syn else row
        self.engine = "auto" if self.from_syn else engine
        self.relay = "10.0.3.2" if "front" in row.routers.split() else "10.0.1.2"
        self.warm, self.go, self.done = threading.Event(), threading.Event(), threading.Event()
        self.daemon = None
        self.wrong = []  # what a step saw
        self.failure = ""
        self.past, self.late = set(), 0
        self.syn_forwards = set()  # those that had a session from the SYN on
        self.cgroup = ""
        self.talks = [(DatagramTalk if speaker in SPEAKERS[4:] else Talk)(self, family, speaker)
                      for family in row.families.split() for speaker in self.row.all_speakers()]

    def work(self):
        """What became of each cell: (family, speaker, verdict, seconds, text)."""
        try:
            try:
                if not self.talks:
                    raise Skip("datagrams have no SYN")
                self.build()
                self.converse()
            finally:
                self.leave_cgroup()
        except Skip as reason:
            return [("all", "all", "skip", 0, str(reason))]
        except (LabError, OSError, subprocess.SubprocessError) as error:
            self.failure = str(error)
            return [("all", "all", "not ok", 0, self.failure.splitlines()[-1])]
        return [(talk.family, talk.speaker, *self.judge(talk)) for talk in self.talks]

    def leave_cgroup(self):
        if self.cgroup:
            if self.daemon and self.daemon.process:
                self.daemon.end(signal.SIGTERM)
            with open(f"{self.cgroup}/../cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")
            os.rmdir(self.cgroup)

    # --- the lab ---

    def build(self):
        routers = self.row.routers.split()
        for namespace in ("client", "relay", "server",
                          *(name for name in ("front", "back") if name in routers)):
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            self.shell(namespace, f"""
                cd /proc/sys/net
                for c in all default; do
                    echo 0 >ipv6/conf/$c/accept_dad; echo 0 >ipv4/conf/$c/rp_filter
                    echo {int(namespace in ("front", "back"))} >ipv6/conf/$c/forwarding
                done
                echo {int(namespace in ("front", "back"))} >ipv4/ip_forward
                ip link set lo up""")
        links = ["client c0 front f0 1", "front f1 relay toc 3"] if "front" in routers else \
            ["client c0 relay toc 1"]
        links += ["relay tos back b0 4", "back b1 server s0 2"] if "back" in routers else \
            ["relay tos server s0 2"]
        links += ["front f2 relay toc2 6"] if "front2" in routers else []
        links += ["relay alt back b2 5"] if "back2" in routers else []
        for link in links:
            self.step_cable(*link.split())
        wait_until(lambda: not any("NO-CARRIER" in subprocess.check_output(
            ["ip", "-n", namespace, "-o", "link", "show", "up"], text=True)
                                   for namespace in os.listdir("/run/netns")), "links to be up")
        text = "client: ip46 route add default via 10.0.1.2\n" \
            "server: ip46 route add default via 10.0.2.1\n"
        if "front" in routers:
            text += "relay: ip46 route add 10.0.1.0/24 via 10.0.3.1\n"
        if "back2" in routers:  # one address, whatever way is taken
            text += """relay: ip46 addr add 10.0.9.1/32 dev lo
                ip46 route add 10.0.2.0/24 via 10.0.4.2 src 10.0.9.1
                back: ip46 route add 10.0.9.1/32 via 10.0.4.1\n"""
        elif "back" in routers:
            text += "relay: ip46 route add 10.0.2.0/24 via 10.0.4.2\n"
        self.do(text)
        self.do(self.row.setup)
        if self.row.plain:
            for namespace in os.listdir("/run/netns"):
                no_offload(namespace)
        for speaker in self.row.all_speakers():
            serve(self.row.server_in, speaker, 7001 + SPEAKERS.index(speaker), self.row.no_checks)
        self.daemon = Daemon(self, "relay", 1, self.forwards())
        self.daemon.start()

    def forwards(self):
        found = []
        for talk in self.talks:
            found += talk.forward, place(address_of(self.row.upstream, talk.family[-1]),
                                         talk.upstream_port)
        return found

    def do(self, text):
        """Each line is "NAMESPACE: shell commands" or "NAMESPACE nft: rules", with the lines below
        that have no such begin; or a step_... of this class.

        "ip46 ..." and "nft46" do it again for IPv6. "?" in front: skip the row if this fails.
        """
        parts = []
        for line in map(str.strip, text.splitlines()):
            found = self.LINE.match(line)
            if found:
                parts.append([found[1], found[2], found[3], [found[4]]])
            elif line and hasattr(self, "step_" + line.split()[0]):
                parts.append([line.split()])
            elif line:
                parts[-1][3].append(line)
        for part in parts:
            if len(part) == 1:
                getattr(self, "step_" + part[0][0])(*part[0][1:])
                continue
            trial, namespace, kind, lines = part
            try:
                if kind:
                    self.nft(namespace, "\n".join(lines), kind.endswith("46"))
                else:
                    self.shell(namespace, "\n".join(map(self.twice, lines)))
            except LabError as error:
                if trial:
                    raise Skip(str(error).replace("\n", " ")) from None
                raise

    @staticmethod
    def twice(line):
        if not line.startswith("ip46 "):
            return line
        nodad = " nodad" if " addr " in line and " add " in line else ""
        return f"ip {line[5:]}\nip -6 {to_ipv6(line[5:])}{nodad}"

    def shell(self, namespace, script, **options):
        with inside(namespace):
            result = subprocess.run(["sh", "-ec", script], stdout=subprocess.PIPE, text=True,
                                    stderr=subprocess.STDOUT, check=False, **options)
        if result.returncode != 0:
            raise LabError(f"{namespace}: {script.strip()}: {result.stdout.strip()}")

    def nft(self, namespace, rules, twice):
        if not shutil.which("nft"):
            raise Skip("missing: nft (scripts/deps test)")
        if twice:
            rules += "\n" + re.sub(r"\bip\b", "ip6", to_ipv6(rules))
        with open(f"{HOME}/rules", "w", encoding="ascii") as file:
            file.write(rules)
        self.shell(namespace, f"nft -f {HOME}/rules")

    # --- the conversations ---

    def look(self):
        sessions = self.daemon.ask("sessions")["sessions"]
        self.syn_forwards |= {session["forward"] for session in sessions
                              for flow in session["flows"] if flow["reason"] == "from the SYN on"}
        return sessions

    def look_grafted(self, sessions=None):
        """The forwards whose sessions are all grafted."""
        grafted = {}
        for session in sessions or self.look():
            carriers = {flow["carrier"] for flow in session["flows"]}
            grafted[session["forward"]] = grafted.get(session["forward"], True) and \
                carriers == {"graft"}
        return {name for name, yes in grafted.items() if yes}

    def converse(self):
        for talk in self.talks:
            talk.start()
        self.do(self.row.meanwhile)
        if self.row.kind == "converse":
            self.wait_warm()
            self.note_past()
            self.warm.set()
            for talk in self.talks:
                expect(talk.arrived.wait(30 * SLOW), "waited in vain for the row's action")
        if self.row.at == "idle":
            wait_until(lambda: {s["state"] for s in self.look()} == {"open"} or
                       not self.row.speakers, "sessions to open")
            time.sleep(0.5)  # for offers that nobody takes
        self.do(self.row.middle)
        self.go.set()
        self.done.set()
        for talk in self.talks:
            talk.join(RUN_SECONDS * SLOW)
            expect(not talk.is_alive(), "a conversation does not end")
        for talk in self.talks:
            if isinstance(talk, DatagramTalk):
                with contextlib.suppress(LabError):  # there may be none
                    self.daemon.ask("kill", "--forward", talk.forward)
        begun = {talk.forward for talk in self.talks if talk.why_not}
        with contextlib.suppress(LabError):
            wait_until(lambda: not self.look() and
                       begun <= {line["forward"] for line in self.daemon.ended()},
                       "sessions to end", 2)

    def note_past(self):
        """Why SYNs have gone to the listeners."""
        if self.from_syn:
            past = (self.daemon.ask("status")["set_up"] or {"past": {}})["past"]
            # sessions, beyond the proofs, whose SYN came before a busy daemon had prepared a slot
            self.late = past.get("stock", 0) + past.get("unproven", 0) - \
                sum(talk.proofs for talk in self.talks)
            self.past = {cause for cause, count in past.items() if count} | {
                forward["set_up_hindrance"] for forward in self.daemon.ask("forwards")["forwards"]}
            self.past.discard("")

    def wait_warm(self):
        """Until each session is in the state that the row expects, or will not come to it."""
        begin = time.monotonic()
        while True:
            seconds, wait = time.monotonic() - begin, False
            sessions = self.look()
            grafted = self.look_grafted(sessions)
            for talk in self.talks:
                own = [one for one in sessions if one["forward"] == talk.forward]
                if own:
                    talk.why_not |= {session["not_grafted"] for session in own}
                    talk.grafted = talk.forward in grafted
            for talk in self.talks:
                at_least = PAUSE * 1.1 if talk.speaker in ("late", "waits") else 0
                if talk.arrived.is_set():
                    continue
                if self.row.at == "idle" or talk.rounds < 3:
                    wait = True
                elif self.engine == "auto" and not talk.grafted:
                    patience = {"grafted": 6, "returned": 6, "refused": 0.7, "half": 0.7}
                    wait = wait or seconds < at_least + patience.get(talk.expected, 1.5) * SLOW
            if not wait or seconds > 30 * SLOW:
                return
            time.sleep(0.05)

    def judge(self, talk):
        """Verdict, seconds and text."""
        wrong = self.wrong + talk.faults
        if talk.end not in talk.ends and "any" not in talk.ends:
            ends = collections.Counter(line["end"] for line in self.daemon.ended()
                                       if line["forward"] == talk.forward)
            wrong.append(f"{talk.end}: {talk.details}, {talk.rounds} rounds; log: {dict(ends)}")
        finished = [line for line in self.daemon.ended() if line["forward"] == talk.forward]
        finished.sort(key=lambda line: line["start"])
        # a proof lasts for a millisecond or two, by which its `start` may be too late
        proofs = [line for line in finished if line["bytes_to_upstream"] == len(PLEASE_END)]
        for line in proofs[:talk.proofs]:
            finished.remove(line)
        first = finished[0] if finished else None
        carriers = {flow["carrier"] for flow in first["flows"]} if first else set()
        if self.engine != "auto" and (talk.grafted or "graft" in carriers):
            wrong.append("grafted")
        elif self.engine == "auto":
            reasons = ", ".join(filter(None, talk.why_not)) or "no reason"
            if talk.expected in ("grafted", "returned") and not talk.grafted and \
                    self.row.at != "idle":
                wrong.append(f"not grafted: {reasons}")
            if self.from_syn and talk.forward not in self.syn_forwards and \
                    (talk.expected in ("grafted", "returned") or self.row.kind != "converse") and \
                    self.past <= {"stock", "unproven"} and (  # as of the proofs
                        not self.syn_forwards or
                        len(self.syn_forwards) + self.late < len(self.talks)):
                wrong.append(f"not from the SYN on, late: {self.late}")
            if talk.expected == "returned" and "graft" in carriers:
                wrong.append("did not return to its sockets")
            if talk.expected == "half" and any(flow["kernel_bytes"] for line in finished
                                               for flow in line["flows"][:1]):
                wrong.append("what comes from the client was grafted")
            if talk.expected == "refused":
                if isinstance(talk, DatagramTalk):  # to what is active nothing may come
                    bad = any(flow["kernel_bytes"] for line in finished for flow in line["flows"])
                else:
                    bad = talk.grafted or any(flow["carrier"] == "graft" for line in finished
                                              for flow in line["flows"])
                if bad:
                    wrong.append("grafted, but must not be")
                elif self.row.why and self.row.why not in reasons:
                    wrong.append(f"not_grafted is {reasons} instead of {self.row.why}")
            if self.row.told and talk.speaker == "df" and talk.grafted and not talk.told:
                wrong.append("was not told that its packets are too big")
            if "?" in talk.why_not:
                wrong.append('not_grafted is "?"')
        how = "from the SYN on" if talk.forward in self.syn_forwards else \
            "grafted" if talk.grafted else "/".join(sorted(carriers))
        if self.past and talk.forward not in self.syn_forwards:
            how += f", past: {', '.join(sorted(self.past))}"
        if wrong:
            return "not ok", talk.seconds, "; ".join(wrong)
        return "ok", talk.seconds, how + (f", {talk.end}" if talk.end != "whole" else "")

    # --- steps of rows ---

    def step_cable(self, left, left_name, right, right_name, net=None):
        """A veth pair; with the addresses .1 and .2 of 10.0.NET.0/24 and fd00:NET::/64."""
        ends = (left, left_name, 1), (right, right_name, 2)
        subprocess.run(["ip", "link", "add", left_name, "netns", left, "type", "veth", "peer",
                        "name", right_name, "netns", right], check=True)
        for namespace, name, number in ends:
            if net:
                self.shell(namespace, self.twice(
                    f"ip46 addr add 10.0.{net}.{number}/24 dev {name}"))
            self.shell(namespace, f"ip link set {name} up")

    def step_go(self):
        self.go.set()

    @staticmethod
    def step_pause(seconds):
        time.sleep(float(seconds))

    def step_no_checksums(self, namespace):
        """None is left to devices of NAMESPACE."""
        ethtool(namespace, struct.pack("II", 0x17, 0))

    def step_merge(self, *features):
        """The relay merges what comes (GRO), with these features of ethtool."""
        ethtool("relay", struct.pack("II", 0x2c, 1))
        answer_ = ethtool("relay", struct.pack("III", 0x1b, 4, 0).ljust(8000, b"\0"))
        count = struct.unpack_from("8xI", answer_)[0]  # of ETHTOOL_GSTRINGS
        names = [answer_[at:at + 32].rstrip(b"\0").decode()
                 for at in range(12, 12 + 32 * count, 32)]
        words = [0, 0] * ((count + 31) // 32)  # ETHTOOL_SFEATURES: those meant, and on
        for feature in features:
            if feature not in names:
                raise Skip(f"this kernel has no {feature}")
            word, bit = divmod(names.index(feature), 32)
            words[2 * word] |= 1 << bit
            words[2 * word + 1] |= 1 << bit
        ethtool("relay", struct.pack(f"II{len(words)}I", 0x3b, len(words) // 2, *words))

    def step_engine(self, engine):
        for talk in self.talks:
            self.daemon.ask("engine", talk.forward, engine)
        wait_until(lambda: bool(self.look_grafted()) == (engine != "copy" and
                                                         self.engine == "auto"),
                   f"all sessions to follow engine {engine}")

    def step_sigkill(self):
        self.daemon.end(signal.SIGKILL)

    def step_sigterm(self):
        self.daemon.end(signal.SIGTERM)

    def step_start(self, *options):
        self.daemon.start(*options)

    def step_start_as_account(self):
        """As the unit does."""
        caps = "+bpf,+perfmon,+net_admin"
        self.daemon.start(before=(
            "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups",
            f"--inh-caps={caps}", f"--ambient-caps={caps}"))

    def step_news(self, milliseconds):
        """Netlink tells something that often, from now on."""
        with inside("relay"):
            process = subprocess.Popen(["ip", "-force", "-batch", "-"], stdin=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)

        def tell():
            while True:
                for word in "add", "del":
                    process.stdin.write(f"addr {word} 10.77.0.1/32 dev lo\n")
                    process.stdin.flush()
                    time.sleep(float(milliseconds) / 1000)

        start_thread(tell)

    @staticmethod
    def tap(namespace, device):
        with inside(namespace):
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            tap.bind((device, 3))  # ETH_P_ALL
        return tap

    def count_payload(self, device, seconds):
        """How many packets of UDP, or with payload of TCP, leave the relay by DEVICE."""
        deadline, seen = time.monotonic() + float(seconds), 0
        with self.tap("relay", device) as tap:
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([tap], [], [], left)[0]:
                    break
                packet, address = tap.recvfrom(70000)
                if address[2] != socket.PACKET_OUTGOING:
                    continue
                if address[1] == 0x0800:
                    kind, at = packet[9], packet[0] % 16 * 4
                    size = int.from_bytes(packet[2:4], "big")
                elif address[1] == 0x86dd:
                    kind, at, size = packet[6], 40, 40 + int.from_bytes(packet[4:6], "big")
                else:
                    continue
                seen += kind == 17 or kind == 6 and size > at + (packet[at + 12] >> 4) * 4
        return seen

    def step_checksums(self, namespace, device):
        """Those of datagrams that arrive there must be right, from now on."""
        start_thread(udp.watch_checksums, self.tap(namespace, device), self.wrong)

    def step_quiet(self, device, seconds):
        seen = self.count_payload(device, seconds)
        if seen:
            self.wrong.append(f"{seen} packets with payload left by {device}")

    def step_busy(self, device, seconds):
        if not self.count_payload(device, seconds):
            self.wrong.append(f"nothing left by {device}")

    def step_gone(self, seconds):
        """The daemon finds out by itself that all sessions are dead."""
        try:
            wait_until(lambda: not self.look(), "dead sessions to go", float(seconds))
        except LabError as error:
            self.wrong.append(str(error))

    def step_accelerate(self):
        """Another program has all sockets of the run in its sockhash: bytes move past TCP."""
        with open("/proc/mounts", encoding="ascii") as file:
            mounts = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
        if not mounts or not shutil.which("bpftool") or not shutil.which("clang"):
            raise Skip("missing: cgroup2, bpftool or clang")
        self.cgroup = f"{mounts[0]}/culvert-networks-{os.urandom(4).hex()}"
        os.mkdir(self.cgroup)
        at, machine = "/sys/fs/bpf/others", os.uname().machine
        with open(f"{self.cgroup}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")  # and all that is started from here
        self.shell("relay", f"""mkdir {at} {at}/maps
            clang -O2 -g -target bpf -I/usr/include/{machine}-linux-gnu -c {HERE}/others.bpf.c \
                -o {HOME}/others.o
            bpftool prog loadall {HOME}/others.o {at} pinmaps {at}/maps
            bpftool prog attach pinned {at}/others_msg sk_msg_verdict pinned {at}/maps/socks
            bpftool cgroup attach {self.cgroup} sock_ops pinned {at}/others_ops""")

    def step_second_daemon(self):
        """Another one in `back`, with the same names, and a session through it."""
        second = Daemon(self, "back", 2, self.forwards())
        second.start(seconds=10)
        if not self.row.speakers:
            return
        with inside("server"), named_ends(), \
                socket.create_connection(("10.0.2.1", self.talks[0].port), 5 * SLOW) as sock:

            def is_as_expected():
                exchange(sock, os.urandom(1000), 5)
                session = second.ask("sessions")["sessions"][0]
                return self.engine != "auto" or session["flows"][0]["carrier"] == "graft"

            wait_until(is_as_expected, "a grafted session of the second daemon")

    @staticmethod
    def _carry(receive, send):
        def work():
            while True:
                with contextlib.suppress(OSError):  # one is down
                    send(receive())

        start_thread(work)

    def _carry_frames(self, left, right, change, change_back):
        """`front` is a cable between its devices LEFT and RIGHT, which changes frames."""
        ends = []
        with inside("front"):
            for name in left, right:
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
                sock.bind((name, 3))
                sock.setsockopt(263, 1, struct.pack("iHH8s", socket.if_nametoindex(name), 1, 0,
                                                    b""))  # PACKET_ADD_MEMBERSHIP: promiscuous
                ends.append(sock)
        a, b = ends

        def receive(sock):
            while True:
                frame, address = sock.recvfrom(70000)
                if address[2] != socket.PACKET_OUTGOING:
                    return frame

        self._carry(lambda: receive(a), lambda f: b.send(change(f)))
        self._carry(lambda: receive(b), lambda f: a.send(change_back(f)))

    def step_tag(self, plain, tagged):
        """What goes from PLAIN to TAGGED gets a priority tag (VID 0)."""
        self._carry_frames(plain, tagged, lambda f: f[:12] + b"\x81\0\0\0" + f[12:], bytes)

    def step_noise(self, left, right, percent):
        """Once the row's action may come, so many segments from LEFT to RIGHT have a bit error: half
        of them anywhere in the headers, others in the number or the flags."""
        dice = random.Random(1)

        def change(frame):
            at = 14 + (40 if frame[12:14] == b"\x86\xdd" else 20)
            if not self.warm.is_set() or frame[20 if at > 34 else 23] != socket.IPPROTO_TCP or \
                    dice.random() * 100 > float(percent):
                return frame
            frame = bytearray(frame)
            byte = dice.choice((at + dice.randrange(4, 8), at + 13, dice.randrange(14, at + 20),
                                dice.randrange(14, at + 20)))
            frame[byte] ^= 1 << dice.randrange(8)
            return bytes(frame)

        self._carry_frames(left, right, change, bytes)

    def step_tun(self, other="client"):
        """tun-relay and tun-OTHER (in OTHER), whose packets have no Ethernet header."""
        files = []
        for namespace in "relay", other:
            with inside(namespace):
                files.append(os.open("/dev/net/tun", os.O_RDWR))
                fcntl.ioctl(files[-1], 0x400454ca, struct.pack(  # TUNSETIFF: bare packets
                    "16sH22x", f"tun-{namespace}".encode(), 0x1001))
        a, b = files
        self._carry(lambda: os.read(a, 70000), lambda packet: os.write(b, packet))
        self._carry(lambda: os.read(b, 70000), lambda packet: os.write(a, packet))


# --- runs side by side ---

def live_alone(row, engine, program, pipe):
    """The first process of a PID namespace: what it has started and made ends with it."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    result = {"cells": [], "log": ""}
    try:
        call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        call("mount", b"proc", b"/proc", b"proc", 0, None)
        call("mount", b"tmpfs", b"/run", b"tmpfs", 0, None)
        for folder in HOME, "/run/netns":
            os.mkdir(folder)
        shutil.copy(program, f"{HOME}/culvert")
        while LIBC.umount2(b"/sys/fs/bpf", 2) == 0:
            pass
        if row.bpf:
            call("mount", b"bpf", b"/sys/fs/bpf", b"bpf", 0, None)
        run = Run(row, engine)
        result["cells"] = run.work()
        result["log"] = run.failure + "\n"
        if run.daemon:
            result["log"] += tail(run.daemon.log, 40)
    except Exception:  # pylint: disable=broad-exception-caught
        result["log"] = traceback.format_exc()
    with os.fdopen(pipe, "w") as file:
        json.dump(result, file)


def start_run(row, engine, program):
    """Returns the pid of the run, and the pipe by which it tells its result."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid:
        os.close(send)
        return pid, receive
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    code = 1
    try:
        os.setsid()
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        call("unshare", CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET)
        child = os.fork()
        if child:
            os.close(send)
            os.waitpid(child, 0)
        else:
            live_alone(row, engine, program, send)
        code = 0
    finally:
        os._exit(code)


class Matrix:
    """RUNS, JOBS of them at a time."""

    def __init__(self, program, runs, jobs):
        self.program, self.jobs = program, jobs
        self.waiting = collections.deque(runs)
        self.running = {}  # by pipe: row and engine, pid, begin, what was read
        self.results = {}

    def result(self, row, engine):
        while (row.name, engine) not in self.results:
            self.turn()
        return self.results.pop((row.name, engine))

    def turn(self):
        while self.waiting and len(self.running) < self.jobs:
            row, engine = self.waiting.popleft()
            pid, pipe = start_run(row, engine, self.program)
            self.running[pipe] = [(row.name, engine), pid, time.monotonic(), b""]
        for pipe in select.select(list(self.running), [], [], 1)[0]:
            block = os.read(pipe, 1 << 16)
            self.running[pipe][3] += block
            if not block:
                key, pid, _, text = self.running.pop(pipe)
                os.close(pipe)
                os.waitpid(pid, 0)
                self.results[key] = json.loads(text or '{"log": "the run did not end in time"}')
        for _, pid, begin, _ in self.running.values():
            if time.monotonic() > begin + RUN_SECONDS * SLOW:
                os.kill(pid, signal.SIGKILL)

    def close(self):
        for _, pid, _, _ in self.running.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def pytest_generate_tests(metafunc):
    rows = [dataclasses.replace(row, speakers="") for row in ROWS if row.udp != "-"] \
        if metafunc.config.option.udp else ROWS
    metafunc.parametrize("row", [pytest.param(row, id=row.name, marks=[pytest.mark.quick] * row.quick)
                                 for row in rows])


@pytest.fixture(scope="module")
def matrix(request):
    options = request.config.option
    runs = [(item.callspec.params["row"], item.callspec.params["engine"])
            for item in request.session.items if item.module is request.module]
    with contextlib.closing(Matrix(options.culvert, runs, options.jobs)) as one:
        yield one


def test_networks(matrix, row, engine):
    result = matrix.result(row, engine)
    for family, speaker, verdict, seconds, what in result.get("cells", ()):
        print(f"# {verdict:6} {row.name}/{speaker}/{family}/{engine} ({seconds:.1f} s) {what}")
    verdicts = {cell[2] for cell in result.get("cells", ())}
    if not verdicts or "not ok" in verdicts:
        lines = [line for line in result["log"].splitlines() if not line.endswith(": finished")]
        raise LabError("\n".join(filter(None, lines)) or "wrong cells")
    if verdicts == {"skip"}:
        pytest.skip(result["cells"][0][4])
