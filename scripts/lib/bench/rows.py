# SPDX-License-Identifier: BSD-2-Clause
"""The matrix of the benchmark, as data: its rows, their workloads, and their contenders by name.

Below it the plan of a run: the rounds of each row, and their duration.
"""

import fnmatch
import math
import os
import random
from dataclasses import dataclass

from labkit import RELAY, SERVER
from rivals import AGAINST_OTHERS, BY_ITSELF, CONTROL, CONTROLLED, OTHERS, SUBJECT

K = 1024
CULVERT_BENCH, IPERF3, WRK, REDIS = "culvert-bench", "iperf3", "wrk", "redis-benchmark"
DNSPERF = "dnsperf"
IDLE_TOOL = "idle sessions"
# The goal that the configuration of a peer is chosen for.
BULK, CONVERSATION, CONNECT, IDLE, KILLED = "bulk", "conversation", "connect", "idle", "killed"
# Goals of UDP: flows that go on, and flows of one question and one answer.
DATAGRAMS, QUESTIONS = "datagrams", "questions"

ENGINES = ("auto", "graft", "sockmap", "splice", "copy")
PEERS = ("haproxy", "haproxy-splice", "nginx", "socat", "rinetd", "redir")
RELAYS = (*ENGINES, *PEERS)
ALL = ("direct", "nft-dnat", *RELAYS)
UDP = ("direct", "nft-dnat", "auto", "copy", "nginx", "socat", "rinetd")
QUICK = ("direct", *ENGINES, CONTROL, "haproxy", "haproxy-splice", "nginx")


@dataclass(frozen=True)
class Timing:
    """The times of one cell, in seconds: measured time, after a warm-up."""
    seconds: float
    warmup: float


@dataclass(frozen=True)
class Workload:
    """The load of a contender, by one load generator."""
    tool: str
    name: str = ""        # of culvert-bench's workloads
    connections: int = 1
    size: int = 0         # bytes of a message, 0: not messages
    rate: int = 0         # bytes per second and connection, of slow readers
    verify: str = "full"
    host: str = SERVER    # of the upstream
    protocol: str = "tcp"
    timestamps: bool = True  # of TCP, at the client

    @property
    def protocols(self):
        """The relay forwards these: iperf3 has a TCP connection beside its datagrams."""
        return ("tcp", "udp") if self.tool == IPERF3 and self.protocol == "udp" else \
            (self.protocol,)

    def measured_seconds(self, timing):
        """The measured time of the load generator; an estimate for a number of requests."""
        if self.tool == REDIS:
            return 2 * timing.seconds
        return timing.seconds if self.tool == CULVERT_BENCH else math.ceil(timing.seconds)

    def load_seconds(self, timing):
        """The whole time of the load generator, about."""
        warmup = timing.warmup if self.tool == CULVERT_BENCH else 0
        return self.measured_seconds(timing) + warmup


@dataclass(frozen=True)
class Row:
    """One line of the report: a figure, its unit, and the contenders that it is measured of.

    GOAL: see BULK and others. STRETCH: a cell lasts so many times longer than others. MOST_ROUNDS:
    of a row whose rounds take long. CALIBRATED: peers are tried in all their configurations; else
    each has the best known one. CONTENDERS: without the control, and without the other program.
    """
    name: str
    title: str
    group: str
    kind: str
    unit: str
    work_unit: str
    goal: str
    workload: Workload
    contenders: tuple = ALL
    better: str = "higher"
    note: str = ""
    quick: bool = False
    stretch: float = 1.0
    most_rounds: int = 1000
    calibrated: bool = True

    @property
    def participants(self):
        """The names of all contenders: the control, where a verdict needs it, and the other
        program's follow their original."""
        return tuple(found for name in self.contenders for found in (
            name, CONTROL if name == SUBJECT and self.name in CONTROLLED else None,
            OTHERS.get(name)) if found)


def _bulk(name, title, workload, **more):
    return Row(name, title, "bulk", "throughput", "Gbit/s", "GB", BULK, workload, **more)


def _talk(name, title, workload, **more):
    return Row(name, title, "conversation", "rate", "requests/s", "request", CONVERSATION,
               workload, **more)


def _bench(name, connections, size=0, **more):
    return Workload(CULVERT_BENCH, name, connections, size, **more)


def _udp(name, title, workload, note, unit="answers/s", work_unit="question", goal=DATAGRAMS,
         **more):
    return Row(name, title, "udp", "rate", unit, work_unit, goal, workload, UDP,
               note=f"{note} {UDP_NOTE}".strip(), **more)


def _datagrams(name, connections, size, **more):
    return _bench(name, connections, size, protocol="udp", **more)


BULK_NOTE = ("Payload that the receiver has verified (a sample of it, so that the check costs "
             "little).")
IPERF3_NOTE = "As the receiver counted it; nothing is verified."
WRK_NOTE = ("wrk to nginx, answers of 1,000 bytes from memory, kept alive. wrk measures whole "
            "seconds and has no warm-up. It corrects its latencies for coordinated omission by "
            "itself (it adds samples for which nobody waited): do not compare them with those of "
            "other rows.")
REDIS_NOTE = ("SET and GET one after the other, as many of each: a number of requests, and so no "
              "given time. Latencies are those of the slower kind.")
LOCAL_NOTE = ("The server's program runs in the relay's namespace, behind its loopback device; "
              "direct is the client's connection to that program.")
KILLED_NOTE = ("The daemon gets SIGKILL when measuring has begun, and another one is started. The "
               "figure is the longest that any connection waited for an answer; on the direct path "
               "nobody is killed. A lost connection fails the cell.")
CRR_NOTE = ("Connect, one request and response of 64 B, close: as many loops at a time, over 16 "
            "source addresses. The latency is that of the whole transaction.")
SLOW_NOTE = ("Each client reads 1 MB/s of a stream that the server sends as fast as it can. The "
             "figure is the highest kernel memory of the whole machine during the cell beyond that "
             "before it, divided by the sessions: buffers of client and server are in it, for "
             "direct as for the others.")
IDLE_NOTE = ("Memory of the relay's processes (Pss of smaps_rollup: shared memory counted once) "
             "with all sessions open and idle after one request and response each, less that with "
             "none open (the base), per session: the cost of one more session. The total with the "
             "base stands beside it.\n"
             "Marginal kernel memory a session, beyond two sockets: kernel memory of the machine "
             "(MemTotal - MemFree - Buffers - Cached - SwapCached - AnonPages, less the free pages "
             "in the lists of each CPU, after empty slabs were returned and the figure had "
             "settled) that each session "
             "adds with the relay (four sockets: client's, server's, two of the relay), less that "
             "of the direct path in the same round (two sockets, same client and server), less "
             "that of two plain connected TCP sockets (measured in the same round by a program "
             "that does nothing else).")
MIXED_NOTE = ("Request/response, 64 B, 64 connections, while the idle sessions are open through "
              "the same relay; the row before is the same relay moments earlier, without them. "
              "Peers are configured for least memory here.")
MIXED_NONE_NOTE = ("Request/response, 64 B, 64 connections, through each relay moments before the "
                   "idle sessions of the next row are opened through it. Peers are configured for "
                   "least memory here.")

UDP_NOTE = ("haproxy and redir have no UDP, and culvert carries it by graft or copy alone.")
UDP_RR_NOTE = ("Each socket sends its next question when it has the answer, whose every byte is "
               "compared. A question without an answer for 0.25 s is counted as an error.")
UDP_NEW_NOTE = ("Each question comes from a port of its own, in turn over 16 addresses, and has "
                "one answer; 64 at a time. culvert has responses = 1 and nginx proxy_responses 1; "
                "conntrack forgets a flow of the kernel's NAT after a second.")
UDP_ONE_WAY_NOTE = ("Bursts of 40 datagrams by one send (UDP_SEGMENT). Rates are tried for 50 ms "
                    "each, by halving; the figure is the highest, to 5 %, of which less than 0.1 % "
                    "was lost. Packet programs and the kernel's NAT run on the sender's CPU; a "
                    "relay's process has the other one, and is flattered by that.")
DNS_NOTE = ("dnsperf to nsd, 1,000 names. Each of 64 sockets has one query of 100 at most under "
            "way. An answer other than NOERROR is wrong.")
UDP_IPERF3_NOTE = ("As fast as iperf3 can send, less the loss that it reports; nothing is "
                   "verified. It cannot count with the empty datagrams that rinetd adds.")

IDLE_SESSIONS = Workload(IDLE_TOOL, "idle", 0, 64)
SLOW_RATE = 1_000_000

ROWS = (
    _bulk("bulk-1", "Bulk, 1 stream to the server", _bench("bulk-up", 1, verify="sample"),
          note=BULK_NOTE, quick=True),
    _bulk("bulk-8", "Bulk, 8 streams to the server", _bench("bulk-up", 8, verify="sample"),
          note=BULK_NOTE),
    _bulk("bulk-down", "Bulk, 1 stream to the client", _bench("bulk-down", 1, verify="sample"),
          note=BULK_NOTE),
    _bulk("bulk-both", "Bulk, both ways at once on 1 connection",
          _bench("bulk-both", 1, verify="sample"), note=BULK_NOTE + " Sum of both directions.",
          quick=True),
    _bulk("bulk-both-8", "Bulk, both ways at once on 8 connections",
          _bench("bulk-both", 8, verify="sample"), note=BULK_NOTE + " Sum of both directions."),
    _bulk("iperf3-1", "iperf3, 1 stream", Workload(IPERF3, connections=1), note=IPERF3_NOTE),
    _bulk("iperf3-8", "iperf3, 8 streams", Workload(IPERF3, connections=8), note=IPERF3_NOTE),
    _talk("rr-64x1", "Request/response, 64 B, 1 connection", _bench("rr", 1, 64),
          note="Nothing waits for anything else: this is pure latency."),
    _talk("rr-64x64", "Request/response, 64 B, 64 connections", _bench("rr", 64, 64), quick=True),
    _talk("rr-64x64-windows", "Request/response, 64 B, 64 connections, no timestamps",
          _bench("rr", 64, 64, timestamps=False),
          note="The client has no TCP timestamps, as Windows and lwIP."),
    _talk("rr-1Kx512", "Request/response, 1 KiB, 512 connections", _bench("rr", 512, K),
          quick=True),
    _talk("rr-16Kx64", "Request/response, 16 KiB, 64 connections", _bench("rr", 64, 16 * K),
          quick=True),
    _talk("wrk", "wrk to nginx, keep-alive, 64 connections", Workload(WRK, connections=64),
          note=WRK_NOTE, quick=True),
    _talk("redis", "redis-benchmark to Redis, 50 connections", Workload(REDIS, connections=50),
          note=REDIS_NOTE),
    _talk("local", "Request/response, 64 B, 64 connections, upstream on the relay",
          _bench("rr", 64, 64, host=RELAY), note=LOCAL_NOTE),
    *(Row(name, f"Connect, request/response, close: {n} at a time", "connect", "rate",
          "transactions/s", "transaction", CONNECT, _bench("crr", n, 64), note=CRR_NOTE,
          quick=name == "crr") for name, n in (("crr-1", 1), ("crr", 16), ("crr-64", 64))),
    Row("killed", "Request/response, 64 B, 64 connections, while the daemon is killed", "killed",
        "gap", "ms", "request", KILLED, _bench("rr", 64, 64), ("direct", "graft"), "lower",
        KILLED_NOTE, stretch=3.0, most_rounds=3),
    _udp("udp-rr-1", "UDP questions, 64 B, 1 socket", _datagrams("rr", 1, 64), UDP_RR_NOTE),
    _udp("udp-rr-64", "UDP questions, 64 B, 64 sockets", _datagrams("rr", 64, 64), UDP_RR_NOTE,
         quick=True),
    _udp("udp-rr-1200", "UDP questions, 1,200 B, 64 sockets", _datagrams("rr", 64, 1200),
         UDP_RR_NOTE),
    _udp("udp-new", "UDP, new flows: one question each", _datagrams("crr", 64, 64), UDP_NEW_NOTE,
         "flows/s", "flow", QUESTIONS),
    _udp("udp-dns", "dnsperf to nsd, 64 sockets", Workload(DNSPERF, connections=64, protocol="udp"),
         DNS_NOTE),
    _udp("udp-one-way", "UDP one way, GSO, 40 x 1,400 B", _datagrams("bulk-up", 1, 1400),
         UDP_ONE_WAY_NOTE, "datagrams/s", "datagram", stretch=2.5),
    Row("udp-iperf3", "iperf3 -u, 1 stream of 1,400 B", "udp", "throughput", "Gbit/s", "GB",
        DATAGRAMS, Workload(IPERF3, size=1400, protocol="udp"), UDP[:-1],
        note=f"{UDP_IPERF3_NOTE} {UDP_NOTE}"),
    Row("idle", "Idle sessions: marginal memory of the relay", "idle", "memory", "bytes/session",
        "session", IDLE, IDLE_SESSIONS, RELAYS, "lower", IDLE_NOTE, most_rounds=3),
    Row("mixed-0", "64 B x 64 request/response, no idle sessions", "mixed", "rate", "requests/s",
        "request", IDLE, IDLE_SESSIONS, ALL, note=MIXED_NONE_NOTE, most_rounds=3),
    Row("mixed", "64 B x 64 request/response beside the idle sessions", "mixed", "rate",
        "requests/s", "request", IDLE, IDLE_SESSIONS, ALL, note=MIXED_NOTE, most_rounds=3),
    Row("slow", "32 slow readers: kernel memory", "slow", "memory", "bytes/session", "GB", BULK,
        _bench("slow", 32, rate=SLOW_RATE), better="lower", note=SLOW_NOTE, stretch=2.0,
        most_rounds=3, calibrated=False),
)


class SelectionError(Exception):
    """A name or pattern that is unknown; the text is for the user."""


def select_rows(patterns, quick, rows=ROWS):
    """The rows whose name, or whose group, one of the shell PATTERNS matches; all without any."""
    if not patterns:
        return [row for row in rows if row.quick or not quick]
    for pattern in patterns:
        if not any(_matches(row, pattern) for row in rows):
            raise SelectionError(f"no row is named like {pattern}; --list shows them")
    return [row for row in rows if any(_matches(row, pattern) for pattern in patterns)]


def _matches(row, pattern):
    return fnmatch.fnmatchcase(row.name, pattern) or row.group == pattern


def select_contenders(names, quick, known):
    """The contenders of NAMES, in the order of KNOWN, {name: contender}, which all are of. The
    other program's, if known, follow their originals."""
    names = names or (QUICK if quick else known)
    for name in names:
        if name not in known:
            raise SelectionError(f"no contender is named {name}; --list shows them")
    chosen = {*names, *(OTHERS.get(name) for name in names)}
    return {name: one for name, one in known.items() if name in chosen}


def group_rows(rows):
    """Lists of rows that one measurement serves: those of the idle sessions together."""
    groups = {}
    for row in rows:
        key = IDLE_TOOL if row.workload.tool == IDLE_TOOL else row.name
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def order_of_round(contenders, number, salt=""):
    """The order of CONTENDERS in round NUMBER: at random, but the same in each run. A rotation
    would keep neighbours together: the control always beside the subject, rivals further off."""
    contenders = list(contenders)
    random.Random(f"{salt}:{number}").shuffle(contenders)
    return contenders


# The plan of a run

# Times of a trial of a configuration, in rows with a verdict and in others.
TRIAL_SECONDS = 1.0
SHORT_TRIAL_SECONDS = 0.35
# For the estimate: the share of the configurations that are tried again.
TRIED_AGAIN = 0.7
# Decisive rounds of the idle sessions take long.
MOST_DECISIVE_IDLE = 6
# The subject, its control, two engines and two peers at most; by itself: the first two.
MOST_DECIDERS, DECIDERS_BY_ITSELF = 6, 2
COUNT_TIMING = Timing(0.35, 0.15)
# Beside the measured time, for the estimate: starting load generators, draining, relays.
CELL_OVERHEAD = 0.15
START_OVERHEAD = 0.35
# Of a relay, in each round.
RESTART_OVERHEAD = 0.1
IDLE_OVERHEAD = 3.0
IDLE_SECONDS_EACH = 0.0003


def trial_timing(row, seconds):
    return Timing(seconds * row.stretch, min(0.25, seconds / 2))


class Plan:
    """The rows and contenders of a run, their rounds, and an estimate of its duration."""

    def __init__(self, options, rows, contenders):
        self.options = options
        self.groups = group_rows(rows)
        self.contenders = contenders  # {name: Contender}
        self.cpus = len(os.sched_getaffinity(0))
        self.timing = Timing(options.seconds, min(0.4, options.seconds / 3))

    def contenders_of(self, row):
        return [self.contenders[name] for name in row.participants if name in self.contenders]

    def rounds_of(self, row):
        return min(self.options.rounds, row.most_rounds)

    def decisive_rounds_of(self, rows):
        """The number of rounds of a group after the ordinary ones."""
        if any(row.name in AGAINST_OTHERS for row in rows):
            return self.options.decisive
        if any(row.name in BY_ITSELF for row in rows):
            return min(self.options.decisive, MOST_DECISIVE_IDLE)
        return 0

    def decisive_numbers(self, rows):
        """The numbers of the rounds of a group after the ordinary ones."""
        first = self.rounds_of(rows[0]) + 1
        return range(first, first + self.decisive_rounds_of(rows))

    def round_text(self, row, number):
        """The round, and the number of rounds."""
        ordinary = self.rounds_of(row)
        if number <= ordinary:
            return f"{number}/{ordinary}"
        return f"+{number - ordinary}/{self.decisive_rounds_of([row])}"

    def timing_of(self, row):
        return Timing(self.timing.seconds * row.stretch, self.timing.warmup)

    def configs_of(self, row, contender):
        """The configurations to choose from; only the first one without calibration."""
        configs = contender.configs(row.goal, self.cpus)
        return configs if self.options.calibrate and row.calibrated else configs[:1]

    def cell_seconds(self, row):
        seconds = row.workload.load_seconds(self.timing_of(row)) + CELL_OVERHEAD
        if row.workload.tool == IDLE_TOOL:
            return 2 * seconds + IDLE_OVERHEAD + self.options.idle * IDLE_SECONDS_EACH
        return seconds + RESTART_OVERHEAD

    def trial_length(self, row):
        return TRIAL_SECONDS if row.name in CONTROLLED else SHORT_TRIAL_SECONDS

    def trial_seconds(self, row):
        """The seconds of one pass of one configuration."""
        timing = trial_timing(row, self.trial_length(row))
        return row.workload.load_seconds(timing) + CELL_OVERHEAD

    def count_seconds(self, row):
        return row.workload.load_seconds(COUNT_TIMING) + CELL_OVERHEAD

    def calibration_seconds(self, row, contender):
        trials = len(self.configs_of(row, contender))
        if trials == 1:
            return 0.0
        return trials * ((1 + TRIED_AGAIN) * self.trial_seconds(row) + START_OVERHEAD)

    def decisive_seconds(self, rows):
        """An upper bound: as if all contenders took part that ever might."""
        most = DECIDERS_BY_ITSELF if rows[0].workload.tool == IDLE_TOOL else MOST_DECIDERS
        taking_part = min(len(self.contenders_of(rows[0])), most)
        return self.decisive_rounds_of(rows) * taking_part * self.cell_seconds(rows[0])

    def group_seconds(self, rows):
        row, total = rows[0], self.decisive_seconds(rows)
        contenders = self.contenders_of(row)
        if row.workload.tool == IDLE_TOOL:  # the direct path, the base of all others
            total += self.rounds_of(row) * self.cell_seconds(row)
        for contender in contenders:
            total += self.calibration_seconds(row, contender)
            total += self.rounds_of(row) * self.cell_seconds(row)
            if row.workload.tool != IDLE_TOOL:
                total += START_OVERHEAD + self.count_seconds(row)
        return total

    def seconds(self):
        return sum(self.group_seconds(rows) for rows in self.groups)
