# SPDX-License-Identifier: BSD-2-Clause
"""What may happen to a fleet, at random by `--seed`, for `--storm ROUNDS`, while sessions begin.

A session may be lost that was killed; or was younger than YOUNG at some change, or not grafted then.
"""

import collections
import contextlib
import random
import time

import pytest
from fleet_rig import FORWARDS, Fleet
from labkit import expect, wait_until

pytestmark = pytest.mark.needs("ip", "nsenter", packages="demo", ipv6=True)
ENGINES = ("auto",)
YOUNG = 2.0  # seconds: --after is 0.5, and the first packets are not grafted
KINDS = "eeeeiiiihhhdu"  # of sessions, by chance
TALKS = 8  # at most, of 2 to 5 sessions each


class Storm(Fleet):
    """The events, and what is known of sessions."""

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.changes = []  # [(begin, end)]: of routes and relays
        self.killed = collections.defaultdict(list)  # {client's port: [when]}
        self.ungrafted = {}  # {client's port: (when, why)}
        self.lost = []

    def begin(self, chance):
        self.chance, self.talks = chance, []
        self.crowd = self.flows(2, "datagrams", "datagrams6")
        self.ports()
        n = len(self.crowd) * len(self.live())
        wait_until(lambda: len([s for s, _ in self.known() if s["protocol"] == "udp"]) == n,
                   lambda: f"flows to be known to all: {self.sums()}")
        self.young = [self.talk(forward, "n", 4) for forward in ("web", "six", "clear")]
        self.wait_ready(self.young)

    @contextlib.contextmanager
    def change(self):
        """Sessions that are young meanwhile may be lost."""
        begin = time.monotonic()
        yield
        self.changes.append((begin, time.monotonic()))

    def route(self, live, back=None):
        with self.change():
            super().route(live, back)

    # --- events: each takes its time ---

    def power(self):
        name = self.chance.choice(self.live())
        with self.change():
            self.die(name)
            time.sleep(0.3)  # as long as BFD takes
            self.route(self.live())
        return name

    def back(self):
        name = self.chance.choice(sorted(set(self.names) - set(self.live())))
        if name in self.relays:
            self.come_back(name)
        else:
            self.boot(name)
            self.join()
        self.route(self.live())
        return name

    def drain(self):
        name = self.chance.choice(self.live())
        self.route(set(self.live()) - {name})
        time.sleep(self.chance.uniform(0.5, 2.5))
        self.route(self.live())
        return name

    def rehash(self):
        for _ in range(self.chance.randint(1, 4)):
            self.hop(self.chance)
            time.sleep(self.chance.uniform(0.2, 1.2))
        self.route(self.live())

    def partition(self):
        name = self.chance.choice(self.live())
        with self.change():  # others are not told of sessions that begin meanwhile
            self.cut(name)
            for _ in range(3):
                self.hop(self.chance)
                time.sleep(self.chance.uniform(0.5, 2.5))
            self.cut()
            self.join()
        self.route(self.live())
        return name

    def kill(self):
        name = self.chance.choice(self.live())
        known = [s for s in self.ask(name, "sessions", "--all")["sessions"]
                 if s["protocol"] == "tcp"]
        some = {s["id"]: s for s in self.chance.sample(known, min(3, len(known)))}
        for s in some.values():
            self.killed[port_of(s)].append(time.monotonic())
        self.ask(name, "kill", *map(str, some))
        wait_until(lambda: not any(s["id"] in some for s, _ in self.known()), lambda:
                   f"killed ones to go: {[at for at in self.known() if at[0]['id'] in some]}", 10)
        return name

    # --- sessions ---

    def ports(self):
        """Of flows of UDP, as the server sees them.  Each has an answer."""
        return [client.who(tries=20) for client in self.crowd]

    def known(self):
        """[(session, relay)] of all that relays own, help or hold."""
        return [(s, name) for name in self.live()
                for s in self.ask(name, "sessions", "--all")["sessions"]]

    def note_ungrafted(self):
        """Those that no relay knows but their own."""
        for name in self.live():
            for s in self.ask(name, "sessions")["sessions"]:
                if s["standby"] == "yes":
                    self.ungrafted.pop(port_of(s), None)
                else:
                    self.ungrafted[port_of(s)] = time.monotonic(), s["not_grafted"] or s["standby"]

    def turn(self):
        """Some sessions end, others begin."""
        while len(self.talks) >= TALKS:
            self.end_talk(self.talks.pop(self.chance.randrange(len(self.talks))))
        for _ in range(2):
            forward = self.chance.choice([f for f in FORWARDS if "data" not in f])
            kind = self.chance.choice(KINDS)
            self.talks.append(self.talk(forward, kind, 1 if kind in "du" else self.chance.randint(2, 5)))

    def end_talk(self, talk):
        talk.stdin.close()
        did = self.end_of(talk)
        for port, *what in did["lost"]:
            why = self.excuse(port, *what)
            self.lost.append((talk.name, port, what[0], why))
            expect(why, f"{talk.name}: lost: port {port}, {what}; {self.why([port])}; "
                        f"changes: {self.changes[-12:]}")
        lost = {(port, how) for port, how, *_ in did["lost"]}
        for port in did["ports"]:
            when = max(self.killed[port], default=0)
            expect(when < talk.began or (port, "reset") in lost,
                   f"{talk.name}: port {port}, killed at {when:.1f}, goes on: {did}")

    def excuse(self, port, _, began, connected, lost):
        if any(began < when < lost for when in self.killed[port]):
            return "killed"
        when, why = self.ungrafted.get(port, (0, ""))
        if began < when < lost:
            return why
        young = min(lost, (connected or lost) + YOUNG)
        return "young" if any(begin < young and began < end for begin, end in self.changes) else None

    def one_round(self, number):
        some = [self.drain, self.rehash, self.rehash, self.kill, self.partition] if \
            len(self.live()) > 1 else []
        if len(self.live()) > 2:
            some += [self.power, self.power]
        if len(self.live()) < len(self.names):
            some += [self.back, self.back]
        self.turn()
        before = self.ports()
        self.note_ungrafted()
        time.sleep(0.15)  # until all exports have told what one has told
        event, begin = self.chance.choice(some), time.monotonic()
        what = f"{number}: {event.__name__} {event() or ''}"
        ports = self.ports()
        expect(ports == before, f"{what}: ports at the server: {before}, {ports}")
        self.wait_ready(self.talks[-2:])
        self.wait_once()
        print(f"{what}: {time.monotonic() - begin:.1f} s, {self.sums()}", flush=True)

    def wait_once(self):
        """Each session that some relay knows has one owner.  New ones come all the time."""
        wrong = self.not_once()

        def is_right():
            now = self.not_once()
            for client in wrong.keys() - now.keys():
                del wrong[client]
            return not wrong

        wait_until(is_right, lambda: f"one owner each: {wrong}, {self.sums()}", 15)

    def not_once(self):
        """{forward and client: what relays say of the session}, if not one relay owns it."""
        known, owned = {}, self.owned()
        for s, name in self.known():
            known.setdefault((s["forward"], s["client"]), []).append(f"{name} {s['standby']}")
        return {who: at for who, at in known.items() if len(owned.get(who, ())) != 1}

    def finish_all(self):
        for talk in self.talks + self.young:
            self.end_talk(talk)

        def left():
            return [(s["id"], s["client"], s["standby"], name) for s, name in self.known()
                    if s["protocol"] == "tcp"]

        wait_until(lambda: not left(), lambda: f"nothing to be left: {left()[:8]}", 10)
        for name in self.live():  # flows of UDP have no end
            for forward in "datagrams", "datagrams6":
                self.relays[name].command("kill", "--forward", forward)
        self.wait_empty(20)


def port_of(session):
    return int(session["client"].rpartition(":")[2])


@pytest.fixture(params=("mesh", "reflectors"))
def trial(request, culvert, engine):
    chance = random.Random(request.config.option.seed)
    n = chance.choice((3, 4))
    with Storm(culvert, n, 2 * (request.param == "reflectors"), late="d" if n == 4 else "",
               lines=("keepalive = 5s",), engine=engine) as the_trial:
        the_trial.begin(chance)
        yield the_trial
        print(f"{n} relays, lost: {the_trial.lost}")


def test_storm(trial, request):
    for number in range(int(request.config.option.storm)):
        trial.one_round(number)
    trial.finish_all()
