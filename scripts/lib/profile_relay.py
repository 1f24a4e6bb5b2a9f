# SPDX-License-Identifier: BSD-2-Clause
"""What is profiled: a contender of the benchmark, in the configuration that is best for the row."""

import glob
import gzip
import json
import os
from dataclasses import dataclass

from bench_relays import CONTENDERS, PLENTY, Relay
from labkit import TOP, LabError, tail
from profile_load import FORWARD

# Results of the benchmark that may tell the best configuration: the newest first.
OWN_RESULTS = os.path.join(TOP, "build", "bench", "*", "results.json")
PUBLISHED = os.path.join(TOP, "docs", "results", "results.json.gz")

PROFILED = {name: one for name, one in CONTENDERS.items() if one.family != "direct"}


@dataclass(frozen=True)
class Subject:
    """CONTENDER with CONFIG; SOURCE: why this one, as text."""

    contender: object
    config: dict
    source: str

    @property
    def program(self):
        """The name of what runs, for tables."""
        return self.contender.program or "culvert"

    @property
    def is_culvert(self):
        return self.contender.family == "culvert"

    def describe(self):
        return self.contender.describe(self.config)


def read_results(path):
    """The benchmark's results in PATH, which may be compressed; None if there are none."""
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
            results = json.load(file)
    except (OSError, ValueError, EOFError):
        return None
    return results if isinstance(results, dict) else None


def result_files():
    """Those that may be there, the newest first; the published ones last."""
    found = []
    for path in glob.glob(OWN_RESULTS):
        try:
            found.append((os.stat(path).st_mtime, path))
        except OSError:
            continue
    return [path for _time, path in sorted(found, reverse=True)] + [PUBLISHED]


def chosen_text(results, row, name):
    """What the calibration of RESULTS chose for contender NAME in ROW, as text; None: nothing."""
    for entry in (results or {}).get("calibration") or ():
        if (entry.get("row"), entry.get("contender")) == (row, name):
            return entry.get("chosen")
    return None


def choose_subject(name, workload, cpus, files):
    """The contender in the best configuration that one of the FILES knows for the row."""
    contender = PROFILED[name]
    configs = contender.configs(workload.goal, cpus)
    if len(configs) == 1:
        return Subject(contender, configs[0], "the only one that the benchmark uses")
    for path in files:
        text = chosen_text(read_results(path), workload.name, name)
        for config in configs:
            if text == contender.describe(config):
                return Subject(contender, config, "the best for this row in "
                               f"{os.path.relpath(path, TOP)}")
    return Subject(contender, configs[0], "the best known one; no calibration of this row in "
                   "build/bench or docs/results")


class Runs:
    """Starts the subject, again and again, each time fresh. METERS: of its CPU time."""

    def __init__(self, lab, subject, program, meters, descriptors):
        self._lab = lab
        self.subject = subject
        self._program = program
        self._meters = meters
        self._sessions = min(PLENTY, subject.contender.sessions_per_process(descriptors))

    def start(self, forward=FORWARD):
        relay = Relay(self._lab, self.subject.contender, self.subject.config, [forward],
                      self._meters.make())
        return relay.start(self._program, self._sessions)

    @staticmethod
    def stop(relay):
        """Raises LabError if it is not well."""
        relay.check()
        code = relay.daemon.stop() if relay.daemon else 0
        log = relay.daemon.process.log if relay.daemon else None
        relay.stop()
        if code != 0:
            raise LabError(f"culvert did not end well ({code}):\n{tail(log)}")
