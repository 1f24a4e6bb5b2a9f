# SPDX-License-Identifier: BSD-2-Clause
"""The plot of a benchmark, plot.py. No root, no network."""

from xml.etree import ElementTree

import plot
from sample_rows import contender, row


def test_bars():
    """Ratios within rounds, of the better HAProxy; who failed, or had no part, has no bar."""
    for one, wanted in (
            (row("rr-64x64", contender("direct", 100, 1000), contender("auto", 90, 900),
                 contender("haproxy", 50, 500), contender("haproxy-splice", 60, 600)),
             ["100", "90", "60"]),
            (row("crr", contender("direct", 10), contender("auto", None), contender("nginx", 5)),
             ["100", "50"])):
        drawing = plot.draw({
            "rows": [one], "rounds": 2, "started": "2026-11-26T12:00:00+00:00",
            "machine": {"cpus": 2, "cpu": "a <CPU>", "kernel": "Linux 6.18 x86_64"},
            "culvert": {"commit": "0123456789"}})
        texts = ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
        assert [bar.text for bar in texts if bar.get("class") == "in middle"] == wanted
