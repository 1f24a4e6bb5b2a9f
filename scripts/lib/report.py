#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Makes a report of a benchmark's results: report.md, report.html and plots/*.svg."""

import argparse
import os
import sys

import report_content
import report_gnuplot
import report_html
import report_input
import report_markdown
import report_plots


def write_text(path, text):
    """All or nothing: whoever reads PATH meanwhile sees the old file or the new one."""
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)


def make_report(results, folder):
    """Writes the report of RESULTS (checked) to FOLDER and returns the paths written."""
    program = report_gnuplot.require_gnuplot()
    plots = report_plots.all_plots(results)
    drawings = {plot.name: report_gnuplot.draw(plot, program) for plot in plots}
    document = report_content.compose(results)
    os.makedirs(os.path.join(folder, "plots"), exist_ok=True)
    texts = {os.path.join("plots", f"{name}.svg"): svg for name, svg in drawings.items()}
    texts["report.md"] = report_markdown.render(document, {one.name: one.title for one in plots})
    texts["report.html"] = report_html.render(document, drawings)
    for name, text in texts.items():
        write_text(os.path.join(folder, name), text)
    return [os.path.join(folder, name) for name in texts]


def parse_options(arguments):
    parser = argparse.ArgumentParser(
        prog="scripts/report",
        description="Makes report.html (one self-contained file), report.md and plots/*.svg of "
                    "the results of scripts/bench. Needs gnuplot.",
        epilog="Exit code: 0 if the report was written, 1 if the results cannot be read, gnuplot "
               "is missing or a file cannot be written, 2 for wrong options.")
    parser.add_argument("results", metavar="RESULTS.json",
                        help="what scripts/bench wrote; may be compressed with gzip")
    parser.add_argument("--out", metavar="DIR",
                        help="where to write (default: beside the results); made if missing")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_options(arguments)
    folder = options.out or os.path.dirname(options.results) or "."
    try:
        written = make_report(report_input.load(options.results), folder)
    except report_input.InputError as error:
        print(f"report: {options.results}: {error}", file=sys.stderr)
        return 1
    except report_gnuplot.PlotError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"report: {error.filename or folder}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("report: interrupted", file=sys.stderr)
        return 130
    plots = len(written) - 2
    print(f"report   {os.path.join(folder, 'report.html')}, report.md and {plots} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
