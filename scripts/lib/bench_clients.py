# SPDX-License-Identifier: BSD-2-Clause
"""The load generators of the benchmark: how each is called, and what its report says.

Each answers a Measurement. All are started in the client's namespace, with their report on a log
file, and end by themselves.
"""

import csv
import json
import math
import os
import re
import select
import time
from dataclasses import dataclass, field

from labkit import DNS_PORT, HTTP_PORT, IPERF_PORT, REDIS_PORT, SERVER, LabError, tail

SOURCES = "10.0.1.11-10.0.1.26"
LATENCIES = ("mean", "p50", "p90", "p99", "p99_9", "max")
# What reading a relay's counters may take.
WARMUP_MARGIN = 0.05

CULVERT_BENCH, IPERF3, WRK, REDIS = "culvert-bench", "iperf3", "wrk", "redis-benchmark"
DNSPERF = "dnsperf"
DNS_NAMES = 1000
UDP_TIMEOUT = 0.25
# Requests of each kind for a second of measured time: as many as no path can serve in it.
REDIS_REQUESTS = 60_000


@dataclass(frozen=True)
class Workload:
    """What goes through a contender. Rows with the same workload share their measurement."""
    tool: str
    name: str = ""        # of culvert-bench's workloads
    connections: int = 1
    size: int = 0         # bytes of a message, 0: not messages
    rate: int = 0         # bytes per second and connection, of slow readers
    verify: str = "full"
    host: str = SERVER    # where the upstream runs
    protocol: str = "tcp"
    timestamps: bool = True  # of TCP, at the client

    @property
    def protocols(self):
        """What the relay forwards: iperf3 has a TCP connection beside its datagrams."""
        return ("tcp", "udp") if self.tool == IPERF3 and self.protocol == "udp" else \
            (self.protocol,)


@dataclass(frozen=True)
class Timing:
    """Of one cell, seconds: measured time, after a warm-up."""
    seconds: float
    warmup: float


@dataclass(frozen=True)
class Measurement:
    """What the load generator saw."""
    value: float          # in the unit of the row
    per_second: float     # units of work
    latency: dict | None = None
    histogram: list | None = None
    errors: int = 0
    wrong: int = 0
    began: float | None = None  # of time.monotonic(): when it began to measure, if it says so
    extra: dict = field(default_factory=dict)


def address_text(target):
    return "{}:{}".format(*target)


# culvert-bench

def bench_command(program, workload, targets, timing, processes):
    """TARGETS: (address, port) pairs. TIMING: None for idle sessions, which wait for a signal."""
    command = [program, workload.name]
    for target in targets:
        command += ["--connect", address_text(target)]
    command += ["--source", SOURCES, "--connections", str(workload.connections),
                "--processes", str(processes), "--verify", workload.verify]
    if timing:
        command += ["--seconds", f"{timing.seconds:.3f}", "--warmup", f"{timing.warmup:.3f}"]
    if workload.size:
        command += ["--size", str(workload.size)]
    if workload.rate:
        command += ["--rate", str(workload.rate)]
    if workload.protocol == "udp":
        command += ["--protocol", "udp", "--timeout", str(UDP_TIMEOUT)]
        # socat gives what comes at once to one process, whoever sent it
        command += ["--in-flight", "1"] if workload.name == "rr" else []
    return command


def last_json_line(text):
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise LabError("the load generator printed no report")


def fairness_of(report):
    """The slowest and the fastest of several streams."""
    fairness = report.get("fairness")
    if not fairness or report["connections"] < 2:
        return {}
    return {"slowest_gbps": fairness["min_gbps"], "fastest_gbps": fairness["max_gbps"]}


def parse_bench(text):
    """Of the report of culvert-bench. Idle sessions have no rate."""
    report = last_json_line(text)
    in_bytes = report["rate"] is None
    value = (report["gbps"] if in_bytes else report["rate"]) or 0.0
    per_second = value / 8 if in_bytes else value
    if "lossless" in report:
        value, per_second = report["lossless"], report["requests"] / (report["seconds"] or 1)
    latency = report["latency_us"]
    return Measurement(
        value=value, per_second=per_second,
        latency={name: latency[name] for name in LATENCIES} if latency else None,
        histogram=report["histogram"] or None, errors=sum(report["errors"].values()),
        wrong=report["wrong"], began=report.get("began") or None,
        extra=fairness_of(report))


# iperf3

def iperf3_command(workload, target, timing):
    # Whole seconds only.
    datagrams = ["--udp", "--bitrate", "0", "--length", str(workload.size)] \
        if workload.protocol == "udp" else []
    return ["iperf3", "--client", target[0], "--port", str(target[1]), "--json", "--parallel",
            str(workload.connections), "--time", str(math.ceil(timing.seconds)), *datagrams]


def parse_iperf3(text):
    report = json.loads(text)
    if "error" in report:
        raise LabError(f"iperf3: {report['error']}")
    received = report["end"].get("sum_received") or report["end"]["sum"]
    if "lost_percent" in received:
        lost = received["lost_percent"]
        if not 0 <= lost <= 100:
            raise LabError(f"iperf3 says that {lost} % was lost")
        gbps = report["end"]["sum"]["bits_per_second"] * (1 - lost / 100) / 1e9
        return Measurement(value=gbps, per_second=gbps / 8, extra={"lost_percent": lost})
    retransmits = report["end"].get("sum_sent", {}).get("retransmits", 0)
    gbps = received["bits_per_second"] / 1e9
    return Measurement(value=gbps, per_second=gbps / 8, extra={"retransmits": retransmits})


# wrk

# Called once, when all is over: so it costs nothing while wrk measures. wrk hands over times in
# microseconds, and for each value that it has seen the number of times.
WRK_SCRIPT = """\
done = function(summary, latency, requests)
    local buckets = {}
    for i = 1, #latency do
        local value, count = latency(i)
        buckets[i] = string.format("[%d,%d]", value, count)
    end
    local e = summary.errors
    io.write(string.format(
        '{"requests":%d,"microseconds":%d,"bytes":%d,' ..
        '"errors":{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d},' ..
        '"latency_us":{"mean":%.1f,"p50":%d,"p90":%d,"p99":%d,"p99_9":%d,"max":%d},' ..
        '"histogram":[%s]}\\n',
        summary.requests, summary.duration, summary.bytes,
        e.connect, e.read, e.write, e.status, e.timeout,
        latency.mean, latency:percentile(50), latency:percentile(90), latency:percentile(99),
        latency:percentile(99.9), latency.max, table.concat(buckets, ",")))
end
"""


def wrk_command(workload, target, timing, script, threads):
    return ["wrk", "--connections", str(workload.connections), "--threads", str(threads),
            "--duration", f"{math.ceil(timing.seconds)}s", "--timeout", "5s", "--script", script,
            f"http://{address_text(target)}/small/0"]


def coarsen(histogram, bits=7):
    """HISTOGRAM with whole values, which have so many significant BITS; each is an upper bound."""
    counts = {}
    for value, count in histogram:
        shift = max(value.bit_length() - bits, 0)
        bound = ((value >> shift) + 1 << shift) - 1
        counts[bound] = counts.get(bound, 0) + count
    return [[bound, counts[bound]] for bound in sorted(counts)]


def parse_wrk(text):
    report = last_json_line(text)
    rate = report["requests"] / (report["microseconds"] / 1e6)
    return Measurement(value=rate, per_second=rate, latency=report["latency_us"],
                       histogram=coarsen(report["histogram"]) or None,
                       errors=sum(report["errors"].values()))


# redis-benchmark

def redis_command(workload, target, timing):
    """It has no time, but a number of requests."""
    return ["redis-benchmark", "-h", target[0], "-p", str(target[1]), "-c",
            str(workload.connections), "-t", "set,get", "--csv", "-n",
            str(math.ceil(REDIS_REQUESTS * timing.seconds))]


def parse_redis(text):
    """All requests by the time of all; latencies are those of the slower kind."""
    kinds = [{name: float(figure) for name, figure in row.items() if name != "test"}
             for row in csv.DictReader(text.splitlines())]
    if len(kinds) != 2:
        raise LabError("not a line for each kind of request")
    rate = 2 / sum(1 / kind["rps"] for kind in kinds)
    slower = min(kinds, key=lambda kind: kind["rps"])
    return Measurement(value=rate, per_second=rate, latency={
        name: slower.get(f"{'avg' if name == 'mean' else name}_latency_ms", 0) * 1000
        for name in ("mean", "p50", "p99", "max")})


# dnsperf

def dns_names():
    return [f"name{number}.bench.test" for number in range(DNS_NAMES)]


def dnsperf_command(workload, target, timing, questions, threads):
    return ["dnsperf", "-s", target[0], "-p", str(target[1]), "-d", questions, "-c",
            str(workload.connections), "-T", str(threads), "-l", str(math.ceil(timing.seconds)),
            "-t", "1"]


def parse_dnsperf(text):
    def figure(name, pattern=r"([\d.]+)"):
        found = re.search(rf"{name}:\s+{pattern}", text)
        if not found:
            raise LabError(f"dnsperf says nothing of: {name}")
        return found

    rate = float(figure("Queries per second")[1])
    mean, highest = figure(r"Average Latency \(s\)",
                           r"([\d.]+) \(min [\d.]+, max ([\d.]+)\)").groups()
    codes = figure("Response codes", r"(.*)")[1]
    wrong = sum(int(count) for code, count in re.findall(r"(\w+) (\d+)", codes)
                if code != "NOERROR")
    return Measurement(value=rate, per_second=rate, errors=int(figure("Queries lost")[1]),
                       wrong=wrong, latency={"mean": float(mean) * 1e6,
                                             "max": float(highest) * 1e6})


# All of them

def measured_seconds(workload, timing):
    """How long the load generator measures; about, if it does a number of requests."""
    if workload.tool == REDIS:
        return 2 * timing.seconds
    return timing.seconds if workload.tool == CULVERT_BENCH else math.ceil(timing.seconds)


def load_seconds(workload, timing):
    """How long it runs, about."""
    warmup = timing.warmup if workload.tool == CULVERT_BENCH else 0
    return measured_seconds(workload, timing) + warmup


def has_ended(process, seconds):
    """Waits so long for PROCESS; returns whether it has ended."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()  # select() has no descriptors beyond 1,023
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(pidfd)


class Clients:
    """Starts load generators in a lab. BENCH: the program culvert-bench."""

    def __init__(self, lab, bench, processes):
        self._lab = lab
        self._bench = bench
        self.processes = processes
        self._script = lab.path("wrk.lua")
        with open(self._script, "w", encoding="ascii") as file:
            file.write(WRK_SCRIPT)
        self._questions = lab.path("questions")
        with open(self._questions, "w", encoding="ascii") as file:
            file.writelines(f"{name} A\n" for name in dns_names())

    def upstream_port(self, workload):
        """Where the server of the workload listens; None: at a port of each contender's own."""
        return {IPERF3: IPERF_PORT, WRK: HTTP_PORT, REDIS: REDIS_PORT,
                DNSPERF: DNS_PORT}.get(workload.tool)

    def start(self, workload, targets, timing):
        if workload.tool == IPERF3:
            command = iperf3_command(workload, targets[0], timing)
        elif workload.tool == WRK:
            command = wrk_command(workload, targets[0], timing, self._script, self.processes)
        elif workload.tool == REDIS:
            command = redis_command(workload, targets[0], timing)
        elif workload.tool == DNSPERF:
            command = dnsperf_command(workload, targets[0], timing, self._questions,
                                      self.processes)
        else:
            command = bench_command(self._bench, workload, targets, timing, self.processes)
        setting = f"echo {int(workload.timestamps)} >/proc/sys/net/ipv4/tcp_timestamps"
        process = self._lab.start("client", "sh", "-c", f'{setting} && exec "$@"', "sh", *command)
        process.title = os.path.basename(command[0])
        return process

    def wait_for_warmup(self, process, workload, timing):
        """Returns when its warm-up is about to end: what is read now is before what is measured."""
        if load_seconds(workload, timing) > measured_seconds(workload, timing):
            has_ended(process, max(timing.warmup - WARMUP_MARGIN, 0))

    def wait(self, process, seconds):
        """Waits until PROCESS has ended by itself; returns when that was."""
        if not has_ended(process, seconds):
            raise LabError(f"{process.title} did not end within {seconds:.0f} s: "
                           f"{tail(process.log, 5).strip()}")
        return time.monotonic()

    def stop(self, process):
        self._lab.stop(process)

    def finish(self, workload, process):
        """The Measurement of PROCESS, which has ended."""
        parse = {IPERF3: parse_iperf3, WRK: parse_wrk, REDIS: parse_redis,
                 DNSPERF: parse_dnsperf}.get(workload.tool, parse_bench)
        code = self._lab.stop(process)
        with open(process.log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        try:
            measurement = parse(text)
        except (KeyError, ValueError, LabError) as error:
            raise LabError(f"{process.title} ended with {code} and without a report ({error}): "
                           f"{text.strip()[-200:]}") from None
        if code != 0 and not measurement.wrong:
            said = [line for line in text.splitlines() if "connections were lost" in line]
            raise LabError(f"{process.title} ended with {code}; it counted {measurement.errors} "
                           f"errors {''.join(said)}")
        return measurement
