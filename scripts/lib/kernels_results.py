# SPDX-License-Identifier: BSD-2-Clause
"""What a guest has said, as behaviours: each has a name, a state and a detail.

States: "ok", "failed", "skipped". What was planned and has no result has failed. Some tests show a
trap of the kernel and pass whether it is there or not: their detail begins with "present", "fixed"
or "not seen".
"""

import json
import re
from dataclasses import dataclass

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
CASE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] (\w+)$")
FLOW_CASE = re.compile(r"(ok|FAIL|skip) +(\w+) +(\S+)(.*)")
COUNT = re.compile(r"\[=+\] Running (\d+) test")
SKIP_CODE = 77
# What a note begins with besides its point: "T16: ", "F7: ".
TRAP = re.compile(r"[TF]\d+: ")


@dataclass
class Behaviour:
    name: str
    state: str
    detail: str = ""


@dataclass
class Part:
    """What a step has printed, and how it ended (None: it did not)."""
    lines: list
    code: int | None = None


def split_steps(text):
    """Parts by name, the verdict line or None."""
    parts, current, verdict = {}, None, None
    for line in text.splitlines():
        words = line.split()
        if line.startswith("@@ begin "):
            current = parts[words[2]] = Part([])
        elif line.startswith("@@ end ") and words[2] in parts:
            parts[words[2]].code = int(words[3])
            current = None
        elif line.startswith("@@ verdict "):
            verdict = words[2]
        elif current and line.strip():
            current.lines.append(line)
    return parts, verdict


def last_line(lines):
    return lines[-1].strip() if lines else ""


def whole_step(name, part):
    """A step that is one behaviour."""
    if part.code == 0:
        return Behaviour(name, OK)
    if part.code == SKIP_CODE:
        return Behaviour(name, SKIPPED, last_line(part.lines).removeprefix("skipped: "))
    tail = next((line for line in reversed(part.lines) if line.startswith("FAIL")),
                last_line(part.lines))
    how = "did not end" if part.code is None else f"exit code {part.code}"
    return Behaviour(name, FAILED, f"{how}: {tail}" if tail else how)


def objects(lines):
    """The JSON objects that stand on lines of their own."""
    found = []
    for line in lines:
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


# --- one function for each kind of step: its behaviours ---


def parse_probe(name, part):
    states = {True: OK, False: FAILED, None: SKIPPED}
    answers = objects(part.lines)
    checks = answers[0].get("checks", []) if answers else []
    rows = [Behaviour(f"{name}/{check['name']}", states[check["ok"]], check["detail"])
            for check in checks]
    if not rows or part.code != 0 and not any(row.state == FAILED for row in rows):
        rows.append(whole_step(name, part) if part.code else
                    Behaviour(name, FAILED, "no results"))
    return rows


def note_of(lines):
    """What a test has said of the kernel."""
    notes = [TRAP.sub("", line, count=1) for line in lines if not line.startswith("[")]
    return "; ".join(notes).removeprefix("skipped: ")


def reason_of(lines):
    errors = [line.split("---", 1)[-1].strip() for line in lines if "ERROR" in line]
    return "; ".join(error for error in errors if error) or note_of(lines)


def parse_cmocka(name, part):
    states = {"OK": OK, "FAILED": FAILED, "SKIPPED": SKIPPED}
    rows, open_case, lines, planned = [], None, [], 0
    for line in part.lines:
        if match := COUNT.match(line):
            planned = int(match[1])
        match = CASE.match(line)
        if match and match[1] == "RUN":
            open_case, lines = match[2], []
        elif match and match[2] == open_case:
            state = states[match[1]]
            text = reason_of(lines) if state == FAILED else note_of(lines)
            rows.append(Behaviour(f"{name}/{open_case}", state, text))
            open_case = None
        elif open_case:
            lines.append(line)
    if open_case:
        rows.append(Behaviour(f"{name}/{open_case}", FAILED, whole_step(name, part).detail))
    if part.code == SKIP_CODE:
        rows.append(whole_step(name, part))
    elif len(rows) < planned or not planned:
        rows.append(Behaviour(name, FAILED, f"{len(rows)} of {planned} tests have a result"))
    elif part.code != 0 and not any(row.state == FAILED for row in rows):
        rows.append(whole_step(name, part))
    return rows


def carried(status):
    """Bytes by carrier, of `culvert status --json`."""
    return {entry["carrier"]: entry["bytes"] for entry in status.get("carriers", [])}


def parse_veth(name, part):
    row = whole_step(name, part)
    if row.state != OK:
        return [row]
    answers = objects(part.lines)
    total = sum(answer.get("bytes", 0) for answer in answers if "workload" in answer)
    bytes_by = next((carried(answer) for answer in answers if "carriers" in answer), {})
    shares = ", ".join(f"{carrier} {count >> 10} KiB" for carrier, count in bytes_by.items()
                       if count)
    row.detail = f"{total >> 10} KiB verified; carried by {shares or 'nobody'}"
    if not total or "auto" not in name and not bytes_by.get("sockmap"):
        row.state = FAILED
    return [row]


def parse_torture(name, part):
    """It skips where the daemon refuses the engine: then the kernel is not what we rely on."""
    row = whole_step(name, part)
    if row.state == SKIPPED:
        row.state = FAILED
    answers = [answer for answer in objects(part.lines) if "handovers" in answer]
    if not answers:
        if row.state == OK:
            row.state, row.detail = FAILED, "no summary"
        return [row]
    found = answers[-1]
    entered = found["handovers"].get("to_sockmap", 0)
    left = found["handovers"].get("to_splice", 0) + found["handovers"].get("to_copy", 0)
    text = (f"{found['sessions']} sessions, {found['bytes'] >> 20} MiB verified, wrong "
            f"{found['wrong']}, reset by the daemon {found['reset_by_daemon']}; flows into the "
            f"kernel {entered}, back {left}")
    if found.get("stops"):
        text += f"; stopped {found['stops']} times"
    if row.state != OK:
        text = f"{row.detail}; {text}; seed {found['seed']}"
    elif not entered and "auto" not in name:
        row.state, text = FAILED, f"nothing entered the kernel; {text}"
    row.detail = text
    return [row]


def parse_cases(name, part):
    states = {"ok": OK, "FAIL": FAILED, "skip": SKIPPED}
    rows = []
    for line in part.lines:
        if match := FLOW_CASE.fullmatch(line):
            detail = "" if match[1] == "ok" else match[4].strip(" :")
            rows.append(Behaviour(f"{name}/{match[2]}/{match[3]}", states[match[1]], detail))
    if not rows or part.code != 0 and not any(row.state == FAILED for row in rows):
        rows.append(whole_step(name, part))
    return rows


def parse_guest(name, part):
    row = whole_step(name, part)
    if row.state == FAILED:
        row.detail = ": ".join([row.detail.partition(":")[0], *part.lines])
    else:
        row.detail = last_line(part.lines)
    return [row]


PARSERS = {"probe": parse_probe, "kernel": parse_cmocka, "veth": parse_veth,
           "torture": parse_torture, "cases": parse_cases}


def behaviours(text, planned):
    """Of all steps: those that PLANNED names and those that the guest made by itself."""
    parts, _ = split_steps(text)
    rows = []
    for name in list(dict.fromkeys([*(n for n in parts if n not in planned), *planned])):
        if name not in parts:
            rows.append(Behaviour(name, FAILED, "no result: the guest did not get there"))
            continue
        part = parts[name]
        rows += PARSERS.get(name.split("/")[0], parse_guest)(name, part)
    return rows


# --- the guest as a whole ---


def panic_of(console):
    match = re.search(r"Kernel panic - not syncing: (.*)", console)
    cause = re.search(r"(?:BUG|WARNING|Oops): (.*)|sysrq: (.*)", console)
    if not match:
        return ""
    return f"{match[1]}{f' ({cause[0]})' if cause else ''}"


def trouble(outcome):
    """Why the guest as a whole has failed; "" if it has not. Failed behaviours aside."""
    _, verdict = split_steps(outcome.text)
    panic = panic_of(outcome.console)
    if panic:
        return f"the kernel panicked: {panic}"
    if not outcome.in_time:
        begins = re.findall(r"^@@ begin (\S+)$", outcome.text, re.MULTILINE)
        what = "no verdict" if verdict is None else "a verdict, but no end,"
        return (f"{what} within {outcome.limit:.0f} s; it was at "
                f"{begins[-1] if begins else 'booting'}")
    if verdict is None:
        tail = [line for line in outcome.console.splitlines() if line.strip()]
        return f"the guest ended without a verdict{f': {tail[-1].strip()}' if tail else ''}"
    return ""


def rows_of(outcome, planned):
    """All behaviours; a verdict which contradicts them is one more failure."""
    rows = behaviours(outcome.text, planned)
    _, verdict = split_steps(outcome.text)
    why = trouble(outcome)
    if not why and verdict != OK and not any(row.state == FAILED for row in rows):
        why = "the guest's verdict is that something failed"
    guest = Behaviour("guest/verdict", FAILED if why else OK,
                      why or f"after {outcome.seconds:.0f} s")
    return [guest, *rows]
