# SPDX-License-Identifier: BSD-2-Clause
"""What may happen to a fleet, at random by `--seed`, for `--storm ROUNDS`, while sessions begin.

A session may be lost that was killed, or was younger than YOUNG at some event, or not grafted then.
"""

import random
import time

import pytest
from fleet_rig import FORWARDS, Fleet
from labkit import expect, wait_until

pytestmark = pytest.mark.needs("ip", "nsenter", packages="demo", ipv6=True)
ENGINES = ("auto",)
YOUNG = 2.0  # seconds: --after is 0.5, and the first packets are not grafted
TALKS = 10  # at most, of 2 to 5 sessions each


class Storm(Fleet):
    """The events, and what is known of sessions."""

    def begin(self, chance):
        self.chance, self.talks = chance, []
        self.crowd = self.flows(2, "datagrams", "datagrams6")
        self.events = []  # (begin, end, what)
        self.exempt = {}  # client's port: why it may be lost
        self.killed, self.lost = set(), []
        self.young = [self.talk(forward, "n", 4) for forward in ("web", "six", "clear")]
        self.wait_ready(self.young)

    # --- events: each takes its time ---

    def power(self):
        name = self.chance.choice(self.live())
        self.die(name)
        time.sleep(0.3)
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
        time.sleep(self.chance.uniform(0.5, 4))
        self.route(self.live())
        return name

    def rehash(self):
        for _ in range(self.chance.randint(1, 4)):
            self.hop(self.chance)
            time.sleep(self.chance.uniform(0.2, 1.5))
        self.route(self.live())

    def partition(self):
        name = self.chance.choice(self.live())
        self.cut(name)
        for _ in range(3):
            self.hop(self.chance)
            time.sleep(self.chance.uniform(1, 3))
        self.cut()
        self.join()
        self.route(self.live())
        return name

    def kill(self):
        name = self.chance.choice(self.live())
        known = [s for s in self.ask(name, "sessions", "--all")["sessions"]
                 if s["protocol"] == "tcp"]
        some = self.chance.sample(known, min(3, len(known)))
        ports = {port_of(s) for s in some}
        self.exempt.update(dict.fromkeys(ports, "killed"))
        self.killed |= ports & {port_of(s) for s in self.grafted().values()}
        self.ask(name, "kill", *(str(s["id"]) for s in some))
        return name

    # --- sessions ---

    def grafted(self):
        """{port: session} of all that some relay owns, and others know."""
        return {port_of(s): s for name in self.live() for s in self.ask(name, "sessions")["sessions"]
                if s["standby"] == "yes"}

    def turn(self):
        """Some sessions end, others begin."""
        while len(self.talks) >= TALKS:
            self.end_talk(self.talks.pop(self.chance.randrange(len(self.talks))))
        for _ in range(2):
            forward = self.chance.choice([f for f in FORWARDS if "data" not in f])
            kind = self.chance.choice("eeeiiihhdu")
            self.talks.append(self.talk(forward, kind, 1 if kind in "du" else self.chance.randint(2, 5)))

    def end_talk(self, talk):
        talk.stdin.close()
        for port, began, how in self.end_of(talk)["lost"]:
            why = self.exempt.get(port) or (
                any(begin - YOUNG < began < end for begin, end, _ in self.events) and "young")
            self.lost.append((talk.name, port, how, why))
            expect(why, f"{talk.name}: lost, {how}: port {port}, which began at {began:.1f}; "
                                f"{self.why([port])}; events: {self.events[-5:]}")

    def one_round(self, number):
        some = [self.drain, self.rehash, self.rehash, self.kill, self.partition] if \
            len(self.live()) > 1 else []
        if len(self.live()) > 2:
            some += [self.power, self.power]
        if len(self.live()) < len(self.names):
            some += [self.back, self.back]
        self.turn()
        before = [client.who(tries=20) for client in self.crowd]
        known = self.grafted()
        for name in self.live():
            for s in self.ask(name, "sessions")["sessions"]:
                if port_of(s) not in known:
                    self.exempt.setdefault(port_of(s), s["not_grafted"] or s["standby"])
        time.sleep(0.15)  # until all exports have told what one has told
        event, begin = self.chance.choice(some), time.monotonic()
        what = f"{number}: {event.__name__} {event() or ''}"
        self.events.append((begin, time.monotonic(), what))
        ports = [client.who(tries=20) for client in self.crowd]
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
        """{client: the relays that know the session}, if not one relay owns it."""
        known = {}
        for name in self.live():
            for s in self.ask(name, "sessions", "--all")["sessions"]:
                known.setdefault(s["client"], []).append(f"{name} {s['standby']}")
        owned = {client: names for (_, client), names in self.owned().items()}
        return {client: at for client, at in known.items() if len(owned.get(client, ())) != 1}

    def finish_all(self):
        for talk in self.talks + self.young:
            self.end_talk(talk)
        for name in self.live():
            for forward in "datagrams", "datagrams6":
                self.relays[name].command("kill", "--forward", forward)
        self.wait_empty(20)  # keepalive finds those whose client another relay has reset


def port_of(session):
    return int(session["client"].rpartition(":")[2])


@pytest.fixture
def trial(request, culvert, engine):
    chance = random.Random(request.config.option.seed)
    n, reflectors = chance.choice((3, 4)), chance.choice((0, 2))
    print(f"{n} relays, {reflectors} reflectors")
    with Storm(culvert, n, reflectors, late="d" if n == 4 else "",
               lines=("keepalive = 5s",), engine=engine) as the_trial:
        the_trial.begin(chance)
        yield the_trial
        print(f"lost: {the_trial.lost}")


def test_storm(trial, request):
    for number in range(int(request.config.option.storm)):
        trial.one_round(number)
    trial.finish_all()
