# SPDX-License-Identifier: BSD-2-Clause
"""What bandwidth limits are worth: limit x connections x engine, measured as parts of the limit."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from labkit import (ENGINES, RELAY, SERVER, TOP, Daemon, Interrupted, Lab, LabError,
                    handle_signals, tail)

PORT = 9000
SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
WORKLOADS = {"bulk-down": ("bytes_down",), "bulk-up": ("bytes_up",),
             "bulk-both": ("bytes_up", "bytes_down")}
WARMUP = 1.0
# How far from its limit a cell may be.
ALLOWED = 0.05
# Who has to wait for turns does not get all of what the machine carries.
REACHABLE = 0.8


@dataclass
class Cell:
    """RATES: bytes a second, by direction."""
    limit: str  # "" none
    connections: int
    engine: str
    rates: list
    fairness: float  # the slowest connection's part of the fastest one's
    reachable: bool = True

    def parts(self):
        return [rate / size_of(self.limit) for rate in self.rates]

    def is_missed(self):
        return self.reachable and any(abs(part - 1) > ALLOWED for part in self.parts())

    def text(self):
        if not self.limit:
            return ", ".join(f"{rate / (1 << 20):.0f} MiB/s" for rate in self.rates)
        text = ", ".join(f"{part:.3f}" for part in self.parts())
        if self.connections > 1:
            text += f" ({self.fairness:.2f})"
        return text if self.reachable else f"[{text}]"


def size_of(text):
    """Bytes, of what a bandwidth may be written as."""
    number, factor = (text[:-1], SUFFIXES[text[-1].upper()]) \
        if text and text[-1].upper() in SUFFIXES else (text, 1)
    if not number.isdigit() or not int(number):
        raise argparse.ArgumentTypeError(f'"{text}" is no bandwidth, such as 50M')
    return int(number) * factor


def sizes(text):
    for part in text.split(","):
        size_of(part)
    return text.split(",")


def numbers(text):
    if not all(part.isdigit() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f'"{text}" is no list of numbers, such as 1,16')
    return [int(part) for part in text.split(",")]


def engines(text):
    for part in text.split(","):
        if part not in ENGINES:
            raise argparse.ArgumentTypeError(f'no engine "{part}"; there are {", ".join(ENGINES)}')
    return text.split(",")


def parse():
    parser = argparse.ArgumentParser(prog="scripts/bandwidth", add_help=False, allow_abbrev=False)
    parser.add_argument("--rates", type=sizes, default=["1M", "50M", "500M"])
    parser.add_argument("--connections", type=numbers, default=[1, 16])
    parser.add_argument("--engines", type=engines, default=list(ENGINES))
    parser.add_argument("--workload", choices=list(WORKLOADS), default="bulk-down")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--culvert", default=os.path.join(TOP, "build", "culvert"))
    parser.add_argument("--bench-tool", default=os.path.join(TOP, "build", "culvert-bench"))
    options = parser.parse_args()
    if not 0 < options.seconds <= 3600 or options.busy < 0:
        parser.error("--seconds is more than 0, and --busy not less")
    return options


def run_client(lab, options, connections):
    """One run of the load generator; returns its report."""
    process = lab.start("client", os.path.abspath(options.bench_tool), options.workload,
                        "--connect", f"{RELAY}:{PORT}", "--connections", str(connections),
                        "--warmup", f"{WARMUP:g}", "--seconds", f"{options.seconds:g}",
                        "--timeout", "60",
                        stdout=subprocess.PIPE)
    with process.stdout:
        text = process.stdout.read()
    lab.finish(process, 60)
    report = json.loads(text)
    if report["wrong"] or sum(report["errors"].values()):
        raise LabError(f"wrong content, or errors: {text.decode().strip()}\n{tail(process.log)}")
    return report


def measure(lab, options, limit, connections, engine):
    limits = ["--bandwidth", limit] if limit else []
    daemon = Daemon(lab, options.culvert, engine, [(f"{RELAY}:{PORT}", f"{SERVER}:{PORT}")],
                    "--probe", "no", "--max-sessions-per-client", "0", *limits)
    try:
        report = run_client(lab, options, connections)
    finally:
        daemon.stop()
    rates = [report[key] / report["seconds"] for key in WORKLOADS[options.workload]]
    fairness = report["fairness"] or {}
    most = fairness.get("max_gbps") or 0
    return Cell(limit, connections, engine, rates,
                fairness.get("min_gbps", 0) / most if most else 0)


def measure_all(lab, options):
    """Without a limit right before those with one: a machine is not as fast at all times."""
    cells = {}
    for connections, engine in itertools.product(options.connections, options.engines):
        for limit in ["", *options.rates]:
            cell = measure(lab, options, limit, connections, engine)
            free = cells.get(("", connections, engine), cell)
            if limit:
                cell.reachable = min(free.rates) * REACHABLE >= size_of(limit)
            cells[limit, connections, engine] = cell
            print(f"{connections:>4} {engine:<8} {limit or 'no limit':>8} {cell.text()}",
                  flush=True)
    return cells


def table(cells, options):
    lines = [["limit, connections", *options.engines], ["---"] * (1 + len(options.engines))]
    for limit in [*options.rates, ""]:
        for connections in options.connections:
            lines.append([f"{limit or 'none'}, {connections}",
                          *(cells[limit, connections, engine].text()
                            for engine in options.engines)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def run(options):
    busy = []
    cells = {}
    try:
        for _ in range(options.busy):
            busy.append(subprocess.Popen(["sh", "-c", "while :; do :; done"],
                                         start_new_session=True))
        with Lab(options.loopback) as lab:
            lab.start_server("server", PORT, os.path.abspath(options.bench_tool), "sink",
                             "--listen", f"{SERVER}:{PORT}")
            cells = measure_all(lab, options)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{options.workload}, {options.seconds:g} s a cell, {os.cpu_count()} CPUs, "
          f"{options.busy} processes that compute beside it, load {load}\n"
          "parts of the limit, by direction; in parentheses the slowest connection's part of the\n"
          "fastest one's; in brackets: not reachable here, see the rows without a limit\n")
    print(table(cells, options))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(cell) for cell in cells.values()], file, indent=1)
    missed = [cell for cell in cells.values() if cell.limit and cell.is_missed()]
    for cell in missed:
        print(f"MISSED: {cell.limit}, {cell.connections}, {cell.engine}: {cell.text()}")
    return 1 if missed else 0


def main():
    options = parse()
    handle_signals()
    try:
        return run(options)
    except Interrupted as interrupt:
        return 128 + interrupt.args[0]
    except (LabError, OSError, ValueError) as error:
        print(f"bandwidth: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
