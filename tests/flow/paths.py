# SPDX-License-Identifier: BSD-2-Clause
"""The paths of scripts/lab: they delay, lose and keep what --rtt and --loss say."""

import pytest
from labkit import RELAY, SERVER, SLOW, Lab, expect, wait_until

pytestmark = pytest.mark.needs("ip", "python3", ipv6=True)
PORT = 7
ECHO = """
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(("::", 7))
while True:
    s.sendto(*s.recvfrom(65536))
"""
# COUNT echoes, one after the other; prints the median round trip in ms.
ASK = """
import socket, statistics, sys, time
took = []
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 7))
s.settimeout(5)
for number in range(int(sys.argv[2])):
    began = time.monotonic()
    s.send(b"%1400d" % number)
    assert int(s.recv(2000)) == number
    took.append(time.monotonic() - began)
print(1000 * statistics.median(took))
"""
# COUNT datagrams that nobody answers, not faster than a path takes them.
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[2])):
    s.sendto(b"x", (sys.argv[1], 9))
    time.sleep(0.0002)
"""

def expect_echoes(lab, address, least, most):
    took = float(lab.run("client", "python3", "-c", ASK, address, "30"))
    print(f"# {address}: {took:.3f} ms")
    expect(least <= took <= most * SLOW, f"an echo of {address} takes {took} ms")


def lost(seed):
    with Lab(loss=(5, 0), seed=seed) as lab:
        lab.run("client", "python3", "-c", SEND, RELAY, "4000")
        wait_until(lambda: lab.path_counts("path1")["to-client"]["frames"] >= 4000, "counts")
        counts = lab.path_counts("path1")["to-client"]
        expect(not any(counts[what] for what in counts if what not in ("frames", "lost")),
               f"{counts}")
        expect(not lab.path_counts("path2")["to-server"]["lost"], "losses on the other leg")
        return counts["lost"]


def test_round_trips():
    with Lab(rtt=(10, 2.5)) as lab:
        for namespace in "relay", "server":
            lab.start_server(namespace, PORT, "python3", "-c", ECHO, protocol="udp")
        expect_echoes(lab, RELAY, 10, 12)
        expect_echoes(lab, SERVER, 12.5, 15)
        expect_echoes(lab, "fd00:2::2", 12.5, 15)


def test_losses():
    # 200 in the mean, with a deviation of 14.
    first, again, other = lost(1), lost(1), lost(2)
    print(f"# of 4000 frames {first}, {again} and with another seed {other} are lost")
    expect(all(140 < count < 260 for count in (first, again, other)), "not 5 % are lost")
