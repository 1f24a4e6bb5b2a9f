# SPDX-License-Identifier: BSD-2-Clause
"""The choice of a contender's configuration for a row: all are tried, then the best again.

One trial is as noisy as any cell. So all configurations have one, in a shuffled order; those that
reach at least half of the best have another; and the best mean of those that had both is chosen.
"""

import math
import statistics

from bench_cells import one_line
from bench_rows import order_of_round
from bench_running import RowRelays
from labkit import LabError

# A configuration this far behind the best of the first pass (as a logarithm) is not tried again.
HOPELESS = math.log(2)


def choose_best(tried, better):
    """The configuration with the best value of (configuration, value or None) pairs.

    The first one if none worked: then the row shows the failure.
    """
    sign = 1 if better == "higher" else -1
    working = [pair for pair in tried if pair[1] is not None]
    return max(working, key=lambda pair: sign * pair[1])[0] if working else tried[0][0]


def finalists(values, better):
    """Of {index: value or None} the indices worth another trial; none if there is one only."""
    working = {index: value for index, value in values.items() if value is not None}
    if not working:
        return []
    best = (max if better == "higher" else min)(working.values())
    near = [index for index, value in working.items()
            if value == best or _distance(value, best) <= HOPELESS]
    return near if len(near) > 1 else []


def _distance(value, best):
    return abs(math.log(value / best)) if value > 0 and best > 0 else math.inf


class Choice:
    """Tries configurations. START_RELAY(contender, config, workload=, skip=): of the benchmark."""

    def __init__(self, plan, results, progress, cells, idle, namespaces, start_relay):
        self._plan = plan
        self._results = results
        self._progress = progress
        self._cells = cells
        self._idle = idle
        self._namespaces = namespaces
        self._start_relay = start_relay

    def for_row(self, row, contender):
        """The best configuration for ROW."""
        return self._choose(row, contender,
                            lambda configs: self._try_all(row, contender, configs))

    def for_idle(self, row, contender):
        """The one that needs the least memory for idle sessions."""
        return self._choose(row, contender,
                            lambda configs: [[value] for value in
                                             self._try_idle(contender, configs)])

    def _choose(self, row, contender, try_all):
        """TRY_ALL(configs) answers a list of figures for each configuration."""
        configs = self._plan.configs_of(row, contender)
        if len(configs) == 1:
            return configs[0]
        found = try_all(configs)
        tried = [(config, statistics.mean(values) if values else None)
                 for config, values in zip(configs, found)]
        most = max(map(len, found))
        best = choose_best([pair for pair, values in zip(tried, found) if len(values) == most],
                           row.better)
        self._results.add_calibration(
            row, contender.name, [(contender.describe(config), value) for config, value in tried],
            contender.describe(best))
        self._progress.say(f"{row.name}: {contender.name} is best with "
                           f"{contender.describe(best)}")
        self._progress.advance(self._plan.calibration_seconds(row, contender))
        return best

    def _try_all(self, row, contender, configs):
        """Each configuration at ports of its own, so that they can follow each other at once."""
        relays = RowRelays({
            index: lambda config=config, index=index: self._start_relay(
                contender, config, workload=row.workload, skip=index)
            for index, config in enumerate(configs)})
        figures = {index: [] for index in range(len(configs))}
        try:
            relays.start()
            with self._namespaces.taken_for_idle():
                self._pass(row, contender, relays, figures, order_of_round(figures, 1, row.name))
                again = finalists({index: values[0] if values else None
                                   for index, values in figures.items()}, row.better)
                self._pass(row, contender, relays, figures, order_of_round(again, 2, row.name))
        finally:
            relays.stop()
        return list(figures.values())

    def _pass(self, row, contender, relays, figures, order):
        for index in order:
            try:
                figures[index].append(self._cells.try_out(row, relays.get(index),
                                                          self._plan.trial_length(row)))
            except LabError as error:
                self._progress.say(f"{row.name}: trying {contender.name}: {one_line(error)}")

    def _try_idle(self, contender, configs):
        values = []
        for config in configs:
            try:
                values.append(self._idle.try_out(contender, config))
            except LabError as error:
                self._progress.say(f"idle: trying {contender.name}: {one_line(error)}")
                values.append(None)
        return values
