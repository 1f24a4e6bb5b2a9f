# SPDX-License-Identifier: BSD-2-Clause
"""How reports look: the order and colours of contenders, and how figures are written."""

import math
import re
from dataclasses import dataclass

ACCENT = "#d4480b"

DIRECT, ENGINES, BUFFERS, PEERS = range(4)


@dataclass(frozen=True)
class Style:
    """Of one contender, the same in all plots and tables."""

    color: str
    dash: str  # gnuplot's dash type
    width: float
    point: int  # gnuplot's point type
    group: int  # DIRECT ... PEERS


STYLES = {
    "direct": Style("#80868f", "(2,3)", 1.8, 6, DIRECT),
    "auto": Style(ACCENT, "solid", 2.8, 7, ENGINES),
    "auto-again": Style("#e39b78", "(6,2)", 1.6, 6, ENGINES),
    "auto-all": Style("#8f6a14", "(5,2)", 1.6, 10, ENGINES),
    "auto-1w": Style("#b98a1f", "(3,2)", 1.6, 4, ENGINES),
    "sockmap": Style("#123f73", "solid", 1.8, 5, ENGINES),
    "splice": Style("#2f7fc4", "solid", 1.8, 9, ENGINES),
    "copy": Style("#79b6e8", "solid", 1.8, 11, ENGINES),
    "copy-8K": Style("#b4c4d2", "(2,2)", 1.4, 11, BUFFERS),
    "copy-16K": Style("#9fb3c5", "(5,2)", 1.4, 11, BUFFERS),
    "copy-64K": Style("#8aa2b8", "(9,3)", 1.4, 11, BUFFERS),
    "copy-256K": Style("#7591ab", "solid", 1.4, 11, BUFFERS),
    "haproxy": Style("#1f6f4a", "(8,3)", 1.6, 5, PEERS),
    "haproxy-splice": Style("#55b083", "(8,3)", 1.6, 4, PEERS),
    "nginx": Style("#7b4fb0", "(8,3,2,3)", 1.6, 9, PEERS),
    "socat": Style("#c06aa8", "(5,3)", 1.6, 11, PEERS),
    "rinetd": Style("#8a6a2f", "(5,3)", 1.6, 13, PEERS),
    "redir": Style("#c9a53c", "(8,3,2,3)", 1.6, 12, PEERS),
}
OTHER = {"direct": Style("#80868f", "(2,3)", 1.8, 6, DIRECT),
         "culvert": Style("#5d7f9c", "solid", 1.4, 11, BUFFERS),
         "peer": Style("#55585e", "(3,3)", 1.6, 4, PEERS)}
ORDER = list(STYLES)

# Lines that stand for rows and not for contenders; without the accent, which is auto's.
LINE_COLORS = ("#123f73", "#1f6f4a", "#7b4fb0", "#8a6a2f", "#2f7fc4", "#c06aa8", "#55585e")

SIZE_SUFFIX = {"K": 1 << 10, "M": 1 << 20}


def style_of(contender):
    return STYLES.get(contender["name"], OTHER[contender["family"]])


def in_order(contenders):
    """Direct, culvert's engines, culvert's buffers, peers; those that are not known come last."""
    def key(contender):
        known = contender["name"] in STYLES
        return (style_of(contender).group,
                ORDER.index(contender["name"]) if known else len(ORDER), contender["name"])
    return sorted(contenders, key=key)


def buffer_bytes(name):
    """The buffer of a contender named like "copy-64K", in bytes; None for any other."""
    match = re.fullmatch(r"copy-(\d+)([KM]?)", name)
    return int(match[1]) * SIZE_SUFFIX.get(match[2], 1) if match else None


# ---- figures ------------------------------------------------------------------------------------


def number(value):
    """Three significant digits, or all before the point, with thousands set apart."""
    if value is None:
        return "\u2013"
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if abs(rounded) >= 100:
        return f"{round(value):,}"
    # Rounding up can bring one more digit before the point.
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(digits, 0)}f}" if digits < 7 else f"{value:.2e}"


def ratio(value):
    """One decimal from 10 on, else three: enough to tell 0.968 from 0.97."""
    if value is None:
        return "\u2013"
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def _scaled(value, units, base, write=number):
    for unit in units[:-1]:
        # 999.6 would be written as 1,000
        if abs(value) < base * 0.9995:
            return f"{write(value)} {unit}"
        value /= base
    return f"{write(value)} {units[-1]}"


def byte_size(value):
    """In decimal units, 1 kB = 1,000 B."""
    return "\u2013" if value is None else _scaled(value, ("B", "kB", "MB", "GB", "TB"), 1000)


def memory_size(value):
    """In binary units, as memory is sold."""
    return "\u2013" if value is None else _scaled(value, ("B", "KiB", "MiB", "GiB", "TiB"), 1024,
                                                  lambda scaled: f"{scaled:.3g}")


def latency(microseconds):
    return "\u2013" if microseconds is None else _scaled(microseconds, ("\u00b5s", "ms", "s"), 1000)


def short_latency(microseconds):
    """For axes: 2000 as 2 ms."""
    for limit, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= limit:
            return f"{microseconds / limit:g} {unit}"
    return f"{microseconds:g} \u00b5s"


def short_number(value):
    """For axes: 2500 as 2.5k."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{suffix}"
    return f"{value:g}"


def writer_for(unit):
    """How to write a quantity of that unit; for bytes the unit is written too."""
    if unit.startswith("bytes"):
        return byte_size
    return latency if unit == "\u00b5s" else number


def spread(summary, write=number):
    """"median [min\u2013max]", or what is known of it."""
    if summary is None:
        return "\u2013"
    if not summary.has_spread:
        return f"{write(summary.median)} (one round)"
    return f"{write(summary.median)} [{write(summary.low)}\u2013{write(summary.high)}]"


def interval(found, write=number):
    """"low\u2013high", or a dash if it is not known."""
    return "\u2013" if found is None else f"{write(found.low)}\u2013{write(found.high)}"


def share(fraction):
    """As per cent; never 100 % for what is not all, nor 0 % for what is something."""
    if 0.999 <= fraction < 1:
        return ">\u00a099.9\u00a0%"
    if 0 < fraction < 0.001:
        return "<\u00a00.1\u00a0%"
    return f"{fraction * 100:.3g}\u00a0%"


def count(amount, singular, plural=None):
    """"1 row", "2 rows"."""
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"


def listing(texts):
    """"a, b and c"."""
    texts = list(texts)
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


# ---- axes ---------------------------------------------------------------------------------------


def linear_tics(top, wanted=4):
    """Round positions from 0 up to TOP, about WANTED steps."""
    if top <= 0:
        return [0.0]
    raw = top / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [step * index for index in range(int(top / step + 1e-9) + 1)]


def log_tics(low, high):
    """1, 2, 5 within a decade while there is little room to fill, else decades."""
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 3.5 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    tics = [factor * 10.0 ** power for power in range(first, last + 1) for factor in factors]
    return [tic for tic in tics if low <= tic <= high]
