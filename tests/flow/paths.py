# SPDX-License-Identifier: BSD-2-Clause
"""The paths of scripts/lab: they delay, lose and keep what --rtt and --loss say."""

import os
import subprocess

import pytest
from labkit import RELAY, SERVER, SLOW, TOP, Lab, LabError, expect, wait_until

pytestmark = pytest.mark.needs("ip", "python3", ipv6=True)
SCRIPT = os.path.join(TOP, "scripts/lab")
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
# Frames with the tag of a VLAN, of the largest size, to anyone; the other end knows them.
TAG = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("to-relay", 0))
header = b"\\xff" * 6 + b"\\x02" + bytes(5) + b"\\x81\\0\\0\\x07\\x88\\xb5"
for number in range(10):
    s.send(header + bytes([number]) * 1500)
"""
TAGGED = r"""
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
s.bind(("to-client", 3))
s.settimeout(20)
print("ready", flush=True)
number = 0
while number < 10:
    frame, about, _flags, _from = s.recvmsg(2000, 100)
    if frame[12:14] != b"\x88\xb5":
        continue
    assert frame[14:] == bytes([number]) * 1500
    assert struct.unpack("=IIIHHHH", about[0][2])[5] == 7
    number += 1
"""


def output(lab, namespace, script, *arguments):
    process = lab.start(namespace, "python3", "-c", script, *arguments,
                        stdout=subprocess.PIPE, text=True)
    text = process.communicate(timeout=60 * SLOW)[0]
    lab.finish(process, SLOW)
    return text


def expect_echoes(lab, address, least, most):
    took = float(output(lab, "client", ASK, address, "30"))
    print(f"# {address}: {took:.3f} ms")
    expect(least <= took <= most * SLOW, f"an echo of {address} takes {took} ms")


def lost(seed):
    with Lab(loss=(5, 0), seed=seed) as lab:
        output(lab, "client", SEND, RELAY, "4000")
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


def test_no_round_trip():
    with Lab(rtt=(0, 0)) as lab:
        lab.start_server("server", PORT, "python3", "-c", ECHO, protocol="udp")
        expect_echoes(lab, SERVER, 0, 2)


def test_losses():
    # 200 in the mean, with a deviation of 14.
    first, again, other = lost(1), lost(1), lost(2)
    print(f"# of 4000 frames {first}, {again} and with another seed {other} are lost")
    expect(all(140 < count < 260 for count in (first, again, other)), "not 5 % are lost")


def test_tagged_frames():
    with Lab(rtt=(1, 0)) as lab:
        receiver = lab.start("relay", "python3", "-c", TAGGED)
        wait_until(lambda: os.path.getsize(receiver.log), "the receiver to be ready")
        output(lab, "client", TAG)
        lab.finish(receiver, 30 * SLOW)


def test_it_belongs_to_the_lab():
    with Lab(rtt=(1, 1)) as lab:
        lab._call("down")  # pylint: disable=protected-access
        left = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        expect(lab.name not in left, f"left behind: {left}")


def test_a_device_goes():
    with Lab(rtt=(1, 1)) as lab:
        space = f"{lab.name}-path1"

        def inmates():
            return subprocess.run(["ip", "netns", "pids", space], stdout=subprocess.PIPE,
                                  check=True).stdout

        expect(inmates(), "no lab-delay is in the path")
        lab.run("client", "ip", "link", "delete", "to-relay")
        wait_until(lambda: not inmates(), "lab-delay to end")


def test_names_of_others():
    """One in /run/netns whose namespace is gone: "ip netns list" complains of it."""
    script = """mount -t tmpfs lab /run/netns && : >/run/netns/gone && "$0" up >&2 &&
        "$0" exec client echo said 2>&1; "$0" down --force >&2"""
    result = subprocess.run(["unshare", "--mount", "sh", "-c", script, SCRIPT],
                            check=True,
                            env={**os.environ, "CULVERT_LAB": f"cvl-names-{os.getpid()}"},
                            stdout=subprocess.PIPE, text=True)
    expect(result.stdout == "said\n", result.stdout)


def test_what_it_cannot_be():
    for more in {"loopback": True}, {"two_relays": True}:
        try:
            with Lab(rtt=(1, 1), **more):
                expect(False, f"a lab with paths and {more}")
        except LabError as error:
            expect("--rtt and --loss need both links" in str(error), str(error))
