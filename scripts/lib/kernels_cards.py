# SPDX-License-Identifier: BSD-2-Clause
"""Network cards for the guest of scripts/kernels --cards: what qemu emulates, and what is run on it.

Cables are hubs inside qemu, so nothing leaves it. In the guest kernels_ip.sh gives out the cards in
place of veth.
"""

import os
import re

from kernels_guest import LIB, Equipment, output_of

CARDS = {"virtio": "virtio-net-pci", "e1000e": "e1000e", "vmxnet3": "vmxnet3"}
PAIRS = 2  # a lab is two cables
SKIP = b'#!/bin/sh\necho "skipped: $*"\nexit 77\n'

# On each kind of card: name, offloads that are off, engine, and what kernels_veth.sh makes of the net.
# IPsec must not be grafted, and may be refused: what counts is that nothing leaves in clear text.
TRAFFIC = (
    ("plain", "tso", "graft", ""),
    ("tso", "", "graft", ""),
    ("vlan", "tso", "graft", "vlan"),
    ("vlan-bare", "tx,rx,sg,tso,gso,gro,lro,txvlan,rxvlan", "graft", "vlan"),
    ("esp-transport", "tso", "auto", "transport"),
    ("esp-tunnel", "tso", "auto", "tunnel"),
    ("wireguard", "tso", "graft", "wireguard"),
    ("torture", "tso,gro", "graft", "torture"),  # checksums as the card leaves them
)
# The labs of other tests on cards: kind, program, what --only is, further options.
LABS = (
    ("virtio", "grafted", "families", ""),
    ("e1000e", "grafted", "back_to_sockets", ""),
    ("virtio", "networks", "plain", "--jobs 1 --quick"),
    ("e1000e", "networks", "NAT on the relay: REDIRECT of ports", "--jobs 1"),
    ("vmxnet3", "networks", "the MTU of the link to the server shrinks", "--jobs 1"),
)
# A name that nothing has must not pass.
LAB = """cd /culvert/tests/flow
./{program}.py --culvert {programs}/culvert --only "{only}" {options} >/tmp/lab 2>&1
code=$?
cat /tmp/lab
[ "$code" -ne 0 ] || grep -q "^ok " /tmp/lab || {{ grep "^skip " /tmp/lab && exit 77; }} ||
	{{ echo "FAIL: nothing was tried" && exit 1; }}
exit "$code"
"""


def why_not_tso(kind):
    """Segments are the host's work, or qemu's."""
    version = output_of("qemu-system-x86_64", "--version", text=True).split("version ")[1]
    if kind == "virtio":
        return "a virtio card does not segment at a hub"
    if int(re.match(r"\d+", version)[0]) < 8:
        return "qemu before 8 makes IP fragments of a large segment"
    return None


def plan(programs):
    """PROGRAMS: their folder in the guest."""
    for kind in CARDS:
        for name, off, engine, net in TRAFFIC:
            reason = why_not_tso(kind) if name == "tso" else None
            command = f"/bin/sh /culvert/kernels_veth.sh {programs} {engine} {net}"
            yield (f"cards/{kind}-{name}", 90, f"/culvert/cards/skip {reason}" if reason else
                   f"{on_cards(kind, off)} {command}")
    for number, (kind, program, only, _) in enumerate(LABS):
        yield (f"cards/{kind}-{program}-{only.replace(' ', '-')}", 120,
               f"{on_cards(kind, 'tso')} /bin/sh /culvert/cards/lab{number}")


def on_cards(kind, off):
    return f"env PATH=/culvert/cards:/culvert/bin:/bin CULVERT_CARDS={kind},{off}"


def cables():
    """Kind of card, and the addresses of two that are joined."""
    for number, kind in enumerate(CARDS):
        for pair in range(PAIRS):
            yield kind, f"52:54:00:{number:02}:{pair:02}:01", f"52:54:00:{number:02}:{pair:02}:02"


def devices():
    """Options of qemu."""
    for hub, (kind, *ends) in enumerate(cables()):
        for end, address in enumerate(ends):
            yield from ("-netdev", f"hubport,id=n{hub}.{end},hubid={hub}", "-device",
                        f"{CARDS[kind]},netdev=n{hub}.{end},mac={address},romfile=")


def equipment(programs):
    files = {"pairs": "".join(f"{' '.join(cable)}\n" for cable in cables()).encode(),
             "skip": SKIP, "first": b""}
    for number, (_, program, only, options) in enumerate(LABS):
        files[f"lab{number}"] = LAB.format(program=program, programs=programs, only=only,
                                           options=options).encode()
    for name, source in ("ip", "kernels_ip.sh"), ("wire.py", "kernels_wire.py"):
        with open(os.path.join(LIB, source), "rb") as file:
            files[name] = file.read()
    return Equipment(
        tools={"nft": "culvert/bin/nft"},
        scripts=("tests/flow/networks.py", "tests/flow/networks_rows.py"),
        python=("array", "ctypes", "dataclasses", "pwd", "select", "traceback"),
        modules=("virtio_pci", "virtio_net", "e1000e", "vmxnet3", "xfrm_user", "esp4", "ctr", "gcm",
                 "ghash_generic", "ansi_cprng", "seqiv", "nft_chain_nat", "nft_redir", "nft_ct"),
        files={f"culvert/cards/{name}": data for name, data in files.items()},
        options=tuple(devices()))
