# SPDX-License-Identifier: BSD-2-Clause
"""The matrix of paths of the benchmark, as data: its factors, and a selection of its cells.

All combinations would take days. Each value of a factor meets each value of each other factor in
one cell at least: what goes wrong does so for a pair of them, nearly always.
"""

import itertools
import random
from dataclasses import dataclass

MOST_CELLS = 120
CANDIDATES = 40
TRANSFERS, CONVERSATIONS, QUIC, DISTANCE = "transfers", "conversations", "quic", "distance"
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
# Of the picture: so far away is the client.
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
    """A load of PATH. SIZE: bytes of one transfer each way, or of one message."""
    kind: str
    path: Path
    size: int
    congestion: str = "cubic"
    direction: str = "download"
    connections: int = 1

    @property
    def what(self):
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
        return f"{self.path.title}: {self.what}"

    @property
    def name(self):
        return "".join(c if c.isalnum() or c == "." else "-" for c in self.title)


def pairs_of(choice):
    """The pairs of (factor, value) that CHOICE, {factor: value}, has."""
    return set(itertools.combinations(sorted(choice.items(), key=lambda item: item[0]), 2))


def all_pairs(factors):
    """Of FACTORS, {name: values}."""
    return {pair for first, second in itertools.combinations(sorted(factors), 2)
            for pair in itertools.product(((first, value) for value in factors[first]),
                                          ((second, value) for value in factors[second]))}


def pairwise(factors, source):
    """Choices that have all pairs. Those that come first have the most pairs that are new."""
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


def transfer_cell(choice):
    return Cell(TRANSFERS, Path((choice["client_rtt"], choice["server_rtt"]), choice["loss"]),
                choice["size"], choice["congestion"], choice["direction"], choice["connections"])


def conversation_cell(choice):
    return Cell(CONVERSATIONS, Path(choice["rtt"], choice["loss"]), choice["size"])


def spread_out(first, second):
    """Both lists as one, in which each stays in order and has its share of any beginning."""
    places = [((number + 0.5) / len(cells), which, cell)
              for which, cells in enumerate((first, second)) for number, cell in enumerate(cells)]
    return [cell for _place, _which, cell in sorted(places, key=lambda one: one[:2])]


def select_cells(count, seed):
    """So many cells of the matrix; without COUNT as many as all pairs need.

    More than that are drawn from what is left, less are the first ones.
    """
    source = random.Random(f"paths:{seed}")
    cells = spread_out([transfer_cell(one) for one in pairwise(TRANSFER_FACTORS, source)],
                       [conversation_cell(one) for one in pairwise(CONVERSATION_FACTORS, source)])
    cells = list(dict.fromkeys(cells))
    count = min(count or len(cells), MOST_CELLS)
    while len(cells) < count:
        more = transfer_cell({name: source.choice(values)
                              for name, values in TRANSFER_FACTORS.items()})
        if more not in cells:
            cells.append(more)
    return cells[:count]


def quic_cells():
    return [Cell(QUIC, Path(rtt, loss), 3 * MB) for rtt, loss in QUIC_PATHS]


def distance_cells():
    """Those of the picture."""
    return [Cell(DISTANCE, Path((near, far), loss), 10 * MB)
            for far in FAR_LEGS for loss in DISTANCE_LOSSES for near in DISTANCES]


def group_by_path(cells):
    """{path: its cells}, nearest paths first."""
    groups = {}
    for cell in sorted(cells, key=lambda one: (one.path.rtt, one.path.loss)):
        groups.setdefault(cell.path, []).append(cell)
    return groups
