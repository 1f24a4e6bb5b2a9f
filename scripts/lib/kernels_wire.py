#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""A network card in the guest of scripts/kernels --cards, from inside.

    offload CARD,CARD NAME,NAME  turn these offloads off, and all others on that the cards have
    watch CARD                   until TERM: what passes it, as JSON
"""

import array
import collections
import fcntl
import json
import signal
import socket
import struct
import sys

# The command of linux/ethtool.h that sets an offload, or its bit of ETHTOOL_SFLAGS. Later ones need
# the first ones.
OFFLOADS = {"rx": 0x15, "tx": 0x17, "sg": 0x19, "tso": 0x1f, "gso": 0x24, "gro": 0x2c}
FLAGS = {"txvlan": 1 << 7, "rxvlan": 1 << 8, "lro": 1 << 15}
GET_FLAGS, SET_FLAGS = 0x25, 0x26
PROTOCOLS = {6: "tcp", 17: "udp", 50: "esp"}


def ethtool(card, command, value=0):
    """The value afterwards; 0 if the card has no such thing."""
    data = array.array("I", (command, value))
    request = struct.pack("16sQ16x", card.encode(), data.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, 0x8946, request)  # SIOCETHTOOL
    except OSError:
        return 0
    return data[1]


def offload(card, off):
    for name, command in OFFLOADS.items():
        ethtool(card, command, name not in off)
    flags = ethtool(card, GET_FLAGS)
    for name, flag in FLAGS.items():
        flags = flags & ~flag if name in off else flags | flag
        ethtool(card, SET_FLAGS, flags)
        flags = ethtool(card, GET_FLAGS)


def end(*_):
    raise KeyboardInterrupt


def watch(card):
    seen = collections.Counter()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as packets:
        packets.bind((card, 3))
        packets.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
        signal.signal(signal.SIGTERM, end)
        print("watching", flush=True)
        try:
            while True:
                look(packets.recvmsg(64, 64, socket.MSG_TRUNC), seen)
        except KeyboardInterrupt:
            print(json.dumps(seen))


def look(received, seen):
    data, more, _, sender = received
    way = "out" if sender[2] == 4 else "in"  # PACKET_OUTGOING
    status, size = struct.unpack_from("II", more[0][2])
    at = 14 + 4 * (data[12:14] == b"\x81\x00")
    if data[at - 2:at] != b"\x08\x00":
        return
    protocol = PROTOCOLS.get(data[at + 9], "other")
    seen[f"{way} {protocol}"] += 1
    if protocol != "tcp":
        return
    for name, is_so in (("sum partial", status & 8), ("sum valid", status & 128),
                        ("tag beside", status & 16), ("tag inside", at > 14),
                        ("fragment", data[at + 6] & 0x3f or data[at + 7]), ("large", size > 1600)):
        seen[f"{way} {name}"] += bool(is_so)


if sys.argv[1] == "watch":
    watch(sys.argv[2])
else:
    for one in sys.argv[2].split(","):
        offload(one, sys.argv[3].split(","))
