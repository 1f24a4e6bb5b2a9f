# SPDX-License-Identifier: BSD-2-Clause
"""What bandwidth limits are worth: limit x connections x whose x engine x load, as parts of it."""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

from bandwidth_ends import STEPS_PER_SECOND
from labkit import (ENGINES, RELAY, SERVER, TOP, Daemon, Interrupted, Lab, LabError,
                    handle_signals)

PORT = 9000
SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
KEYS = {"forward": "bandwidth", "client": "bandwidth-per-client"}
WAYS = {"up": ("up",), "down": ("down",), "both": ("up", "down")}
WARMUP = 0.8
# How far from its limit a cell may be.
ALLOWED = 0.05
# Who has to wait for turns does not get all of what the machine carries.
REACHABLE = 0.8
# Limits of no more in all, in bytes a second, are measured at the same time, both ways.
TOGETHER = 150 << 20
ENDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bandwidth_ends.py")


@dataclass
class Cell:
    """What is to be measured, and what was."""
    limit: str  # "" none
    connections: int
    whose: str
    engine: str
    busy: int
    ways: str = "both"
    rates: list = field(default_factory=list)  # bytes a second, by direction
    most: float = 0  # bytes in any second, as it was received
    fairness: float = 1  # the slowest connection's part of the fastest one's
    waited: float = 0  # part of the time for which the daemon's threads had no CPU
    reachable: bool = True

    def parts(self):
        return [rate / size_of(self.limit) for rate in self.rates]

    def part(self):
        """Of all directions the one that is farthest off."""
        return max(self.parts(), key=lambda part: abs(part - 1))

    def is_missed(self):
        return bool(self.limit) and self.reachable and abs(self.part() - 1) > ALLOWED

    def text(self):
        if not self.limit:
            return f"{min(self.rates) / (1 << 20):.0f} MiB/s"
        return f"{self.part():.3f}" if self.reachable else f"[{self.part():.3f}]"

    def line(self):
        words = [f"{self.busy:>2} {self.engine:<8} {self.limit or 'no limit':>8}",
                 f"{self.connections:>3} {self.whose:<8} {self.ways:<5} {self.text():>9}"]
        if self.limit:
            words.append(f"most {self.most / size_of(self.limit):.3f}")
        return " ".join([*words, f"fair {self.fairness:.2f} without CPU {self.waited:.2f}"])


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
    if not all(part.isdigit() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f'"{text}" is no list of numbers, such as 1,16')
    return [int(part) for part in text.split(",")]


def names(known):
    def check(text):
        for part in text.split(","):
            if part not in known:
                raise argparse.ArgumentTypeError(f'no "{part}"; there are {", ".join(known)}')
        return text.split(",")
    return check


def parse():
    parser = argparse.ArgumentParser(prog="scripts/bandwidth", add_help=False, allow_abbrev=False)
    parser.add_argument("--rates", type=sizes, default=["8K", "1M", "10M", "50M", "500M", "1000M"])
    parser.add_argument("--connections", type=numbers, default=[1, 16])
    parser.add_argument("--engines", type=names(ENGINES), default=list(ENGINES))
    parser.add_argument("--whose", type=names(KEYS), default=list(KEYS))
    parser.add_argument("--busy", type=numbers, default=[0, 2])
    parser.add_argument("--ways", choices=list(WAYS))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--culvert", default=os.path.join(TOP, "build", "culvert"))
    options = parser.parse_args()
    if not 1 <= options.seconds <= 3600 or 0 in options.connections:
        parser.error("--seconds is 1 at least, and so are --connections")
    return options


# --- one run: some cells of one daemon ---

def configuration(cells):
    text = "[culvert]\nprobe = no\nmax-sessions-per-client = 0\n"
    for port, cell in enumerate(cells, PORT):
        text += (f"[forward {port}]\nlisten = {RELAY}:{port}\nupstream = {SERVER}:{port}\n"
                 + (f"{KEYS[cell.whose]} = {cell.limit}\n" if cell.limit else ""))
    return text


def waited_ns(pid):
    """For how long the threads of PID had no CPU although they could have run."""
    waited = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            waited += int(file.read().split()[1])
    return waited


def counts_between(record, begin, end):
    at = begin - record["first"]
    return [0] * -at + record["counts"][max(at, 0):end - record["first"]]


def evaluate(cell, received, begin, seconds):
    """RECEIVED: by way, what each connection got, from which BEGIN and SECONDS are the part
    that counts."""
    begin, end = int(begin * STEPS_PER_SECOND), int((begin + seconds) * STEPS_PER_SECOND)
    for way in WAYS[cell.ways]:
        if len(received[way]) != cell.connections:
            raise LabError(f"{cell.limit}: {len(received[way])} connections of "
                           f"{cell.connections}")
        each = [counts_between(record, begin, end) for record in received[way]]
        steps = [sum(step) for step in itertools.zip_longest(*each, fillvalue=0)]
        totals = [sum(counts) for counts in each]
        cell.rates.append(sum(totals) / seconds)
        cell.most = max(cell.most, *(sum(steps[at:at + STEPS_PER_SECOND])
                                     for at in range(max(1, len(steps) - STEPS_PER_SECOND))))
        cell.fairness = min(cell.fairness, min(totals) / max(*totals, 1))


def read_counts(path):
    with open(path, encoding="ascii") as file:
        return json.load(file)


def measure(lab, options, cells):
    """CELLS, which have the engine in common, at the same time."""
    config, up, down = (lab.path(name) for name in ("conf", "up.json", "down.json"))
    with open(config, "w", encoding="ascii") as file:
        file.write(configuration(cells))
    os.chmod(config, 0o644)
    ports = [str(PORT + i) for i in range(len(cells))]
    with open(up, "wb") as at_server, open(down, "wb") as at_client:
        server = lab.start_server("server", PORT + len(cells) - 1, sys.executable, "-B", ENDS,
                                  "server", SERVER, *ports, stdout=at_server)
        daemon = Daemon(lab, options.culvert, cells[0].engine, [], "--config", config)
        try:
            client = lab.start("client", sys.executable, "-B", ENDS, "client", RELAY,
                               f"{WARMUP + options.seconds + 0.2:g}",
                               *(f"{port}:{cell.connections}:{cell.ways}"
                                 for port, cell in zip(ports, cells)), stdout=at_client)
            time.sleep(WARMUP)
            begin = time.monotonic()
            waited = waited_ns(daemon.pid)
            time.sleep(options.seconds)
            waited = (waited_ns(daemon.pid) - waited) / 1e9 / options.seconds
            lab.finish(client, 60)
        finally:
            daemon.stop()
            lab.stop(server)
    received = {"up": read_counts(up), "down": read_counts(down)}
    first = max(record["first"] for way in received.values() for records in way.values()
                for record in records) / STEPS_PER_SECOND
    for port, cell in zip(ports, cells):
        cell.waited = waited
        evaluate(cell, {way: counts.get(port, []) for way, counts in received.items()},
                 max(begin, first + WARMUP / 2), options.seconds)


# --- all runs ---

def runs(options, engine, busy):
    """Lists of cells.  The first ones have no limit: a machine is not as fast at all times."""
    for connections in options.connections:
        yield [Cell("", connections, "forward", engine, busy, options.ways or "down")]
    together = []
    for limit, connections, whose in itertools.product(options.rates, options.connections,
                                                       options.whose):
        cell = Cell(limit, connections, whose, engine, busy, options.ways or "both")
        if size_of(limit) > TOGETHER // 2:
            cell.ways = options.ways or "down"
            yield [cell]
            continue
        if sum(size_of(other.limit) for other in [*together, cell]) > TOGETHER:
            yield together
            together = []
        together.append(cell)
    if together:
        yield together


def needed(cells):
    """Bytes a second that CELLS want in all."""
    return sum(size_of(cell.limit) * len(WAYS[cell.ways]) for cell in cells)


def measure_all(lab, options, busy):
    done = []
    for engine in options.engines:
        free = {}
        for cells in runs(options, engine, busy):
            measure(lab, options, cells)
            for cell in cells:
                if cell.limit:
                    cell.reachable = needed(cells) <= REACHABLE * min(
                        free[other.connections] for other in cells)
                else:
                    free[cell.connections] = min(cell.rates)
                print(cell.line(), flush=True)
            done += cells
    return done


def table(cells, options, busy):
    lines = [["limit, connections", *options.engines], ["---"] * (1 + len(options.engines))]
    for limit, connections in itertools.product([*options.rates, ""], options.connections):
        row = [f"{limit or 'none'}, {connections}"]
        for engine in options.engines:
            row.append(" / ".join(cell.text() for cell in cells
                                  if (cell.limit, cell.connections, cell.engine, cell.busy)
                                  == (limit, connections, engine, busy)))
        lines.append(row)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_load(lab, options, busy):
    load = []
    try:
        for _ in range(busy):
            load.append(subprocess.Popen(["sh", "-c", "while :; do :; done"],
                                         start_new_session=True))
        return measure_all(lab, options, busy)
    finally:
        for process in load:
            process.kill()
            process.wait()


def report(cells, options):
    limited = [cell for cell in cells if cell.limit]
    shared = [cell.fairness for cell in limited if cell.connections > 1]
    print(f"\n{options.seconds:g} s a cell, {os.cpu_count()} CPUs, load "
          f"{', '.join(f'{value:.1f}' for value in os.getloadavg())}\n"
          f"parts of the limit: {' / '.join(options.whose)}, of both ways the one that is farther "
          "off;\nin brackets: not reachable here, see the rows without a limit")
    for busy in options.busy:
        print(f"\nbeside {busy} processes that compute:\n\n{table(cells, options, busy)}")
    most = max(limited, key=lambda cell: cell.most / size_of(cell.limit))
    print(f"\nmost in any second, as received: {most.most / size_of(most.limit):.3f}"
          f" ({most.line().strip()})")
    if shared:
        print(f"the slowest connection's part of the fastest one's: {min(shared):.2f} and more")
    missed = [cell for cell in cells if cell.is_missed()]
    for cell in missed:
        print(f"MISSED: {cell.line()}")
    print(f"{len(missed)} of {len(limited)} missed by more than {ALLOWED:.0%}, "
          f"{sum(not cell.reachable for cell in limited)} not reachable")
    return 1 if missed else 0


def run(options):
    cells = []
    with Lab(options.loopback) as lab:
        for busy in options.busy:
            cells += with_load(lab, options, busy)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(cell) for cell in cells], file, indent=1)
    return report(cells, options)


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
