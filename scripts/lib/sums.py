#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Adds up the JSON reports of several torture runs; fails if any of them saw a wrong byte or a
stall.

Usage: sums.py FILE...
"""

import json
import sys

# In the order of printing; the second group must be zero.
COUNTS = ("sessions", "bytes", "aborted_by_plan", "stops", "seconds")
FAILURES = ("wrong", "truncated", "extra", "stalls", "failed")
REMARKABLE = ("reset_by_daemon",)


def add(sums, report):
    for key, value in report.items():
        if isinstance(value, dict):
            add(sums.setdefault(key, {}), value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            sums[key] = sums.get(key, 0) + value


def show(label, keys, sums):
    print(f"  {label:12}" + ", ".join(f"{key} {sums.get(key, 0):,.0f}" for key in keys))


def main():
    sums, unreadable = {}, 0
    for name in sys.argv[1:]:
        try:
            with open(name, encoding="utf-8") as file:
                add(sums, json.load(file))
        except ValueError:
            unreadable += 1
            print(f"  {name} holds no report")
    print(f"\n{len(sys.argv) - 1} runs")
    show("done", COUNTS, sums)
    show("bad", FAILURES, sums)
    show("reset", REMARKABLE, sums)
    for group in ("handovers", "errors"):
        seen = {key: count for key, count in sums.get(group, {}).items() if count}
        show(group, seen, seen)
    bad = sum(sums.get(key, 0) for key in FAILURES)
    if not sums.get("sessions"):
        print("  no session was run")
    return 1 if bad or unreadable or not sums.get("sessions") else 0


sys.exit(main())
