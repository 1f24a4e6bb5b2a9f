# SPDX-License-Identifier: BSD-2-Clause
"""The plot of a benchmark for a passing reader: a few bars for each of six workloads.

A bar is the median of a contender's ratios to the direct path, each taken within a round; a line
across its end goes from the first quartile of these ratios to the third.
"""

import html

import figures

# The rows of `scripts/bench --headline`, and the name of each in two lines.
ROWS = {"rr-64x1": ("1 conversation", "64 bytes each way"),
        "rr-64x64": ("64 conversations", "64 bytes each way"),
        "rr-1Kx512": ("512 conversations", "1 KiB each way"),
        "bulk-8": ("bulk transfer", "8 streams"),
        "wrk": ("web server", "wrk, 64 connections"),
        "crr": ("short connections", "one request each")}
# Names in the plot, colours, and contenders: of several the best one in each row.
BARS = (("direct path", "#7d8590", ("direct",)),
        ("culvert", "#d4480b", ("auto",)),
        ("kernel NAT (nftables)", "#8957e5", ("nft-dnat",)),
        ("HAProxy, best tuned", "#1f6feb", ("haproxy", "haproxy-splice")),
        ("nginx, best tuned", "#238636", ("nginx",)))
CONTENDERS = tuple(name for _title, _color, names in BARS for name in names)

WIDTH, HEIGHT, TOP, LEFT, BAR, GAP = 900, 396, 78, 48, 24, 1
PLOT_HEIGHT = 210
BASE = TOP + PLOT_HEIGHT
STYLE = """\
text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif;
fill: #1f2328 } .ground { fill: #ffffff } .title { font-size: 16px; font-weight: 600 }
.group { font-weight: 600 } .small { font-size: 11px; fill: #59636e } .in { font-size: 11px;
font-weight: 600; fill: #ffffff } .middle { text-anchor: middle } .end { text-anchor: end }
.grid { stroke: #d1d9e0 } .whole { stroke: #59636e; stroke-dasharray: 4 3 }
.spread { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .ground { fill: #0d1117 }
.small { fill: #9198a1 } .grid { stroke: #3d444d } .whole { stroke: #9198a1 }
.spread { stroke: #f0f6fc } .in { fill: #ffffff } }"""


def _bars_of(row):
    """[(place among BARS, Summary of the ratios to the direct path), ...] of ROW."""
    direct, measure, found = figures.find_contender(row, "direct"), figures.value_measure(row), []
    for place, (_title, _color, names) in enumerate(BARS):
        several = [one for name in names if (one := figures.find_contender(row, name))]
        summaries = [ratio.summary for one in several if direct and
                     (ratio := figures.ratio_within_rounds(one, direct, measure)).by_round]
        if summaries:
            found.append((place, max(summaries, key=lambda summary: summary.median)))
    return found


def svg_text(x, y, content, *classes):
    names = " ".join(classes)
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{names}">{html.escape(content)}</text>'


def line(x1, y1, x2, y2, name):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{name}"/>'


def _legend(places):
    x = LEFT
    for place in places:
        title, color, _names = BARS[place]
        yield f'<rect x="{x}" y="46" width="12" height="12" rx="2" fill="{color}"/>'
        yield svg_text(x + 18, 57, title)
        x += 44 + 7 * len(title)


def _scale(top):
    """Lines at each quarter up to TOP, a ratio."""
    for quarter in range(int(top * 4) + 1):
        y = BASE - PLOT_HEIGHT * quarter / 4 / top
        yield line(LEFT, y, WIDTH - 12, y, "whole" if quarter == 4 else "grid")
        yield svg_text(LEFT - 6, y + 4, f"{25 * quarter} %", "small", "end")


def _group(x, found, top):
    for place, summary in found:
        y = BASE - PLOT_HEIGHT * summary.median / top
        yield (f'<rect x="{x:.1f}" y="{y:.1f}" width="{BAR}" height="{BASE - y:.1f}" '
               f'fill="{BARS[place][1]}"/>')
        yield svg_text(x + BAR / 2, BASE - 6, f"{100 * summary.median:.0f}", "in", "middle")
        if summary.has_spread and summary.low < summary.high:
            yield line(x + BAR / 2, BASE - PLOT_HEIGHT * summary.first_quartile / top, x + BAR / 2,
                        BASE - PLOT_HEIGHT * summary.third_quartile / top, "spread")
        x += BAR + GAP


def _rate(row):
    summary = figures.summary_of(figures.find_contender(row, "direct"), figures.value_measure(row))
    if row["kind"] == "throughput":
        return f"100 % = {summary.median:.1f} {row['unit']}"
    return f"100 % = {round(summary.median, -2):,.0f}/s"


def _notes(results):
    machine, culvert = results["machine"], results["culvert"]
    yield (f"Medians of {results['rounds']} rounds; a line on a bar shows the middle half of the "
           f"rounds. Best tuned: in the best configuration known for each workload.")
    yield (f"Client, relay and server share {machine['cpus']} CPUs ({machine['cpu']}, "
           f"{machine['kernel'].rpartition(' ')[0]}). Commit {culvert['commit'][:7]}, "
           f"{results['started'][:10]}.")


def draw(results):
    """The plot of RESULTS as SVG; None if they have none of its rows."""
    rows = {row["name"]: row for row in results["rows"]}
    groups = [(rows[name], found) for name in ROWS if name in rows
              for found in [_bars_of(rows[name])] if found]
    if not groups:
        return None
    places = sorted({place for _row, found in groups for place, _summary in found})
    top = max(1.1, *(summary.third_quartile for _row, found in groups for _, summary in found))
    title = "Throughput as a share of the direct path, which has nothing in between"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             f'width="{WIDTH}" height="{HEIGHT}" role="img"><title>{title}</title>'
             f'<style>{STYLE}</style>',
             f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" class="ground"/>',
             svg_text(LEFT, 28, title, "title"), *_legend(places), *_scale(top)]
    width = (WIDTH - LEFT - 12) / len(groups)
    for number, (row, found) in enumerate(groups):
        middle = LEFT + width * (number + 0.5)
        parts += _group(middle - (len(found) * (BAR + GAP) - GAP) / 2, found, top)
        parts.append(svg_text(middle, BASE + 20, ROWS[row["name"]][0], "group", "middle"))
        parts.append(svg_text(middle, BASE + 36, ROWS[row["name"]][1], "small", "middle"))
        parts.append(svg_text(middle, BASE + 52, _rate(row), "small", "middle"))
    for number, note in enumerate(_notes(results)):
        parts.append(svg_text(LEFT, BASE + 80 + 16 * number, note, "small"))
    return "\n".join([*parts, "</svg>"]) + "\n"
