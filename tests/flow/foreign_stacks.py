# SPDX-License-Identifier: BSD-2-Clause
"""Clients and servers with lwIP, and with libslirp: a BSD's TCP, of qemu's user network.

Each talks through the relay with an end of Linux: conversations, a megabyte there and back at once,
half-closes and resets by either, closed windows of either, bulk with loss.  Every byte is compared.
"""

import concurrent.futures
import contextlib
import ctypes
import ctypes.util
import fcntl
import itertools
import os
import random
import select
import signal
import socket
import struct
import subprocess
import time

import graft_wire
import pytest
from foreign import AFTER_LOSS, Grafted, limit_buffers
from graft_wire import exactly
from labkit import Daemon, Lab, call_of, expect, tail, wait_until

pytestmark = pytest.mark.needs("ip", ipv6=True)
ENGINES = ("auto",)
PORT, LISTEN, INSIDE = 7100, 9044, 7200
STACK, STACK_RELAY, TAP = "10.0.12.2", "10.0.12.15", "foreign"
BULK, HELD = 1_000_000, 6_000_000  # HELD: more than all buffers of the way
LOSS = 0.01


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", name, 0x1002))  # TUNSETIFF
    return fd


# ---- libslirp: the host's connections become its own, on a tap device


class SlirpCallbacks(ctypes.Structure):
    kinds = (ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
             ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p),
             ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p),
             ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
             ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p),
             ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
             *[ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)] * 2,
             ctypes.CFUNCTYPE(None, ctypes.c_void_p))
    _fields_ = [(f"call{n}", kind) for n, kind in enumerate(kinds)]


class SlirpConfig(ctypes.Structure):
    """Version 1, without IPv6."""

    _fields_ = [("version", ctypes.c_uint32), ("restricted", ctypes.c_int),
                ("in_enabled", ctypes.c_bool), ("net", ctypes.c_uint32),
                ("mask", ctypes.c_uint32), ("host", ctypes.c_uint32),
                ("in6_enabled", ctypes.c_bool), ("v6", ctypes.c_uint8 * 33),
                ("names", ctypes.c_char_p * 4), ("dhcp", ctypes.c_uint32),
                ("nameserver", ctypes.c_uint32), ("nameserver6", ctypes.c_uint8 * 16),
                ("search", ctypes.c_void_p), ("domain", ctypes.c_char_p),
                ("mtu", ctypes.c_size_t), ("mru", ctypes.c_size_t),
                ("no_loopback", ctypes.c_bool), ("emulates", ctypes.c_bool),
                ("more", ctypes.c_uint8 * 64)]


def number_of(address):
    return struct.unpack("=I", socket.inet_aton(address))[0]


def play_slirp():
    """Connections to INSIDE here go to the relay; those of the relay to its address come here."""
    lib = ctypes.CDLL(ctypes.util.find_library("slirp"))
    fd, polled, found, chance = tap(TAP.encode()), [], {}, random.Random(1)
    signal.signal(signal.SIGUSR1, lambda *_: lost.append(LOSS))
    lost = [0]

    def is_lost():
        return chance.random() < lost[-1]

    lib.slirp_new.restype = ctypes.c_void_p
    callbacks = SlirpCallbacks(*(kind(call) for kind, call in zip(SlirpCallbacks.kinds, (
        lambda data, size, _: size if is_lost() else os.write(fd, ctypes.string_at(data, size)),
        lambda *_: None, lambda _: time.monotonic_ns(), lambda *_: 1, *[lambda *_: None] * 5))))
    config = SlirpConfig(version=1, in_enabled=True, net=number_of("10.0.12.0"),
                         mask=number_of("255.255.255.0"), host=number_of(STACK),
                         dhcp=number_of("10.0.12.100"), nameserver=number_of("10.0.12.3"))
    slirp = ctypes.c_void_p(lib.slirp_new(ctypes.byref(config), ctypes.byref(callbacks), None))
    assert not lib.slirp_add_hostfwd(slirp, 0, number_of("127.0.0.1"), INSIDE,
                                     number_of(STACK_RELAY), LISTEN)
    bits = ((1, select.POLLIN), (2, select.POLLOUT), (4, select.POLLPRI), (8, select.POLLERR),
            (16, select.POLLHUP))

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    def add(one, events, _):
        polled.append((one, sum(theirs for ours, theirs in bits if events & ours)))
        return len(polled) - 1

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    def events_of(index, _):
        events = found.get(polled[index][0], 0)
        return sum(ours for ours, theirs in bits if events & theirs)

    while True:
        polled.clear()
        timeout = ctypes.c_uint32(100)
        lib.slirp_pollfds_fill(slirp, ctypes.byref(timeout), add, None)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        for one, events in polled:
            poll.register(one, events)
        found = dict(poll.poll(min(timeout.value, 100)))
        lib.slirp_pollfds_poll(slirp, 0, events_of, None)
        if found.get(fd):
            packet = os.read(fd, 65536)
            if not is_lost():
                lib.slirp_input(slirp, packet, len(packet))


# ---- the test


class Session(Grafted):
    """Two sockets of Linux: one has the stack's connection between itself and the relay."""

    def __init__(self, trial, seed):
        self.trial, self.chance = trial, random.Random(seed)
        with trial.lab.inside("client"):
            near = socket.create_connection(trial.address, 10)
        far = trial.listener.accept()[0]
        for sock in (near, far):
            sock.settimeout(graft_wire.PATIENCE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.near, self.far = near, far
        self.foreign, self.linux = (near, far) if trial.role == "client" else (far, near)

    def carry(self, size, *ways):
        """SIZE bytes on each of WAYS, pairs of sockets, at once."""
        data = [self.chance.randbytes(size) for _ in ways]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            sent = [pool.submit(way[0].sendall, each) for way, each in zip(ways, data)]
            got = [pool.submit(exactly, way[1], size) for way in ways]
        expect([each.result() for each in got] == data, "wrong bytes")
        expect(not any(each.result() for each in sent), "not sent")

    def both_ways(self, size):
        self.carry(size, (self.near, self.far), (self.far, self.near))

    def question(self):
        self.carry(200, (self.near, self.far))
        self.carry(200, (self.far, self.near))

    def half_close(self, first, second):
        first.shutdown(socket.SHUT_WR)
        expect(second.recv(1) == b"", "no end of the stream")
        self.carry(50_000, (second, first))
        second.close()
        expect(first.recv(1) == b"", "no end of the other stream")
        first.close()


# ---- scenarios: what happens once a session is grafted


def stack_closes(session):
    session.half_close(session.foreign, session.linux)


def linux_closes(session):
    session.half_close(session.linux, session.foreign)


def bulk(session):
    session.both_ways(BULK)
    session.expect_grafted("after bulk", AFTER_LOSS)
    stack_closes(session)


def closed_windows(session):
    for by_stack, ends in ((False, (session.foreign, session.linux)),
                           (True, (session.linux, session.foreign))):
        data = session.chance.randbytes(HELD)
        with session.trial.wire() as wire, concurrent.futures.ThreadPoolExecutor() as pool:
            sent = pool.submit(ends[0].sendall, data)
            seen = itertools.accumulate(closed_in(wire, by_stack) for _ in itertools.count())
            # the last one answers a probe; of the stack, two may come with the last bytes
            wait_until(lambda seen=seen, probed=2 + by_stack: next(seen) >= probed,
                       f"a closed window {'of' if by_stack else 'for'} the stack", 20)
            expect(exactly(ends[1], HELD) == data, "wrong bytes after a closed window")
            sent.result()
    session.question()
    session.expect_grafted("after closed windows", AFTER_LOSS)
    linux_closes(session)


def reset(first, second, or_end=False):
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, graft_wire.ABORT)
    first.close()
    try:
        expect(second.recv(1) == b"" and or_end, "an end, and no reset")
    except ConnectionResetError:
        pass
    second.close()


def stack_resets(session):
    reset(session.foreign, session.linux)


def linux_resets(session):
    reset(session.linux, session.foreign, session.trial.stack == "slirp")  # which tells no resets


def loss(session):
    session.trial.lose()
    session.both_ways(BULK)
    session.question()
    session.expect_grafted("after loss", AFTER_LOSS)
    stack_closes(session)


SCENARIOS = (stack_closes, linux_closes, bulk, closed_windows, stack_resets, linux_resets, loss)


def closed_in(wire, by_stack):
    """How many packets have come since the last call that close a window: the stack's, or its peer's.

    A window of the stack that has no room for a segment is closed for Linux.
    """
    closed, most = 0, 729 if by_stack else 0
    with contextlib.suppress(BlockingIOError):
        while packet := wire.recv(2048):
            is_tcp = packet[12:14] == b"\x08\x00" and packet[23] == socket.IPPROTO_TCP
            is_of_stack = packet[26:30] == socket.inet_aton(STACK)
            closed += (is_tcp and is_of_stack == by_stack and not packet[47] & 4
                       and int.from_bytes(packet[48:50], "big") <= most)
    return closed


class Trial:
    """One stack in one role."""

    def __init__(self, lab, culvert, engine, stack, role, *options):
        self.lab, self.stack, self.role, self.engine = lab, stack, role, engine
        limit_buffers(lab)
        with lab.inside("server"):
            self.listener = socket.create_server(("", PORT))
        self.listener.settimeout(10)
        self.process = self.start(lwip_end(culvert))
        if role == "client":
            self.address, listen, upstream = ("127.0.0.1", INSIDE), STACK_RELAY, graft_wire.SERVERS[4]
        else:
            self.address, listen, upstream = ("10.0.1.2", LISTEN), "10.0.1.2", STACK
        self.daemon = Daemon(lab, culvert, self.engine,
                             [(f"{listen}:{LISTEN}", f"{upstream}:{PORT}")], *options)

    def start(self, program):
        """The stack, whose tap device goes to the relay."""
        if self.stack == "lwip":
            command = (program, TAP, STACK, STACK_RELAY, str(LISTEN), str(INSIDE), str(PORT))
        else:
            command = call_of("foreign_stacks", "play_slirp")
        process = self.lab.start(self.role, *command)
        wait_until(lambda: subprocess.run(
            ["ip", "netns", "exec", f"{self.lab.name}-{self.role}", "ip", "link", "set", TAP, "netns",
             f"{self.lab.name}-relay"], stderr=subprocess.DEVNULL, check=False).returncode == 0,
                   "the tap device")
        self.lab.run("relay", "sh", "-ec",
                     f"ip address add {STACK_RELAY}/24 dev {TAP}; ip link set {TAP} up")
        return process

    def lose(self):
        """From now on, a hundredth of all packets."""
        os.kill(self.process.pid, signal.SIGUSR1)

    @contextlib.contextmanager
    def wire(self):
        with self.lab.inside("relay"):
            wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        with wire:
            wire.bind((TAP, 0))
            wire.setblocking(False)
            yield wire

    def run(self):
        seeds = itertools.count(1)
        if self.role == "server":  # the relay learns what the server takes
            session = Session(self, next(seeds))
            session.talk(False)
            stack_closes(session)
            self.wait_ended()
        for scenario in SCENARIOS:
            began = time.monotonic()
            try:
                session = Session(self, next(seeds))
                shaped = session.talk(True)
                scenario(session)
                self.wait_ended()
            except Exception as error:
                raise RuntimeError(f"{scenario.__name__}: {error!r}\n{tail(self.process.log)}") from error
            print(f"# {scenario.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        return shaped

    def wait_ended(self):
        wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "the session to end")
        expect(self.process.poll() is None, "the stack has ended")


def lwip_end(culvert):
    return os.path.join(os.path.dirname(culvert), "lwip-end")


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("stack", ["lwip", "slirp"])
def test_stacks(culvert, engine, stack, role):
    if not os.path.exists(lwip_end(culvert)) or not ctypes.util.find_library("slirp"):
        pytest.skip("lwIP or libslirp is missing (scripts/deps test; make tests)")
    with Lab() as lab:
        print(f"# shaped: {Trial(lab, culvert, engine, stack, role).run()}")


def test_closed_first(culvert):
    """S8: lwIP takes no SYN in TIME_WAIT.  The client of a port that is used again is served by
    sockets."""
    if not os.path.exists(lwip_end(culvert)):
        pytest.skip("lwIP is missing (scripts/deps test; make tests)")
    with Lab() as lab:
        trial = Trial(lab, culvert, "auto", "lwip", "server", "--set-up", "kernel",
                      "--set-up-ports", "20000-20007")
        for seed in range(40):
            session = Session(trial, seed)
            session.talk(False)
            stack_closes(session)
            trial.wait_ended()
        past = trial.daemon.ask("status")["set_up"]["past"]
        expect(past["challenged"] and not past["silent"], f"{past}")
        print(f"# {past}")
