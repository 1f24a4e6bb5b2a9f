# SPDX-License-Identifier: BSD-2-Clause
"""What the names in the results are called in a report."""

import re

import report_style as style


def whole(value):
    """A count: without decimals."""
    return f"{value:,.0f}"


# Of the cells' "extra": {name: (title, how it is written)}.
EXTRAS = {
    "slowest_gbps": ("slowest stream, Gbit/s", style.number),
    "fastest_gbps": ("fastest stream, Gbit/s", style.number),
    "retransmits": ("segments sent again", whole),
    "stolen_cpu_seconds": ("CPU time taken by the hypervisor, s", style.number),
    "sockets_left_before": ("sockets of the cell before, still open", whole),
    "idle_sessions": ("idle sessions open", whole),
    "kernel_bytes_beyond_sockets": ("marginal kernel memory a session, beyond two sockets",
                                    style.byte_size),
    "kernel_bytes_of_session": ("kernel memory a session, with all sockets", style.byte_size),
    "kernel_bytes_of_direct": ("kernel memory a session of the direct path", style.byte_size),
    "plain_pair_bytes": ("kernel memory of two plain sockets", style.byte_size),
    "sessions": ("sessions", whole),
    "instances": ("instances", whole),
    "bytes_without_sessions": ("the base: the relay's memory without sessions", style.byte_size),
    "unsettled_readings": ("readings of kernel memory while it still changed", whole),
}


def extra_title(name):
    return EXTRAS[name][0] if name in EXTRAS else name.replace("_", " ")


def extra_writer(name):
    return EXTRAS[name][1] if name in EXTRAS else style.number


def in_words(text, titles):
    """TEXT with titles for the names in it. TITLES: {name of a row: its title}."""
    for name, (title, _write) in EXTRAS.items():
        if "_" in name:
            text = re.sub(rf"\b{name}\b", title, text)
    text = re.sub(r"\brow ([\w.-]*\w)",
                  lambda match: f"\u201c{titles[match[1]]}\u201d" if match[1] in titles
                  else match[0], text)
    return text[:1].upper() + text[1:] if text[:1].islower() and ":" in text else text


def merge_notes(lines, names):
    """LINES, in which those that say the same of several contenders ("NAME: ...") are one."""
    merged = {}
    for line in lines:
        name, colon, rest = line.partition(": ")
        if colon and name in names:
            merged.setdefault((True, rest), []).append(name)
        else:
            merged.setdefault((False, line), [])
    return [f"{style.listing(who)}: {text}" if of_contenders else text
            for (of_contenders, text), who in merged.items()]


def notes_of(row, titles):
    """What the results say of ROW, as paragraphs."""
    names = {one["name"] for one in row["contenders"]}
    lines = [line.strip() for line in (row.get("note") or "").split("\n") if line.strip()]
    prose = [line for line in lines if line.partition(": ")[0] not in names]
    of_contenders = [line for line in lines if line.partition(": ")[0] in names]
    return [*(in_words(line, titles) for line in prose), *merge_notes(of_contenders, names)]
