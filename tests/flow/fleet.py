# SPDX-License-Identifier: BSD-2-Clause
"""Any relay of a fleet carries any session: relays die, leave, join, and are rehashed.

Each byte is compared.  The same at random: fleet_storm.py.
"""

import random
import time

import pytest
from fleet_rig import NAMES, Fleet
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
        wait_until(lambda: (self.ports(), len(self.owned()))[1] == self.n,
                   lambda: f"{self.n} sessions: {self.sums()}")
        self.before = self.ports()
        self.wait_told(self.n)

    def ports(self):
        """Of flows of UDP, as the server sees them.  Each has an answer."""
        return [client.who(tries=20) for client in self.crowd]

    def stay(self, seconds):
        """Nothing is lost in that time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            expect(all(talk.poll() is None for talk in self.talks), "clients have ended")
            time.sleep(0.1)
        lost = {talk.name: did["lost"] for talk in self.talks if (did := self.say(talk, "tell"))["lost"]}
        expect(not lost, f"lost: {lost}, {[self.why([port for port, *_ in l]) for l in lost.values()]}"
               f" {self.sums()}")

    def lost(self):
        """How many clients were reset, or wait in vain.  Idle ones say something to find out."""
        for talk in self.talks:
            if "i" in talk.name.split():
                self.say(talk, "ask")
        return sum(len(self.say(talk, "tell")["lost"]) for talk in self.talks)

    def end_all(self, lost=0):
        """As many are lost, and no relay keeps anything."""
        expect(self.ports() == self.before, f"ports at the server: {self.before}, {self.ports()}")
        for talk in self.talks:
            if "i" in talk.name.split():
                self.say(talk, "ask")
            talk.stdin.close()
        said = {talk.name: self.end_of(talk) for talk in self.talks}
        print(said, self.sums())
        ports = [port for did in said.values() for port, *_ in did["lost"]]
        expect(len(ports) == lost, f"lost: {self.why(ports)}")
        for name in self.live():  # flows of UDP have no end
            for forward in "datagrams", "datagrams6":
                self.relays[name].command("kill", "--forward", forward)
        self.wait_empty()


@pytest.fixture(params=("3 mesh", "4 reflectors"))
def trial(request, culvert, engine):
    n, way = request.param.split()
    mark = request.node.get_closest_marker("fleet")
    with Trial(culvert, int(n), 2 * (way == "reflectors"), engine=engine,
               **(mark.kwargs if mark else {})) as the_trial:
        yield the_trial


def test_power(trial):
    """A relay dies, routes leave it later, and it comes back."""
    trial.begin()
    trial.die("a")
    time.sleep(0.3)  # as long as BFD takes
    trial.route(trial.live())
    expect(trial.ports() == trial.before, f"ports at the server: {trial.before}, {trial.ports()}")
    trial.wait_owned(trial.n)
    trial.come_back("a")
    trial.wait_told(trial.n)
    trial.route(trial.live())
    trial.wait_owned(trial.n)
    trial.end_all()


def test_killed_daemon(trial):
    """Its programs go on without it, routes leave it, and sessions end elsewhere before it is back."""
    trial.begin(flows=0)
    trial.relays["c"].die()
    trial.stay(1)
    # by the first routes no relay sees both directions, and nobody lives that owns a third of these
    for way in ("a", {name: "b" for name in NAMES}), (set(trial.live()),):
        trial.route(*way)
        gone = [trial.talks.pop(0) for _ in range(2)]
        for talk in gone:
            trial.say(talk, "ask") if "i" in talk.name.split() else None
            talk.stdin.close()
        trial.n -= sum(talk.n for talk in gone)
        expect(not any(trial.end_of(talk)["lost"] for talk in gone), "lost")
        trial.wait_owned(trial.n)
    trial.relays["c"].start()
    trial.join()
    trial.route(set(trial.live()))
    trial.stay(4)
    trial.wait_owned(trial.n)
    trial.end_all()


def test_drain(trial):
    """Routes leave a relay, which keeps what it has.  They come back."""
    trial.begin()
    for live in set(trial.live()) - {"a"}, set(trial.live()):
        trial.route(live)
        trial.stay(4)
        expect(trial.ports() == trial.before,
               f"ports at the server: {trial.before}, {trial.ports()}")
    expect(not trial.adopted(), f"adopted: {trial.sums()}")
    trial.end_all()


def rehash(trial, seconds, seed):
    """Next hops at random, each two seconds: nobody adopts."""
    chance = random.Random(seed)
    trial.begin(flows=0)
    for _ in range(int(seconds / 2)):
        trial.hop(chance)
        trial.stay(2)
    expect(not trial.adopted(), f"adopted: {trial.sums()}")
    trial.route(trial.live())
    trial.end_all()


def test_rehash(trial, request):
    rehash(trial, 10, request.config.option.seed)


def test_storm(trial, request):
    """`--storm SECONDS`"""
    rehash(trial, request.config.option.storm, request.config.option.seed)


def test_apart(trial):
    """Every answer goes by another relay than the client's packets; the owner sees neither."""
    trial.begin(flows=0)
    trial.route("c", {name: "b" for name in NAMES})
    trial.stay(4)
    expect(not trial.adopted(), f"adopted: {trial.sums()}")
    trial.end_all()


def test_slow(trial):
    """The owner sees window probes of servers, and another relay the answers: sockets would get none."""
    trial.begin((("web", "s", 6), ("six", "s", 4)), 0)
    trial.route("c", {name: name for name in NAMES})
    trial.stay(12)
    trial.end_all()


@pytest.mark.fleet(lines=("graft-rtt = 1",))
def test_far(trial):
    """Bulk of a far session goes by sockets, unless packets of the session go by other relays."""
    trial.begin((("web", "g", 6), ("six", "g", 4)), 0)
    trial.route("c", {name: name for name in NAMES})
    trial.stay(2)
    for talk in trial.talks:
        trial.say(talk, "fin")
    trial.stay(4)
    did = [trial.say(talk, "tell") for talk in trial.talks]
    expect(all(talk["bytes"] >= 800_000 * n for talk, n in zip(did, (6, 4))), f"bulk: {did}")
    trial.end_all()


def test_engine(trial):
    """An order that sockets carry waits while packets go by other relays, and is taken back."""
    trial.begin((("web", "e", 10), ("six", "i", 6)), 0)
    trial.route("c", {name: name for name in NAMES})
    trial.stay(1)
    for order in "copy", "default":
        for name in trial.live():
            for forward in "web", "six":
                trial.relays[name].command("engine", forward, order)
        trial.stay(3)
    trial.route(set(trial.live()))
    trial.stay(3)
    trial.end_all()


@pytest.mark.fleet(lines=("idle-timeout = 4s", "keepalive = 2s"))
def test_times_out(trial):
    """Silent sessions end in time, working ones go on, though every packet goes by other relays."""
    trial.begin((("web", "e", 6), ("six", "e", 4), ("web", "i", 6), ("six", "i", 4)), 0)
    for turn in range(1, 5):
        trial.route(trial.live(), {name: NAMES[(NAMES.index(name) + turn) % len(trial.names)]
                                   for name in NAMES})
        time.sleep(2)
    expect(len(trial.owned()) == 10, f"owned: {trial.sums()}")
    trial.end_all(10)


@pytest.mark.fleet(lines=("keepalive = 5s",))
def test_keepalive(trial):
    """Those of a drained relay are probed, and live; what does not answer is ended."""
    trial.begin((("web", "i", 8), ("six", "i", 4), ("web", "e", 4)), 0)
    trial.route(set(trial.live()) - {"a"})
    trial.stay(18)
    trial.end_all()


@pytest.mark.fleet(late="c")
def test_join(trial):
    """A relay that boots later carries at once what it is told."""
    trial.begin()
    trial.boot("c")
    trial.join()
    trial.wait_told(trial.n)
    trial.route("c", {name: "c" for name in NAMES})
    trial.stay(3)
    expect(trial.ports() == trial.before, f"ports at the server: {trial.before}, {trial.ports()}")
    trial.end_all()


@pytest.mark.fleet(late="c")
def test_late(trial):
    """A relay that boots after another one's death is told of nothing that is over or owned."""
    trial.begin((("web", "e", 10), ("six", "i", 10)), 0)
    trial.die("a")
    trial.route(trial.live())
    trial.wait_owned(trial.n)
    trial.end_all()
    trial.boot("c")
    trial.join()
    end = time.monotonic() + 8  # longer than a relay that is not heard counts as alive
    while time.monotonic() < end:
        expect(not sum(trial.sums()["c"].values()), f"told: {trial.sums()}, {trial.left('c')}")
        time.sleep(0.1)


def test_partition(trial):
    """A relay and the others do not hear each other, while routes change: each keeps the addresses."""
    chance = random.Random(1)
    trial.begin(flows=0)
    trial.cut("a")
    for _ in range(4):
        trial.hop(chance)
        trial.stay(2)
    trial.cut()
    trial.join()
    trial.wait_owned(trial.n)
    trial.route(trial.live())
    trial.wait_owned(trial.n)
    trial.end_all()


def test_kill(trial):
    """At any relay, by the number that all show."""
    trial.begin((("mixed", "e", 6), ("six", "i", 4), ("clear", "e", 4), ("web", "i", 6)), 4)
    trial.route(set(trial.live()) - {"a"})
    for talk in trial.talks[1::2]:  # what a helper carries, and then silence
        trial.say(talk, "ask")
    trial.stay(1.5)
    shown = {s["id"]: s for s in trial.ask("b", "sessions", "--all")["sessions"]}
    expect(len(shown) == trial.n, f"{len(shown)} of {trial.n} are shown")
    # the server of a session that talks hears of a reset once it says something
    some = [id for id, s in shown.items() if s["forward"] in ("six", "web")][::2]
    said = trial.ask("b", "kill", *map(str, some))
    expect(said["killed"] == len(some), f"kill: {said}")
    wait_until(lambda: len(trial.at_server()) == 20 - len(some), lambda:
               f"{20 - len(some)} of {len(trial.at_server())} to be left at the server")
    wait_until(lambda: trial.lost() == len(some), "so many clients to be reset")
    # the owner is dead, and another relay adopts the session
    dead, last = next((name, s["id"]) for name in trial.live() if name != "b"
                      for s in trial.ask(name, "sessions")["sessions"]
                      if s["forward"] in ("mixed", "clear"))
    trial.relays[dead].die()
    trial.route(set(trial.live()))
    trial.ask("b", "kill", str(last))
    wait_until(lambda: trial.lost() == len(some) + 1, lambda:
               f"one more than {len(some)} to be reset, not {trial.lost()}", 15)
    trial.end_all(len(some) + 1)
