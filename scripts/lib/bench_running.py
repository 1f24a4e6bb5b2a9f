# SPDX-License-Identifier: BSD-2-Clause
"""The relays of a row, which run at the same time."""

from bench_cells import one_line
from labkit import LabError


class RowRelays:
    """Relays that run at the same time, by name; one that died is started again.

    STARTERS: {name: function that starts the relay and returns it}. ALONE: the names of those that
    run only from get() to rest(), so that no packet of the others passes their programs.
    """

    def __init__(self, starters, alone=()):
        self._starters = starters
        self._alone = alone
        self._running = {}
        self._failed = {}

    def start(self):
        for name in self._starters:
            self._start(name)

    def _start(self, name):
        try:
            self._running[name] = self._starters[name]()
        except LabError as error:
            self._failed[name] = f"did not start: {one_line(error)}"

    def restart(self, names):
        """Those of NAMES anew: what a process is born with must not last for all rounds."""
        for name in names:
            if relay := self._running.pop(name, None):
                relay.stop()
            self._failed.pop(name, None)
            if name not in self._alone:
                self._start(name)

    def rest(self):
        for name in self._alone:
            if relay := self._running.pop(name, None):
                relay.stop()

    def get(self, name):
        """Raises LabError if it cannot be had."""
        if name in self._failed:
            raise LabError(self._failed[name])
        relay = self._running.pop(name, None)
        try:
            if relay:
                relay.check()
        except LabError:
            relay.stop()
            relay = None
        self._running[name] = relay or self._starters[name]()
        return self._running[name]

    def stop(self):
        for relay in self._running.values():
            relay.stop()
        self._running.clear()
