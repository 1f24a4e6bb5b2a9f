# SPDX-License-Identifier: BSD-2-Clause
"""Any relay of a fleet carries any session: relays die, leave, join, and are rehashed.

Each byte is compared.  The same at random: fleet_storm.py.
"""

import random
import time

import pytest
from fleet_rig import Fleet
from labkit import expect, wait_until

pytestmark = pytest.mark.needs("ip", "nsenter", packages="demo", ipv6=True)
ENGINES = ("auto",)
# Sessions of each kind: conversations, idle, down, up, half-closed; by forward.
ALL = (("web", "e", 10), ("web", "i", 10), ("web", "d", 1), ("web", "u", 1), ("web", "h", 4),
       ("six", "e", 4), ("six", "i", 4), ("mixed", "e", 2), ("clear", "e", 3), ("clear", "i", 3),
       ("clear6", "e", 2))
FLOWS = 4  # of UDP, in either family


class Trial(Fleet):
    """What the cases have in common."""

    def begin(self, kinds=ALL, flows=FLOWS):
        """All are known to all relays."""
        self.talks = [self.talk(*kind) for kind in kinds]
        self.wait_ready(self.talks)
        self.crowd = self.flows(flows, "datagrams", "datagrams6")
        self.n = sum(talk.n for talk in self.talks) + len(self.crowd)
        wait_until(lambda: self.ports() and len(self.owned()) == self.n,
                   lambda: f"{self.n} sessions: {self.sums()}")
        self.before = self.ports()
        self.wait_told(self.n)

    def ports(self):
        """Of flows of UDP, as the server sees them.  Each has an answer."""
        return [client.who(tries=20) for client in self.crowd]

    def end_all(self, lost=0):
        """As many are lost, and no relay keeps anything."""
        expect(self.ports() == self.before, f"ports at the server: {self.before}, {self.ports()}")
        for talk in self.talks:
            if "i" in talk.name.split():
                self.say(talk, "ask")
            talk.stdin.close()
        said = {talk.name: self.end_of(talk) for talk in self.talks}
        print(said, self.sums())
        expect(sum(len(did["lost"]) for did in said.values()) == lost, f"lost: {said}")
        for name in self.live():  # flows of UDP have no end
            for forward in "datagrams", "datagrams6":
                self.relays[name].command("kill", "--forward", forward)
        self.wait_empty()


@pytest.fixture(params=("3 mesh", "3 reflectors", "4 mesh", "4 reflectors"))
def trial(request, culvert, engine):
    n, way = request.param.split()
    options = getattr(request.node.get_closest_marker("fleet"), "kwargs", {})
    with Trial(culvert, int(n), 2 * (way == "reflectors"), engine=engine, **options) as the_trial:
        yield the_trial


def test_power(trial):
    """A relay dies, routes leave it later, and it comes back."""
    trial.begin()
    trial.die("a")
    time.sleep(0.3)  # what BFD takes
    trial.route(trial.live())
    expect(trial.ports() == trial.before, f"ports at the server: {trial.before}, {trial.ports()}")
    trial.wait_owned(trial.n)
    trial.come_back("a")
    trial.wait_told(trial.n)
    trial.route(trial.live())
    trial.wait_owned(trial.n)
    trial.end_all()
