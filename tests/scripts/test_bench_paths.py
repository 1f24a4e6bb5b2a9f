# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark over paths: which cells it takes, its arithmetic, its plot. No root, no network."""

import random
import socket
import threading
from xml.etree import ElementTree

import plot_paths
import pytest
from bench import loads as peer, paths
from sample_rows import contender, row


def cell(**more):
    return paths.Cell(paths.TRANSFERS, paths.Path((4, 1), (0, 0)), 1000, **more)


def received(count, ended, wrong=0, error=None):
    return {"bytes": count, "ended": ended, "wrong": wrong, "error": error, "rounds": []}


# --- which cells ---

def test_each_value_meets_each_other():
    for factors in (paths.TRANSFER_FACTORS, paths.CONVERSATION_FACTORS):
        chosen = paths.pairwise(factors, random.Random(1))
        assert set().union(*map(paths.pairs_of, chosen)) == paths.all_pairs(factors)


def test_as_many_as_are_asked_for():
    for count in (1, 30, paths.MOST_CELLS):
        chosen = paths.select_cells(count, 1)
        assert (len(chosen), len(set(chosen))) == (count, count)
    assert paths.select_cells(30, 1) == paths.select_cells(None, 1)[:30]
    assert paths.select_cells(30, 1) != paths.select_cells(30, 2)


def test_names_are_unique():
    everything = [*paths.select_cells(paths.MOST_CELLS, 1), *paths.quic_cells(),
                  *paths.distance_cells()]
    assert len({one.name for one in everything}) == len(everything)


# --- arithmetic, and the plot ---

def test_transfers():
    """What has come until the last byte, or within 4 seconds, of all connections and ways."""
    each = [received(1000, 10**9), received(1000, 2 * 10**9)]
    for one, start, up, down, value in (
            (cell(), 10**9, [received(1000, 10**9 + 2 * 10**6)], [], 8000 / 0.002 / 1e6),
            (cell(), 10**9, [received(500, 2 * 10**9)], [], 4000 / 4 / 1e6),
            (cell(direction="both", connections=2), 0, each, each, 4 * 8000 / 2 / 1e6)):
        found = paths.transfer_cell(one, start, 4, up, down)
        assert found["value"] == pytest.approx(value)
        assert found["extra"]["capped"] == (up[0]["bytes"] == 500)


def test_errors_and_wrong_bytes_are_told():
    found = paths.transfer_cell(cell(), 0, 4, [received(1000, 1, wrong=2)],
                                [received(0, 0, error="refused")])
    assert (found["wrong"], found["errors"]) == (2, 1)


def test_a_conversation_counts_rounds():
    found = paths.conversation_cell(2, [{"rounds": [5, 7, 5], "wrong": 0}])
    assert (found["value"], found["histogram"]) == (1.5, [[5, 2], [7, 1]])


def test_all_bytes_are_checked_that_are_sent():
    size, deadline = 3 * peer.PATTERN_LENGTH + 11, peer.now() + 10**10
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=peer.send_pattern, args=(one, size, deadline))
        thread.start()
        found = peer.Received()
        found.receive(other, size, deadline)
        thread.join()
    assert (found.bytes, found.wrong) == (size, 0)
    chunk = bytearray(peer.PATTERN[:200])
    chunk[-1] ^= 1
    assert peer.is_wrong(memoryview(chunk), 0)


def test_all_rows_together():
    rows = [row(str(n), contender("auto", n), contender("copy", 1)) for n in (1, 2, 6)]
    rows.append(row("failed", contender("auto", None), contender("copy", 1)))
    summary = paths.overall(rows, "auto", "copy")
    assert (summary.median, summary.low, summary.high, summary.count) == (2, 1, 6, 3)
    text = paths.text_of({"rows": rows, "relay_congestion": "bbr"})
    assert "title of failed: auto, round 1: no answer" in text


def test_plot():
    """A line for each contender in each panel."""
    rows = [{**row(str(rtt), contender("direct", 5, 500), contender("auto", 5, 500)),
             "group": paths.DISTANCE, "rtt_ms": [rtt, far], "loss_percent": [0, 0]}
            for rtt in (0, 80) for far in (1, 40)]
    drawing = ElementTree.fromstring(plot_paths.draw({
        "rows": rows, "rounds": 2, "started": "2026-11-26T12:00:00+00:00",
        "relay_congestion": "bbr", "machine": {"cpus": 2, "cpu": "a <CPU>"},
        "culvert": {"commit": "0123456789"}}))
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
