# SPDX-License-Identifier: BSD-2-Clause
"""The seconds in which a tool records, and what culvert and the machine did in just these.

A tool takes time to get ready and to stop. So it is given a command to run, which reads the
counters, sleeps and reads them again: perf records while its command runs.
"""

import json
import os

from cost import TICKS
from labkit import LabError

# PROGRAM CONTROL PID SECONDS FOLDER
_SCRIPT = """
look() {
	"$0" status --json --control "$1" >"$4/status-$5" && head -n 1 /proc/stat >"$4/machine-$5" &&
		cat "/proc/$2/stat" >"$4/process-$5"
}
look "$1" "$2" "$3" "$4" before && sleep "$3" && look "$1" "$2" "$3" "$4" after
"""


class Window:
    """SECONDS in the life of DAEMON; `command` is what the tool has to run meanwhile."""

    def __init__(self, daemon, seconds, folder):
        os.makedirs(folder)
        self._folder = folder
        self.length = seconds
        self.command = ("sh", "-c", _SCRIPT, daemon.program, daemon.control, str(daemon.pid),
                        f"{seconds:g}", folder)

    def _read(self, name):
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                return file.read()
        except OSError:
            raise LabError("culvert did not answer while it was recorded") from None

    def gained(self):
        """What was added between the two looks."""
        before, after = (json.loads(self._read(f"status-{when}")) for when in ("before", "after"))
        cpu = [parse_machine_cpu(self._read(f"machine-{when}")) for when in ("before", "after")]
        own = [parse_process_cpu(self._read(f"process-{when}")) for when in ("before", "after")]
        return dict(difference(before, after), machine_cpu=cpu[1] - cpu[0],
                    daemon_cpu=own[1] - own[0])


def parse_machine_cpu(text):
    """Busy seconds of the first line of /proc/stat: user, kernel and interrupts."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, text.split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


def parse_process_cpu(text):
    """Seconds of /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def difference(before, after):
    """What culvert's own counters gained between two answers of `culvert status --json`."""
    old = {row["carrier"]: row["bytes"] for row in before["carriers"]}

    def gain(key):
        return {name: count - before[key][name] for name, count in after[key].items()
                if count != before[key][name]}

    return {"seconds": (after["uptime_ms"] - before["uptime_ms"]) / 1000,
            "bytes": {row["carrier"]: row["bytes"] - old[row["carrier"]]
                      for row in after["carriers"]},
            "finished": sum(row["finished"] for row in after["forwards"]) -
            sum(row["finished"] for row in before["forwards"]),
            "sessions": after["resources"]["sessions"],
            "handovers": gain("handovers"), "errors": gain("errors")}
