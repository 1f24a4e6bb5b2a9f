# SPDX-License-Identifier: BSD-2-Clause
"""The lab of the benchmark with its servers, and its load generators: the command of each, and the
Measurement that its report comes to.

All are started in the client's namespace, with their report on a log file, and end by themselves.
Two programs of our own stand at the end; see main().
"""

import csv
import json
import math
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.rows import DNSPERF, IPERF3, REDIS, WRK
from labkit import (DNS_PORT, HTTP_PORT, IPERF_PORT, REDIS_PORT, RELAY, SERVER, SIGNALS,
                    Interrupted, Lab, LabError, tail, wait_until)

# The command of the programs in main().
OWN = ("/usr/bin/python3", "-B", os.path.dirname(os.path.abspath(__file__)))
SOURCES = "10.0.1.11-10.0.1.26"
LATENCIES = ("mean", "p50", "p90", "p99", "p99_9", "max")
# Seconds that a look at the counters of a relay may take.
WARMUP_MARGIN = 0.05

DNS_NAMES = 1000
UDP_TIMEOUT = 0.25
# Requests of each kind for a second of measured time: as many as no path can serve in it.
REDIS_REQUESTS = 60_000


@dataclass(frozen=True)
class Measurement:
    """The result of a load generator."""
    value: float          # in the unit of the row
    per_second: float     # units of work
    latency: dict | None = None
    histogram: list | None = None
    errors: int = 0
    wrong: int = 0
    began: float | None = None  # of time.monotonic(): the begin of measured time, if reported
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
        # socat gives datagrams that come at once to one process, also those of several senders
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
    """The Measurement of a report of culvert-bench. Idle sessions have no rate."""
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

# Called once, after all: so it costs nothing while wrk measures. wrk hands over times in
# microseconds, and the count of each value.
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
    """A run of redis-benchmark has a number of requests, and no time."""
    return ["redis-benchmark", "-h", target[0], "-p", str(target[1]), "-c",
            str(workload.connections), "-t", "set,get", "--csv", "-n",
            str(math.ceil(REDIS_REQUESTS * timing.seconds))]


def parse_redis(text):
    """The rate of both kinds together; latencies are those of the slower kind."""
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

def has_ended(process, seconds):
    """Waits so long for PROCESS; returns True if it has ended."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()  # select() has no descriptors beyond 1,023
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(pidfd)


class Loads:
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
        """The port of the workload's server; None: each contender has a port of its own."""
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
        """Returns just before the warm-up ends, so that counters are read before measured time."""
        if workload.load_seconds(timing) > workload.measured_seconds(timing):
            has_ended(process, max(timing.warmup - WARMUP_MARGIN, 0))

    def wait(self, process, seconds):
        """Waits until PROCESS has ended by itself; returns the time of that."""
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


# The lab

NSD_CONF = """\
server:
    ip-address: {server}@{port}
    username: ""
    pidfile: "{home}/nsd.pid"
    database: ""
    zonesdir: "{home}"
    zonelistfile: "{home}/nsd.zones"
    xfrdfile: "{home}/nsd.xfrd"
    rrl-ratelimit: 0
remote-control:
    control-enable: no
zone:
    name: bench.test
    zonefile: bench.zone
"""
ZONE = "@ 60 SOA ns hostmaster 1 60 60 60 60\n@ 60 NS ns\nns 60 A 10.0.2.2\n"


class Interrupts:
    """Turns the first of SIGNALS into Interrupted; later ones do not interrupt the cleaning.

    Steps that cannot be undone half-way are postponed(): the exception follows them.
    """

    def __init__(self):
        self._depth = 0
        self._pending = None
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number, _frame):
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        if self._depth:
            self._pending = number
        else:
            raise Interrupted(number)

    @contextmanager
    def postponed(self):
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._pending is not None and not self._depth:
                number, self._pending = self._pending, None
                raise Interrupted(number)


class BenchLab(Lab):
    """The lab; watched() tells of the processes that are started in it. PATHS: see Lab."""

    def __init__(self, interrupts, loopback=False, **paths):
        super().__init__(loopback, **paths)
        self._interrupts = interrupts
        self._enter = self._started = None

    def start(self, namespace, *command, **options):
        with self._interrupts.postponed():
            process = super().start(namespace, *command, preexec_fn=self._enter, **options)
            if self._started:
                self._started(process)
        return process

    def bpf_folder(self):
        """A BPF file system, which goes with the lab."""
        path = self.path("bpf")
        if not os.path.isdir(path):
            os.mkdir(path)
            subprocess.run(["mount", "-t", "bpf", "-o", "mode=755", "bpf", path], check=True)
        return path

    def close(self):
        if os.path.isdir(self.path("bpf")):
            subprocess.run(["umount", "-l", self.path("bpf")], check=False)
        super().close()

    @contextmanager
    def watched(self, enter, started):
        """Within it, each new process calls ENTER() before anything else, and then the benchmark
        STARTED(process)."""
        self._enter, self._started = enter, started
        try:
            yield
        finally:
            self._enter = self._started = None

    def start_servers(self, tools):
        """The servers of TOOLS, load generators. start_sink() is for culvert-bench."""
        if WRK in tools:
            self.start_nginx(1 << 20)
        if IPERF3 in tools:
            # A client that has fallen silent must not keep the next one waiting. Without --bind
            # datagrams are answered from any of several addresses.
            self.start_iperf3("--rcv-timeout", "2000", "--bind", SERVER)
        if REDIS in tools:
            self.start_server("server", REDIS_PORT, "redis-server", "--bind", SERVER, "--port",
                              str(REDIS_PORT), "--save", "", "--protected-mode", "no", "--dir",
                              self.home)
        if DNSPERF in tools:
            self._start_nsd()

    def _start_nsd(self):
        with open(self.path("nsd.conf"), "w", encoding="ascii") as file:
            file.write(NSD_CONF.format(server=SERVER, port=DNS_PORT, home=self.home))
        with open(self.path("bench.zone"), "w", encoding="ascii") as file:
            file.write(ZONE)
            file.writelines(f"{name}. 60 A 10.0.0.1\n" for name in dns_names())
        self.start_server("server", DNS_PORT, "nsd", "-d", "-c", self.path("nsd.conf"),
                          protocol="udp")

    def start_sink(self, bench, host, ports, processes, protocol="tcp"):
        """The server of all workloads of culvert-bench."""
        listen = [word for port in ports for word in ("--listen", f"{host}:{port}")]
        process = self.start("relay" if host == RELAY else "server", bench, "sink",
                             "--protocol", protocol, "--processes", str(processes), *listen)

        def is_ready():
            if process.poll() is not None:
                raise LabError(f"culvert-bench sink did not start:\n{tail(process.log)}")
            with open(process.log, encoding="utf-8", errors="replace") as file:
                return "culvert-bench: ready" in file.read()

        wait_until(is_ready, "culvert-bench sink to be ready")
        return process


# A program of our own: it opens pairs of connected TCP sockets, and leaves them alone

def open_pairs(listener, pairs):
    for index in range(len(pairs)):
        client = socket.create_connection(listener.getsockname())
        server, _address = listener.accept()
        pairs[index] = (client, server)


def close_pairs(pairs):
    for index, (client, server) in enumerate(pairs):
        client.close()
        server.close()
        pairs[index] = None


def run_pairs(count):
    """Obeys the lines "open" and "close" on stdin, and answers each with the same when it is done.

    The cost of plain sockets is subtracted to see the cost of a relay beyond its own.
    """
    pairs = [None] * int(count)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for line in sys.stdin:
            if line == "open\n":
                open_pairs(listener, pairs)
            else:
                close_pairs(pairs)
            print(line, end="", flush=True)


# The other program: the two ends of transfers over paths. A connection begins with a header: its
# task. Both ends know the payload at each place, and give up at the deadline in the header:
# CLOCK_MONOTONIC is the same for all namespaces.

HEADER = struct.Struct("<QQqQ16s16s")  # number, size, deadline in ns, message, kind, congestion
CHUNK = 1 << 18
# Of a prime length, so that no piece of it stands at a power of two again.
PATTERN_LENGTH = 1_048_573
PATTERN = random.Random(7).randbytes(PATTERN_LENGTH)
PATTERN_TWICE = memoryview(PATTERN + PATTERN[:CHUNK])
SAMPLE = 64
ABORT = struct.pack("ii", 1, 0)


def now():
    return time.monotonic_ns()


def set_congestion(sock, name):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def set_deadline(sock, deadline):
    """Raises TimeoutError once it is over."""
    left = (deadline - now()) / 1e9
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def is_wrong(chunk, offset):
    """Whether the first or the last bytes of CHUNK are not those of the pattern at OFFSET."""
    first = offset % PATTERN_LENGTH
    last = max(len(chunk) - SAMPLE, 0)
    place = (offset + last) % PATTERN_LENGTH
    return chunk[:SAMPLE] != PATTERN_TWICE[first:first + min(SAMPLE, len(chunk))] or \
        chunk[last:] != PATTERN_TWICE[place:place + len(chunk) - last]


def send_pattern(sock, size, deadline):
    offset = 0
    while offset < size:
        place = offset % PATTERN_LENGTH
        set_deadline(sock, deadline)
        offset += sock.send(PATTERN_TWICE[place:place + min(CHUNK, size - offset)])


class Received:
    """The bytes that one connection has received."""

    def __init__(self):
        self.bytes = self.ended = self.wrong = 0

    def receive(self, sock, size, deadline):
        """Until SIZE bytes are there, or the deadline, or the peer's end."""
        buffer = memoryview(bytearray(CHUNK))
        try:
            while self.bytes < size:
                set_deadline(sock, deadline)
                count = sock.recv_into(buffer, min(CHUNK, size - self.bytes))
                if not count:
                    return
                self.wrong += is_wrong(buffer[:count], self.bytes)
                self.bytes += count
                self.ended = now()
        except OSError:
            pass


def receive_exactly(sock, size, deadline):
    buffer, got = bytearray(size), 0
    while got < size:
        set_deadline(sock, deadline)
        count = sock.recv_into(memoryview(buffer)[got:])
        if not count:
            raise OSError("the peer has ended")
        got += count
    return buffer


def converse(sock, message, deadline, begins):
    """Messages back and forth; returns the duration of each round in us, and the number of wrong
    ones."""
    said = bytes(PATTERN[:message])
    rounds, wrong = [], 0
    try:
        while True:
            began = now()
            if begins:
                sock.sendall(said)
            wrong += receive_exactly(sock, message, deadline) != said
            if not begins:
                sock.sendall(said)
            rounds.append((now() - began) // 1000)
    except OSError:
        return rounds, wrong


def transfer(sock, kind, size, deadline, is_client):
    """Both ways of one connection; returns the Received once all is sent."""
    received = Received()
    sends = kind == "both" or (kind == "upload") == is_client
    receives = kind == "both" or (kind == "download") == is_client
    thread = threading.Thread(target=received.receive, args=(sock, size, deadline))
    if receives:
        thread.start()
    if sends:
        try:
            send_pattern(sock, size, deadline)
        except OSError:
            pass
    if receives:
        thread.join()
    return received


def close(sock, deadline):
    """Closes in order if there is time left, else by a reset, so that no segment disturbs the next
    connection."""
    try:
        set_deadline(sock, deadline)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(CHUNK):
            set_deadline(sock, deadline)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
    sock.close()


_output = threading.Lock()


def say(**fields):
    with _output:
        print(json.dumps(fields), flush=True)


def serve(sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.settimeout(10)
        header = sock.recv(HEADER.size, socket.MSG_WAITALL)
        number, size, deadline, message, kind, congestion = HEADER.unpack(header)
        set_congestion(sock, congestion.rstrip(b"\0").decode())
    except (OSError, struct.error):
        sock.close()
        return
    kind = kind.rstrip(b"\0").decode()
    if kind == "converse":
        converse(sock, message, deadline, False)
    else:
        received = transfer(sock, kind, size, deadline, False)
        if kind != "download":
            say(number=number, bytes=received.bytes, ended=received.ended, wrong=received.wrong)
    close(sock, deadline)


def run_server(address, port):
    listener = socket.create_server((address, int(port)), backlog=1024)
    while True:
        sock, _peer = listener.accept()
        threading.Thread(target=serve, args=(sock,), daemon=True).start()


def connect(task, number, deadline):
    sock = socket.socket()
    set_congestion(sock, task["congestion"])
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_deadline(sock, deadline)
    sock.connect((task["address"], task["port"]))
    set_deadline(sock, deadline)
    sock.sendall(HEADER.pack(number, task["size"], deadline, task["size"], task["kind"].encode(),
                             task["congestion"].encode()))
    return sock


def run_connection(task, number, began, outcome):
    """OUTCOME, a list, gets {"number", "bytes", "ended", "wrong", "rounds", "error"}."""
    deadline = began + int(task["seconds"] * 1e9)
    found = {"number": number, "bytes": 0, "ended": 0, "wrong": 0, "rounds": [], "error": None}
    try:
        sock = connect(task, number, deadline)
    except OSError as error:
        outcome.append({**found, "error": f"{type(error).__name__}: {error}"})
        return
    if task["kind"] == "converse":
        found["rounds"], found["wrong"] = converse(sock, task["size"], deadline, True)
    else:
        received = transfer(sock, task["kind"], task["size"], deadline, True)
        found.update(bytes=received.bytes, ended=received.ended, wrong=received.wrong)
    outcome.append(found)
    close(sock, deadline)


def run_task(task):
    outcome, began = [], now()
    threads = [threading.Thread(target=run_connection, args=(task, number, began, outcome))
               for number in task["numbers"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"began": began, "connections": outcome}


def run_client():
    for line in sys.stdin:
        say(**run_task(json.loads(line)))


def main():
    """pairs COUNT            see run_pairs()
    server ADDRESS PORT    for each connection that sent it something a line on stdout:
                           {"number", "bytes", "ended", "wrong"}
    client                 a task on each line of stdin, its outcome on stdout
    """
    name, *arguments = sys.argv[1:]
    {"pairs": run_pairs, "server": run_server, "client": run_client}[name](*arguments)
