# SPDX-License-Identifier: BSD-2-Clause
"""Reports: what is read, what is said, and (where gnuplot is installed) what is drawn."""

import contextlib
import copy
import json
import os
import re
import sys
import unittest
from unittest import mock

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TOP, "scripts", "lib"), os.path.dirname(os.path.abspath(__file__))]

import report_blocks as blocks  # noqa: E402 (the paths come first)
import report_content  # noqa: E402
import report_gnuplot  # noqa: E402
import report_html  # noqa: E402
import report_input  # noqa: E402
import report_markdown  # noqa: E402
import report_plots  # noqa: E402
import report_style as style  # noqa: E402
import report_words as words  # noqa: E402
import sample_results  # noqa: E402
from page import Page  # noqa: E402

SAMPLE = sample_results.make_results()
SAMPLE_TEXT = json.dumps(SAMPLE)
# For tests of texts, which need no picture.
NO_DRAWING = "<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>"


def sample(rounds=None):
    return sample_results.make_results(rounds) if rounds else json.loads(SAMPLE_TEXT)


def markdown_of(results):
    report_input.check(results)
    titles = {plot.name: plot.title for plot in report_plots.all_plots(results)}
    return report_markdown.render(report_content.compose(results), titles)


def html_of(results):
    drawings = {plot.name: NO_DRAWING for plot in report_plots.all_plots(results)}
    return report_html.render(report_content.compose(results), drawings)


def section(text, title):
    """The part of the Markdown TEXT under the heading TITLE."""
    level, body = re.search(rf"^(#+) {re.escape(title)}\n(.*)", text, re.M | re.S).groups()
    return re.split(rf"^#{{1,{len(level)}}} ", body, flags=re.M)[0]


def slow_down(results, row):
    """auto at half its rate, and so is its control."""
    for name in ("auto", "auto-again"):
        for cell in sample_results.find(results, row, name)["cells"]:
            cell["value"] *= 0.5


def table_row(text, first):
    """The cells of the row of a Markdown table that begins with FIRST."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


class Figures(unittest.TestCase):
    def test_numbers(self):
        for value, text in ((0, "0"), (0.01234, "0.0123"), (1.234, "1.23"), (9.996, "10.0"),
                            (99.96, "100"), (123.4, "123"), (1234567, "1,234,567"),
                            (0.000012, "1.20e-05"), (-4.2, "-4.20"), (None, "\u2013")):
            self.assertEqual(style.number(value), text)

    def test_sizes_and_times(self):
        self.assertEqual(style.byte_size(999), "999 B")
        self.assertEqual(style.byte_size(999.9), "1.00 kB")
        self.assertEqual(style.byte_size(3300), "3.30 kB")
        self.assertEqual(style.memory_size(8 << 30), "8 GiB")
        self.assertEqual(style.latency(1500), "1.50 ms")

    def test_ratio_tells_a_miss_from_a_hit(self):
        self.assertEqual(style.ratio(0.9684), "0.968")

    def test_share_does_not_round_to_all_or_nothing(self):
        self.assertEqual(style.share(1), "100\u00a0%")
        self.assertEqual(style.share(0.99996), ">\u00a099.9\u00a0%")
        self.assertEqual(style.share(0.00004), "<\u00a00.1\u00a0%")

    def test_tics(self):
        self.assertEqual(style.linear_tics(31), [0, 10, 20, 30])
        self.assertEqual(style.linear_tics(0), [0])
        self.assertEqual(style.log_tics(8, 600), [10, 20, 50, 100, 200, 500])

    def test_buffers(self):
        self.assertEqual(style.buffer_bytes("copy-64K"), 65536)
        self.assertEqual(style.buffer_bytes("copy-1M"), 1 << 20)
        self.assertIsNone(style.buffer_bytes("copy"))
        self.assertIsNone(style.buffer_bytes("haproxy-splice"))

    def test_unknown_contenders_have_a_look(self):
        one = {"name": "another", "family": "peer"}
        self.assertTrue(style.style_of(one).color)
        auto = {"name": "auto", "family": "culvert"}
        self.assertEqual(style.in_order([one, auto]), [auto, one])


class Input(unittest.TestCase):
    def complaint(self, change):
        results = sample()
        change(results)
        with self.assertRaises(report_input.InputError) as caught:
            report_input.check(results)
        return str(caught.exception)

    def test_the_sample_is_right(self):
        report_input.check(sample())
        json.dumps(sample(), allow_nan=False)

    def test_names_what_is_missing_and_where(self):
        self.assertEqual(self.complaint(lambda results: results.pop("rows")),
                         'results: "rows" is missing')
        self.assertEqual(self.complaint(lambda results: results["rows"][0].pop("unit")),
                         'rows[0]: "unit" is missing')

        def without_value(results):
            del results["rows"][3]["contenders"][1]["cells"][2]["value"]
        self.assertEqual(self.complaint(without_value),
                         'rows[3] (rr-64x64): contenders[1] (auto): cells[2]: "value" is missing')

    def test_wrong_kinds(self):
        def value_is(value):
            def change(results):
                results["rows"][0]["contenders"][0]["cells"][0]["value"] = value
            return change
        for value in ("1", True, [], float("nan"), float("inf")):
            self.assertIn('"value" is not a number', self.complaint(value_is(value)))
        self.assertIn('"value" is null', self.complaint(value_is(None)))

        def better(results):
            results["rows"][0]["better"] = "more"
        self.assertIn('"better" is "more", not one of higher, lower', self.complaint(better))

    def test_other_formats(self):
        self.assertIn("reads format 1", self.complaint(lambda results: results.update(format=2)))
        with self.assertRaises(report_input.InputError):
            report_input.check([])

    def test_twice_the_same(self):
        def round_twice(results):
            cells = results["rows"][0]["contenders"][0]["cells"]
            cells.append(dict(cells[0]))
        self.assertIn("round 1 is there twice", self.complaint(round_twice))

        def row_twice(results):
            results["rows"].append(results["rows"][0])
        self.assertIn('"bulk-1" is there 2 times', self.complaint(row_twice))

    def test_names_that_cannot_be_files(self):
        self.assertIn("other characters",
                      self.complaint(lambda results: results["rows"][0].update(name="../x")))

    def test_histograms(self):
        def break_it(results):
            sample_results.find(results, "rr-64x64", "auto")["cells"][0]["histogram"][1] = [3]
        self.assertIn('"histogram"[1] is not [upper bound, count]', self.complaint(break_it))

    def test_every_field_is_needed_or_may_be_null(self):
        """Whatever is removed: a clear complaint or a report, never another exception."""
        base = sample(1)
        base["rows"] = base["rows"][3:4]
        del base["rows"][0]["contenders"][4:]

        def visit(value, path):
            if isinstance(value, dict):
                for key in value:
                    yield path + [key]
                    yield from visit(value[key], path + [key])
            elif isinstance(value, list) and value:
                yield from visit(value[0], path + [0])

        for path in visit(base, []):
            results = copy.deepcopy(base)
            place = results
            for key in path[:-1]:
                place = place[key]
            del place[path[-1]]
            with self.subTest(path), contextlib.suppress(report_input.InputError):
                markdown_of(results)


class Content(unittest.TestCase):
    def test_parts(self):
        text = markdown_of(SAMPLE)
        for title in ("Summary", "Targets", "Where sockmap does not win", "Row by row",
                      "The size of copy's buffer", "What was left out, and why",
                      "How the configurations were chosen", "How it was measured", "Machine"):
            self.assertIn(f"\n## {title}\n", text)
        for row in SAMPLE["rows"]:
            self.assertIn(f"\n### {row['title']}\n", text)
        self.assertNotIn("nan", text)
        self.assertNotIn("None", text)

    def test_a_row_of_known_figures(self):
        results = sample()
        auto = sample_results.find(results, "rr-64x64", "auto")
        direct = sample_results.find(results, "rr-64x64", "direct")
        for number, (ours, theirs) in enumerate(((80, 100), (90, 100), (170, 200))):
            for cells, value in ((auto["cells"], ours), (direct["cells"], theirs)):
                cells[number].update(value=value, cpu_seconds=2.0, work=100000,
                                     histogram=[[100, 980], [200, 20]])
            auto["cells"][number].update(relay_cpu_seconds=0.5, relay_syscalls=1000, errors=1,
                                         relay_switches=0, kernel_peak_bytes=(number + 1) * 1e6,
                                         carriers={"sockmap": 75, "copy": 25, "splice": 0})
        del auto["cells"][3:], direct["cells"][3:]
        results["rows"][3]["contenders"].remove(
            sample_results.find(results, "rr-64x64", "auto-again"))
        cells = table_row(section(markdown_of(results), results["rows"][3]["title"]), "**auto**")
        self.assertEqual(cells, [
            "**auto**", "90.0 [80.0\u2013170]", "3 of 5", "0.850 [0.800\u20130.900]",
            "75\u00a0%", "0\u00a0%", "25\u00a0%", "100 \u00b5s", "200 \u00b5s", "200 \u00b5s",
            "20.0", "5.00", "0.0100", "0", "3.00 MB", "**3**", "--engine auto, 2 workers"])

    def test_carriers(self):
        results = sample()
        for name in ("auto", "sockmap"):
            for cell in sample_results.find(results, "rr-64x64", name)["cells"]:
                cell["carriers"] = {"sockmap": 1, "copy": 3, "splice": 0}
            for cell in sample_results.find(results, "wrk", name)["cells"]:
                cell["carriers"] = None
        results["rows"][3]["contenders"].remove(sample_results.find(results, "rr-64x64", "sockmap"))
        text = markdown_of(results)
        whole = section(text, "What carried the payload")
        self.assertEqual(table_row(whole, "Request/response, 64 B, 64 connections")[1:],
                         ["25\u00a0%", "0\u00a0%", "75\u00a0%", *["\u2013"] * 3])
        self.assertEqual(table_row(whole, "wrk to nginx, keep-alive, 64 connections")[1:],
                         ["n/a"] * 6)
        row = section(text, "wrk to nginx, keep-alive, 64 connections")
        self.assertEqual(table_row(row, "**auto**")[4:7], ["n/a"] * 3)
        self.assertEqual(table_row(row, "nginx")[4:7], ["\u2013"] * 3)

    def test_failed_cells_are_named(self):
        left_out = section(markdown_of(SAMPLE), "What was left out, and why")
        self.assertIn("| Bulk, 8 streams to the server | rinetd | 2 | no answer", left_out)
        self.assertIn("| socat | 1, 2, 3, 4, 5 | out of processes", left_out)
        self.assertIn("| direct, socat and redir | all | not a part of this row", left_out)
        self.assertIn("| all | gost | all | not installed |", left_out)
        bulk = section(markdown_of(SAMPLE), "Bulk, 8 streams to the server")
        self.assertEqual(table_row(bulk, "rinetd")[2], "4 of 5")

    def test_where_sockmap_does_not_win(self):
        text = section(markdown_of(SAMPLE), "sockmap behind copy or splice")
        cells = table_row(text, "Bulk, 1 stream to the server")
        self.assertEqual((cells[1], cells[3], cells[7]), ("throughput", "splice", "5"))
        self.assertLess(float(cells[5].split()[0]), 0.6)
        self.assertLess(float(cells[6].split("\u2013")[1]), 1)

    def test_where_a_peer_beats_auto(self):
        results = sample()
        for cell in sample_results.find(results, "crr", "nginx")["cells"]:
            cell["value"] *= 4
        text = section(markdown_of(results), "auto behind a peer")
        cells = table_row(text, "Connect, request/response, close: 16 at a time")
        self.assertEqual((cells[1], cells[3], cells[7]), ("rate", "nginx", "12"))

    def test_medians_beside_a_ratio_are_of_its_rounds(self):
        results = sample()
        for number in range(5):
            sample_results.find(results, "crr", "auto")["cells"][number]["value"] = 10
            sample_results.find(results, "crr", "redir")["cells"][number]["value"] = 20
        results["rows"][7]["contenders"] = [one for one in results["rows"][7]["contenders"]
                                            if one["name"] in ("auto", "redir")]
        cells = table_row(section(markdown_of(results), "auto behind a peer"),
                          "Connect, request/response, close: 16 at a time")
        self.assertEqual((cells[2], cells[4], cells[5], cells[7]),
                         ("10.0 transactions/s", "20.0 transactions/s",
                          "0.500 [0.500\u20130.500]", "5"))

    def test_level_within_noise_is_one_line(self):
        text = section(markdown_of(SAMPLE), "auto behind another engine or buffer of culvert")
        lines = [line for line in text.splitlines() if line.startswith("Median below 1, but")]
        self.assertEqual(len(lines), 1)

    def test_the_control(self):
        text = section(markdown_of(SAMPLE), "How much a difference means")
        cells = table_row(text, "Bulk, 1 stream to the server")
        self.assertEqual(cells[-1], "12")
        self.assertRegex(cells[1], r"^[01]\.\d{3} \[0\.9\d\d\u20131\.\d{3}\]$")
        self.assertNotIn("auto-again", section(markdown_of(SAMPLE),
                                               "auto behind another engine or buffer of culvert"))

    def test_results_of_before_there_was_a_control(self):
        results = sample_results.make_results(5, 0)
        del results["decisive_rounds"]
        for row in results["rows"]:
            row["contenders"] = [one for one in row["contenders"] if one["name"] != "auto-again"]
        text = markdown_of(results)
        self.assertIn("This run has no control", text)
        self.assertNotIn("decisive rounds after", text)

    def test_decisive_rounds(self):
        text = section(markdown_of(SAMPLE), "Request/response, 64 B, 64 connections")
        self.assertIn("5 rounds. 7 decisive rounds after them, of auto, auto-again, sockmap, "
                      "nginx and haproxy alone", text)
        lines = text.splitlines()
        whole = [line for line in lines if line.startswith("| **auto** |")]
        self.assertEqual(len(whole), 1)
        self.assertEqual(whole[0].split("|")[3].strip(), "5")
        contest = [line for line in lines if line.startswith("| nginx |")][-1]
        self.assertEqual(contest.split("|")[4].strip(), "12")

    def test_nothing_to_admit_is_said_only_if_measured(self):
        results = sample()
        for row in results["rows"]:
            row["contenders"] = [one for one in row["contenders"] if one["family"] != "peer"]
        self.assertIn("Not measured: auto against a peer.",
                      section(markdown_of(results), "auto behind a peer"))

    def test_targets(self):
        results = sample()
        slow_down(results, "rr-64x64")
        text = markdown_of(results)
        cells = table_row(section(text, "Targets"), "Request/response, 64 B, 64 connections")
        self.assertEqual((cells[2], cells[3], cells[6]), ("**missed**", "\u2265 0.97", "0 of 7"))
        self.assertIn("is of the decisive rounds alone", section(text, "Targets"))
        self.assertIn("missed, ", section(text, "Summary"))
        self.assertIn("iperf3-1 and iperf3-8.", section(text, "Targets"))

    def test_a_target_that_cannot_be_told(self):
        results = sample()
        for name in ("auto", "auto-again"):
            for number, cell in enumerate(sample_results.find(results, "wrk", name)["cells"]):
                cell["value"] *= 1.3 if number % 2 else 0.8
        text = markdown_of(results)
        cells = table_row(section(text, "Targets"), "wrk to nginx, keep-alive, 64 connections")
        self.assertRegex(cells[2], r"^cannot tell \(median (above|below)\)$")
        self.assertRegex(section(text, "Summary"), r"[1-9]\d* cannot be told by this run")

    def test_few_missed_targets_are_named(self):
        results = sample()
        slow_down(results, "rr-64x64")
        named = "Missed: " in section(markdown_of(results), "Summary")
        for name in ("rr-1Kx512", "wrk"):
            slow_down(results, name)
        many = section(markdown_of(results), "Summary")
        self.assertTrue(named)
        self.assertNotIn("Missed: ", many)
        self.assertIn("the table below has each", many)

    def test_idle_memory_is_marginal_and_has_a_total(self):
        results = sample()
        for number, cell in enumerate(sample_results.find(results, "idle", "auto")["cells"]):
            cell.update(value=400 + number)
            cell["extra"]["bytes_without_sessions"] = 10_000_000
        text = markdown_of(results)
        cells = table_row(section(text, "Idle sessions: memory of the relay"), "**auto**")
        self.assertEqual(cells[1:4], ["401 B [400 B\u2013402 B]", "901 B", "18.0 MB"])
        self.assertIn("| auto: daemon's marginal memory a session (901 B with its base) |", text)
        self.assertNotIn("with the base", markdown_of(SAMPLE))

    def test_rows_without_tuned_peers_are_not_summed_up(self):
        results = sample()
        before = section(markdown_of(results), "Summary")
        self.assertIn("not tuned for it (groups mixed and slow): ahead on", before)
        results["rows"] = [row for row in results["rows"]
                           if row["group"] not in report_content.UNTUNED]
        after = section(markdown_of(results), "Summary")
        self.assertIn("of each row: ahead on", after)
        self.assertEqual(re.search(r"ahead on \d+ of \d+", before)[0],
                         re.search(r"ahead on \d+ of \d+", after)[0])

    def test_interrupted(self):
        results = sample()
        results["complete"] = False
        self.assertTrue(re.search(r"^> \*\*This run is not complete", markdown_of(results), re.M))
        self.assertNotIn("not complete", markdown_of(SAMPLE))

    def test_interrupted_before_anything(self):
        results = sample()
        results.update(complete=False, rows=[], calibration=[])
        self.assertIn("No row was measured.", markdown_of(results))
        self.assertEqual(report_plots.all_plots(results), [])
        results["rows"] = [dict(SAMPLE["rows"][0], contenders=[])]
        self.assertIn(SAMPLE["rows"][0]["title"], markdown_of(results))

    def test_single_round(self):
        text = markdown_of(sample(1))
        self.assertIn("no figure has a known spread", text)
        self.assertIn("no spread is known", section(text, "Bulk, 1 stream to the server"))
        self.assertIn("(one round)", text)
        subtitles = [plot.title for plot in report_plots.all_plots(sample(1))
                     if plot.name.endswith("-value")]
        self.assertTrue(all("one round, no spread" in title for title in subtitles))

    def test_wrong_payload_comes_first(self):
        results = sample()
        sample_results.find(results, "bulk-1", "redir")["cells"][0]["wrong"] = 5
        text = markdown_of(results)
        self.assertIn("Wrong payload was delivered by redir in", text.split("## Summary")[0])
        self.assertIn("wrong payload (5 times)", section(text, "What was left out, and why"))

    def test_quick_and_dirty(self):
        results = sample()
        results["quick"] = results["culvert"]["dirty"] = True
        text = markdown_of(results)
        self.assertIn("quick run", text)
        self.assertIn("uncommitted changes", text)

    def test_everything_failed(self):
        results = sample()
        for row in results["rows"]:
            for one in row["contenders"]:
                one["cells"] = [{"round": 1, "failed": "the lab broke"}]
        text = markdown_of(results)
        self.assertIn("0 held, 0 missed", text)
        self.assertIn("**failed**", text)
        self.assertEqual(report_plots.all_plots(results), [])

    def test_zero(self):
        results = sample()
        for row in results["rows"]:
            for one in row["contenders"]:
                for cell in one["cells"]:
                    cell.update(value=0, work=0, cpu_seconds=0) if "failed" not in cell else None
        self.assertIn("| 0 [0\u20130] |", markdown_of(results))


class Words(unittest.TestCase):
    def test_notes_that_say_the_same_are_one(self):
        lines = ["A: no contender.", "auto: 3 instances.", "copy: 3 instances.", "socat: 1,000.",
                 "nginx: 3 instances."]
        self.assertEqual(words.merge_notes(lines, {"auto", "copy", "socat", "nginx"}),
                         ["A: no contender.", "auto, copy and nginx: 3 instances.",
                          "socat: 1,000."])

    def test_names_of_the_results_are_put_in_words(self):
        row = {"note": "kernel_bytes_beyond_sockets: of row mixed-0, and (plain_pair_bytes).\n"
                       "auto: x.\nnginx: x.",
               "contenders": [{"name": "auto"}, {"name": "nginx"}]}
        self.assertEqual(words.notes_of(row, {"mixed-0": "Title"}),
                         ["Marginal kernel memory a session, beyond two sockets: of "
                          "\u201cTitle\u201d, and (kernel memory of two plain sockets).",
                          "auto and nginx: x."])

    def test_every_heading_is_in_words(self):
        for block in report_content.compose(SAMPLE).blocks:
            for column in getattr(block, "columns", ()):
                self.assertNotRegex(column.title, r"\w_\w")


class Markdown(unittest.TestCase):
    def test_markup_is_escaped(self):
        self.assertEqual(report_markdown.escape("a|b *c* `d` <e> [f](g) _h_ i_j\n k"),
                         r"a\|b \*c\* \`d\` \<e> [f]\(g) \_h\_ i_j k")

    def test_tables_are_whole(self):
        for block in report_content.compose(SAMPLE).blocks:
            if isinstance(block, blocks.Table):
                for row in block.rows:
                    self.assertEqual(len(row), len(block.columns))


class Html(unittest.TestCase):
    def test_links_lead_somewhere_inside(self):
        page = Page(html_of(SAMPLE))
        self.assertEqual(len(page.ids), len(set(page.ids)))
        for reference in page.references:
            self.assertTrue(reference.startswith("#") and reference[1:] in page.ids, reference)

    def test_text_is_escaped(self):
        results = sample()
        results["rows"][0]["title"] = "<script>alert('x')</script> & more"
        results["rows"][0]["contenders"][0]["config"] = "<b>"
        text = html_of(results)
        self.assertNotIn("<script", text)
        self.assertNotIn("<b>", text)
        Page(text)


class Plots(unittest.TestCase):
    def test_which(self):
        names = [plot.name for plot in report_plots.all_plots(SAMPLE)]
        self.assertEqual(len(names), len(set(names)))
        for name in ("headline", "headline-narrow", "sweep", "bulk-1-value", "bulk-1-cpu",
                     "rr-64x64-latency", "wrk-latency", "idle-value"):
            self.assertIn(name, names)
        for name in ("bulk-1-latency", "idle-cpu"):
            self.assertNotIn(name, names)

    def test_the_headline_is_of_decisive_rounds(self):
        results = sample()
        for row in results["rows"]:
            for one in row["contenders"] if row.get("decisive") else ():
                for cell in one["cells"]:
                    if cell["round"] <= row["ordinary_rounds"] and "failed" not in cell:
                        cell["value"] *= 1 + len(one["name"])
        for narrow in (False, True):
            self.assertEqual(report_plots.headline_plot(results, narrow),
                             report_plots.headline_plot(SAMPLE, narrow))
        shown = {row["name"]: [one["name"] for one, _ratio in ratios]
                 for row, ratios in report_plots.headline_rows(SAMPLE)}
        self.assertEqual(shown["rr-64x64"], ["auto-again", "sockmap", "haproxy", "nginx"])
        self.assertNotIn("mixed", shown)

    def test_the_headline_without_decisive_rounds(self):
        results = sample_results.make_results(5, 0)
        shown = {row["name"]: [one["name"] for one, _ratio in ratios]
                 for row, ratios in report_plots.headline_rows(results)}
        for name in ("sockmap", "splice", "copy", "haproxy"):
            self.assertIn(name, shown["rr-64x64"])
        for name in ("auto", "direct", "auto-all"):
            self.assertNotIn(name, shown["rr-64x64"])
        self.assertNotIn("decisive", report_plots.headline_plot(results).title)

    def test_texts_cannot_break_the_script(self):
        self.assertEqual(report_gnuplot.quote("it's \"x\"\n\\n"), "'it''s \"x\" \\n'")
        block = report_gnuplot.data_block("d", [("a\tb\nEOD\n\"c\"", 1.5)])
        self.assertEqual(block.splitlines(), ["$d << EOD", "a b EOD c \t1.5", "EOD"])

    def test_the_legend_has_room(self):
        entries = [report_gnuplot.Entry("n" * 12, "#000000")] * 11
        columns = report_gnuplot.legend_columns(entries, report_plots.WIDTH)
        self.assertGreater(columns, 1)
        self.assertEqual(report_gnuplot.legend_height(entries, report_plots.WIDTH),
                         -(-11 // columns) * report_gnuplot.LEGEND_LINE)
        self.assertEqual(report_gnuplot.legend_columns([report_gnuplot.Entry("n" * 90, "#0")], 430),
                         1)

    def test_without_gnuplot(self):
        with mock.patch("shutil.which", return_value=None), \
                self.assertRaises(report_gnuplot.PlotError) as caught:
            report_gnuplot.require_gnuplot()
        self.assertIn("gnuplot is missing", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
