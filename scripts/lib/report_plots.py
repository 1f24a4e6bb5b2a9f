# SPDX-License-Identifier: BSD-2-Clause
"""The plots of a report: what each shows, drawn by gnuplot as SVG on a white ground."""

from dataclasses import dataclass

import figures
import report_style as style
import rivals
from report_gnuplot import (FAINT, INK, Entry, Plot, data_block, frame, legend, legend_height,
                            quote, rgb, text_width, tics)
from report_style import in_order, style_of

WIDTH = 430
WIDE = 920

LATENCY_PERCENTS = (50, 90, 99, 99.9, 99.99)


def spread_text(summaries):
    """What the whiskers are."""
    if any(summary and summary.has_spread for summary in summaries):
        return "median, minimum to maximum"
    return "one round, no spread"


# ---- bars ---------------------------------------------------------------------------------------

BAR_STEP = 20
GROUP_GAP = 7


def bar_positions(contenders):
    """[(contender, y in pixels below the first bar), ...] and the height of all of them."""
    places, y, group = [], 0, None
    for contender in contenders:
        if group is not None and style_of(contender).group != group:
            y += GROUP_GAP
        group = style_of(contender).group
        places.append((contender, y))
        y += BAR_STEP
    return places, y


@dataclass(frozen=True)
class Bar:
    """Of one contender: its summary, and the part of it to set apart (or None)."""

    contender: dict
    summary: figures.Summary | None
    part: float | None = None


def bar_plot(name, title, subtitle, bars, write=style.number):
    """Horizontal bars with whiskers from minimum to maximum; None if there is nothing to draw.

    WRITE makes the text of a figure.
    """
    if not any(bar.summary for bar in bars):
        return None
    by_name = {bar.contender["name"]: bar for bar in bars}
    places, bars_height = bar_positions(in_order([bar.contender for bar in bars]))
    left = 20 + max(text_width(bar.contender["name"]) for bar in bars)
    top, bottom = 48, 30
    height = int(top + bars_height + bottom)
    highest = max(bar.summary.high for bar in bars if bar.summary)
    top_value = highest or 1.0
    # Room for the figures behind the longest whisker.
    right = 64
    solid, faint, whiskers, labels = [], [], [], []
    for contender, y in places:
        bar = by_name[contender["name"]]
        if bar.summary is None:
            labels.append((0.0, -y, "failed" if contender["cells"] else "not run", rgb(FAINT)))
            continue
        color = rgb(style_of(contender).color)
        edges = (-y - 6.5, -y + 6.5)
        value = bar.summary.median
        (solid if bar.part is None else faint).append((0.0, -y, 0.0, value, *edges, color))
        if bar.part is not None:
            solid.append((0.0, -y, 0.0, min(bar.part, value), *edges, color))
        if bar.summary.has_spread:
            whiskers.append((value, -y, bar.summary.low, bar.summary.high))
        labels.append((bar.summary.high, -y, write(value), rgb(INK)))
    return Plot(name, f"{title}: {subtitle}", WIDTH, height, "\n".join([
        frame(title, subtitle, WIDTH, height, (left, right, top, bottom)),
        f"set yrange [{-bars_height + BAR_STEP / 2!r}:{BAR_STEP / 2!r}]",
        f"set xrange [0:{top_value!r}]",
        tics("y", [(contender["name"], -y) for contender, y in places]),
        tics("x", [(style.short_number(tic), tic) for tic in style.linear_tics(top_value)]),
        "set grid xtics ls 100 back",
        *_bar_layers(faint, solid, whiskers, labels)]))


def _bar_layers(faint, solid, whiskers, labels):
    blocks, layers = [], []

    def add(block, rows, layer):
        if rows:
            blocks.append(data_block(block, rows))
            layers.append(f"${block} using {layer}")

    add("faint", faint, "1:2:3:4:5:6:7 with boxxyerror fs solid 0.35 noborder lc rgb variable")
    add("solid", solid, "1:2:3:4:5:6:7 with boxxyerror fs solid 1.0 noborder lc rgb variable")
    add("whisker", whiskers, f"1:2:3:4 with xerrorbars pt 0 lw 1.3 lc rgb '{INK}'")
    add("label", labels, "1:2:3:4 with labels left offset 0.9,0 tc rgb variable")
    return [*blocks, "set bars 0.5", "plot " + ", \\\n".join(layers)]


def value_plot(row):
    measure = figures.value_measure(row)
    better = "more is better" if row["better"] == "higher" else "less is better"
    bars = [Bar(one, figures.summary_of(one, measure)) for one in row["contenders"]]
    subtitle = f"{row['unit']}, {better}; {spread_text(bar.summary for bar in bars)}"
    return bar_plot(f"{row['name']}-value", row["title"], subtitle, bars,
                    style.writer_for(row["unit"]))


def cpu_plot(row):
    whole, relay = figures.cpu_measure(row), figures.relay_cpu_measure(row)
    bars = []
    for contender in row["contenders"]:
        part = figures.summary_of(contender, relay)
        bars.append(Bar(contender, figures.summary_of(contender, whole),
                        part.median if part else None if contender["family"] != "direct" else 0.0))
    return bar_plot(f"{row['name']}-cpu", f"CPU time per {row['work_unit']}",
                    f"{whole.unit}, whole machine; dark: the relay's process", bars)


# ---- latency ------------------------------------------------------------------------------------


def latency_plot(row):
    """The percentile curves of all contenders that have one; None if none has.

    Outside their own rows, copies with other buffers are left to the tables: so many lines could
    not be told apart.
    """
    curves = [(one, figures.contender_curve(one))
              for one in in_order(row["contenders"])
              if row["group"] == "sweep" or style_of(one).group != style.BUFFERS]
    curves = [(one, curve) for one, curve in curves if len(curve) > 1]
    if not curves:
        return None
    reported = not any(figures.merged_histogram(one) for one, _curve in curves)
    subtitle = ("at the percentiles reported, median of the rounds" if reported else
                "by percentile, all rounds together") + "; less is better"
    values = [value for _one, curve in curves for _position, value in curve if value > 0]
    if not values:
        return None
    low, high = min(values) * 0.85, max(values) * 1.15
    entries = [Entry(one["name"], style_of(one).color, style_of(one).dash, style_of(one).width)
               for one, _curve in curves]
    top, bottom = 48, 38 + legend_height(entries, WIDTH)
    height = top + 210 + bottom
    blocks, layers = [], []
    # auto last, so that it lies above the others
    curves.sort(key=lambda pair: pair[0]["name"] == "auto")
    for index, (one, curve) in enumerate(curves):
        look = style_of(one)
        blocks.append(data_block(f"curve{index}", curve))
        layers.append(f"$curve{index} using 1:2 with lines lw {look.width} dt {look.dash} "
                      f"lc rgb '{look.color}'")
    return Plot(f"{row['name']}-latency", f"{row['title']}: latency", WIDTH, height, "\n".join([
        frame("Latency", subtitle, WIDTH, height, (66, 30, top, bottom)),
        "set logscale y",
        f"set yrange [{low!r}:{high!r}]",
        f"set xrange [{figures.tail_position(50)!r}:{figures.tail_position(99.99)!r}]",
        tics("x", [(f"{percent:g} %", figures.tail_position(percent))
                   for percent in LATENCY_PERCENTS]),
        tics("y", [(style.short_latency(tic), tic) for tic in style.log_tics(low, high)]),
        "set grid xtics ytics ls 100 back",
        legend(entries, WIDTH, height),
        *blocks, "plot " + ", \\\n".join(layers)]))


# ---- headline -----------------------------------------------------------------------------------


def _headline_rivals(row):
    """Whom auto is compared with in the decisive rounds of ROW, or without such rounds in all."""
    names = row.get("decisive")
    return [one for one in in_order(row["contenders"]) if one["name"] != rivals.SUBJECT
            and (one["name"] in names if names else one["name"] == rivals.CONTROL
                 or one in (*rivals.single_engines(row), *rivals.peers(row)))]


def headline_rows(results):
    """[(row, [(rival, Ratio of auto to it), ...]), ...], of the decisive rounds if there are any.

    Of rates and throughputs, and of rows in which auto is compared with another than itself. The
    direct path takes no part in decisive rounds.
    """
    found = []
    for row in results["rows"]:
        subject = figures.find_contender(row, rivals.SUBJECT)
        if subject is None or row["group"] == "sweep" or row["kind"] == "memory":
            continue
        measure = figures.value_measure(row)
        ratios = [(one, rivals.fresh(row, figures.ratio_within_rounds(subject, one, measure)))
                  for one in _headline_rivals(row)]
        ratios = [(one, ratio) for one, ratio in ratios if ratio.summary]
        if any(one["name"] != rivals.CONTROL for one, _ratio in ratios):
            found.append((row, ratios))
    return found


HEADLINE_STEP = 12
HEADLINE_GAP = 16


def headline_plot(results, narrow=False):
    """auto relative to each of its rivals, a band for each row; None without any such row."""
    rows = headline_rows(results)
    if not rows:
        return None
    names = in_order({one["name"]: one for _row, ratios in rows
                      for one, _ratio in ratios}.values())
    title_room = 18 if narrow else 0
    points, bands, labels, y = {one["name"]: [] for one in names}, [], [], 0
    any_decisive = any(row.get("decisive") for row, _ratios in rows)
    for index, (row, ratios) in enumerate(rows):
        band = max(title_room + len(ratios) * HEADLINE_STEP, 14) + HEADLINE_GAP
        if index % 2 == 0:
            bands.append((-y - band, -y))
        title = row["title"]
        if any_decisive and not row.get("decisive"):
            title += " (ordinary rounds)"
        labels.append((title, -y - (HEADLINE_GAP / 2 + 6 if narrow else band / 2)))
        for place, (one, ratio) in enumerate(ratios):
            at = -y - HEADLINE_GAP / 2 - title_room - (place + 0.5) * HEADLINE_STEP
            points[one["name"]].append((ratio.summary.median, at, ratio.summary.low,
                                        ratio.summary.high))
        y += band
    rounds = spread_text(ratio.summary for _row, ratios in rows for _one, ratio in ratios)
    return _draw_headline(narrow, names, points, bands, labels, y,
                          "decisive rounds, " * any_decisive + rounds)


def _draw_headline(narrow, names, points, bands, labels, total, rounds):
    width = WIDTH if narrow else WIDE
    entries = [Entry(one["name"], style_of(one).color, point=style_of(one).point)
               for one in names]
    left = 14 if narrow else 30 + max(text_width(title) for title, _at in labels)
    top, bottom, right = 48, 40 + legend_height(entries, width), 18
    height = int(top + total + bottom)
    highest = max(max(high for *_rest, high in rows) for rows in points.values() if rows)
    end = max(1.05, highest * 1.03)
    settings = [f"set object {index + 1} rectangle from 0,{low!r} to {end!r},{high!r} "
                "behind fc rgb '#f5f6f8' fs solid noborder"
                for index, (low, high) in enumerate(bands)]
    for index, (title, at) in enumerate(labels):
        place = (f"at first 0,{at!r} left offset 0.4,0" if narrow else
                 f"at screen {(left - 10) / width!r}, first {at!r} right")
        settings.append(f"set label {index + 1} {quote(title)} {place} tc rgb '{INK}'")
    blocks, layers = [], []
    for index, one in enumerate(names):
        look = style_of(one)
        blocks.append(data_block(f"points{index}", points[one["name"]]))
        drawing = f"lw 1.6 lc rgb '{look.color}' pt {look.point} ps 0.75"
        layers.append(f"$points{index} using 1:2:3:4 with xerrorbars {drawing}")
    name = "headline-narrow" if narrow else "headline"
    title = "auto relative to each of its rivals"
    subtitle = f"more than 1: auto is better; {rounds}"
    return Plot(name, f"{title}: {subtitle}", width, height, "\n".join([
        frame(title, subtitle, width, height, (left, right, top, bottom)),
        f"set yrange [{-total!r}:0]",
        f"set xrange [0:{end!r}]",
        "unset ytics",
        tics("x", [(f"{tic:g}", tic) for tic in style.linear_tics(end, 5)]),
        "set grid xtics ls 100 back",
        f"set arrow 1 from 1,{-total!r} to 1,0 nohead lw 1.4 lc rgb '{FAINT}' back",
        *settings, "set bars 0", legend(entries, width, height),
        *blocks, "plot " + ", \\\n".join(layers)]))


# ---- buffer sweep -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """One row's copies by buffer: [(bytes, contender), ...], against the smallest of them."""

    row: dict
    steps: list


def sweeps(results):
    """The rows in which at least two buffers of copy were measured."""
    found = []
    for row in results["rows"]:
        measure = figures.value_measure(row)
        steps = sorted(((style.buffer_bytes(one["name"]), one["name"], one)
                        for one in row["contenders"]
                        if style.buffer_bytes(one["name"]) and figures.summary_of(one, measure)),
                       key=lambda step: step[:2])
        if len(steps) > 1:
            found.append(Sweep(row, [(size, one) for size, _name, one in steps]))
    return found


def sweep_ratios(sweep):
    """[(bytes, Ratio to the smallest buffer), ...]"""
    measure = figures.value_measure(sweep.row)
    return [(size, figures.ratio_within_rounds(one, sweep.steps[0][1], measure))
            for size, one in sweep.steps]


def line_look(index):
    """Colour and dash of the line for the INDEXth row."""
    colors = style.LINE_COLORS
    return colors[index % len(colors)], "solid" if index < len(colors) else "(6,3)"


def sweep_plot(results):
    """A line for each row: how copy's buffer changes its rate."""
    lines = [(sweep, [(size, ratio.summary) for size, ratio in sweep_ratios(sweep)
                      if ratio.summary]) for sweep in sweeps(results)]
    lines = [(sweep, places) for sweep, places in lines if len(places) > 1]
    if not lines:
        return None
    sizes = sorted({size for _sweep, places in lines for size, _summary in places})
    low = min(summary.low for _sweep, places in lines for _size, summary in places)
    high = max(summary.high for _sweep, places in lines for _size, summary in places)
    margin = (high - low) * 0.06 or 0.05
    low, high = max(0.0, min(low, 1) - margin), max(high, 1) + margin
    entries = [Entry(sweep.row["title"], *line_look(index), point=7)
               for index, (sweep, _places) in enumerate(lines)]
    top, bottom = 48, 42 + legend_height(entries, WIDE)
    height = top + 260 + bottom
    blocks, layers = [], []
    for index, (sweep, places) in enumerate(lines):
        color, dash = line_look(index)
        # A hair apart, so that whiskers at the same buffer do not hide each other.
        shift = 1 + 0.03 * (index - (len(lines) - 1) / 2)
        blocks.append(data_block(f"line{index}", [
            (size * shift, summary.median, summary.low, summary.high)
            for size, summary in places]))
        layers.append(f"$line{index} using 1:2:3:4 with yerrorlines lw 1.8 dt {dash} "
                      f"lc rgb '{color}' pt 7 ps 0.6")
    return Plot("sweep", "Copy: the size of its buffer", WIDE, height, "\n".join([
        frame("Copy: the size of its buffer",
              "relative to the smallest; more is better; " + spread_text(
                  summary for _sweep, places in lines for _size, summary in places),
              WIDE, height, (56, 24, top, bottom)),
        "set logscale x 2",
        f"set xrange [{sizes[0] / 1.25!r}:{sizes[-1] * 1.25!r}]",
        f"set yrange [{low!r}:{high!r}]",
        tics("x", [(style.memory_size(size), size) for size in sizes]),
        "set format y '%g'",
        "set grid ytics ls 100 back",
        "set arrow 1 from graph 0, first 1 to graph 1, first 1 nohead lw 1.4 "
        f"lc rgb '{FAINT}' back",
        "set bars 0.5", legend(entries, WIDE, height),
        *blocks, "plot " + ", \\\n".join(layers)]))


# ---- all of them --------------------------------------------------------------------------------


def row_plots(row):
    """The plots that stand beside ROW's table: of the rounds that all took part in."""
    row = figures.ordinary_row(row)
    return [plot for plot in (value_plot(row), latency_plot(row), cpu_plot(row)) if plot]


def all_plots(results):
    plots = [headline_plot(results), headline_plot(results, narrow=True), sweep_plot(results)]
    for row in results["rows"]:
        plots += row_plots(row)
    return [plot for plot in plots if plot]
