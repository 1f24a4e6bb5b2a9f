# SPDX-License-Identifier: BSD-2-Clause
"""The rows of networks.py: surroundings of a relay, each one entry of data.

Addresses: 10.0.N.M, and fd00:N::M for IPv6.

    client c0 .1.1 - .1.2 toc relay tos .2.1 - .2.2 s0 server
    routers="front":   client c0 .1.1 - .1.2 f0 front f1 .3.1 - .3.2 toc relay
            "back":    relay tos .4.1 - .4.2 b0 back b1 .2.1 - .2.2 s0 server
            "front2":  a second link, front f2 .6.1 - .6.2 toc2 relay
            "back2":   a second link, relay alt .5.1 - .5.2 b2 back; the relay's own is .9.1 at lo

culvert listens on the ports from 9000, the server on 7001 to 7006. `setup` comes before the daemon
starts; Run.do() in networks.py explains the lines.
"""

import dataclasses
import socket

ALL = "4 6 64 46"
EVERY = {"families": ALL, "graft": "grafted 46:any"}


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    setup: str = ""
    # What happens when all sessions are as `graft` says; they go on after `go`, or at its end.
    middle: str = ""
    # For auto, of sessions at that time: grafted, refused or any; returned: grafted, and at the end
    # not.  "KEY:WORD" behind it is for a family, a speaker or an engine, here and in `ends`.
    graft: str = "grafted"
    ends: str = "whole"  # or reset, refused, timeout, eof, any; with | between
    why: str = ""  # not_grafted holds this, if refused
    routers: str = ""
    speakers: str = "client greets late waits"
    families: str = "4 6 64"
    options: tuple = ()
    before: tuple = ()  # in the daemon's command line, before the program
    at: str = "warm"  # when `middle` comes; idle: before the client's first byte
    meanwhile: str = ""  # from the start of the sessions on
    again: bool = None  # a second session follows; if not said: if there is a `middle`
    dial: str = ""  # where clients connect, if not to toc
    dial_port: int = 0  # is added
    upstream: str = "10.0.2.2"
    client_in: str = "client"
    server_in: str = "server"
    sizes: tuple = (200, 30000, 1, 150000)  # of the last rounds
    at_least: float = 0  # seconds that these take
    pace: float = 0.1
    wait: float = 10
    sip: int = 0  # bytes that a client takes at a time, with pauses; 0: all
    sockopts: tuple = ()  # of clients: ("4" or "6", level, name, value)
    late_sockopts: bool = False  # only when `middle` comes
    seen: str = ""  # the address that the server sees
    last: str = ""  # fin: the server ends first, and the client uses its port again
    kind: str = "converse"  # or use_ports_again, with `end` and `batches`
    end: str = ""
    batches: int = 3
    plain: bool = False  # no offloads: packets that are too big are lost
    # Of flows of datagrams: as `graft`, if they differ; half: only what comes from the server may
    # be grafted; -: there are none.
    udp: str = ""
    udp_ends: str = "whole"
    big: tuple = (1452, 3000, 20000)  # bytes of larger ones; the last two are fragments
    lost: str = ""  # 0, or any: may datagrams be lost?  If not said: see lossless()
    no_checks: bool = False  # the server sends datagrams without checksums over IPv4
    told: bool = False  # who sends with DF hears that it is too big, if grafted
    bpf: bool = True  # there is a BPF file system
    control: str = ""
    ready: float = 90  # seconds that a start may take: trials last 15 s where lo loses packets
    quick: bool = False

    def __post_init__(self):
        if self.again is None:
            object.__setattr__(self, "again", bool(self.middle))

    def all_speakers(self):
        datagrams = () if self.udp == "-" else ("udp", "df") if self.plain else ("udp",)
        return *self.speakers.split(), *datagrams

    def lossless(self, engine):
        """No datagram may be lost."""
        lost = "any" if self.middle or self.plain or self.at_least else "0"
        for word in self.lost.split():
            key, _, value = word.rpartition(":")
            lost = value if key in ("", engine) else lost
        return lost == "0"


def nat(hook, rules, of="nat"):
    """For IPv4; with nft46 for both."""
    where = {"prerouting": "dstnat", "output": "-100", "postrouting": "srcnat"}[hook]
    return f"table ip {of} {{ chain {hook} {{ type nat hook {hook} priority {where}\n" \
        f"{rules}\n}}\n}}"


def chain(hook, rules, kind="filter", priority="filter", policy="accept"):
    """Of both families."""
    return f"table inet {hook} {{ chain {hook} {{ type {kind} hook {hook} priority {priority}; " \
        f"policy {policy}\n{rules}\n}}\n}}"


BOTH = "meta l4proto { tcp, udp } th"  # followed by ports
PORTS = f"{BOTH} dport 7001-7006"
LISTENERS = f"{BOTH} dport 9000-9099"
# The only good way to the server is by `alt`.
ONLY_ALT = f"""
    back nft: {chain("forward", f"iifname b0 {PORTS} drop")}
    relay: ip46 route add 10.0.2.0/24 via 10.0.5.2 table 5
    back: ip46 route replace 10.0.9.1/32 via 10.0.5.1
"""
ANEW = """
    relay: ip link del tos
    go
    pause 1
    cable relay tos back b0 4
    relay: ip46 route replace 10.0.2.0/24 via 10.0.4.2
"""
TPROXY = """
    relay: ip46 rule add iif tos lookup 100
    ip46 route add local default dev lo table 100
"""
# The only good way to the client is by `toc2`.
ONLY_TOC2 = f"""
    front nft: {chain("forward", f"iifname f1 {BOTH} sport 9000-9099 drop")}
    relay: ip46 route add 10.0.1.0/24 via 10.0.6.1 table 6
"""
TO_ALT = """
    relay: ip46 route replace 10.0.2.0/24 via 10.0.5.2 src 10.0.9.1
    back: ip46 route replace 10.0.9.1/32 via 10.0.5.1
"""
MOVE = TO_ALT + f"back nft: {chain('prerouting', f'iifname b0 {PORTS} drop')}"
TO_TOC2 = f"""
    relay: ip46 route change 10.0.1.0/24 via 10.0.6.1
    front nft: {chain("forward", f"iifname f1 {BOTH} sport 9000-9099 drop")}
"""
# Providers take no packets with the other's addresses; who comes in by wan2 is answered by wan2.
UPLINKS = f"""
    relay: ip46 route add default via 10.0.3.1
    ip46 route add default via 10.0.6.1 table 2
    ip46 route del 10.0.1.0/24
    front nft: {chain("forward", '''
        iifname f1 ip saddr 10.0.6.0/24 drop
        iifname f2 ip saddr 10.0.3.0/24 drop
        iifname f1 ip6 saddr fd00:6::/64 drop
        iifname f2 ip6 saddr fd00:3::/64 drop''')}
"""
CONNMARK = f"""
    relay nft: {chain("prerouting", "iifname toc2 ct mark set 2", priority="mangle")}
    {chain("output", "meta mark set ct mark", "route", "mangle")}
    relay: ip46 rule add fwmark 2 lookup 2
"""
# The daemon ends, and starts again; not before it has learned of its own programs.
END = "go\n pause 1.6\n {0}\n pause 0.5\n start\n pause 0.3"
NEWS = "relay: ip46 route add 10.0.99.0/24 dev lo\n pause 0.3\n"
BOTH_WAYS = """
    relay: for f in 4 6; do echo 1 >/proc/sys/net/ipv$f/fib_multipath_hash_policy; done
    ip46 route replace 10.0.2.0/24 src 10.0.9.1 nexthop via 10.0.4.2 nexthop via 10.0.5.2
"""
# A next hop that is lost is noticed within some seconds.
MORTAL = """
    relay: for f in 4 6; do cd /proc/sys/net/ipv$f/neigh; for c in to* alt*; do
        [ -d $c ] || continue
        echo 1 >$c/delay_first_probe_time
        echo 2000 >$c/base_reachable_time_ms
        echo 100 >$c/retrans_time_ms
        echo 1 >$c/mcast_solicit; done; done
    echo 1 >/proc/sys/net/ipv4/fib_multipath_use_neigh
"""
# Packets that come there are lost: no link goes down, and no route is withdrawn.
DEAD = """{0} nft: table netdev dead {{ chain dead {{ type filter hook ingress device {1} priority 0
drop\n}}\n}}"""
# `front` carries frames between client and relay: for `tag` and `noise`.
CABLE = """
    client: ip link del c0
    relay: ip link del toc
    cable client c0 front f0
    cable front f1 relay toc
    client: ip46 addr add 10.0.1.1/24 dev c0
    relay: ip46 addr add 10.0.1.2/24 dev toc
"""
LOCAL = "iifname lo accept\noifname lo accept\n"
STRICT = "ct state established,related accept\nct state invalid drop\n" \
    "icmp type echo-request accept\nmeta l4proto ipv6-icmp accept\n" \
    "tcp flags & (syn|ack|rst) == syn ct state new accept\n" \
    "udp dport { 7001-7006, 9000-9099 } ct state new accept"
STRICT_RELAY = f"""
    relay nft: {chain("input", LOCAL + STRICT, policy="drop")}
    {chain("output", LOCAL + STRICT, policy="drop")}
"""
BLACK_HOLE = "icmp type destination-unreachable drop\nicmpv6 type packet-too-big drop"
SYNPROXY = "tcp dport 9000-9099 ct state untracked,invalid synproxy mss 1400 wscale 7 timestamp " \
    "sack-perm\nct state invalid drop"
# `br0` instead of a device, with its addresses.
BRIDGE = """
    ip link add br0 type bridge
    ip link set br0 up
    ip46 addr flush dev {0}
    ip link set {0} master br0
    ip46 addr add 10.0.{1} dev br0
"""
# As Docker and kube-proxy have it.
CONTAINERS = f"""
    relay: echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
    echo 1 >/proc/sys/net/bridge/bridge-nf-call-ip6tables
    {BRIDGE.format("tos", "2.1/24")}
    relay nft: {chain("prerouting", "tcp dport 8888 dnat ip to 10.0.2.2:7001", "nat", "dstnat")}
    {chain("postrouting", 'ip saddr 10.0.2.0/24 oifname != "br0" masquerade', "nat", "srcnat")}
    {chain("input", "ct state invalid drop")}
    {chain("forward", "ct state invalid drop; ct state established,related accept")}
"""
# A router sends no bigger packets, and says so.
SMALL_BACK = """back: ip route change 10.0.2.0/24 dev b1 mtu lock 1300
    ip -6 route replace fd00:2::/64 dev b1 metric 256 mtu lock 1300
"""
SMALL_FRONT = """front: ip route change 10.0.1.0/24 dev f0 mtu lock 1300
    ip -6 route replace fd00:1::/64 dev f0 metric 256 mtu lock 1300
"""
SHAPED = """
    relay: tc qdisc add dev {0} ingress
    tc filter add dev {0} ingress protocol ip u32 match u32 0 0 \\
        action mirred egress redirect dev in0
"""
IFB = """
    ?relay: ip link add in0 type ifb
    relay: ip link set in0 up
    ?relay: tc qdisc add dev in0 root tbf rate 16mbit burst 32k latency 100ms
"""


def policy(dev_net, action, rest=""):
    """An xfrm policy of the relay for what it sends to 10.0.NET.0/24; ACTION: add or delete."""
    return f"""
    ?relay: ip46 xfrm policy {action} src 0.0.0.0/0 dst 10.0.{dev_net}.0/24 dir out {rest}
    """.replace("src 0.0.0.0/0 ", "")


SEG6 = "seg6 mode encap segs fd00:4::2"
TAKE_SEG6 = """back: echo 1 >/proc/sys/net/ipv6/conf/all/seg6_enabled
    echo 1 >/proc/sys/net/ipv6/conf/b0/seg6_enabled"""
ESP = "tmpl proto esp mode transport reqid 1"


def ipsec(name, net, device, rest):
    """A policy that comes in the middle: nothing may leave in clear text any more."""
    return Row(name, middle=f"""
        {policy(net, "add", rest)}
        go
        pause 1
        quiet {device} 1.5
        {policy(net, "delete")}
        """, graft="any", families="4 6", wait=20)


def ports_again(how, *options, few=True, **more):
    """The same ports after this end, with 20 local ports on the relay."""
    return Row(f"ports used again after {how}", """
        client: echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
        relay: echo 1 >/proc/sys/net/ipv4/tcp_tw_reuse
        """ + ("echo 40000 40019 >/proc/sys/net/ipv4/ip_local_port_range" if few else ""),
               graft="any", kind="use_ports_again", end=how, options=options,
               speakers="client greets", families="4 6", lost="any",
               udp="" if how == "idle" else "-", **more)


def small_window(name, room, **more):
    """The client offers no window scale, and the relay's windows have a unit of 1,024 bytes."""
    return Row(name, """
        client: echo 0 >/proc/sys/net/ipv4/tcp_window_scaling
        relay: echo 4096 131072 33554432 >/proc/sys/net/ipv4/tcp_rmem""",
               sockopts=tuple((family, socket.SOL_SOCKET, socket.SO_RCVBUF, room)
                              for family in "46"),
               sip=700, sizes=(200, 30000), wait=4, plain=True, speakers="client greets",
               families="4 6", udp="-", **more)


# A client that does not answer any more.
SILENT = f"client nft: {chain('output', 'drop')}"
GONE = {"options": ("--keepalive", "2"), "ends": "any", "again": False, "wait": 4,
        "speakers": "client", "graft": "grafted", "udp": "-"}
IP, IP6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
PADDING = bytes((0, 0, 1, 4, 0, 0, 0, 0))  # an extension header with 6 bytes PadN


def gone(seconds):
    return f"""
    relay: ip46 route del 10.0.2.0/24
    go
    pause {seconds}
    relay: ip46 route add 10.0.2.0/24 via 10.0.4.2
    """


def ttl(hops):
    return ("4", IP, socket.IP_TTL, hops), ("6", IP6, socket.IPV6_UNICAST_HOPS, hops)


NOPS = (("4", IP, socket.IP_OPTIONS, b"\1\1\1\1"),)
RECORD_ROUTE = (("4", IP, socket.IP_OPTIONS, b"\7\x27\4" + bytes(37)),)
NO_CHECKS = (("4", socket.SOL_SOCKET, 11, 1),)  # SO_NO_CHECK
HOP_BY_HOP = (("6", IP6, socket.IPV6_HOPOPTS, PADDING),)
DESTINATION = (("6", IP6, socket.IPV6_DSTOPTS, PADDING),)

ROWS = (
    Row("plain", **EVERY, quick=True),
    Row("plain without offloads", plain=True, **EVERY),
    Row("plain with routers", routers="front back", **EVERY),
    Row("several addresses at one listener", "relay: ip46 addr add 10.0.1.7/24 dev toc",
        dial="10.0.1.7", quick=True),
    Row("checksums that the relay completes", meanwhile="checksums client c0\n checksums server s0",
        setup="no_checksums relay", speakers="", families=ALL),
    *(Row(f"datagrams that the relay {what}", meanwhile=f"merge {features}", plain=True,
          speakers="", families=ALL)
      for what, features in (("merges", ""), ("merges for others", "rx-udp-gro-forwarding"),
                             ("makes a list of", "rx-gro-list"))),
    *(Row(name, sockopts=NO_CHECKS, no_checks=True, speakers="", families="4 64 46",
          meanwhile="checksums client c0\n checksums server s0", **of)
      for name, of in (("datagrams without checksums", {"quick": True}),
                       ("the same, without offloads", {"plain": True}))),

    # --- NAT ---
    Row("NAT in front: a router masquerades clients",
        f"front nft46: {nat('postrouting', 'oifname f1 masquerade')}", routers="front"),
    Row("NAT in front: a router leads to the relay",
        f"front nft46: {nat('prerouting', 'ip daddr 10.0.1.2 dnat to 10.0.3.2')}",
        routers="front", dial="10.0.1.2"),
    Row("NAT behind: a router leads to the server",
        f"back nft46: {nat('prerouting', f'{PORTS} dnat to 10.0.2.2')}", routers="back",
        upstream="10.0.4.2"),
    Row("NAT behind: a router masquerades the relay",
        f"back nft46: {nat('postrouting', 'oifname b1 masquerade')}", routers="back",
        seen="10.0.2.1"),
    Row("NAT on the relay: REDIRECT of an address",
        f"relay nft46: {nat('prerouting', f'ip daddr 10.0.9.9 {LISTENERS} redirect')}",
        dial="10.0.9.9", graft="refused"),
    Row("NAT on the relay: REDIRECT of ports", "relay nft46: " + nat("prerouting", "\n".join(
        f"{BOTH} dport {port - 8000} redirect to :{port}" for port in range(9000, 9040))),
        dial_port=-8000, graft="refused", quick=True),
    Row("NAT on the relay: DNAT to the listener", f"""
        relay: ip46 addr add 10.0.9.1/32 dev lo
        relay nft46: {nat("prerouting", f"ip daddr 10.0.1.2 {LISTENERS} dnat to 10.0.9.1")}
        """, graft="refused"),
    Row("NAT on the relay: SNAT", f"""
        relay: ip46 addr add 10.0.9.9/32 dev lo
        relay nft46: {nat("postrouting", f"{PORTS} snat to 10.0.9.9")}
        """, graft="refused", seen="10.0.9.9", quick=True),
    Row("NAT on the relay: MASQUERADE that changes nothing",
        f"relay nft46: {nat('postrouting', 'oifname tos masquerade')}", graft="any"),
    Row("NAT on the relay: MASQUERADE --random-fully",
        f"relay nft46: {nat('postrouting', f'{PORTS} masquerade fully-random')}",
        graft="refused"),
    Row("NAT on the relay: OUTPUT DNAT of the upstream", f"""
        relay: ip46 route add 10.0.9.8 via 10.0.2.2
        relay nft46: {nat("output", "ip daddr 10.0.9.8 dnat to 10.0.2.2")}
        """, upstream="10.0.9.8", graft="refused"),
    Row("SYNPROXY on the relay", f"""
        relay: echo 0 >/proc/sys/net/netfilter/nf_conntrack_tcp_loose
        ?relay nft: {chain("prerouting", "tcp dport 9000-9099 tcp flags & (syn|ack) == syn notrack",
                           priority="raw")}
        {chain("input", SYNPROXY)}
        """, graft="refused", udp="-"),
    Row("a relay in a container, NAT on its host", f"""
        server: ip link del s0
        cable front f9 server s0 2
        relay: ip link del tos 2>/dev/null || true
        ip46 route add default via 10.0.3.1
        server: ip46 route replace default via 10.0.2.1
        front nft46: {nat("prerouting", f"ip daddr 10.0.1.2 {LISTENERS} dnat to 10.0.3.2")}
        {nat("postrouting", "oifname f9 masquerade", "nat2")}
        """, routers="front", dial="10.0.1.2", seen="10.0.2.1"),

    # --- policy routes ---
    Row("policy routes by source", ONLY_ALT + "relay: ip46 rule add from 10.0.5.1 lookup 5",
        routers="back back2", options=("--source", "10.0.5.1"), families="4 64", seen="10.0.5.1"),
    Row("policy routes by destination port", ONLY_ALT +
        "relay: ip46 rule add ipproto tcp dport 7001-7004 lookup 5\n"
        "ip46 rule add ipproto udp dport 7001-7006 lookup 5", routers="back back2",
        quick=True),
    Row("policy routes by source port", ONLY_TOC2 +
        "relay: ip46 rule add ipproto tcp sport 9000-9099 lookup 6\n"
        "ip46 rule add ipproto udp sport 9000-9099 lookup 6", routers="front front2"),
    Row("policy routes by user", ONLY_ALT + "relay: ip46 rule add uidrange 65534-65534 lookup 5",
        routers="back back2"),
    Row("policy routes by a mark set in OUTPUT", ONLY_ALT + f"""
        relay nft: {chain("output", f"{PORTS} meta mark set 5", "route", "mangle")}
        relay: ip46 rule add fwmark 5 lookup 5
        """, routers="back back2", graft="any"),
    Row("policy routes by the mark of the forward", ONLY_ALT +
        "relay: ip46 rule add fwmark 5 lookup 5", routers="back back2", options=("--mark", "5")),
    Row("two uplinks by CONNMARK", UPLINKS + CONNMARK, middle=NEWS, routers="front front2",
        dial="10.0.6.2", graft="any", lost="0"),
    Row("two uplinks by source", UPLINKS + "relay: ip46 rule add from 10.0.6.2 lookup 2",
        middle=NEWS, routers="front front2", dial="10.0.6.2", lost="0"),
    Row("two ways of equal cost by layer 4", BOTH_WAYS, middle=f"""
        {NEWS}
        go
        busy tos 0.5
        busy alt 0.5
        """, routers="back back2", **EVERY, lost="0"),

    # --- routes, links and devices that go and come back, or lead elsewhere ---
    Row("the route to the server is gone for half a second", routers="back", middle=gone(0.5)),
    Row("the route to the server is gone for two seconds", routers="back", middle=gone(2),
        quick=True),
    Row("the same, with a default route elsewhere", routers="back", middle=gone(2),
        setup="relay: ip46 route add default via 10.0.1.1"),
    Row("the route to the client is gone for a second", routers="front", middle="""
        relay: ip46 route del 10.0.1.0/24
        go
        pause 1
        relay: ip46 route add 10.0.1.0/24 via 10.0.3.1"""),
    Row("the link to the server is down for a second", routers="back", middle="""
        relay: ip link set tos down
        go
        pause 1
        relay: ip link set tos up
        ip46 addr replace 10.0.4.1/24 dev tos
        ip46 route replace 10.0.2.0/24 via 10.0.4.2"""),
    Row("the server's end of the link is down for a second", routers="back", middle="""
        back: ip link set b0 down
        go
        pause 1
        back: ip link set b0 up
        ip46 addr replace 10.0.4.2/24 dev b0"""),
    Row("the link to the client is down for a second", middle="""
        relay: ip link set toc down
        go
        pause 1
        relay: ip link set toc up
        ip46 addr replace 10.0.1.2/24 dev toc"""),
    Row("the device to the server is made anew", routers="back", middle=ANEW),
    Row("the device is made anew, with a default route elsewhere", routers="back", middle=ANEW,
        setup="relay: ip46 route add default via 10.0.1.1", udp_ends="any"),
    Row("the device is made anew, with the same number", routers="back", middle="""
        relay: n=$(ip -o link show tos | cut -d: -f1)
        ip link del tos
        ip link add tos index $n type veth peer name b0 netns back
        ip link set tos up
        ip -n back link set b0 up
        ip46 addr add 10.0.4.1/24 dev tos
        back: ip46 addr add 10.0.4.2/24 dev b0
        relay: ip46 route replace 10.0.2.0/24 via 10.0.4.2
        go
        pause 2""", ends="whole kernel:whole|reset"),  # young: without sockets
    Row("the route moves to another device", routers="back back2", middle=MOVE, quick=True),
    Row("the route to the client moves to another device", routers="front front2", middle=TO_TOC2),
    Row("the route moves before the first byte", routers="back back2", at="idle",
        middle=MOVE + "\n pause 0.5"),
    Row("the route to the client moves before the first byte", routers="front front2",
        middle=TO_TOC2 + "\n pause 0.5", at="idle"),
    Row("the route moves beside much other news", routers="back back2", meanwhile="news 5",
        middle=MOVE),
    Row("the link goes, and the route moves", routers="back back2", middle=f"""
        relay: ip link set tos down
        {TO_ALT}"""),
    Row("the next hop gets another link address", routers="back", middle="""
        back: ip link set b0 down
        pause 1.5
        back: ip link set b0 address 02:00:00:00:00:77
        ip link set b0 up
        ip46 addr replace 10.0.4.2/24 dev b0"""),

    # apart: each datagram makes the kernel try the dead hop again, and others then take it for good
    *(Row(name, BOTH_WAYS + MORTAL + "back: ip46 route replace 10.0.9.1/32 via 10.0.5.1",
          routers="back back2", wait=60, middle=DEAD.format("back", "b0") + "\n go\n pause 12",
          again=False, **of)
      for name, of in (("a next hop to the server dies without news", {"udp": "-", "quick": True}),
                       ("the same, for datagrams", {"speakers": ""}))),
    Row("a next hop to the client dies without news", f"""
        relay: ip46 addr add 10.0.9.2/32 dev lo
        for f in 4 6; do echo 1 >/proc/sys/net/ipv$f/fib_multipath_hash_policy; done
        ip46 route replace 10.0.1.0/24 nexthop via 10.0.3.1 nexthop via 10.0.6.1
        front: ip46 route add 10.0.9.2/32 via 10.0.6.2
        {MORTAL}""", routers="front front2", wait=60, dial="10.0.9.2", udp="-", again=False,
        families="4 6", speakers="client greets",
        middle=DEAD.format("front", "f1") + "\n go\n pause 12"),

    Row("the route moves to a tunnel without an address", middle=f"""
        tun server
        relay: ip link set tun-relay txqueuelen 10000 up
        server: ip link set tun-server txqueuelen 10000 up
        relay: ip46 route add 10.0.2.2/32 dev tun-relay src 10.0.2.1
        server: ip46 route add 10.0.2.1/32 dev tun-server
        server nft: {chain("prerouting", f"iifname s0 {PORTS} drop")}
        go
        pause 2
        """, wait=15),
    Row("the way is silent, again and again", routers="front back", sizes=(300000, 200, 150000),
        pace=0, wait=40, udp="-", families="4 6", speakers="client greets", middle="""
        go
        back: nft add table inet s; nft add chain inet s f "{ type filter hook forward priority 0; }"
        for i in 1 2 3 4; do
            sleep 1; nft add rule inet s f oifname b1 drop
            sleep 1; nft add rule inet s f iifname b1 drop; nft list ruleset >/dev/null
            sleep .8; nft flush chain inet s f
            sleep 1; nft add rule inet s f iifname b1 drop
            sleep 1; nft flush chain inet s f
        done"""),
    # alone, who speaks first is young then: a session from the SYN on has no sockets yet
    *(Row(f"{what} forbids packets to the {end}", speakers=speakers, middle=f"""
        relay: ip46 {what.replace('rule', 'rule add prohibit')} {address}
        go
        pause 4
        quiet {device} 1.5
        relay: ip46 {what.replace('rule', 'rule del prohibit').replace('add', 'del')} {address}
        """, wait=25, udp="-")
      for what, end, address, device, speakers in (
          ("rule", "client", "to 10.0.1.1/32", "toc", Row.speakers),
          ("route add blackhole", "client", "10.0.1.1/32", "toc", "client"),
          ("route add unreachable", "server", "10.0.2.2/32", "tos", Row.speakers))),

    # --- packets that are too big ---
    Row("the MTU of the link to the server shrinks", plain=True, **EVERY, quick=True, middle="""
        relay: ip link set tos mtu 1300
        server: ip link set s0 mtu 1300""", told=True),
    Row("the MTU of the link to the client shrinks", plain=True, **EVERY, middle="""
        relay: ip link set toc mtu 1300
        client: ip link set c0 mtu 1300"""),
    Row("the MTU of the route to the server shrinks", plain=True, **EVERY, middle="""
        server: ip link set s0 mtu 1300
        relay: ip route change 10.0.2.0/24 dev tos src 10.0.2.1 mtu lock 1300
        ip -6 route replace fd00:2::/64 dev tos metric 256 mtu lock 1300""", told=True),
    Row("the route moves to a link with a smaller MTU", plain=True, routers="back back2",
        **EVERY, middle="""
        relay: ip link set alt mtu 1300
        back: ip link set b2 mtu 1300
        """ + MOVE, told=True),
    Row("a router behind has a smaller MTU", SMALL_BACK, plain=True, routers="back", **EVERY),
    Row("a router in front has a smaller MTU", SMALL_FRONT, plain=True, routers="front", **EVERY),
    Row("the MTU of a router behind shrinks", plain=True, routers="back", **EVERY,
        middle=SMALL_BACK, quick=True, told=True),
    Row("the MTU of a router in front shrinks", plain=True, routers="front", **EVERY,
        middle=SMALL_FRONT),
    Row("the MTU of a router shrinks after a return", plain=True, routers="front back",
        families=ALL, graft="returned 46:any", middle=f"""
        go
        engine copy
        {SMALL_BACK}
        {SMALL_FRONT}"""),
    Row("an ICMP black hole, and the relay probes", SMALL_BACK + f"""
        back nft: {chain("output", BLACK_HOLE)}
        relay: echo 1 >/proc/sys/net/ipv4/tcp_mtu_probing""", plain=True, routers="back",
        graft="returned kernel:any", wait=25, sizes=(200, 30000), udp="-"),
    Row("fragments from a client without DF", """
        client: echo 1 >/proc/sys/net/ipv4/ip_no_pmtu_disc
        front: ip route change 10.0.3.0/24 dev f1 mtu lock 1300""", plain=True, routers="front",
        families="4 46", graft="any", quick=True),
    Row("fragments from a server without DF", """
        server: echo 1 >/proc/sys/net/ipv4/ip_no_pmtu_disc
        back: ip route change 10.0.4.0/24 dev b0 mtu lock 1300""", plain=True, routers="back",
        families="4 64", graft="any"),
    Row("fragments in the middle", """
        client: echo 1 >/proc/sys/net/ipv4/ip_no_pmtu_disc""", plain=True, routers="front",
        families="4 46", graft="grafted 46:any",
        middle="front: ip route change 10.0.3.0/24 dev f1 mtu lock 1300"),

    # --- headers ---
    Row("IP options of the client: NOPs", sockopts=NOPS, families="4 46", graft="any"),
    Row("IP options of the client: record route", sockopts=RECORD_ROUTE, families="4", graft="any"),
    Row("IP options come in the middle", sockopts=NOPS, late_sockopts=True, families="4",
        middle="pause 0"),
    *(Row(f"IPv6 {what} options{when}", sockopts=options, families="6 64", **of)
      for what, options in (("hop-by-hop", HOP_BY_HOP), ("destination", DESTINATION))
      for when, of in (("", {"graft": "any"}),
                       (" come in the middle", {"late_sockopts": True, "middle": "pause 0"}))),
    Row("TTL 1 of the client", sockopts=ttl(1), routers="back", quick=True),
    Row("TTL 2 of the client", sockopts=ttl(2), routers="front back"),
    Row("TTL 1 of the client comes in the middle", sockopts=ttl(1), routers="back",
        late_sockopts=True, middle="pause 0"),
    Row("BIG TCP", """
        ?client: ip link set c0 gso_max_size 180000 gro_max_size 180000
        relay: for d in toc tos; do ip link set $d gso_max_size 180000 gro_max_size 180000; done
        server: ip link set s0 gso_max_size 180000 gro_max_size 180000""", families="6 64",
        speakers="client greets", sizes=(200, 20000000, 200), udp="-"),
    Row("BIG TCP at the client alone", """
        ?client: ip link set c0 gso_max_size 180000 gro_max_size 180000
        relay: ip link set toc gso_max_size 180000 gro_max_size 180000""", families="6 64",
        speakers="client greets", sizes=(200, 20000000, 200), udp="-"),

    Row("packets with bit errors", CABLE + "noise f0 f1 4", plain=True, routers="front",
        dial="10.0.1.2", middle="go\n pause 6", pace=0.01, wait=30, udp="-",
        sizes=(200, 30000, 1)),

    # --- windows ---
    small_window("a slow reader with a small window", 8000),
    small_window("a slow reader with a very small window", 2300, graft="refused kernel:any",
                 why="small window"),

    # --- ports that are used again ---
    ports_again("client-fin", few=False, batches=0),
    ports_again("server-fin"),
    ports_again("client-rst"),
    ports_again("server-rst"),
    ports_again("idle", "--idle-timeout", "1"),
    ports_again("kill", quick=True),
    ports_again("copy"),
    Row("a port used again after SIGKILL", middle="sigkill\n start", last="fin",
        ends="whole copy:reset|eof", udp="-"),
    Row("a port used again after a return", middle="go\n engine copy\n engine default", last="fin",
        graft="grafted", udp="-"),

    # --- filters and shapers ---
    Row("a bridge with br_netfilter", f"""
        relay: echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
        echo 1 >/proc/sys/net/bridge/bridge-nf-call-ip6tables
        {BRIDGE.format("toc", "1.2/24")}
        relay nft: {chain("prerouting", "ct state invalid drop")}""", udp="any"),
    Row("servers are containers, and netfilter sees bridges", CONTAINERS),
    Row("servers are containers, and a return", CONTAINERS, graft="returned",
        middle="go\n engine copy", lost="0"),
    Row("the port of the servers' bridge leaves, and comes back", CONTAINERS, middle="""
        relay: ip link set tos nomaster
        ip link set tos master br0
        go
        pause 1"""),
    Row("an ingress shaper behind", IFB + SHAPED.format("toc"), families="4", speakers="client",
        graft="any", sizes=(2000000,), at_least=0.7),
    Row("an ingress policer", """
        relay: tc qdisc add dev toc ingress
        ?relay: tc filter add dev toc ingress protocol ip u32 match u32 0 0 \\
            police rate 16mbit burst 100k drop
        """, families="4", speakers="client", graft="any", sizes=(2000000,), at_least=0.7),
    Row("an ingress shaper comes in the middle", IFB,
        middle=SHAPED.format("toc") + "\n go\n pause 2", families="4",
        speakers="client", sizes=(2000000,), at_least=0.7),
    Row("an egress shaper", """
        ?relay: tc qdisc add dev tos root tbf rate 16mbit burst 32k latency 100ms""",
        families="4", speakers="client", graft="any", sizes=(2000000,), at_least=0.7),
    Row("a strict firewall on the relay", STRICT_RELAY),
    # conntrack has not seen the handshake of a session that began in the kernel
    Row("a strict firewall on the relay, and a return", STRICT_RELAY, graft="returned kernel:any",
        middle="go\n engine copy", ends="whole kernel:timeout", lost="0"),
    Row("a firewall that is strict with lo, too", f"""
        relay nft: {chain("input", STRICT, policy="drop")}
        {chain("output", STRICT, policy="drop")}""", graft="any", families="4"),
    Row("strict firewalls on both sides", f"""
        front nft: {chain("forward", STRICT, policy="drop")}
        back nft: {chain("forward", STRICT, policy="drop")}
        """, routers="front back", middle="go\n engine copy", graft="returned", lost="0"),

    # --- ways in and out ---
    Row("clients come in by an interface without an address", """
        relay: ip addr flush dev toc
        ip route add 10.0.1.0/24 via 10.0.6.1
        ip addr add 10.0.9.2/32 dev lo
        front: ip addr flush dev f1
        ip route add 10.0.9.2/32 dev f1""", routers="front front2", dial="10.0.9.2", families="4",
        graft="any"),
    Row("clients come in by one interface, answers leave by another", """
        relay: ip46 addr add 10.0.9.2/32 dev lo
        ip46 route replace 10.0.1.0/24 via 10.0.6.1
        front: ip46 route add 10.0.9.2/32 via 10.0.3.2""", routers="front front2",
        dial="10.0.9.2", graft="any"),
    Row("clients move to another interface", """
        relay: ip46 addr add 10.0.9.2/32 dev lo
        front: ip46 route add 10.0.9.2/32 via 10.0.3.2""", routers="front front2",
        dial="10.0.9.2", lost="0",
        middle="front: ip46 route replace 10.0.9.2/32 via 10.0.6.2\n go\n pause 0.5"),
    Row("clients move to an interface without an address", """
        relay: ip addr flush dev toc2
        ip addr add 10.0.9.2/32 dev lo
        front: ip addr flush dev f2
        ip route add 10.0.9.2/32 via 10.0.3.2""", routers="front front2", dial="10.0.9.2",
        families="4 46", graft="grafted 46:any", middle="""
        front: ip route replace 10.0.9.2/32 dev f2 src 10.0.3.1
        go
        pause 2"""),
    Row("somebody detaches the programs", "?relay: bpftool version", middle="""
        relay: for l in /sys/fs/bpf/culvert/*/link_*; do
            [ ! -e $l ] || bpftool link detach pinned $l; done
        go
        pause 2""", ends="whole kernel:whole|reset"),  # as above
    Row("priority tags (VID 0) in front", CABLE + "tag f0 f1", plain=True, routers="front",
        dial="10.0.1.2", graft="any"),

    # --- devices ---
    Row("a bridge", "relay: echo 0 >/proc/sys/net/bridge/bridge-nf-call-iptables\n"
        "echo 0 >/proc/sys/net/bridge/bridge-nf-call-ip6tables" + BRIDGE.format("toc", "1.2/24")),
    Row("a bond", """
        ?relay: ip link add bond0 type bond mode active-backup
        relay: ip46 addr flush dev toc
        ip link set toc down
        ip link set toc master bond0
        ip link set bond0 up
        ip46 addr add 10.0.1.2/24 dev bond0"""),
    Row("macvlan", """
        relay: ip46 addr flush dev tos
        ?relay: ip link add mv0 link tos type macvlan mode bridge
        relay: ip link set mv0 up
        ip46 addr add 10.0.2.1/24 dev mv0"""),
    Row("ipvlan", """
        relay: ip46 addr flush dev tos
        ?relay: ip link add iv0 link tos type ipvlan mode l2
        relay: ip link set iv0 up
        ip46 addr add 10.0.2.1/24 dev iv0"""),
    Row("vlan", "".join(f"""
        ?{namespace}: ip link add link {device} name v7 type vlan id 7
        {namespace}: ip link set v7 up
        ip46 addr add 10.0.7.{number}/24 dev v7
        """ for namespace, device, number in (("relay", "tos", 1), ("server", "s0", 2))),
        upstream="10.0.7.2"),
    Row("vxlan", "".join(f"""
        ?{namespace}: ip link add vx0 type vxlan id 7 dstport 4789 \\
            local 10.0.2.{number} remote 10.0.2.{3 - number}
        {namespace}: ip link set vx0 up
        ip46 addr add 10.0.7.{number}/24 dev vx0
        """ for namespace, number in (("relay", 1), ("server", 2))), upstream="10.0.7.2",
        lost="any"),
    Row("VRF", """
        ?relay: ip link add vrf0 type vrf table 10
        relay: ip link set vrf0 up
        ip link set tos master vrf0
        ip46 addr replace 10.0.2.1/24 dev tos""", options=("--interface", "vrf0"), graft="any"),
    Row("tun", """
        tun
        relay: ip46 addr add 10.0.8.2/24 dev tun-relay
        ip link set tun-relay txqueuelen 10000 up
        client: ip46 addr add 10.0.8.1/24 dev tun-client
        ip link set tun-client txqueuelen 10000 up""", dial="10.0.8.2"),
    Row("one arm", """
        server: ip link del s0
        front: ip link add hub type bridge
        ip link set hub up
        cable front f8 server s0
        front: ip46 addr flush dev f0
        ip46 addr flush dev f1
        for d in f0 f1 f8; do ip link set $d master hub; done
        relay: ip46 addr flush dev toc
        ip46 addr add 10.0.1.2/24 dev toc
        ip46 addr add 10.0.2.1/24 dev toc
        server: ip46 addr add 10.0.2.2/24 dev s0""", routers="front", dial="10.0.1.2"),
    Row("link-local addresses", """
        client: ip addr add fe80::11/64 dev c0 nodad
        relay: ip addr add fe80::12/64 dev toc nodad
        ip addr add fe80::13/64 dev tos nodad
        server: ip addr add fe80::14/64 dev s0 nodad""", dial="fe80::12%c0",
        upstream="fe80::14%tos", families="6", graft="any"),
    Row("the upstream is on the relay", upstream="127.0.0.1", server_in="relay", graft="any"),
    Row("client and upstream are on the relay", upstream="127.0.0.1", server_in="relay",
        client_in="relay", dial="127.0.0.1", graft="grafted 64:any"),
    Row("client and upstream are on the relay, with keepalive", upstream="127.0.0.1",
        server_in="relay", client_in="relay", dial="127.0.0.1", graft="grafted 64:any",
        options=("--keepalive", "1"), speakers="client", middle="relay: sleep 8", udp="-"),
    Row("the client is on the relay", client_in="relay", graft="any"),

    Row("sockets are in the sockmap of another program", "accelerate", graft="refused",
        why="in another sockmap", options=("--probe", "no"), families="4", udp="-"),

    # --- IPsec and routes with encapsulation ---
    ipsec("an IPsec policy towards the server comes", 2, "tos", ESP),
    ipsec("an IPsec policy towards the client comes", 1, "toc", ESP),
    ipsec("a policy that blocks the server comes", 2, "tos", "action block"),
    ipsec("a policy that blocks the client comes", 1, "toc", "action block"),
    Row("an IPsec policy towards the server", policy(2, "add", ESP), meanwhile="quiet tos 2",
        graft="refused", udp="half", families="4 6", ends="reset|eof", udp_ends="timeout",
        wait=8),
    Row("an IPsec policy towards the client", policy(1, "add", ESP), meanwhile="quiet toc 2",
        graft="refused", udp="any", families="4 6", ends="timeout", udp_ends="timeout", wait=2),
    Row("an optional IPsec policy", policy(2, "add", ESP + " level use"), graft="any",
        families="4 6"),
    Row("a route with encapsulation: seg6", f"""
        ?relay: ip -6 route replace fd00:2::/64 encap {SEG6} dev tos mtu 1300
        {TAKE_SEG6}""", routers="back", families="6",
        graft="refused", udp="half", big=()),
    Row("a route with encapsulation: IPv4 in seg6", f"""
        ?relay: ip route replace 10.0.2.0/24 encap {SEG6} dev tos mtu 1300
        {TAKE_SEG6}""", routers="back", families="4 64",
        graft="refused", udp="half", big=()),
    Row("a route with encapsulation: vxlan", "".join(f"""
        ?{namespace}: ip link add vx0 type vxlan external dstport 4789
        {namespace}: ip link set vx0 address 02:00:00:00:00:0{number} up
        ip addr add 10.0.7.{number}/24 dev vx0
        ip neigh add 10.0.7.{3 - number} lladdr 02:00:00:00:00:0{3 - number} dev vx0
        ip route replace 10.0.7.{3 - number}/32 encap ip id 7 dst 10.0.2.{3 - number} dev vx0
        """ for namespace, number in (("relay", 1), ("server", 2))), upstream="10.0.7.2",
        families="4 64", graft="refused", udp="half", lost="any"),
    Row("an encapsulation comes in the middle", TAKE_SEG6, middle=f"""
        ?relay: ip -6 route replace fd00:2::/64 encap {SEG6} dev tos
        """, routers="back", families="6", big=()),

    # --- forwards ---
    Row("transparent", TPROXY, options=("--transparent", "yes"), families="4 6", seen="10.0.1.1",
        middle=NEWS, lost="0"),
    Row("source", "relay: ip46 addr add 10.0.2.7/24 dev tos", options=("--source", "10.0.2.7"),
        families="4 64", seen="10.0.2.7", middle=NEWS, lost="0"),
    Row("mark", options=("--mark", "7"), middle=NEWS, lost="0"),
    Row("interface", options=("--interface", "tos"), middle=NEWS, graft="any", lost="0"),

    # --- daemons ---
    Row("SIGKILL and a start", middle="sigkill\n go\n pause 0.5\n start",
        ends="whole copy:reset|eof", quick=True),
    Row("SIGKILL while datagrams flow", middle=END.format("sigkill"), speakers="", families=ALL,
        lost="any auto:0"),
    Row("a stop while datagrams flow", middle=END.format("sigterm"), speakers="", families=ALL,
        lost="any auto:0", quick=True, options=("--workers", "2")),
    Row("SIGKILL after news, of flows that have been silent since", speakers="", quick=True,
        middle=NEWS + "pause 1.5\n sigkill\n go\n pause 0.5\n start", lost="any auto:0"),
    Row("SIGKILL, and the route moves before the start", speakers="", routers="back back2",
        middle=f"sigkill\n {MOVE}\n go\n pause 0.5\n start"),
    Row("SIGKILL, and the route to the client moves before the start", speakers="",
        routers="front front2", middle=f"sigkill\n {TO_TOC2} go\n pause 0.5\n start"),
    Row("without a BPF file system", bpf=False, middle="sigkill\n start",
        ends="whole copy:reset|eof"),
    Row("a start as the account between two as root",
        middle="sigkill\n start_as_account\n sigkill\n start", ends="whole copy:reset|eof"),
    Row("one pinned map is missing", middle="""
        sigkill
        relay: rm /sys/fs/bpf/culvert/*/tuples || true
        start""", ends="whole|reset|eof"),
    Row("a client whose link is gone", middle="client: ip link set c0 down\n gone 20",
        **GONE),
    Row("a client that is silent", middle=f"{SILENT}\n gone 20", **GONE),
    Row("a server that is silent, and owes an answer", **GONE,
        middle=f"go\n pause 0.3\n server nft: {chain('output', 'drop')}\n gone 20"),
    Row("a client that is silent after a start", **GONE,
        middle=f"sigkill\n start\n {SILENT}\n gone 20"),
    Row("a firewall that forgets who is silent for 4 s, and keepalive", f"""
        front nft: {chain("forward", STRICT, policy="drop")}
        front: cd /proc/sys/net/netfilter
        echo 0 >nf_conntrack_tcp_loose; echo 4 >nf_conntrack_tcp_timeout_established
        """, routers="front", options=("--keepalive", "3"), middle="pause 13"),
    Row("a time namespace, and idle-timeout", before=("unshare", "-T", "--monotonic", "1000000"),
        options=("--idle-timeout", "3"), middle="go\n pause 5"),
    Row("two daemons with the same names", routers="back", control="control",
        middle="second_daemon", lost="0"),
)
