# SPDX-License-Identifier: BSD-2-Clause
"""gnuplot for reports: its language, the frame that all plots share, and the SVG it draws."""

import math
import re
import shutil
import subprocess
from dataclasses import dataclass

# "sans-serif" for gnuplot, which only estimates widths; readers see the first of these they have.
FONTS = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
INK, FAINT, GRID, GROUND = "#1d2125", "#5f6670", "#e3e6ea", "#ffffff"


class PlotError(Exception):
    """gnuplot is missing or did not take a plot; the text says which."""


@dataclass(frozen=True)
class Plot:
    """A plot that gnuplot has still to draw."""

    name: str  # of the file, without ".svg"
    title: str
    width: int
    height: int
    script: str


# ---- its language -------------------------------------------------------------------------------


def quote(text):
    """A gnuplot string: in single quotes nothing but the quote itself is special."""
    return "'" + re.sub(r"\s+", " ", str(text)).replace("'", "''") + "'"


def rgb(color):
    return int(color[1:], 16)


def data_block(name, rows):
    """A named data block; texts must not hold tabs or newlines, nor a '"' that opens a string."""
    def write(value):
        if isinstance(value, str):
            return re.sub(r"[\s\"]+", " ", value) or " "
        return repr(value)
    lines = ["\t".join(map(write, row)) for row in rows]
    return "\n".join([f"${name} << EOD", *lines, "EOD"])


def tics(axis, places):
    """PLACES: (text, position), ... gnuplot takes the texts for formats, so "%" is doubled."""
    return f"set {axis}tics (" + ", ".join(
        f"{quote(text.replace('%', '%%'))} {at!r}" for text, at in places) + ")"


def frame(title, subtitle, width, height, margins):
    """The settings that all plots share; MARGINS left, right, top, bottom in pixels."""
    left, right, top, bottom = margins
    # Bold letters are wider; a title that does not fit is written smaller, not cut.
    size = 13 if text_width(title) * 1.2 < width - 24 else 11
    return "\n".join([
        f"set terminal svg size {width},{height} fixed noenhanced font 'sans-serif,12' "
        f"background '{GROUND}'",
        "set encoding utf8",
        "set datafile separator '\\t'",
        f"set lmargin at screen {left / width!r}",
        f"set rmargin at screen {1 - right / width!r}",
        f"set tmargin at screen {1 - top / height!r}",
        f"set bmargin at screen {bottom / height!r}",
        f"set label 1001 {quote(title)} at screen {12 / width!r},{1 - 18 / height!r} left "
        f"font 'sans-serif:Bold,{size}' tc rgb '{INK}'",
        f"set label 1002 {quote(subtitle)} at screen {12 / width!r},{1 - 35 / height!r} left "
        f"tc rgb '{FAINT}'",
        "set border 0",
        f"set style line 100 lc rgb '{GRID}' lw 1",
        f"set xtics nomirror scale 0 tc rgb '{FAINT}'",
        f"set ytics nomirror scale 0 tc rgb '{INK}'",
        "unset key",
    ])


def text_width(text):
    """About how wide TEXT is at the plots' size of letters, in pixels."""
    return len(text) * 6.6


@dataclass(frozen=True)
class Entry:
    """One line of a legend: a stroke with a point on it, and a text."""

    text: str
    color: str
    dash: str = "solid"
    width: float = 1.5
    point: int | None = None


LEGEND_LINE, LEGEND_STROKE, LEGEND_EDGE = 19, 22, 8


def _legend_column(entries):
    return LEGEND_STROKE + 7 + max(text_width(entry.text) for entry in entries) + 14


def legend_columns(entries, width):
    """How many entries fit beside each other, with no line much emptier than the others."""
    fit = max(1, int((width - 2 * LEGEND_EDGE) / _legend_column(entries)))
    return math.ceil(len(entries) / math.ceil(len(entries) / fit))


def legend_height(entries, width):
    return math.ceil(len(entries) / legend_columns(entries, width)) * LEGEND_LINE


def legend(entries, width, height):
    """A legend at the foot of a picture; read line by line. gnuplot's own does not know how wide
    it gets, and lies over the axis."""
    columns, column = legend_columns(entries, width), _legend_column(entries)
    left = (width - columns * column) / 2
    top = legend_height(entries, width)
    lines = []
    for index, entry in enumerate(entries):
        x = left + index % columns * column
        y = (top - (index // columns + 0.5) * LEGEND_LINE + 8) / height
        middle, end = x + LEGEND_STROKE / 2, x + LEGEND_STROKE
        lines.append(f"set arrow {2000 + index} from screen {x / width!r},{y!r} to "
                     f"screen {end / width!r},{y!r} nohead lw {entry.width} dt {entry.dash} "
                     f"lc rgb '{entry.color}'")
        lines.append(f"set label {2000 + index} {quote(entry.text)} at "
                     f"screen {(end + 7) / width!r},{y!r} left tc rgb '{INK}'")
        if entry.point is not None:
            lines.append(f"set label {3000 + index} '' at screen {middle / width!r},{y!r} "
                         f"point pt {entry.point} ps 0.7 lc rgb '{entry.color}'")
    return "\n".join(lines)


# ---- its drawings -------------------------------------------------------------------------------


def tidy(svg, plot):
    """SVG with names of its own (many go into one page), a title, and fonts that readers have."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<title>.*?</title>", "", svg, count=1, flags=re.S)
    svg = re.sub(r"<desc>.*?</desc>", f"<title>{escape(plot.title)}</title>", svg, count=1,
                 flags=re.S)
    svg = re.sub(r"(\bid|\bclass)=(['\"])", rf"\1=\2{plot.name}-", svg)
    svg = re.sub(r"(xlink:href=['\"]#|url\(#)", rf"\g<1>{plot.name}-", svg)
    svg = re.sub(r"font-family=\"[^\"]*Bold[^\"]*\"",
                 f"font-family=\"{FONTS}\" font-weight=\"600\"", svg)
    svg = re.sub(r"font-family=\"sans-serif[^\"]*\"", f"font-family=\"{FONTS}\"", svg)
    return svg.rstrip() + "\n"


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def require_gnuplot():
    """The path of gnuplot."""
    path = shutil.which("gnuplot")
    if path is None:
        raise PlotError("gnuplot is missing, and without it there are no plots: install it with "
                        "\"scripts/deps bench\" or \"apt-get install gnuplot-nox\"")
    return path


def draw(plot, program):
    """The SVG text of PLOT."""
    result = subprocess.run([program, "-"], input=plot.script, encoding="utf-8",
                            capture_output=True, check=False)
    if result.returncode != 0 or "<svg" not in result.stdout:
        reason = result.stderr.strip() or f"it ended with {result.returncode}"
        raise PlotError(f"gnuplot did not draw {plot.name}.svg: {reason}")
    return tidy(result.stdout, plot)
