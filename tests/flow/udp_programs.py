# SPDX-License-Identifier: BSD-2-Clause
"""Datagrams of programs that know nothing of culvert, on `--engine auto` and on `--engine copy`.

    dig, dnsperf, iperf3, gtlsclient, wireguard-go  -->  culvert  -->  nsd, iperf3, gtlsserver, ...

TCP is forwarded on the same ports where the programs use it beside UDP.
"""

import json
import os
import re
import subprocess

import pytest
from labkit import (IPERF_PORT, RELAY, SERVER, SLOW, Daemon, expect, sha256_of_file, wait_until,
                    write_random)

pytestmark = pytest.mark.needs("ip", "dig", "dnsperf", "nsd", "iperf3", "gtlsclient", "gtlsserver",
                               "wireguard-go", "wg", "openssl", packages="demo", ipv6=True)
ENGINES = "auto", "copy"
QUIC_PORT, WG_PORT = 4433, 51820
NAMES = 200
NSD_CONF = """
server:
    ip-address: {server}
    ip-address: fd00:2::2
    username: ""
    zonesdir: "{home}"
    database: ""
    pidfile: "{home}/nsd.pid"
    logfile: "{home}/nsd.log"
    xfrdfile: "{home}/xfrd"
    zonelistfile: "{home}/zones"
    xfrdir: "{home}"
    rrl-ratelimit: 0
    ipv4-edns-size: 4096
    ipv6-edns-size: 4096
remote-control:
    control-enable: no
zone:
    name: lab
    zonefile: lab.zone
"""
ZONE = """$ORIGIN lab.
$TTL 60
@ SOA ns.lab. root.lab. 1 60 60 60 60
@ NS ns
ns A 10.0.2.2
big TXT {big}
{names}
"""
# name: where it listens, and where it leads to
FORWARDS = {
    "dns": (f"{RELAY}:53/udp", f"{SERVER}:53"), "dns-tcp": (f"{RELAY}:53", f"{SERVER}:53"),
    "dns6": ("[fd00:1::2]:53/udp", "[fd00:2::2]:53"),
    "dns64": ("[fd00:1::2]:54/udp", f"{SERVER}:53"),
    "iperf": (f"{RELAY}:5300/udp", f"{SERVER}:{IPERF_PORT}"),
    "iperf-tcp": (f"{RELAY}:5300", f"{SERVER}:{IPERF_PORT}"),
    "quic": (f"{RELAY}:{QUIC_PORT}/udp", f"{SERVER}:{QUIC_PORT}"),
    "wg": (f"{RELAY}:{WG_PORT}/udp", f"{SERVER}:{WG_PORT}"),
}


class Site:
    """The lab with its servers, the same for both engines."""

    def __init__(self, lab):
        self.lab = lab
        lab.write("nsd.conf", NSD_CONF.format(server=SERVER, home=lab.home))
        big = " ".join(f'"{"x" * 200}"' for _ in range(15))
        lab.write("lab.zone", ZONE.format(big=big, names="\n".join(
            f"n{n} A 10.1.0.{n}" for n in range(NAMES))))
        lab.write("queries", "".join(f"n{n}.lab A\n" for n in range(NAMES)))
        self.start(53, "nsd", "-d", "-c", lab.path("nsd.conf"))
        lab.start_iperf3()
        os.mkdir(lab.path("quic"))
        self.digest = write_random(lab.path("quic/file"), 64 << 20)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
                        "/CN=lab", "-keyout", lab.path("key"), "-out", lab.path("cert")],
                       check=True, stderr=subprocess.DEVNULL)
        self.start(QUIC_PORT, "gtlsserver", "-q", "-d", lab.path("quic"), SERVER, str(QUIC_PORT),
                   lab.path("key"), lab.path("cert"))
        if os.path.exists("/dev/net/tun"):
            self.start_wireguard()

    def start(self, port, *command):
        self.lab.start_server("server", port, *command, protocol="udp")

    def start_wireguard(self):
        keys = {}
        for end in "client", "server":
            secret = subprocess.run(["wg", "genkey"], stdout=subprocess.PIPE, check=True).stdout
            with open(self.lab.path(f"{end}.key"), "wb") as file:
                file.write(secret)
            keys[end] = subprocess.run(["wg", "pubkey"], input=secret, stdout=subprocess.PIPE,
                                       check=True).stdout.decode().strip()
        for end, other, address in ("server", "client", 2), ("client", "server", 1):
            name = f"{self.lab.name[-8:]}{end[0]}"
            self.lab.start(end, "wireguard-go", "-f", name)
            wait_until(lambda n=name: os.path.exists(f"/var/run/wireguard/{n}.sock"), name)
            way = ("listen-port", str(WG_PORT)) if end == "server" else ()
            to = ("endpoint", f"{RELAY}:{WG_PORT}") if end == "client" else ()
            self.lab.run(end, "wg", "set", name, *way, "private-key", self.lab.path(f"{end}.key"),
                         "peer", keys[other], "allowed-ips", "10.66.0.0/24", *to)
            self.lab.run(end, "ip", "address", "add", f"10.66.0.{address}/24", "dev", name)
            self.lab.run(end, "ip", "link", "set", name, "up")


class Trial:
    """One engine."""

    def __init__(self, site, program, engine):
        self.site, self.lab, self.engine = site, site.lab, engine
        self.daemon = Daemon(self.lab, program, engine, (), "--config", self.lab.write(
            "culvert.conf", "".join(f"[forward {name}]\nlisten = {listen}\nupstream = {upstream}\n"
                                    for name, (listen, upstream) in FORWARDS.items())))

    def output(self, *command):
        return self.lab.run("client", *command)

    def wait_carried(self, forward):
        """The busiest session of FORWARD comes to the carrier that the engine means."""
        wanted = "graft" if self.engine == "auto" else "copy"

        def is_carried():
            return any(s["forward"] == forward and s["protocol"] == "udp" and
                       all(flow["carrier"] == wanted for flow in s["flows"])
                       for s in self.daemon.ask("sessions")["sessions"])

        wait_until(is_carried, f"a session of {forward} by {wanted}", 5)

    def overrun(self):
        """Datagrams that found no room at an end, on a machine with no time for iperf3."""
        return sum(json.loads(self.lab.run(end, "nstat", "-aszj", "UdpRcvbufErrors"))["kernel"]
                   ["UdpRcvbufErrors"] for end in ("client", "server"))

    def iperf3(self, *options):
        before = self.overrun()
        client = self.lab.start_iperf3_client(RELAY, 5300, 2, "--udp", "--bitrate", "40M",
                                              *options)
        self.wait_carried("iperf")
        report = self.lab.finish_iperf3_client(client, 30 * SLOW)["sum"]
        lost = report["lost_packets"] - (self.overrun() - before)
        expect(report["packets"] > 2000 and lost < report["packets"] / 100,
               f"iperf3: {report}, {lost} lost on the way")


@pytest.fixture(scope="module")
def site(lab):
    return Site(lab)


@pytest.fixture(scope="module")
def trial(site, culvert, engine):
    one = Trial(site, culvert, engine)
    yield one
    one.daemon.stop()


def test_dig(trial):
    for where in (f"@{RELAY}",), ("@fd00:1::2",), ("@fd00:1::2", "-p", "54"):
        text = trial.output("dig", *where, "+tries=1", "+short", "n7.lab", "A")
        expect(text.strip() == "10.1.0.7", f"dig {where}: {text}")
    text = trial.output("dig", f"@{RELAY}", "+tries=1", "+bufsize=4096", "big.lab", "TXT")
    expect("x" * 200 in text and "(UDP)" in text and "FORMERR" not in text, f"big: {text}")
    text = trial.output("dig", f"@{RELAY}", "+tries=1", "+bufsize=512", "big.lab", "TXT")
    expect("x" * 200 in text and "(TCP)" in text, f"big by TCP: {text}")


def test_dnsperf(trial):
    text = trial.output("dnsperf", "-s", RELAY, "-p", "53", "-d", trial.lab.path("queries"),
                        "-l", "2", "-c", "32", "-T", "1", "-q", "64", "-t", "2")
    sent, lost = (int(re.search(f"Queries {word}: +(\\d+)", text)[1])
                  for word in ("completed", "lost"))
    print(f"# {re.search('Queries per second: +(.*)', text)[1]} queries a second")
    expect(sent > 1000 and not lost and "NOERROR %d (100.00%%)" % sent in text, text)


def test_iperf3(trial):
    trial.iperf3()


def test_iperf3_reverse(trial):
    trial.iperf3("--reverse")


def test_quic(trial):
    folder = trial.lab.path(f"{trial.engine}.quic")
    os.mkdir(folder)
    client = trial.lab.start("client", "gtlsclient", "-q", "--exit-on-all-streams-close",
                             "--download", folder, RELAY, str(QUIC_PORT), "https://lab/file")
    trial.wait_carried("quic")  # not afterwards: datagrams to a client that is gone end the graft
    trial.lab.finish(client, 30 * SLOW)
    expect(sha256_of_file(os.path.join(folder, "file")) == trial.site.digest,
           "what came by QUIC has another sha256")


def test_wireguard(trial):
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun")
    for options in (), ("--reverse",):
        client = trial.lab.start_iperf3_client("10.66.0.2", IPERF_PORT, 2, *options)
        trial.wait_carried("wg")
        report = trial.lab.finish_iperf3_client(client, 30 * SLOW)["sum_received"]
        expect(report["bytes"] > 1 << 20, f"iperf3 through WireGuard: {report}")


def test_the_end(trial):
    expect(trial.daemon.stop() == 0, "the daemon did not stop in order")
