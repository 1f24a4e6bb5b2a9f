# SPDX-License-Identifier: BSD-2-Clause
"""The output of a guest as behaviours: each has a name, a state and a detail.

A planned step without a result has failed. Some tests show a trap of the kernel and pass whether
the trap is there or not: their detail says which.
"""

import json
import re
from dataclasses import dataclass

OK, FAILED, SKIPPED = "ok", "FAILED", "skipped"
CASE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] (\w+)$")
COUNT = re.compile(r"\[=+\] Running (\d+) test")
SKIP_CODE = 77


@dataclass
class Behaviour:
    name: str
    state: str
    detail: str = ""


@dataclass
class Step:
    """The output of a step, and its exit code (None: the step did not end)."""
    lines: list
    code: int | None = None


def split_steps(text):
    """Steps by name."""
    steps, current = {}, None
    for line in text.splitlines():
        words = line.split()
        if line.startswith("@@ begin "):
            current = steps[words[2]] = Step([])
        elif line.startswith("@@ end ") and words[2] in steps:
            steps[words[2]].code = int(words[3])
            current = None
        elif current and line.strip():
            current.lines.append(line)
    return steps


def whole_step(name, step):
    """A step that is one behaviour."""
    tail = step.lines[-1].strip() if step.lines else ""
    if step.code in (0, SKIP_CODE):
        tail = next((line for line in step.lines if line.startswith("SKIPPED ")), tail)  # pytest's
        return Behaviour(name, SKIPPED if step.code else OK, tail.removeprefix("skipped: "))
    failed = next((line for line in reversed(step.lines) if line.startswith("FAIL")), tail)
    how = "did not end" if step.code is None else f"exit code {step.code}"
    return Behaviour(name, FAILED, f"{how}: {failed}")


def rows_of_probe(name, step):
    states = {True: OK, False: FAILED, None: SKIPPED}
    try:
        checks = json.loads("\n".join(step.lines))["checks"]
    except (ValueError, KeyError) as error:
        return [Behaviour(name, FAILED, f"no results: {error}")]
    return [Behaviour(f"{name}/{check['name']}", states[check["ok"]], check["detail"])
            for check in checks]


def rows_of_cmocka(name, step):
    states = {"OK": OK, "FAILED": FAILED, "SKIPPED": SKIPPED}
    rows, lines, planned = [], [], None
    for line in step.lines:
        if match := COUNT.match(line):
            planned = int(match[1])
        match = CASE.match(line)
        if match and match[1] == "RUN":
            lines = []
        elif match:
            rows.append(Behaviour(f"{name}/{match[2]}", states[match[1]], "; ".join(lines)))
        else:
            lines.append(line)
    if planned is not None and len(rows) < planned:
        rows.append(Behaviour(name, FAILED, f"{len(rows)} of {planned} tests have a result"))
    return rows


def torture_row(name, step):
    """A skip is a failure: the daemon has refused the engine, so the kernel lacks something."""
    row = whole_step(name, step)
    if row.state == SKIPPED:
        row.state = FAILED
    found = next((json.loads(line) for line in step.lines if line.startswith("{")), None)
    if found:
        entered = sum(found["handovers"].get(f"to_{way}", 0) for way in ("sockmap", "graft"))
        row.detail = (f"{found['sessions']} sessions, {found['bytes'] >> 20} MiB verified, "
                      f"{entered} flows into the kernel; seed {found['seed']}; {row.detail[:60]}")
        if not entered and "auto" not in name:
            row.state = FAILED
    elif row.state == OK:
        row.state, row.detail = FAILED, "no summary"
    return row


def rows_of_step(name, step):
    kind = name.split("/")[0]
    rows = (rows_of_probe(name, step) if kind == "probe" else
            rows_of_cmocka(name, step) if kind == "kernel" else
            [torture_row(name, step)] if kind == "torture" else [])
    if not rows or step.code not in (0, SKIP_CODE) and all(row.state != FAILED for row in rows):
        rows.append(whole_step(name, step))
    return rows


def rows_of(outcome, planned):
    """All behaviours of an outcome: of the steps that the guest makes by itself, and of PLANNED."""
    steps = split_steps(outcome.text)
    rows = [row for name, step in steps.items() for row in rows_of_step(name, step)]
    rows += [Behaviour(name, FAILED, "no result: the guest did not get there")
             for name in planned if name not in steps]
    panic = re.search(r"Kernel panic.*|(?:BUG|WARNING|Oops): .*", outcome.console)
    if panic or not outcome.in_time or not outcome.text.rstrip().endswith("@@ done"):
        rows.append(Behaviour("guest/end", FAILED, panic[0] if panic else "it did not end"))
    return rows


def table(columns):
    """COLUMNS: (name of the kernel, behaviours)."""
    names = list(dict.fromkeys(row.name for _, rows in columns for row in rows))
    width = max(map(len, names), default=0)
    states = [{row.name: row.state for row in rows} for _, rows in columns]
    lines = [" " * width + "".join(f"  {kernel:<20}" for kernel, _ in columns)]
    lines += [f"{name:<{width}}" + "".join(f"  {found.get(name, '-'):<20}" for found in states)
              for name in names]
    return "\n".join(line.rstrip() for line in lines)
