# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark over paths that have a length and lose frames: see scripts/bench --paths.

All combinations of the factors would take days. Each value of a factor meets each value of each
other factor in one cell at least: nearly all faults come from a pair of values.
"""

import collections
import itertools
import json
import os
import queue
import random
import subprocess
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import figures
import plot_paths
import rivals
from bench.contenders import CONTENDERS, Forward, Relay, Relays
from bench.loads import OWN, BenchLab, Interrupts
from bench.measuring import EMPTY_CELL, LISTEN_PORT, failed_cell
from bench.rows import BULK, CONVERSATION, order_of_round
from bench.running import (begin, carry_out, describe_machine, make_parser, positive_int,
                           with_messages)
from labkit import SERVER, LabError, sha256_of_file, tail, write_random
from plot_paths import DISTANCE

NAMES = ("direct", "nft-dnat", "auto", "copy", "splice", "sockmap", "graft", "haproxy")
QUIC_NAMES = ("direct", "auto", "copy", *rivals.OTHERS.values())
ROUNDS, SECONDS, TALK_SECONDS, QUIC_SECONDS = 3, 4.0, 1.5, 20.0
SESSIONS = 1024
# After a transfer, until its last frames have arrived.
SETTLE = 0.03
# The counts of lab-delay, and their greatest age.
DROPS, COUNTS_SECONDS = ("missed", "over the limit", "too long", "refused"), 0.6

# The matrix, as data

MOST_CELLS = 120
CANDIDATES = 40
TRANSFERS, CONVERSATIONS, QUIC = "transfers", "conversations", "quic"
KB, MB = 1000, 1000 * 1000

CLIENT_RTT, SERVER_RTT = (0, 1, 4, 20, 80), (0, 1, 40)
# (loss on the client's leg, on the server's), in per cent each way. A leg without loss is no factor
# of its own, or half of its cells would be alike.
LOSSES = ((0, 0), *((loss, 0) for loss in (0.1, 0.5, 1)), *((0, loss) for loss in (0.1, 0.5, 1)))
TRANSFER_FACTORS = {
    "client_rtt": CLIENT_RTT, "server_rtt": SERVER_RTT, "loss": LOSSES,
    "congestion": ("cubic", "bbr", "reno"), "size": (10 * KB, 100 * KB, 2 * MB, 50 * MB),
    "direction": ("download", "upload", "both"), "connections": (1, 16)}
CONVERSATION_FACTORS = {
    "rtt": tuple(itertools.product(CLIENT_RTT, SERVER_RTT)),
    "loss": ((0, 0), (0.5, 0), (0, 0.5)), "size": (64, 16384)}
# Of the picture: the distances of the client.
DISTANCES, FAR_LEGS, DISTANCE_LOSSES = (0, 10, 20, 40, 80), (1, 40), ((0, 0), (0.1, 0.1))
QUIC_PATHS = (((0, 0), (0, 0)), ((20, 1), (0, 0)), ((80, 1), (0.5, 0)), ((20, 40), (0, 0.1)))


@dataclass(frozen=True)
class Path:
    """(client's leg, server's leg): round trips in ms, losses in per cent each way."""
    rtt: tuple
    loss: tuple

    @property
    def title(self):
        return " + ".join(f"{rtt:g} ms" + (f" {loss:g} %" if loss else "")
                          for rtt, loss in zip(self.rtt, self.loss))

    @property
    def round_trip(self):
        """In seconds, from end to end."""
        return sum(self.rtt) / 1000


@dataclass(frozen=True)
class Cell:
    """A load on PATH. SIZE: bytes of one transfer each way, or of one message."""
    kind: str
    path: Path
    size: int
    congestion: str = "cubic"
    direction: str = "download"
    connections: int = 1

    @property
    def load(self):
        size = f"{self.size // MB} MB" if self.size >= MB else \
            f"{self.size // KB} KB" if self.size % KB == 0 else f"{self.size} B"
        if self.kind == CONVERSATIONS:
            return f"{size} each way"
        if self.kind == QUIC:
            return f"{size} by QUIC"
        several = f"{self.connections} x " if self.connections > 1 else ""
        return f"{self.direction} {several}{size} {self.congestion}"

    @property
    def title(self):
        return f"{self.path.title}: {self.load}"

    @property
    def name(self):
        return "".join(c if c.isalnum() or c == "." else "-" for c in self.title)


def pairs_of(choice):
    """The pairs of (factor, value) that CHOICE, {factor: value}, has."""
    return set(itertools.combinations(sorted(choice.items(), key=lambda item: item[0]), 2))


def all_pairs(factors):
    """The pairs of FACTORS, {name: values}."""
    return {pair for first, second in itertools.combinations(sorted(factors), 2)
            for pair in itertools.product(((first, value) for value in factors[first]),
                                          ((second, value) for value in factors[second]))}


def pairwise(factors, source):
    """Choices that have all pairs. The first choices have the most new pairs."""
    missing = all_pairs(factors)
    order = sorted(missing, key=repr)
    source.shuffle(order)
    chosen = []
    for wanted in order:
        if wanted not in missing:
            continue
        candidates = [{**{name: source.choice(values) for name, values in factors.items()},
                       **dict(wanted)} for _ in range(CANDIDATES)]
        best = max(candidates, key=lambda one: len(pairs_of(one) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen


def chosen_transfer(choice):
    return Cell(TRANSFERS, Path((choice["client_rtt"], choice["server_rtt"]), choice["loss"]),
                choice["size"], choice["congestion"], choice["direction"], choice["connections"])


def chosen_conversation(choice):
    return Cell(CONVERSATIONS, Path(choice["rtt"], choice["loss"]), choice["size"])


def spread_out(first, second):
    """Both lists as one, in which each stays in order and has its share of any beginning."""
    places = [((number + 0.5) / len(cells), which, cell)
              for which, cells in enumerate((first, second)) for number, cell in enumerate(cells)]
    return [cell for _place, _which, cell in sorted(places, key=lambda one: one[:2])]


def select_cells(count, seed):
    """COUNT cells of the matrix; without COUNT as many as all pairs need.

    A smaller COUNT takes the first of these, a greater one draws more at random.
    """
    source = random.Random(f"paths:{seed}")
    cells = spread_out(list(map(chosen_transfer, pairwise(TRANSFER_FACTORS, source))),
                       list(map(chosen_conversation, pairwise(CONVERSATION_FACTORS, source))))
    cells = list(dict.fromkeys(cells))
    count = min(count or len(cells), MOST_CELLS)
    while len(cells) < count:
        more = chosen_transfer({name: source.choice(values)
                                for name, values in TRANSFER_FACTORS.items()})
        if more not in cells:
            cells.append(more)
    return cells[:count]


def quic_cells():
    return [Cell(QUIC, Path(rtt, loss), 3 * MB) for rtt, loss in QUIC_PATHS]


def distance_cells():
    """The cells of the picture."""
    return [Cell(DISTANCE, Path((near, far), loss), 10 * MB)
            for far in FAR_LEGS for loss in DISTANCE_LOSSES for near in DISTANCES]


def group_by_path(cells):
    """{path: its cells}, nearest paths first."""
    groups = {}
    for cell in sorted(cells, key=lambda one: (one.path.rtt, one.path.loss)):
        groups.setdefault(cell.path, []).append(cell)
    return groups


# The ends of a path, programs of bench.loads, and their cells

PORT = 6100  # of TCP, and of UDP for QUIC
# Seconds that an end may need beyond its deadline.
GRACE = 5.0


class Lines:
    """The output of a process: a line of JSON at a time."""

    def __init__(self, process):
        self._process = process
        self._queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._queue.put(json.loads(line))

    def get(self, seconds):
        """The next line; None if no line comes in time."""
        try:
            return self._queue.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None


def transfer_cell(cell, began, seconds, client, server):
    """The figures of a transfer. CLIENT, SERVER: the reports of each end's connections."""
    received = [*client, *server]
    total = sum(one["bytes"] for one in received)
    wanted = cell.size * cell.connections * (2 if cell.direction == "both" else 1)
    is_whole = total == wanted
    took = (max(one["ended"] for one in received) - began) / 1e9 if is_whole else seconds
    return figures_of(total * 8 / 1e6 / took, received,
                      {"bytes": total, "seconds": round(took, 6), "capped": not is_whole})


def conversation_cell(seconds, client):
    rounds = collections.Counter(took for one in client for took in one["rounds"])
    return {**figures_of(rounds.total() / seconds, client, {"rounds": rounds.total()}),
            "histogram": sorted(map(list, rounds.items()))}


def figures_of(value, connections, extra):
    errors = [one["error"] for one in connections if one.get("error")]
    return {**EMPTY_CELL, "value": value, "errors": len(errors),
            "wrong": sum(one["wrong"] for one in connections),
            "extra": {**extra, **({"error": errors[0]} if errors else {})}}


class Ends:
    """Both ends in LAB, until its end."""

    def __init__(self, lab):
        self._lab = lab
        self._numbers = itertools.count(1)
        server = lab.start_server("server", PORT, *OWN, "server", SERVER, str(PORT),
                                  stdout=subprocess.PIPE)
        self._client = lab.start("client", *OWN, "client", stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self._server_lines, self._client_lines = Lines(server), Lines(self._client)

    def measure(self, cell, target, seconds):
        """A cell of a row. TARGET: (address, port)."""
        talks = cell.kind == CONVERSATIONS
        numbers = [next(self._numbers) for _ in range(cell.connections)]
        task = {"address": target[0], "port": target[1], "size": cell.size, "numbers": numbers,
                "kind": "converse" if talks else cell.direction, "seconds": seconds,
                "congestion": cell.congestion}
        self._client.stdin.write(json.dumps(task).encode() + b"\n")
        self._client.stdin.flush()
        outcome = self._client_lines.get(seconds + GRACE)
        if outcome is None:
            raise LabError(f"the client said nothing:\n{tail(self._client.log)}")
        connections = outcome["connections"]
        if talks:
            return conversation_cell(seconds, connections)
        reports = self._server_reports(cell, connections, outcome["began"] + seconds * 1e9)
        return transfer_cell(cell, outcome["began"], seconds, connections, reports)

    def _server_reports(self, cell, connections, deadline):
        """The server's reports of all connections that reached the server."""
        awaited = {one["number"] for one in connections if not one["error"]} \
            if cell.direction != "download" else set()
        reports = []
        while awaited:
            report = self._server_lines.get((deadline - time.monotonic_ns()) / 1e9 + 0.3)
            if report is None:
                break
            if report["number"] in awaited:
                awaited.remove(report["number"])
                reports.append(report)
        return reports


class Quic:
    """A file by QUIC, with the programs of ngtcp2."""

    def __init__(self, lab, size):
        self._lab = lab
        self._size = size
        self._numbers = itertools.count(1)
        os.mkdir(lab.path("quic"))
        self._digest = write_random(lab.path("quic/file"), size)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj",
                        "/CN=lab", "-keyout", lab.path("key"), "-out", lab.path("cert")],
                       check=True, stderr=subprocess.DEVNULL)
        lab.start_server("server", PORT, "gtlsserver", "-q", "-d", lab.path("quic"), SERVER,
                         str(PORT), lab.path("key"), lab.path("cert"), protocol="udp")

    def measure(self, target, seconds):
        """The time from the start of the client to its end counts: it has no figures of its own. A
        client that does not end in time has failed: its file has the whole size from the start."""
        folder = self._lab.path(f"quic.{next(self._numbers)}")
        os.mkdir(folder)
        began = time.monotonic()
        process = self._lab.start("client", "gtlsclient", "-q", "--exit-on-all-streams-close",
                                  "--download", folder, target[0], str(target[1]),
                                  "https://lab/file")
        self._lab.finish(process, seconds)
        took = time.monotonic() - began
        path = os.path.join(folder, "file")
        is_wrong = not os.path.exists(path) or sha256_of_file(path) != self._digest
        return figures_of(self._size * 8 / 1e6 / took, [{"wrong": int(is_wrong)}],
                          {"bytes": self._size, "seconds": round(took, 6)})


# The results as a table of text

COLUMNS = ("path and load", "auto", "unit", "best engine", "auto / best", "auto / copy",
           "copy / direct", "auto / direct")


def ratio_text(row, first, second):
    """"median [min-max]" of the ratios within rounds; "-" where there is none."""
    ours, theirs = (figures.find_contender(row, name) if name else None
                    for name in (first, second))
    if not ours or not theirs:
        return "-"
    summary = figures.ratio_within_rounds(ours, theirs, figures.value_measure(row)).summary
    return f"{summary.median:.2f} [{summary.low:.2f}-{summary.high:.2f}]" if summary else "-"


def value_text(row, name):
    found = figures.find_contender(row, name)
    summary = found and figures.summary_of(found, figures.value_measure(row))
    return f"{summary.median:,.4g}" if summary else "-"


def best_engine(row):
    found = figures.find_contender(row, rivals.SUBJECT) and rivals.best_engine(row)
    return found["name"] if found else None


def line_of(row):
    best = best_engine(row)
    return (row["title"], value_text(row, "auto"), row["unit"], best or "-",
            ratio_text(row, "auto", best), ratio_text(row, "auto", "copy"),
            ratio_text(row, "copy", "direct"), ratio_text(row, "auto", "direct"))


def overall(rows, first, second):
    """The Summary of the rows' medians of the ratio of FIRST to SECOND; None if there is none."""
    medians = []
    for row in rows:
        ours, theirs = (figures.find_contender(row, name) for name in (first, second))
        ratio = ours and theirs and figures.ratio_within_rounds(ours, theirs,
                                                                figures.value_measure(row))
        if ratio and ratio.summary:
            medians.append(ratio.summary.median)
    return figures.summarise(medians)


def speeds(row):
    """The medians of all contenders, in a line."""
    return ", ".join(f"{one['name']} {value_text(row, one['name'])}" for one in row["contenders"])


def aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths)).rstrip()
            for line in lines]


def failures(rows):
    return [f"{row['title']}: {one['name']}, round {number}: {why}" for row in rows
            for one in row["contenders"] for number, why in figures.unusable_cells(one)]


def text_of(results):
    rows = [row for row in results["rows"] if row["contenders"]]
    lines = [f"the relay's own congestion control: {results['relay_congestion']}", "",
             *aligned([COLUMNS, *map(line_of, rows)]), ""]
    for first, second in (("auto", "copy"), ("copy", "direct"), ("auto", "direct"),
                          *rivals.OTHERS.items()):
        summary = overall(rows, first, second)
        if summary:
            lines.append(f"{first} / {second}: median of {summary.count} rows {summary.median:.2f}"
                         f" [{summary.low:.2f}-{summary.high:.2f}]")
    lines += ["", *aligned([("path and load", "medians of all"),
                            *((row["title"], speeds(row)) for row in rows)])]
    lines += ["", *failures(rows)] if failures(rows) else []
    return "\n".join(lines) + "\n"


# The run

def congestion_of_machine():
    with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="ascii") as file:
        return file.read().strip()


def parse_options():
    parser = make_parser("scripts/bench --paths", ROUNDS, SECONDS)
    parser.add_argument("--paths", action="store_true")
    parser.add_argument("--cells", type=positive_int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--relay-congestion", default=congestion_of_machine())
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--no-quic", dest="quic", action="store_false")
    options = parser.parse_args()
    if (options.cells or 1) > MOST_CELLS:
        parser.error(f"--cells can be {MOST_CELLS} at most")
    options.quick, options.loopback, options.decisive = False, False, 0
    options.contenders = options.contenders or (plot_paths.CONTENDERS if options.plot else NAMES)
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
        self.options, self.contenders, self.results = options, contenders, results
        self.began = time.monotonic()
        self.done = self.total = 0

    def run(self, cells):
        groups = group_by_path(cells)
        self.total = sum(len(self._contenders_of(cell)) for cell in cells) * self.options.rounds
        for cell in cells:
            self._add_row(cell)
        for path, on_path in groups.items():
            # Interrupts anew: a lab that closes ignores signals, and so would the next one.
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
        with Relays({one.name: lambda one=one: self._start(lab, one, cells)
                     for one in self.contenders},
                    [one.name for one in self.contenders if one.alone]) as relays:
            relays.rest()
            for number in range(1, self.options.rounds + 1):
                for cell in cells:
                    self._run_round(cell, number, relays, ends, quic)

    def _tell_drops(self, lab, cells):
        """Notes the frames that the path dropped beside its losses, as it was too slow."""
        time.sleep(COUNTS_SECONDS)
        found = {f"{path} from {device}": dropped for path in ("path1", "path2")
                 for device, counts in lab.path_counts(path).items()
                 if (dropped := {reason: counts[reason] for reason in DROPS if counts[reason]})}
        if found:
            note = f"dropped beside the losses: {found}"
            print(f"{cells[0].path.title}: {note}")
            for cell in cells:
                self.results.append_note(row_of(cell), note)

    def _start(self, lab, contender, cells):
        """A forward has one configuration for all cells of its path."""
        has_quic = any(cell.kind == QUIC for cell in cells) and contender.name in QUIC_NAMES
        forward = Forward(LISTEN_PORT + list(CONTENDERS).index(contender.name), PORT,
                          protocols=("tcp", "udp") if has_quic else ("tcp",))
        relay = Relay(lab, contender, self._config(contender, cells[0]), [forward], None)
        return relay.start(self.options.culvert, SESSIONS)

    def _run_round(self, cell, number, relays, ends, quic):
        for contender in order_of_round(self._contenders_of(cell), number, cell.name):
            try:
                found = self._measure(cell, relays.get(contender.name), ends, quic)
            except LabError as error:
                found = failed_cell(error)
            time.sleep(cell.path.round_trip + SETTLE)
            if contender.alone:
                relays.rest()
            self.results.add_cell(row_of(cell), contender.name, number, found)
            self._say(cell, number, contender, found)

    def _measure(self, cell, relay, ends, quic):
        target, = relay.targets
        if cell.kind == QUIC:
            return quic.measure(target, QUIC_SECONDS)
        seconds = min(TALK_SECONDS, self.options.seconds) if cell.kind == CONVERSATIONS else \
            self.options.seconds
        return ends.measure(cell, target, seconds)

    def _say(self, cell, number, contender, found):
        self.done += 1
        elapsed = time.monotonic() - self.began
        value = found.get("failed") or f"{found['value']:,.4g} {row_of(cell).unit}" + \
            (" (capped)" if found["extra"].get("capped") else "")
        print(f"{elapsed // 60:3.0f}:{elapsed % 60:02.0f}  {self.done}/{self.total} {cell.title}  "
              f"{number}  {contender.name:9} {value}", flush=True)


def write_text(results, options):
    folder = os.path.dirname(results.path)
    texts = {"paths.txt": text_of(results.document)}
    if options.plot and (drawing := plot_paths.draw(results.document)):
        texts["paths.svg"] = drawing
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    print(f"\n{texts['paths.txt']}")


def run(options):
    contenders, results = begin(options)
    results.describe(seed=options.seed, relay_congestion=options.relay_congestion)
    cells = chosen_cells(options)
    print(f"cells    {len(cells)} on {len(group_by_path(cells))} paths")
    return carry_out(results, options.strict,
                     lambda: PathBenchmark(options, contenders.values(), results).run(cells),
                     lambda: write_text(results, options))


def print_list(options):
    for path, cells in group_by_path(chosen_cells(options)).items():
        print("\n".join([path.title, *(f"    {cell.load}" for cell in cells)]))


def main():
    options = parse_options()
    return with_messages(options, lambda: print_list(options), run)
