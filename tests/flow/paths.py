# SPDX-License-Identifier: BSD-2-Clause
"""The paths of scripts/lab: they delay, lose and keep what --rtt and --loss say."""

import socket
import statistics
import sys
import time

import pytest
from labkit import RELAY, SERVER, SLOW, Lab, expect, wait_until
from udp_rig import PEER

pytestmark = pytest.mark.needs("ip", "python3", ipv6=True)
PORT, FRAMES = 7, 4000


def expect_echoes(lab, address, least, most):
    """The median round trip of echoes, one after the other, takes so many ms."""
    took = []
    with lab.socket("client", address, socket.SOCK_DGRAM) as sock:
        sock.connect((address, PORT))
        sock.settimeout(5)
        for number in range(30):
            began = time.monotonic()
            sock.send(b"%1400d" % number)
            expect(int(sock.recv(2000)) == number, "another echo")
            took.append(1000 * (time.monotonic() - began))
    print(f"# {address}: {statistics.median(took):.3f} ms")
    expect(least <= statistics.median(took) <= most * SLOW, f"echoes of {address} take {took} ms")


def lost(seed):
    with Lab(loss=(5, 0), seed=seed) as lab:
        with lab.socket("client", RELAY, socket.SOCK_DGRAM) as sock:
            for _ in range(FRAMES):  # nobody answers them
                sock.sendto(b"x", (RELAY, 9))
                time.sleep(0.0002)  # not faster than a path takes them
        wait_until(lambda: lab.path_counts("path1")["to-client"]["frames"] >= FRAMES, "counts")
        counts = lab.path_counts("path1")["to-client"]
        expect(not any(counts[what] for what in counts if what not in ("frames", "lost")),
               f"{counts}")
        expect(not lab.path_counts("path2")["to-server"]["lost"], "losses on the other leg")
        return counts["lost"]


def test_round_trips():
    with Lab(rtt=(10, 2.5)) as lab:
        for namespace in "relay", "server":
            lab.start_server(namespace, PORT, sys.executable, "-B", PEER, "serve", str(PORT),
                             protocol="udp")
        expect_echoes(lab, RELAY, 10, 12)
        expect_echoes(lab, SERVER, 12.5, 15)
        expect_echoes(lab, "fd00:2::2", 12.5, 15)


def test_losses():
    # 200 in the mean, with a deviation of 14.
    first, again, other = lost(1), lost(1), lost(2)
    print(f"# of {FRAMES} frames {first}, {again} and with another seed {other} are lost")
    expect(all(140 < count < 260 for count in (first, again, other)), "not 5 % are lost")
