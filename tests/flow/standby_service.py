# SPDX-License-Identifier: BSD-2-Clause
"""The pair of docs/operations.md, as it says: Debian's keepalived and sshd, a key with a forced command.

The addresses are moved by keepalived (docs/examples/keepalived.conf), records by the command of
scripts/culvert-standby@.service. The relay with the addresses loses power, or its keepalived is
stopped; sessions go on.
"""

import os
import re
import subprocess
import time

import pytest
from labkit import TOP, Lab, expect, wait_until
from standby_rig import CLIENT_SIDE, OWN, RELAYS, SERVER_SIDE, Pair

pytestmark = pytest.mark.needs("ip", "nsenter", "keepalived", "ssh", "ssh-keygen", "sshd",
                               ipv6=True)


class Kept(Pair):
    """Relays that keepalived moves addresses between, by the file of the example."""

    tracked = True  # culvert, by the example's script

    def __init__(self, lab, program):
        super().__init__(lab, program)
        self.keepalived = {}

    def start_keepalived(self, relay):
        with open(os.path.join(TOP, "docs/examples/keepalived.conf"), encoding="ascii") as file:
            text = file.read()
        changes = [("eth0", "to-client"), ("eth1", "to-server"), ("enable_script_security", ""),
                   ("192.0.2.80/24", f"{CLIENT_SIDE[0]}/24 dev to-client\n"
                                     f"        {SERVER_SIDE[0]}/24 dev to-server")]
        if self.tracked:
            changes += [("/usr/local/sbin/culvert status",
                         f"{self.program} status --control {self.relays[relay].control}")]
        else:
            text = re.sub(r"vrrp_script culvert \{.*?\n\}", "", text, flags=re.S)
            changes += [("script_user root", ""),
                        ("    track_script {\n        culvert\n    }\n", "")]
        for old, new in changes:
            expect(text.count(old) == 1, f"the example does not have one {old}")
            text = text.replace(old, new)
        home = self.lab.path(f"keepalived-{relay}.{time.monotonic_ns()}")  # one that was killed has its own
        self.keepalived[relay] = self.lab.start(
            relay, "keepalived", "--dont-fork", "--log-console", "--no-syslog", "--vrrp",
            "--use-file", self.lab.write(f"keepalived-{relay}.conf", text), "--pid", f"{home}.pid",
            "--vrrp_pid", f"{home}.vrrp")
        self.wait_backup(relay, 1)

    def wait_backup(self, relay, times):
        """Until RELAY has become a backup as often as TIMES."""
        def has_become():
            with open(self.keepalived[relay].log, encoding="utf-8") as file:
                return file.read().count("Entering BACKUP STATE") >= times

        wait_until(has_become, f"keepalived of {relay} to be a backup", 30)

    def holds(self, relay):
        return all(address in self.ip(relay, "address", "show", "dev", dev) for address, dev in
                   ((CLIENT_SIDE[0], "to-client"), (SERVER_SIDE[0], "to-server")))

    def holder(self):
        """The relay that has the addresses, if one alone has."""
        found = [relay for relay in RELAYS if self.holds(relay)]
        return found[0] if len(found) == 1 else None

    def take(self, relay):
        """Nobody but keepalived does."""


class Service(Kept):
    """And ssh leads from and to them."""

    tracked = False

    def link(self, to, after="0.5"):
        """The unit of TO: its command, with this lab's names for what it runs."""
        home, other = self.lab.path(f"ssh-{to}"), self.other(to)
        with open(os.path.join(TOP, "scripts/culvert-standby@.service"), encoding="ascii") as file:
            command = re.search(r"^ExecStart=/bin/sh -c '(.*)' sh %i$", file.read(), re.M).group(1)
        ssh = (f"ssh -F none -i {home}/key -o UserKnownHostsFile={home}/known "
               f"-o StrictHostKeyChecking=accept-new -p 2222")
        for old, new in (("ssh ", ssh + " "), ("/usr/local/sbin/culvert", self.program),
                         ("import ", f"import --control {self.relays[to].control} ")):
            expect(command.count(old) == 1, f"the unit does not have one {old}")
            command = command.replace(old, new)
        self.links[to] = self.lab.start(
            to, "sh", "-c", f"while :; do sh -c '{command}' sh root@{OWN[other][0]}; sleep 1; done")
        self.wait_synced(to)

    def start_sshd(self, relay):
        """With the key of the other relay, which may export alone."""
        home, other = self.lab.path(f"sshd-{relay}"), self.lab.path(f"ssh-{self.other(relay)}")
        for folder in home, other:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        for key in f"{home}/host", f"{other}/key":
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        with open(f"{other}/key.pub", encoding="ascii") as file:
            public = file.read()
        self.lab.write(f"{home}/authorized", f'restrict,command="{self.program} export --after 0.5 '
                       f'--control {self.relays[relay].control}" {public}')
        self.lab.write(f"{home}/config", f"Port 2222\nHostKey {home}/host\nPidFile none\nUsePAM no\n"
                       f"AuthorizedKeysFile {home}/authorized\nStrictModes no\nPermitRootLogin yes\n")
        os.makedirs("/run/sshd", exist_ok=True)
        self.lab.start_server(relay, 2222, "/usr/sbin/sshd", "-D", "-e", "-f", f"{home}/config")


@pytest.fixture
def pair(culvert):
    with Lab(two_relays=True) as lab:
        yield Service(lab, culvert)


def test_pair(pair):
    pair.begin_relays()
    for relay in RELAYS:
        pair.start_sshd(relay)
        pair.start_keepalived(relay)
    old = wait_until(pair.holder, "a relay to have the addresses", 30)
    for relay in RELAYS:
        pair.link(relay)
    for fault in "keepalived stopped", "power":
        new = pair.other(old)
        talks = [pair.talk(9100, kind, n) for kind, n in
                 (("e", 10), ("i", 10), ("d", 1), ("u", 1))]
        pair.wait_mirrored(old, 22)
        began = time.monotonic()
        if fault == "power":
            pair.die(old)
        else:
            pair.lab.stop(pair.keepalived[old])
        wait_until(lambda r=new: pair.holds(r), f"{new} to have the addresses", 20)
        moved = time.monotonic() - began
        wait_until(lambda r=new: pair.sessions(r), f"sessions to come to {new}")
        pair.say(talks[1], "ask")
        gaps = [pair.finish(talk)["gap_ms"] for talk in talks]
        print(f"# {fault}: the addresses have moved after {moved:.2f} s, longest gaps of "
              f"conversations, down, up: {gaps[0]}, {gaps[2]}, {gaps[3]} ms", flush=True)
        pair.wait_empty(new)
        if fault != "power":
            pair.start_keepalived(old)
            old = new
