# SPDX-License-Identifier: BSD-2-Clause
"""What a run of the benchmark is to do, how long that takes, and how far it is."""

import os
import time

from bench_clients import Timing, load_seconds
from bench_cells import trial_timing
from bench_rows import IDLE_TOOL, group_rows

CALIBRATION_SECONDS = 0.35
CALIBRATION_PASSES = 2
COUNT_TIMING = Timing(0.35, 0.15)
# Beside the measured time, for the estimate: starting load generators, draining, relays.
CELL_OVERHEAD = 0.25
START_OVERHEAD = 0.35
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
    digits = 2 if row.kind == "throughput" else 0
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
        return [self.contenders[name] for name in row.contenders if name in self.contenders]

    def rounds_of(self, row):
        return min(self.options.rounds, row.most_rounds)

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
        return seconds

    def trial_seconds(self, row):
        timing = trial_timing(row, CALIBRATION_SECONDS)
        return (load_seconds(row.workload, timing) + CELL_OVERHEAD) * CALIBRATION_PASSES \
            + START_OVERHEAD

    def count_seconds(self, row):
        return load_seconds(row.workload, COUNT_TIMING) + CELL_OVERHEAD

    def group_seconds(self, rows):
        row, total = rows[0], 0.0
        contenders = self.contenders_of(row)
        if row.workload.tool == IDLE_TOOL:  # the direct path, which all are compared with
            total += self.rounds_of(row) * self.cell_seconds(row)
        for contender in contenders:
            trials = len(self.configs_of(row, contender))
            total += trials * self.trial_seconds(row) if trials > 1 else 0
            total += self.rounds_of(row) * self.cell_seconds(row)
            if row.workload.tool != IDLE_TOOL:
                total += START_OVERHEAD + self.count_seconds(row)
        return total

    def seconds(self):
        return sum(self.group_seconds(rows) for rows in self.groups)
