# SPDX-License-Identifier: BSD-2-Clause
"""The plot of a benchmark, plot.py. No root, no network."""

import unittest
from xml.etree import ElementTree

import plot
from bench.contenders import CONTENDERS
from bench.rows import ROWS
from sample_rows import contender, row

SVG = "{http://www.w3.org/2000/svg}"


def results(*rows):
    return {"rows": rows, "rounds": 2, "started": "2026-11-26T12:00:00+00:00",
            "machine": {"cpus": 2, "cpu": "a <CPU>", "kernel": "Linux 6.18 x86_64"},
            "culvert": {"commit": "0123456789"}}


def figures_in(drawing):
    """The numbers that stand in the bars."""
    return [one.text for one in ElementTree.fromstring(drawing).iter(f"{SVG}text")
            if one.get("class") == "in middle"]


class Plot(unittest.TestCase):
    def test_what_it_shows_can_be_measured(self):
        names = {one.name: one for one in ROWS}
        for name in plot.ROWS:
            self.assertLessEqual(set(plot.CONTENDERS), set(names[name].participants))
        self.assertLessEqual(set(plot.CONTENDERS), set(CONTENDERS))

    def test_ratios_within_rounds_and_the_better_haproxy(self):
        drawing = plot.draw(results(row(
            "rr-64x64", contender("direct", 100, 1000), contender("auto", 90, 900),
            contender("haproxy", 50, 500), contender("haproxy-splice", 60, 600))))
        self.assertEqual(figures_in(drawing), ["100", "90", "60"])
        self.assertNotIn("nginx, best tuned", drawing)

    def test_a_contender_that_failed_has_no_bar(self):
        drawing = plot.draw(results(row("crr", contender("direct", 10), contender("auto", None),
                                        contender("nginx", 5))))
        self.assertEqual(figures_in(drawing), ["100", "50"])

    def test_nothing_to_show(self):
        self.assertIsNone(plot.draw(results(row("slow", contender("direct", 1)))))
        self.assertIsNone(plot.draw(results(row("crr", contender("auto", 1)))))

    def test_small(self):
        everyone = [contender(name, 1, 2) for name in plot.CONTENDERS]
        drawing = plot.draw(results(*(row(name, *everyone) for name in plot.ROWS)))
        self.assertEqual(len(figures_in(drawing)), len(plot.ROWS) * len(plot.BARS))
        self.assertLess(len(drawing.encode()), 30_000)
