#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The demo: see scripts/demo, which prepares and calls this."""

import argparse
import json
import os
import subprocess
import sys
import time

from cost import (CountingUnavailable, count_with_perf, machine_cpu_seconds,
                  process_cpu_seconds)
from labkit import (ENGINES, HTTP_PORT, IPERF_PORT, RELAY, SERVER, Daemon, Interrupted, Lab,
                    LabError, flow_of, handle_signals, tail)

RELAY_HTTP_PORT = 9000
RELAY_IPERF_PORT = 9001
FORWARDS = ((f"{RELAY}:{RELAY_HTTP_PORT}", f"{SERVER}:{HTTP_PORT}"),
            (f"{RELAY}:{RELAY_IPERF_PORT}", f"{SERVER}:{IPERF_PORT}"))
CONVERSATION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "conversation.py")

# The rate of a source with a pace of its own, as most have.
PACE = "1G"
BULK_COLUMNS = ("engine", "Gbit/s", "CPU s/GB", "daemon CPU", "daemon syscalls/GB",
                "carrier of the stream", "sha256 of the download")
CONVERSATION_COLUMNS = ("engine", "requests/s", "CPU us/request", "daemon CPU",
                        "daemon syscalls/request", "carrier of request / answer", "answers")


def say(label, text):
    print(f"{label:8} {text}", flush=True)


class Figures:
    """The work of one run (bytes or requests, in seconds) and its cost."""

    def __init__(self, units, seconds, wrong=0):
        self.units = units
        self.seconds = seconds
        self.wrong = wrong
        self.cpu = 0.0
        self.daemon_cpu = None
        self.calls_per_unit = None
        self.session = None

    def carrier(self, direction):
        """The carrier at the time of asking, and the share of sockmap if that is not all."""
        if self.session is None:
            return "-"
        flow = flow_of(self.session, direction)
        share = flow["kernel_bytes"] / max(flow["bytes"], 1)
        if flow["carrier"] == "sockmap" and share < 0.98:
            return f"sockmap ({share:.0%} of the bytes)"
        return flow["carrier"]


class Way:
    """One way from client to server: direct, or through the daemon with one engine."""

    def __init__(self, lab, program, engine):
        self.lab = lab
        self.name = engine or "direct"
        self.daemon = Daemon(lab, program, engine, FORWARDS) if engine else None
        self.host = RELAY if engine else SERVER
        self.http_port = RELAY_HTTP_PORT if engine else HTTP_PORT
        self.iperf_port = RELAY_IPERF_PORT if engine else IPERF_PORT

    def close(self):
        if not self.daemon:
            return
        code = self.daemon.stop()
        if code != 0:
            raise LabError(f"culvert ended with {code}:\n{tail(self.daemon.process.log)}")

    def give_up(self):
        """Stops the daemon, as the next one listens on the same ports."""
        if self.daemon:
            self.daemon.stop()

    def download(self):
        return self.lab.download(f"http://{self.host}:{self.http_port}/big")

    def stream(self, seconds, sample, *options):
        client = self.lab.start_iperf3_client(self.host, self.iperf_port, seconds, *options)
        time.sleep(seconds * 0.6)
        sample(self.iperf_port)
        total = self.lab.finish_iperf3_client(client, seconds + 20)["sum_received"]
        return Figures(total["bytes"], total["seconds"])

    def paced_stream(self, seconds, sample):
        return self.stream(seconds, sample, "--bitrate", PACE)

    def converse(self, seconds, sample):
        client = self.lab.start("client", CONVERSATION, self.host,
                                str(self.http_port), self.lab.path("www/small"), str(seconds),
                                stdout=subprocess.PIPE)
        time.sleep(seconds * 0.6)
        sample(self.http_port)
        with client.stdout:
            output = client.stdout.read()
        self.lab.finish(client, 20)
        report = json.loads(output)
        return Figures(report["requests"], report["seconds"], report["wrong"])

    def measure(self, run, seconds):
        """Calls RUN(seconds, sample), which calls sample(port) while its session is there."""
        if not self.daemon:
            cpu = machine_cpu_seconds()
            figures = run(seconds, lambda port: None)
            figures.cpu = machine_cpu_seconds() - cpu
            return figures
        sessions = []

        def work():
            cpu, daemon_cpu = machine_cpu_seconds(), process_cpu_seconds(self.daemon.pid)
            done = run(seconds, lambda port: sessions.append(self.daemon.busiest_session(port)))
            done.cpu = machine_cpu_seconds() - cpu
            done.daemon_cpu = process_cpu_seconds(self.daemon.pid) - daemon_cpu
            return done

        try:
            figures, calls = count_with_perf(self.daemon.pid, work)
            figures.calls_per_unit = calls / figures.units
        except CountingUnavailable:
            figures = work()
        figures.session = sessions[0]
        return figures


def share(figures):
    return "-" if figures.daemon_cpu is None else f"{figures.daemon_cpu / figures.seconds:.0%}"


def per_unit(figures, scale, digits):
    calls = figures.calls_per_unit
    return "-" if calls is None else f"{calls * scale:,.{digits}f}"


def bulk_row(name, figures, verdict):
    return (name, f"{figures.units * 8 / figures.seconds / 1e9:.1f}",
            f"{figures.cpu / figures.units * 1e9:.3f}", share(figures),
            per_unit(figures, 1e9, 0), figures.carrier("client-to-upstream"), verdict)


def conversation_row(name, figures):
    up, down = figures.carrier("client-to-upstream"), figures.carrier("upstream-to-client")
    verdict = f"{figures.units:,} right" if not figures.wrong else f"{figures.wrong:,} WRONG"
    return (name, f"{figures.units / figures.seconds:,.0f}",
            f"{figures.cpu / figures.units * 1e6:.1f}", share(figures),
            per_unit(figures, 1, 3), up if up == down else f"{up} / {down}", verdict)


def print_table(columns, rows):
    widths = [max(len(row[column]) for row in (columns, *rows)) for column in range(len(columns))]
    # Figures to the right, words to the left.
    for index, row in enumerate((columns, *rows)):
        cells = [cell.ljust(width) if column in (0, 5, 6) else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths))]
        print("  " + "  ".join(cells).rstrip())
        if index == 0:
            print("  " + "  ".join("-" * width for width in widths))


class Demo:
    def __init__(self, options):
        self.program = options.culvert
        self.size = (64 if options.quick else 256) << 20
        self.bulk_seconds = 2 if options.quick else 5
        self.conversation_seconds = 1 if options.quick else 3
        self.bulk, self.paced, self.conversation = [], [], []
        self.failures = 0

    def run(self, lab):
        say("lab", f"{lab.name}: client 10.0.1.1 - {RELAY} relay 10.0.2.1 - {SERVER} server, "
                   "three network namespaces")
        digest = lab.start_nginx(self.size)
        lab.start_iperf3()
        say("servers", f"nginx with {self.size >> 20} MiB of random bytes, iperf3")
        for engine in (None, *ENGINES):
            try:
                self.try_way(lab, engine, digest)
            except LabError as error:
                self.failures += 1
                say(engine or "direct", f"FAILED: {error}")
                self.bulk.append((engine or "direct", *["-"] * 5, "FAILED"))

    def try_way(self, lab, engine, digest):
        way = Way(lab, self.program, engine)
        try:
            self.measure_way(way, digest)
        except BaseException:
            way.give_up()
            raise
        way.close()

    def measure_way(self, way, digest):
        received, size = way.download()
        verdict = "right" if received == digest else f"WRONG ({size:,} bytes)"
        say(way.name, f"curl: {size / (1 << 20):.0f} MiB from nginx, sha256 {verdict}")
        figures = way.measure(way.stream, self.bulk_seconds)
        self.bulk.append(bulk_row(way.name, figures, verdict))
        say("", f"iperf3: {figures.units / 1e9:.1f} GB in {figures.seconds:.1f} s")
        paced = way.measure(way.paced_stream, self.bulk_seconds)
        self.paced.append(bulk_row(way.name, paced, verdict))
        say("", f"iperf3 at {PACE[:-1]} Gbit/s: {paced.units / 1e9:.1f} GB "
                f"in {paced.seconds:.1f} s")
        talk = way.measure(way.converse, self.conversation_seconds)
        self.conversation.append(conversation_row(way.name, talk))
        say("", f"keep-alive: {talk.units:,} requests in {talk.seconds:.1f} s, "
                f"{talk.wrong} wrong answers")
        self.failures += (received != digest) + (talk.wrong > 0)

    def print_results(self):
        print("\nBulk: one iperf3 stream from client to server\n")
        print_table(BULK_COLUMNS, self.bulk)
        print(f"\nStream: the same, but the client sends no more than {PACE[:-1]} Gbit/s\n")
        print_table(BULK_COLUMNS, self.paced)
        print("\nConversation: small requests to nginx, one after the other on one connection\n")
        print_table(CONVERSATION_COLUMNS, self.conversation)
        print("\nHow to read it: CPU is that of the whole machine (client, relay and server share "
              "its\nprocessors); where the carrier is sockmap, the kernel moves the payload and "
              "the daemon's\nsystem calls are next to none. A source that is faster than its "
              "target cannot be\nslowed down in the kernel: in the first table, sockmap is partly "
              "copied. auto should be\nnear the best engine of each table.")


def parse_options():
    parser = argparse.ArgumentParser(description="culvert between real programs, with figures")
    parser.add_argument("--culvert", required=True, help="the program")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--keep", action="store_true", help="leave the lab and its files")
    return parser.parse_args()


def main():
    options = parse_options()
    demo = Demo(options)
    handle_signals()
    try:
        with Lab() as lab:
            demo.run(lab)
            lab.keep = options.keep
        demo.print_results()
        if options.keep:
            print(f"\nKept: CULVERT_LAB={lab.name} scripts/lab exec client|relay|server COMMAND, "
                  f"files in {lab.home};\n"
                  f"remove with: CULVERT_LAB={lab.name} scripts/lab down; rm -r {lab.home}")
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except Interrupted as signal_number:
        print("\ndemo: interrupted; the lab is gone", file=sys.stderr)
        return 128 + signal_number.args[0]
    return 1 if demo.failures else 0


sys.exit(main())
