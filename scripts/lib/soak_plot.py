# SPDX-License-Identifier: BSD-2-Clause
"""The plot of a soak run: what was sampled each second, one panel above the other."""

from report_gnuplot import FAINT, GRID, GROUND, INK, Plot, data_block, draw, quote, require_gnuplot

WIDTH, PANEL, TOP, BOTTOM = 960, 130, 60, 46
LEFT, RIGHT = 172, 164
COLORS = ("#0b6e99", "#c2571a", "#5b8c2a", "#7a4fa3")

# (title, unit, ((column, label, factor), ...)); a rate is what a column grew by each second
PANELS = (
    ("throughput", "Gbit/s", (("copy_bytes", "copy", 8e-9), ("splice_bytes", "splice", 8e-9),
                              ("sockmap_bytes", "sockmap", 8e-9))),
    ("sessions, slots", "", (("sessions", "sessions", 1), ("slots_used", "slots", 1))),
    ("descriptors", "", (("fds", "descriptors", 1),)),
    ("daemon", "MiB", (("rss_kib", "resident", 1 / 1024),)),
    ("kernel", "MiB", (("slab_unreclaimable_kib", "slab, unreclaimable", 1 / 1024),
                       ("tcp_mem_kib", "TCP memory", 1 / 1024))),
    ("counted", "", (("handovers", "hand-overs", 1), ("errors", "lost, refused, reset", 1))),
)


def points(rows, column, factor):
    values = [(row["second"], row[column]) for row in rows if isinstance(row.get(column), int)]
    if not column.endswith("_bytes"):
        return [(second / 60, value * factor) for second, value in values]
    rates = []
    for (before, old), (after, new) in zip(values, values[1:]):
        if after > before:
            rates.append((after / 60, max(0.0, (new - old) * factor / (after - before))))
    return rates


def step_for(most):
    """A round distance between about four tics from 0 to MOST."""
    step = 1.0
    while step * 4 < most:
        step *= 10
    for part in (0.1, 0.2, 0.5):
        if step * part * 4 >= most:
            return step * part
    return step


def panel(number, height, minutes, most):
    title, unit, series = PANELS[number]
    step = step_for(most)
    top = 1 - (TOP + number * PANEL) / height
    last = number == len(PANELS) - 1
    lines = [
        f"set tmargin at screen {top - 14 / height!r}",
        f"set bmargin at screen {top - (PANEL - 10) / height!r}",
        f"set lmargin at screen {LEFT / WIDTH!r}", f"set rmargin at screen {1 - RIGHT / WIDTH!r}",
        f"set xrange [0:{minutes!r}]", f"set yrange [0:{max(most, step)!r}]",
        f"set ytics nomirror scale 0 tc rgb '{INK}' 0,{step!r}",
        f"set format x {quote('%g' if last else '')}",
        f"set label 1 {quote(title)} at screen {10 / WIDTH!r},{top - 22 / height!r} left "
        f"font 'sans-serif:Bold,12' tc rgb '{INK}'",
        f"set label 2 {quote(unit)} at screen {10 / WIDTH!r},{top - 38 / height!r} left "
        f"tc rgb '{FAINT}'",
        f"set xlabel {quote('minutes' if last else '')} tc rgb '{FAINT}'",
    ]
    curves = []
    for index, (column, label, _) in enumerate(series):
        y = top - (22 + 17 * index) / height
        lines.append(f"set label {10 + index} {quote(label)} at screen "
                     f"{1 - (RIGHT - 10) / WIDTH!r},{y!r} left tc rgb '{COLORS[index]}'")
        curves.append(f"${column} using 1:2 with lines lw 1.2 lc rgb '{COLORS[index]}' notitle")
    lines.append("plot " + ", ".join(curves))
    lines.extend(f"unset label {10 + index}" for index in range(len(series)))
    return lines


def script(rows, title, subtitle):
    height = TOP + PANEL * len(PANELS) + BOTTOM
    minutes = max(1.0, max(row["second"] for row in rows) / 60)
    lines = [
        f"set terminal svg size {WIDTH},{height} fixed noenhanced font 'sans-serif,12' "
        f"background '{GROUND}'", "set encoding utf8", "set datafile separator '\\t'",
    ]
    most = []
    for _, _, series in PANELS:
        data = [points(rows, column, factor) or [(0, 0)] for column, _, factor in series]
        lines += [data_block(column, curve) for (column, _, _), curve in zip(series, data)]
        most.append(max(y for curve in data for _, y in curve) * 1.05)
    lines += [
        "set multiplot",
        f"set label 1001 {quote(title)} at screen {10 / WIDTH!r},{1 - 20 / height!r} left "
        f"font 'sans-serif:Bold,14' tc rgb '{INK}'",
        f"set label 1002 {quote(subtitle)} at screen {10 / WIDTH!r},{1 - 39 / height!r} left "
        f"tc rgb '{FAINT}'",
        "set border 0", f"set grid ytics lc rgb '{GRID}' lw 1 lt 1",
        f"set xtics nomirror scale 0 tc rgb '{FAINT}'",
        "unset key",
    ]
    for number in range(len(PANELS)):
        lines += panel(number, height, minutes, most[number])
        if number == 0:
            lines += ["unset label 1001", "unset label 1002"]
    lines.append("unset multiplot")
    return "\n".join(lines) + "\n", height


def write(path, rows, title, subtitle):
    text, height = script(rows, title, subtitle)
    plot = Plot("soak", title, WIDTH, height, text)
    with open(path, "w", encoding="utf-8") as file:
        file.write(draw(plot, require_gnuplot()))
