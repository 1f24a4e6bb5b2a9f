# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark over paths: which cells it takes, its arithmetic, its plot. No root, no network."""

import random
import socket
import threading
import unittest
from xml.etree import ElementTree

import plot_paths
from bench import loads as peer, paths
from labkit import path_options
from sample_rows import contender, row

FACTORS = (paths.TRANSFER_FACTORS, paths.CONVERSATION_FACTORS)


def cell(**more):
    return paths.Cell(paths.TRANSFERS, paths.Path((4, 1), (0, 0)), 1000, **more)


def received(count, ended, wrong=0, error=None):
    return {"bytes": count, "ended": ended, "wrong": wrong, "error": error, "rounds": []}


class Selection(unittest.TestCase):
    def test_each_value_meets_each_other(self):
        for seed in range(5):
            for factors in FACTORS:
                chosen = paths.pairwise(factors, random.Random(seed))
                met = set().union(*map(paths.pairs_of, chosen))
                self.assertEqual(met, paths.all_pairs(factors))

    def test_pairs_are_few(self):
        self.assertEqual(len(paths.all_pairs({"a": (1, 2), "b": (1, 2, 3), "c": (1,)})), 11)
        for seed in range(5):
            self.assertLessEqual(len(paths.select_cells(None, seed)), paths.MOST_CELLS)

    def test_the_matrix_has_all_of_both_selections(self):
        source = random.Random("paths:3")
        wanted = {paths.chosen_transfer(one)
                  for one in paths.pairwise(paths.TRANSFER_FACTORS, source)}
        wanted |= {paths.chosen_conversation(one)
                   for one in paths.pairwise(paths.CONVERSATION_FACTORS, source)}
        self.assertEqual(set(paths.select_cells(None, 3)), wanted)

    def test_as_many_as_are_asked_for(self):
        for count in (1, 30, paths.MOST_CELLS):
            chosen = paths.select_cells(count, 1)
            self.assertEqual((len(chosen), len(set(chosen))), (count, count))
        self.assertEqual(paths.select_cells(30, 1), paths.select_cells(None, 1)[:30])
        kinds = {one.kind for one in paths.select_cells(4, 1)}
        self.assertEqual(kinds, {paths.TRANSFERS, paths.CONVERSATIONS})

    def test_a_seed_decides(self):
        self.assertEqual(paths.select_cells(30, 1), paths.select_cells(30, 1))
        self.assertNotEqual(paths.select_cells(30, 1), paths.select_cells(30, 2))

    def test_names_are_unique(self):
        everything = [*paths.select_cells(paths.MOST_CELLS, 1), *paths.quic_cells(),
                      *paths.distance_cells()]
        self.assertEqual(len({one.name for one in everything}), len(everything))

    def test_cells_of_a_path_come_together(self):
        everything = paths.select_cells(None, 1)
        groups = paths.group_by_path(everything)
        self.assertEqual(sum(map(len, groups.values())), len(everything))
        self.assertTrue(all(one.path == path for path, group in groups.items() for one in group))

    def test_titles(self):
        path = paths.Path((20, 1), (0, 0.5))
        self.assertEqual(path.title, "20 ms + 1 ms 0.5 %")
        self.assertEqual(path.round_trip, 0.021)
        self.assertEqual(paths.Cell(paths.TRANSFERS, path, 2_000_000, "bbr", "both", 16).load,
                         "both 16 x 2 MB bbr")
        self.assertEqual(paths.Cell(paths.CONVERSATIONS, path, 16384).load, "16384 B each way")

    def test_options_of_the_lab(self):
        self.assertEqual(path_options(None, None, 1), [])
        self.assertEqual(path_options((80, 1), None, 2), [
            "--rtt", "80.000000,1.000000", "--loss", "0.000000,0.000000", "--seed", "2"])


class Figures(unittest.TestCase):
    def test_a_whole_transfer_lasts_until_its_last_byte(self):
        found = paths.transfer_cell(cell(), 10**9, 4, [received(1000, 10**9 + 2 * 10**6)], [])
        self.assertAlmostEqual(found["value"], 8000 / 0.002 / 1e6)
        self.assertFalse(found["extra"]["capped"])

    def test_of_a_capped_one_what_has_come_counts(self):
        found = paths.transfer_cell(cell(), 10**9, 4, [received(500, 2 * 10**9)], [])
        self.assertAlmostEqual(found["value"], 4000 / 4 / 1e6)
        self.assertTrue(found["extra"]["capped"])

    def test_both_ways_and_all_connections_add_up(self):
        each = [received(1000, 10**9), received(1000, 2 * 10**9)]
        found = paths.transfer_cell(cell(direction="both", connections=2), 0, 4, each, each)
        self.assertAlmostEqual(found["value"], 4 * 8000 / 2 / 1e6)

    def test_errors_and_wrong_bytes_are_told(self):
        found = paths.transfer_cell(cell(), 0, 4, [received(1000, 1, wrong=2)],
                                   [received(0, 0, error="refused")])
        self.assertEqual((found["wrong"], found["errors"]), (2, 1))

    def test_a_conversation_counts_rounds(self):
        found = paths.conversation_cell(2, [{"rounds": [5, 7, 5], "wrong": 0}])
        self.assertEqual((found["value"], found["histogram"]), (1.5, [[5, 2], [7, 1]]))


class Peer(unittest.TestCase):
    def test_pattern_is_known_at_each_place(self):
        length = peer.PATTERN_LENGTH
        for offset in (0, 5, length - 3, length, 3 * length + 17):
            chunk = bytearray(peer.PATTERN[(offset + i) % length] for i in range(200))
            self.assertFalse(peer.is_wrong(memoryview(chunk), offset))
            self.assertTrue(peer.is_wrong(memoryview(chunk), offset + 1))
            chunk[-1] ^= 1
            self.assertTrue(peer.is_wrong(memoryview(chunk), offset))
        self.assertFalse(peer.is_wrong(memoryview(peer.PATTERN[:1]), 0))

    def test_all_bytes_are_checked_that_are_sent(self):
        size, deadline = 3 * peer.PATTERN_LENGTH + 11, peer.now() + 10**10
        one, other = socket.socketpair()
        with one, other:
            thread = threading.Thread(target=peer.send_pattern, args=(one, size, deadline))
            thread.start()
            found = peer.Received()
            found.receive(other, size, deadline)
            thread.join()
        self.assertEqual((found.bytes, found.wrong), (size, 0))

    def test_a_deadline_ends_it(self):
        one, other = socket.socketpair()
        with one, other:
            found = peer.Received()
            found.receive(other, 1000, peer.now() + 10**7)
            self.assertEqual(found.bytes, 0)
            self.assertRaises(TimeoutError, peer.set_deadline, one, peer.now() - 1)


class Table(unittest.TestCase):
    def test_ratios_are_taken_within_rounds(self):
        one = row("a", contender("direct", 10, 20), contender("auto", 8, 10),
                  contender("copy", 4, 10), contender("splice", 2, 2))
        self.assertEqual(paths.ratio_text(one, "auto", "copy"), "1.50 [1.00-2.00]")
        self.assertEqual(paths.line_of(one)[3], "copy")
        self.assertEqual(paths.ratio_text(one, "auto", "haproxy"), "-")

    def test_all_rows_together(self):
        rows = [row(str(n), contender("auto", n), contender("copy", 1)) for n in (1, 2, 6)]
        rows.append(row("failed", contender("auto", None), contender("copy", 1)))
        summary = paths.overall(rows, "auto", "copy")
        self.assertEqual((summary.median, summary.low, summary.high, summary.count), (2, 1, 6, 3))
        text = paths.text_of({"rows": rows, "relay_congestion": "bbr"})
        self.assertIn("title of failed: auto, round 1: no answer", text)


class Plot(unittest.TestCase):
    def results(self, *values):
        rows = [{**row(str(rtt), contender("direct", *values), contender("auto", *values)),
                 "group": paths.DISTANCE, "rtt_ms": [rtt, far], "loss_percent": [0, 0]}
                for rtt in (0, 80) for far in (1, 40)]
        return {"rows": rows, "rounds": 2, "started": "2026-11-26T12:00:00+00:00",
                "relay_congestion": "bbr", "machine": {"cpus": 2, "cpu": "a <CPU>"},
                "culvert": {"commit": "0123456789"}}

    def test_a_line_for_each_contender_in_each_panel(self):
        drawing = ElementTree.fromstring(plot_paths.draw(self.results(5, 500)))
        self.assertEqual(len(list(drawing.iter("{http://www.w3.org/2000/svg}polyline"))), 4)

    def test_nothing_to_show(self):
        self.assertIsNone(plot_paths.draw({"rows": [row("crr", contender("direct", 1))]}))
        self.assertIsNone(plot_paths.draw(self.results(None)))
