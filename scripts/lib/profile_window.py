# SPDX-License-Identifier: BSD-2-Clause
"""The seconds in which a tool records, and what the relay and the machine did in just these.

A tool takes time to get ready and to stop. So it is given a command to run, which reads the
counters, sleeps and reads them again: perf records while its command runs.

The work is counted by the server's kernel, for each relay in the same way: payload of the sink's
sockets, and connections accepted. culvert says besides which carriers it took.
"""

import json
import os
import re

from cost import parse_machine_cpu, parse_process_cpu
from labkit import LabError

# FOLDER SECONDS SERVER-NAMESPACE SINK-PID CPU-FILES CULVERT CONTROL; the last two may be empty.
_SCRIPT = """
folder=$0
look() {
	ip netns exec "$2" ss -tinH state established >"$folder/sockets-$7" &&
		cat "/proc/$3/net/snmp" >"$folder/snmp-$7" &&
		cat /proc/uptime /proc/stat >"$folder/machine-$7" &&
		cat $4 /dev/null >"$folder/relay-$7" || return 1
	[ -z "$5" ] || "$5" status --json --control "$6" >"$folder/status-$7"
}
look "$@" before && sleep "$1" && look "$@" after
"""


class Window:
    """SECONDS in the life of RELAY; `command` is what the tool has to run meanwhile."""

    def __init__(self, load, relay, seconds, folder):
        os.makedirs(folder)
        self._folder = folder
        self._daemon = relay.daemon
        self.length = seconds
        self._cpu_files = relay.cpu_files()
        culvert = (relay.daemon.program, relay.daemon.control) if relay.daemon else ("", "")
        self.command = ("sh", "-c", _SCRIPT, folder, f"{seconds:g}", f"{load.lab.name}-server",
                        str(load.sink.pid), " ".join(self._cpu_files), *culvert)

    def _read(self, name):
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            raise LabError("the counters could not be read while it was recorded") from None

    def _look(self, when):
        machine = self._read(f"machine-{when}")
        uptime, _, stat = machine.partition("\n")
        now = float(uptime.split()[0])
        return {"now": now, "cpu": parse_machine_cpu(stat, now)[0],
                "relay_cpu": parse_relay_cpu(self._read(f"relay-{when}")),
                "opened": parse_passive_opens(self._read(f"snmp-{when}")),
                **parse_sockets(self._read(f"sockets-{when}"))}

    def gained(self):
        """What was added between the two looks."""
        before, after = self._look("before"), self._look("after")
        gained = {"seconds": after["now"] - before["now"],
                  "machine_cpu": after["cpu"] - before["cpu"], "relay_cpu": None,
                  "payload": after["payload"] - before["payload"],
                  "opened": after["opened"] - before["opened"], "sessions": after["sessions"]}
        if self._cpu_files:
            gained["relay_cpu"] = after["relay_cpu"] - before["relay_cpu"]
        if self._daemon:
            gained.update(difference(*(json.loads(self._read(f"status-{when}"))
                                       for when in ("before", "after"))))
        return gained


def parse_relay_cpu(text):
    """Seconds of a cgroup's cpu.stat, or of one or more /proc/PID/stat."""
    match = re.search(r"^usage_usec (\d+)$", text, re.M)
    if match:
        return int(match.group(1)) / 1e6
    return sum(parse_process_cpu(line) for line in text.splitlines())


def parse_passive_opens(text):
    """Connections accepted so far, of the text of /proc/PID/net/snmp."""
    rows = [line.split() for line in text.splitlines() if line.startswith("Tcp:")]
    return int(rows[1][rows[0].index("PassiveOpens")])


def parse_sockets(text):
    """{"payload": bytes both ways, "sessions": connections} of ss -tin."""
    counts = re.findall(r"\bbytes_(?:received|acked):(\d+)", text)
    return {"payload": sum(map(int, counts)), "sessions": len(re.findall(r"\bcwnd:", text))}


def difference(before, after):
    """What culvert's own counters gained between two answers of `culvert status --json`."""
    old = {row["carrier"]: row["bytes"] for row in before["carriers"]}

    def gain(key):
        return {name: count - before[key][name] for name, count in after[key].items()
                if count != before[key][name]}

    return {"bytes": {row["carrier"]: row["bytes"] - old[row["carrier"]]
                      for row in after["carriers"]},
            "handovers": gain("handovers"), "errors": gain("errors")}
