# SPDX-License-Identifier: BSD-2-Clause
"""Network cards for the guest of scripts/kernels --cards, as qemu emulates them, and their steps.

A cable is two tap devices on a bridge, in a network namespace that qemu has for itself. Work that
the guest leaves to the card (segments, checksums) is passed on as such, or done there. In the guest
kernels_ip.sh gives out the cards in place of veth.
"""

import os
import subprocess

from kernels_guest import LIB, Equipment

CARDS = {"virtio": "virtio-net-pci", "e1000e": "e1000e", "vmxnet3": "vmxnet3"}
PAIRS = 2  # a lab is two cables
# Words: cables, then the command.
WIRING = """
for conf in /proc/sys/net/ipv6/conf/*/disable_ipv6; do
	echo 1 >$conf
done
cables=$1 && shift
while [ "$cables" -gt 0 ]; do
	cables=$((cables - 1))
	ip link add c$cables type bridge ageing_time 0 mcast_snooping 0
	ip link set c$cables up
	for end in 0 1; do
		ip tuntap add dev t$cables.$end mode tap vnet_hdr
		ip link set t$cables.$end master c$cables up
	done
done
exec "$@"
"""
IN_A_NAMESPACE = "unshare", "--net", "--", "sh", "-ec", WIRING, "sh"

# On each kind of card: name, offloads that are off, engine, and the NET of kernels_veth.sh. IPsec
# must not be grafted, and may be refused: the test is that nothing leaves in clear text.
TRAFFIC = (
    ("plain", "tso,lro", "graft", ""),
    ("tso", "lro", "graft", ""),
    ("lro", "gro", "graft", ""),
    ("vlan", "", "graft", "vlan"),
    ("vlan-bare", "tx,rx,sg,tso,gso,gro,lro,txvlan,rxvlan", "graft", "vlan"),
    ("esp-transport", "", "auto", "transport"),
    ("esp-tunnel", "", "auto", "tunnel"),
    ("wireguard", "", "graft", "wireguard"),
    ("torture", "gro", "graft", "torture"),  # checksums as the card leaves them
)
# Packets that the relay must see, or the card did not do its part. e1000e merges nothing.
SEEN = {"tso": "out large", "virtio-lro": "in large", "vmxnet3-lro": "in large"}
# The labs of other tests on cards: kind, program, words of a case, further options.
LABS = (
    ("e1000e", "grafted", "back_to_sockets", ""),
    ("virtio", "networks", "plain", "--jobs 1 --quick"),
    ("e1000e", "networks", "NAT on the relay: REDIRECT of ports", "--jobs 1"),
    ("vmxnet3", "networks", "the MTU of the link to the server shrinks", "--jobs 1"),
    ("virtio", "udp", "sizes", "--engine auto"),
    ("e1000e", "networks", "datagrams without checksums", "--jobs 1"),
    ("vmxnet3", "networks", "checksums that the relay completes", "--jobs 1"),
)
LAB = """exec /usr/bin/python3 -B -m pytest --culvert {programs}/culvert \\
	/culvert/tests/flow/{program}.py -k "{only}" {options}
"""


def why_not():
    """Why there can be no cables here; None: there can."""
    try:
        subprocess.run([*IN_A_NAMESPACE, "1", "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no tap devices and bridges: {getattr(error, 'stderr', None) or error}".strip()
    return None


def plan(programs):
    """PROGRAMS: their folder in the guest."""
    for kind in CARDS:
        for name, off, engine, net in TRAFFIC:
            seen = SEEN.get(name) or SEEN.get(f"{kind}-{name}") or ""
            yield (f"cards/{kind}-{name}", 90, f"{on_cards(kind, off)} "
                   f"CULVERT_SEEN={seen.replace(' ', '-')} "
                   f"/bin/sh /culvert/kernels_veth.sh {programs} {engine} {net}")
    for number, (kind, program, only, _) in enumerate(LABS):
        yield (f"cards/{kind}-{program}-{only.replace(' ', '-')}", 120,
               f"{on_cards(kind, '')} /bin/sh /culvert/cards/lab{number}")


def on_cards(kind, off):
    return f"env PATH=/culvert/cards:/culvert/bin:/bin CULVERT_CARDS={kind},{off}"


def cables():
    """Kind of card, and the addresses of two that are joined."""
    for number, kind in enumerate(CARDS):
        for pair in range(PAIRS):
            yield kind, f"52:54:00:{number:02}:{pair:02}:01", f"52:54:00:{number:02}:{pair:02}:02"


def devices():
    """Options of qemu."""
    for cable, (kind, *ends) in enumerate(cables()):
        for end, address in enumerate(ends):
            name = f"t{cable}.{end}"
            yield from ("-netdev", f"tap,id={name},ifname={name},script=no,downscript=no,vnet_hdr=on",
                        "-device", f"{CARDS[kind]},netdev={name},mac={address},romfile=")


def equipment(programs):
    files = {"pairs": "".join(f"{' '.join(cable)}\n" for cable in cables()).encode(),
             "first": b""}
    for number, (_, program, only, options) in enumerate(LABS):
        files[f"lab{number}"] = LAB.format(program=program, programs=programs, options=options,
                                           only=only.replace(" ", " and ")).encode()
    for name, source in ("ip", "kernels_ip.sh"), ("wire.py", "kernels_wire.py"):
        with open(os.path.join(LIB, source), "rb") as file:
            files[name] = file.read()
    return Equipment(
        modules=("virtio_pci", "virtio_net", "e1000e", "vmxnet3", "xfrm_user", "esp4", "ctr", "gcm",
                 "ghash_generic", "ansi_cprng", "seqiv", "nft_chain_nat", "nft_redir", "nft_ct"),
        files={f"culvert/cards/{name}": data for name, data in files.items()},
        options=tuple(devices()),
        wrapper=(*IN_A_NAMESPACE, str(PAIRS * len(CARDS))))
