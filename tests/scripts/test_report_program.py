# SPDX-License-Identifier: BSD-2-Clause
"""scripts/report as a program, and (where gnuplot is installed) what it draws."""

import contextlib
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(TOP, "scripts", "lib"), os.path.dirname(os.path.abspath(__file__))]

import report  # noqa: E402 (the paths come first)
import report_input  # noqa: E402
import sample_results  # noqa: E402
from page import Page  # noqa: E402

SAMPLE = sample_results.make_results()
HAS_GNUPLOT = shutil.which("gnuplot") is not None


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="culvert-report.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.results = os.path.join(self.folder, "results.json")

    def write(self, text):
        with open(self.results, "w", encoding="utf-8") as file:
            file.write(text)

    def run_main(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = report.main([self.results, *arguments])
        return code, output.getvalue(), errors.getvalue()

    def test_unreadable(self):
        code, _output, errors = self.run_main()
        self.assertEqual(code, 1)
        self.assertIn("No such file", errors)
        for text, complaint in (("", "not JSON"), ("{\"format\": 1}", "\"culvert\" is missing"),
                                ("[]", "not an object")):
            self.write(text)
            code, _output, errors = self.run_main()
            self.assertEqual((code, len(errors.splitlines())), (1, 1))
            self.assertIn(complaint, errors)

    def test_compressed(self):
        with gzip.open(self.results, "wt", encoding="utf-8") as file:
            json.dump(SAMPLE, file)
        self.assertEqual(report_input.load(self.results), SAMPLE)
        with open(self.results, "rb") as file:
            data = file.read()
        with open(self.results, "wb") as file:
            file.write(data[:1000])
        code, _output, errors = self.run_main()
        self.assertEqual(code, 1)
        self.assertIn("not a whole gzip file", errors)

    def test_missing_gnuplot(self):
        self.write(json.dumps(SAMPLE))
        with mock.patch("shutil.which", return_value=None):
            code, _output, errors = self.run_main()
        self.assertEqual(code, 1)
        self.assertIn("gnuplot is missing", errors)
        self.assertEqual(os.listdir(self.folder), ["results.json"])

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_all_of_it(self):
        self.write(json.dumps(SAMPLE))
        target = os.path.join(self.folder, "new", "report")
        code, _output, errors = self.run_main("--out", target)
        self.assertEqual((code, errors), (0, ""))
        with open(os.path.join(target, "report.md"), encoding="utf-8") as file:
            for path in re.findall(r"!\[[^]]*\]\(([^)]*)\)", file.read()):
                self.assertTrue(os.path.exists(os.path.join(target, path)), path)
        with open(os.path.join(target, "report.html"), encoding="utf-8") as file:
            text = file.read()
        page = Page(text)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        for reference in page.references:
            self.assertTrue(reference.startswith("#") and reference[1:] in page.ids, reference)
        # nothing is loaded; the only addresses are the names of XML's own vocabularies
        self.assertEqual(set(re.findall(r"https?://[^\"'\s]*", text)),
                         {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"})
        for name in os.listdir(os.path.join(target, "plots")):
            xml.etree.ElementTree.parse(os.path.join(target, "plots", name))

    @unittest.skipUnless(HAS_GNUPLOT, "gnuplot is not installed")
    def test_odd_texts_are_drawn(self):
        results = sample_results.make_results(1)
        row = results["rows"][3]
        row["title"] = "it's \"100 %\" of <b> & \\n {/Bold x}"
        row["contenders"][1]["name"] = "50 % \"x\" $d #1"
        results["rows"] = [row]
        results["calibration"] = []
        self.write(json.dumps(results))
        code, _output, errors = self.run_main()
        self.assertEqual((code, errors), (0, ""))
        path = os.path.join(self.folder, "plots", "rr-64x64-value.svg")
        texts = "".join(xml.etree.ElementTree.parse(path).getroot().itertext())
        self.assertIn("it's \"100 %\" of <b> & \\n {/Bold x}", texts)

    def test_the_entry(self):
        result = subprocess.run([os.path.join(TOP, "scripts", "report"), "--help"],
                                capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("RESULTS.json", result.stdout)


if __name__ == "__main__":
    unittest.main()
