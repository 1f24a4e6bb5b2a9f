# SPDX-License-Identifier: BSD-2-Clause
"""What a run of the benchmark is to do, how long that takes, and how far it is."""

import os
import time

from bench_clients import Timing, load_seconds
from bench_cells import trial_timing
from bench_rows import IDLE_TOOL, group_rows
from rivals import AGAINST_OTHERS, BY_ITSELF, CONTROLLED

# A trial of a configuration, in rows with a target and in others.
TRIAL_SECONDS = 1.0
SHORT_TRIAL_SECONDS = 0.35
# For the estimate: of the configurations, so many are near enough to the best to be tried again.
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


def minutes_text(seconds):
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min"


class Progress:
    """What is done, and how long the rest takes, by an estimate that learns."""

    def __init__(self, total):
        self._began = time.monotonic()
        self._total = total
        self._done = 0.0

    def advance(self, estimate):
        self._done += estimate

    def drop(self, estimate):
        """So much of the total is not to be done after all."""
        self._total -= estimate

    def left(self):
        elapsed = time.monotonic() - self._began
        pace = elapsed / self._done if self._done > 5 else 1.0
        return max(self._total - self._done, 0) * pace

    def say(self, text):
        elapsed = int(time.monotonic() - self._began)
        print(f"{elapsed // 60:3}:{elapsed % 60:02}  {text}", flush=True)


def cell_text(row, cell):
    """What one cell says, for the progress line."""
    if "failed" in cell:
        return f"FAILED: {cell['failed']}"
    digits = 2 if row.kind in ("throughput", "gap") else 0
    text = f"{cell['value']:,.{digits}f} {row.unit}"
    if cell["cpu_seconds"] and cell["work"]:
        scale, unit = (1, "s") if row.work_unit == "GB" else (1e6, "us")
        text += f", CPU {cell['cpu_seconds'] * scale / cell['work']:.3g} {unit}/{row.work_unit}"
    for name in ("errors", "wrong"):
        text += f", {cell[name]} {name.upper()}" if cell[name] else ""
    return text


class Plan:
    """What is to be run, and how long that will take."""

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
        """Of a group: how many follow the ordinary ones."""
        if any(row.name in AGAINST_OTHERS for row in rows):
            return self.options.decisive
        if any(row.name in BY_ITSELF for row in rows):
            return min(self.options.decisive, MOST_DECISIVE_IDLE)
        return 0

    def decisive_numbers(self, rows):
        """Of a group: the numbers of the rounds that follow the ordinary ones."""
        first = self.rounds_of(rows[0]) + 1
        return range(first, first + self.decisive_rounds_of(rows))

    def round_text(self, row, number):
        """Which round of how many."""
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
        seconds = load_seconds(row.workload, self.timing_of(row)) + CELL_OVERHEAD
        if row.workload.tool == IDLE_TOOL:
            return 2 * seconds + IDLE_OVERHEAD + self.options.idle * IDLE_SECONDS_EACH
        return seconds + RESTART_OVERHEAD

    def trial_length(self, row):
        return TRIAL_SECONDS if row.name in CONTROLLED else SHORT_TRIAL_SECONDS

    def trial_seconds(self, row):
        """What one pass of one configuration takes."""
        timing = trial_timing(row, self.trial_length(row))
        return load_seconds(row.workload, timing) + CELL_OVERHEAD

    def count_seconds(self, row):
        return load_seconds(row.workload, COUNT_TIMING) + CELL_OVERHEAD

    def calibration_seconds(self, row, contender):
        trials = len(self.configs_of(row, contender))
        if trials == 1:
            return 0.0
        return trials * ((1 + TRIED_AGAIN) * self.trial_seconds(row) + START_OVERHEAD)

    def decisive_seconds(self, rows):
        """As long as it takes if all take part who ever might."""
        most = DECIDERS_BY_ITSELF if rows[0].workload.tool == IDLE_TOOL else MOST_DECIDERS
        taking_part = min(len(self.contenders_of(rows[0])), most)
        return self.decisive_rounds_of(rows) * taking_part * self.cell_seconds(rows[0])

    def group_seconds(self, rows):
        row, total = rows[0], self.decisive_seconds(rows)
        contenders = self.contenders_of(row)
        if row.workload.tool == IDLE_TOOL:  # the direct path, which all are compared with
            total += self.rounds_of(row) * self.cell_seconds(row)
        for contender in contenders:
            total += self.calibration_seconds(row, contender)
            total += self.rounds_of(row) * self.cell_seconds(row)
            if row.workload.tool != IDLE_TOOL:
                total += START_OVERHEAD + self.count_seconds(row)
        return total

    def seconds(self):
        return sum(self.group_seconds(rows) for rows in self.groups)
