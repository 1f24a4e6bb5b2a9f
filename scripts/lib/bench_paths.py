#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark over paths that have a length and lose frames: see scripts/bench --paths."""

import argparse
import os
import sys
import time
from types import SimpleNamespace

import bench_paths_table
import plot_paths
from bench_cells import failed_cell
from bench_command import make_report, open_results, positive_float, positive_int, split_names
from bench_lab import BenchLab, Interrupts
from bench_paths_cells import (CONVERSATIONS, MOST_CELLS, QUIC, distance_cells,
                               group_by_path, quic_cells, select_cells)
from bench_paths_ends import PORT, Ends, Quic
from bench_relays import BULK, CONTENDERS, CONVERSATION, Forward, Relay
from bench_results import OutputError, describe_machine
from bench_rows import SelectionError, order_of_round, select_contenders
from bench_running import RowRelays
from labkit import TOP, Interrupted, LabError

LISTEN_PORT = 9000
NAMES = ("direct", "nft-dnat", "auto", "copy", "splice", "sockmap", "graft", "haproxy")
QUIC_NAMES = ("direct", "auto", "copy")
ROUNDS, SECONDS, TALK_SECONDS, QUIC_SECONDS = 3, 4.0, 1.5, 20.0
SESSIONS = 1024
# So long after a transfer its last frames have arrived.
SETTLE = 0.03
# The counts of lab-delay, and their greatest age.
DROPS, COUNTS_SECONDS = ("missed", "over the limit", "too long", "refused"), 0.6


def congestion_of_machine():
    with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="ascii") as file:
        return file.read().strip()


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/bench --paths", allow_abbrev=False,
                                     usage="sudo scripts/bench --paths [OPTION...], see --help")
    parser.add_argument("--paths", action="store_true")
    parser.add_argument("--cells", type=positive_int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=positive_int, default=ROUNDS)
    parser.add_argument("--seconds", type=positive_float, default=SECONDS)
    parser.add_argument("--contenders", default="")
    parser.add_argument("--relay-congestion", default=congestion_of_machine())
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--no-quic", dest="quic", action="store_false")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--culvert", type=os.path.abspath,
                        default=os.path.join(TOP, "build", "culvert"))
    options = parser.parse_args()
    if (options.cells or 1) > MOST_CELLS:
        parser.error(f"--cells can be {MOST_CELLS} at most")
    options.quick, options.loopback, options.decisive = False, False, 0
    options.contenders = split_names(options.contenders) or \
        list(plot_paths.CONTENDERS if options.plot else NAMES)
    return options


def chosen_cells(options):
    if options.plot:
        return distance_cells()
    return [*select_cells(options.cells, options.seed), *(quic_cells() if options.quic else [])]


def row_of(cell):
    talks = cell.kind == CONVERSATIONS
    return SimpleNamespace(
        name=cell.name, title=cell.title, group=cell.kind, better="higher", note="",
        kind="rate" if talks else "throughput", unit="rounds/s" if talks else "Mbit/s",
        work_unit="round" if talks else "GB")


class PathBenchmark:
    def __init__(self, options, contenders, results):
        self.options = options
        self.contenders = contenders
        self.results = results
        self.began = time.monotonic()
        self.done = self.total = 0

    def run(self, cells):
        groups = group_by_path(cells)
        self.total = sum(len(self._contenders_of(cell)) for cell in cells) * self.options.rounds
        for cell in cells:
            self._add_row(cell)
        for path, on_path in groups.items():
            # Anew for each: a lab that closes ignores signals, and so would what is started next.
            with BenchLab(Interrupts(), rtt=path.rtt, loss=path.loss,
                          seed=self.options.seed) as lab:
                lab.run("relay", "sh", "-c", 'echo "$0" >/proc/sys/net/ipv4/tcp_congestion_control',
                        self.options.relay_congestion)
                if not self.done:
                    self.results.describe(machine=describe_machine(lab, self._methods()))
                self._run_path(lab, on_path)
                self._tell_drops(lab, on_path)
            self.results.write()

    def _methods(self):
        return {"links": "lab-delay, frames of 1500 bytes, no offloads",
                "congestion control": "of the ends set in each row; of the relay "
                                      f"{self.options.relay_congestion}",
                "figure": f"bytes received / time from connect(2); by {self.options.seconds:g} s "
                          "if it lasts longer"}

    def _contenders_of(self, cell):
        return [one for one in self.contenders if cell.kind != QUIC or one.name in QUIC_NAMES]

    def _add_row(self, cell):
        row = row_of(cell)
        self.results.add_row(row)
        self.results.row(row).update(
            rtt_ms=cell.path.rtt, loss_percent=cell.path.loss, size=cell.size,
            congestion=cell.congestion, direction=cell.direction, connections=cell.connections)
        for one in self._contenders_of(cell):
            self.results.add_contender(row, one, one.describe(self._config(one, cell)))

    def _config(self, contender, cell):
        goal = CONVERSATION if cell.kind == CONVERSATIONS else BULK
        return contender.configs(goal, len(os.sched_getaffinity(0)))[0]

    # A path

    def _run_path(self, lab, cells):
        by_quic = [cell for cell in cells if cell.kind == QUIC]
        ends, quic = Ends(lab), Quic(lab, by_quic[0].size) if by_quic else None
        relays = RowRelays({one.name: lambda one=one: self._start(lab, one, cells)
                            for one in self.contenders},
                           [one.name for one in self.contenders if one.alone])
        try:
            relays.start()
            relays.rest()
            for number in range(1, self.options.rounds + 1):
                for cell in cells:
                    self._run_round(cell, number, relays, ends, quic)
        finally:
            relays.stop()

    def _tell_drops(self, lab, cells):
        """Frames that the path has dropped because it was too slow: its losses are others then."""
        time.sleep(COUNTS_SECONDS)
        found = {f"{path} from {device}": dropped for path in ("path1", "path2")
                 for device, counts in lab.path_counts(path).items()
                 if (dropped := {what: counts[what] for what in DROPS if counts[what]})}
        if found:
            note = f"dropped beside the losses: {found}"
            print(f"{cells[0].path.title}: {note}")
            for cell in cells:
                self.results.append_note(row_of(cell), note)

    def _start(self, lab, contender, cells):
        """A forward has one configuration, so the loads of this path decide it together."""
        has_quic = any(cell.kind == QUIC for cell in cells) and contender.name in QUIC_NAMES
        forward = Forward(LISTEN_PORT + list(CONTENDERS).index(contender.name), PORT,
                          protocols=("tcp", "udp") if has_quic else ("tcp",))
        relay = Relay(lab, contender, self._config(contender, cells[0]), [forward], None)
        return relay.start(self.options.culvert, SESSIONS)

    def _run_round(self, cell, number, relays, ends, quic):
        for contender in order_of_round(self._contenders_of(cell), number, cell.name):
            try:
                figures = self._measure(cell, relays.get(contender.name), ends, quic)
            except LabError as error:
                figures = failed_cell(error)
            time.sleep(cell.path.round_trip + SETTLE)
            if contender.alone:
                relays.rest()
            self.results.add_cell(row_of(cell), contender.name, number, figures)
            self._say(cell, number, contender, figures)

    def _measure(self, cell, relay, ends, quic):
        target, = relay.targets
        if cell.kind == QUIC:
            return quic.measure(target, QUIC_SECONDS)
        seconds = min(TALK_SECONDS, self.options.seconds) if cell.kind == CONVERSATIONS else \
            self.options.seconds
        return ends.measure(cell, target, seconds)

    def _say(self, cell, number, contender, figures):
        self.done += 1
        elapsed = time.monotonic() - self.began
        value = figures.get("failed") or f"{figures['value']:,.4g} {row_of(cell).unit}" + \
            (" (capped)" if figures["extra"].get("capped") else "")
        print(f"{elapsed // 60:3.0f}:{elapsed % 60:02.0f}  {self.done}/{self.total} {cell.title}  "
              f"{number}  {contender.name:9} {value}", flush=True)


def write_text(results, path, options):
    folder = os.path.dirname(path)
    text = bench_paths_table.text_of(results)
    with open(os.path.join(folder, "paths.txt"), "w", encoding="utf-8") as file:
        file.write(text)
    print(f"\n{text}")
    drawing = plot_paths.draw(results) if options.plot else None
    if drawing:
        with open(os.path.join(folder, "paths.svg"), "w", encoding="utf-8") as file:
            file.write(drawing)


def run(options, contenders, missing):
    results = open_results(options)
    for name, why in missing.items():
        results.leave_out(name, why)
        print(f"LEFT OUT {name}: {why}")
    results.describe(seed=options.seed, relay_congestion=options.relay_congestion)
    cells = chosen_cells(options)
    print(f"results  {results.path}\ncells    {len(cells)} on {len(group_by_path(cells))} paths")
    code = None
    try:
        PathBenchmark(options, contenders, results).run(cells)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        code = 1
    except Interrupted as signal_number:
        print("\nbench: interrupted; the rounds so far are kept", file=sys.stderr)
        code = 128 + signal_number.args[0]
    results.write(complete=code is None)
    write_text(results.document, results.path, options)
    made = "machine" in results.document and make_report(results.path)
    failed = [cell for _row, _name, cell in results.cells() if "failed" in cell]
    wrong = [cell for _row, _name, cell in results.cells() if cell.get("wrong")]
    return code or int(bool(wrong) or not made or (options.strict and bool(failed)))


def main():
    options = parse_options()
    if options.list:
        for path, cells in group_by_path(chosen_cells(options)).items():
            print("\n".join([path.title, *(f"    {cell.what}" for cell in cells)]))
        return 0
    try:
        names = select_contenders(options.contenders, False, CONTENDERS)
    except SelectionError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    missing = {name: why for name in CONTENDERS if name in names
               if (why := CONTENDERS[name].why_missing())}
    contenders = [one for name, one in CONTENDERS.items() if name in names and name not in missing]
    try:
        return run(options, contenders, missing)
    except OutputError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
