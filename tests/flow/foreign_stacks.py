#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Clients and servers with libslirp: a BSD's TCP, of qemu's user network.

Each talks through the relay with an end of Linux: conversations, a megabyte there and back at once,
half-closes by the client.  Every byte is compared.
Exits with 77 and the reason where this cannot run.
"""

import ctypes
import ctypes.util
import fcntl
import functools
import os
import select
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/lib"))
# pylint: disable=wrong-import-position
from ends import DRIVE, SERVE, Client
from labkit import (EXIT_SKIP, ONLY, Daemon, Lab, begin_or_skip, expect, run_rows, run_test,
                    test_options, wait_until)

PORT, LISTEN, INSIDE = 7100, 9044, 7200
SLIRP, SLIRP_RELAY = "10.0.12.2", "10.0.12.15"
BULK = 1_000_000


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
    fd, polled, found = tap(b"slirp"), [], {}
    lib.slirp_new.restype = ctypes.c_void_p
    callbacks = SlirpCallbacks(*(kind(call) for kind, call in zip(SlirpCallbacks.kinds, (
        lambda data, size, _: os.write(fd, ctypes.string_at(data, size)),
        lambda *_: None, lambda _: time.monotonic_ns(), lambda *_: 1, *[lambda *_: None] * 5))))
    config = SlirpConfig(version=1, in_enabled=True, net=number_of("10.0.12.0"),
                         mask=number_of("255.255.255.0"), host=number_of(SLIRP),
                         dhcp=number_of("10.0.12.100"), nameserver=number_of("10.0.12.3"))
    slirp = ctypes.c_void_p(lib.slirp_new(ctypes.byref(config), ctypes.byref(callbacks), None))
    assert not lib.slirp_add_hostfwd(slirp, 0, number_of("127.0.0.1"), INSIDE,
                                     number_of(SLIRP_RELAY), LISTEN)
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
            lib.slirp_input(slirp, packet, len(packet))


# ---- the test


class Trial:
    def __init__(self, lab, options):
        self.lab, self.daemon, self.engine = lab, None, options.engine
        self.culvert = options.culvert

    def relay(self, address, upstream):
        self.daemon = Daemon(self.lab, self.culvert, self.engine, [(f"{address}:{LISTEN}", upstream)])

    def slirp(self, machine):
        self.lab.start(machine, sys.executable, "-B", os.path.abspath(__file__), "--play")
        wait_until(lambda: subprocess.run(
            [*self.inside(machine), "ip", "link", "set", "slirp", "netns",
             f"{self.lab.name}-relay"], stderr=subprocess.DEVNULL, check=False).returncode == 0,
                   "the tap device of slirp")
        self.lab.run("relay", "sh", "-ec", f"ip address add {SLIRP_RELAY}/24 dev slirp; ip link set slirp up")

    def inside(self, machine):
        return "ip", "netns", "exec", f"{self.lab.name}-{machine}"

    def serve(self):
        self.lab.start_server("server", PORT, sys.executable, "-c", SERVE, str(PORT))

    def sessions(self, connect, first):
        """Sessions of clients that CONNECT, grafted from the FIRST one on."""
        for number in range(1, first + 3):
            client = connect()
            for _ in range(5):
                client.exchange(200)
            must = number >= first and self.engine != "copy"
            for _ in range(100 if must else 0):
                client.exchange(200)
                if self.state()[0] == {"graft"}:
                    break
            expect(not must or self.state()[0] == {"graft"}, f"session {number}: {self.state()}")
            client.exchange(BULK)
            client.exchange(200)
            state = self.state()
            expect(not must or state[0] == {"graft"}, f"session {number}, bulk: {state}")
            client.end()
            wait_until(lambda: not self.daemon.ask("sessions")["sessions"], "the session to end")
        return state

    def state(self):
        row = self.daemon.ask("sessions")["sessions"][0]
        return {flow["carrier"] for flow in row["flows"]}, row["not_grafted"], row["shaped"]

    def client(self, *command):
        client = Client.__new__(Client)
        client.lab = self.lab
        client.process = self.lab.start("client", *command, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        return client

    def linux_client(self, address, port):
        return self.client(sys.executable, "-c", DRIVE, address, str(port))

    def test_slirp_client(self):
        self.slirp("client")
        self.serve()
        self.relay(SLIRP_RELAY, f"10.0.2.2:{PORT}")
        return self.sessions(lambda: self.linux_client("127.0.0.1", INSIDE), 1)

    def test_slirp_server(self):
        self.slirp("server")
        self.serve()
        self.relay("10.0.1.2", f"{SLIRP}:{PORT}")
        return self.sessions(lambda: self.linux_client("10.0.1.2", LISTEN), 2)


def body():
    options = test_options(__doc__, ONLY, ("--engine", {"default": "auto"}))
    begin_or_skip(("ip",), ipv6=True)
    if not ctypes.util.find_library("slirp"):
        print("SKIP: missing: libslirp (scripts/deps test)")
        sys.exit(EXIT_SKIP)

    def run(case):
        with Lab() as lab:
            return getattr(Trial(lab, options), case)()

    return run_rows((case, functools.partial(run, case)) for case in sorted(dir(Trial))
                    if case.startswith("test_") and options.only in case)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play_slirp()
    else:
        sys.exit(run_test(body))
