# SPDX-License-Identifier: BSD-2-Clause
"""The table kernel x behaviour, for the terminal and as Markdown."""

import re

from kernels_results import FAILED, OK, SKIPPED

WORDS = {OK: "ok", FAILED: "FAILED", SKIPPED: "skipped"}
TRAP_STATE = re.compile(r"(?:[a-z, ]+: )?(present|fixed|not seen)\b")
NONE = "-"  # not tried there: what was planned and has no result has failed


def short(row):
    """State of a behaviour in a word or two."""
    if row is None:
        return NONE
    if row.state == OK and (match := TRAP_STATE.match(row.detail)):
        return f"ok: {match[1]}"
    return WORDS[row.state]


def names_of(columns):
    """Names of all behaviours, in the order in which they first come."""
    names = {}
    for _, rows in columns:
        for row in rows:
            names.setdefault(row.name)
    return list(names)


def cells(columns):
    """(name, [row or None])"""
    by_name = [{row.name: row for row in rows} for _, rows in columns]
    return [(name, [rows.get(name) for rows in by_name]) for name in names_of(columns)]


def terminal(columns):
    """COLUMNS: (name of the kernel, behaviours)."""
    table = cells(columns)
    width = max([len(name) for name, _ in table] + [9])
    widths = [max(len(kernel), 12) for kernel, _ in columns]
    heads = [kernel.ljust(size) for (kernel, _), size in zip(columns, widths)]
    lines = [f"{'behaviour'.ljust(width)}  {'  '.join(heads)}".rstrip()]
    for name, found in table:
        texts = [short(row).ljust(size) for row, size in zip(found, widths)]
        lines.append(f"{name.ljust(width)}  {'  '.join(texts)}".rstrip())
    return "\n".join(lines) + "\n"


def escape(text):
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def full(row):
    if row is None:
        return NONE
    word = f"**{WORDS[row.state]}**" if row.state == FAILED else WORDS[row.state]
    return f"{word}: {escape(row.detail)}" if row.detail else word


def markdown(columns):
    lines = [f"| behaviour | {' | '.join(kernel for kernel, _ in columns)} |",
             f"|---|{'---|' * len(columns)}"]
    lines += [f"| `{name}` | {' | '.join(map(full, found))} |" for name, found in cells(columns)]
    return "\n".join(lines) + "\n"


def counts(rows):
    states = [row.state for row in rows]
    return ", ".join(f"{states.count(state)} {WORDS[state]}" for state in (OK, FAILED, SKIPPED)
                     if state == OK or state in states)
