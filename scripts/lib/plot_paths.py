# SPDX-License-Identifier: BSD-2-Clause
"""The plot of a benchmark over paths: the speed of a download, by the distance of the client."""

import math

import figures
from plot import BARS, STYLE, line, svg_text

DISTANCE = "distance"  # the group of the rows of the plot
CONTENDERS = ("direct", "nft-dnat", "auto", "haproxy")
# The colours of the other plot.
COLORS = {name: color for _title, color, names in BARS for name in names}
TITLES = {"direct": "direct path", "auto": "culvert", "nft-dnat": "kernel NAT (nftables)",
          "haproxy": "HAProxy"}
WIDTH, LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT, GAP_X, GAP_Y = 900, 56, 100, 384, 170, 56, 78


def panels_of(results):
    """{(round trip of the server's leg, losses): rows, nearest client first}."""
    panels = {}
    for row in results["rows"]:
        if row["group"] == DISTANCE:
            panels.setdefault((row["rtt_ms"][1], tuple(row["loss_percent"])), []).append(row)
    return {key: sorted(panels[key], key=lambda row: row["rtt_ms"][0]) for key in sorted(panels)}


def points_of(rows, name):
    """[(round trip of the client's leg, Summary)] of the cells that count."""
    found = []
    for row in rows:
        contender = figures.find_contender(row, name)
        summary = contender and figures.summary_of(contender, figures.value_measure(row))
        if summary and summary.median > 0:
            found.append((row["rtt_ms"][0], summary))
    return found


class Panel:
    """Round trips from left to right, speeds upwards by decades."""

    def __init__(self, x, y, rows):
        self.x, self.y, self.rows = x, y, rows
        self.curves = {name: points for name in CONTENDERS if (points := points_of(rows, name))}
        speeds = [value for points in self.curves.values() for _rtt, summary in points
                  for value in (summary.low or summary.median, summary.high)]
        self.bottom = math.floor(math.log10(min(speeds)))
        self.top = max(math.ceil(math.log10(max(speeds))), self.bottom + 1)
        self.farthest = max(row["rtt_ms"][0] for row in rows) or 1

    def place(self, rtt, speed):
        return (self.x + PANEL_WIDTH * rtt / self.farthest,
                self.y + PANEL_HEIGHT * (self.top - math.log10(speed)) / (self.top - self.bottom))

    def scales(self):
        for decade in range(self.bottom, self.top + 1):
            y = self.place(0, 10.0 ** decade)[1]
            yield line(self.x, y, self.x + PANEL_WIDTH, y, "grid")
            yield svg_text(self.x - 6, y + 4, f"{10.0 ** decade:,g}", "small", "end")
        for row in self.rows:
            rtt = row["rtt_ms"][0]
            yield svg_text(self.place(rtt, 10.0 ** self.bottom)[0], self.y + PANEL_HEIGHT + 16,
                           f"{rtt:g}", "small", "middle")

    def curve(self, name):
        color, points = COLORS[name], self.curves[name]
        way = " ".join("{:.1f},{:.1f}".format(*self.place(rtt, one.median)) for rtt, one in points)
        yield f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="2"/>'
        for rtt, one in points:
            x, y = self.place(rtt, one.median)
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
            if one.has_spread and 0 < one.low < one.high:
                yield (f'<line x1="{x:.1f}" y1="{self.place(rtt, one.low)[1]:.1f}" x2="{x:.1f}" '
                       f'y2="{self.place(rtt, one.high)[1]:.1f}" stroke="{color}"/>')

    def draw(self, title):
        yield svg_text(self.x, self.y - 10, title, "group")
        yield from self.scales()
        for name in self.curves:
            yield from self.curve(name)


def panel_title(far, losses):
    lost = f"{losses[0]:g} % lost on each leg" if any(losses) else "no losses"
    return f"server {far:g} ms from the relay, {lost}"


def _legend():
    x = LEFT
    for name in CONTENDERS:
        yield f'<rect x="{x}" y="46" width="12" height="12" rx="2" fill="{COLORS[name]}"/>'
        yield svg_text(x + 18, 57, TITLES[name])
        x += 44 + 7 * len(TITLES[name])


def _notes(results):
    machine, commit = results["machine"], results["culvert"]["commit"][:7]
    yield (f"Mbit/s (logarithmic) by the round trip between client and relay in ms. Medians of "
           f"{results['rounds']} rounds; upright lines go from least to most.")
    yield (f"The relay's own connections: {results['relay_congestion']}. {machine['cpus']} CPUs "
           f"({machine['cpu']}). Commit {commit}, {results['started'][:10]}.")


def draw(results):
    """The plot of RESULTS as SVG; None if they have none of its rows."""
    panels = {key: rows for key, rows in panels_of(results).items()
              if any(points_of(rows, name) for name in CONTENDERS)}
    if not panels:
        return None
    title = "Speed of a download of 10 MB (cubic) by the distance"
    height = TOP + (len(panels) + 1) // 2 * (PANEL_HEIGHT + GAP_Y) + 12
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
             f'width="{WIDTH}" height="{height}" role="img"><title>{title}</title>'
             f'<style>{STYLE}</style>',
             f'<rect width="{WIDTH}" height="{height}" rx="6" class="ground"/>',
             svg_text(LEFT, 28, title, "title"), *_legend()]
    for number, (key, rows) in enumerate(panels.items()):
        panel = Panel(LEFT + number % 2 * (PANEL_WIDTH + GAP_X),
                      TOP + number // 2 * (PANEL_HEIGHT + GAP_Y), rows)
        parts += panel.draw(panel_title(*key))
    for number, note in enumerate(_notes(results)):
        parts.append(svg_text(LEFT, height - 28 + 16 * number, note, "small"))
    return "\n".join([*parts, "</svg>"]) + "\n"
