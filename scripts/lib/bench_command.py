# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark's command line: its options, where results go, what is said first and last."""

import argparse
import errno
import os
import subprocess
import sys
from datetime import datetime

import plot
from bench_plan import minutes_text
from bench_results import OutputError, Results, describe_culvert
from bench_rows import CONTENDERS, ROWS
from labkit import TOP

# Room for results.json, its successor beside it, and the report.
ROOM_BYTES = 64 << 20

ROUNDS, QUICK_ROUNDS, HEADLINE_ROUNDS = 4, 3, 7
SECONDS, QUICK_SECONDS = 1.0, 0.4
DECISIVE = 12  # of 12 the interval ends at the 3rd, of 11 at the 2nd: a quarter narrower


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/bench", allow_abbrev=False,
                                     usage="sudo scripts/bench [OPTION...], see --help")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--headline", action="store_true")
    parser.add_argument("--rows", default="")
    parser.add_argument("--contenders", default="")
    parser.add_argument("--rounds", type=positive_int)
    parser.add_argument("--decisive", type=count_from_zero)
    parser.add_argument("--seconds", type=positive_float)
    parser.add_argument("--idle", type=positive_int, default=20000)
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--no-calibration", dest="calibrate", action="store_false")
    parser.add_argument("--out")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--culvert", default=os.path.join(TOP, "build", "culvert"))
    parser.add_argument("--bench-tool", default=os.path.join(TOP, "build", "culvert-bench"))
    options = parser.parse_args()
    if options.headline:
        options.rows = options.rows or ",".join(plot.ROWS)
        options.contenders = options.contenders or ",".join(plot.CONTENDERS)
        options.rounds = options.rounds or HEADLINE_ROUNDS
        options.decisive = options.decisive or 0
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    if options.decisive is None:
        options.decisive = 0 if options.quick else DECISIVE
    options.calibrate = options.calibrate and not options.quick
    options.culvert = os.path.abspath(options.culvert)
    options.bench_tool = os.path.abspath(options.bench_tool)
    return options


def positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def count_from_zero(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return number


def positive_float(text):
    number = float(text)
    if not 0.2 <= number <= 3600:
        raise argparse.ArgumentTypeError("must be from 0.2 to 3600")
    return number


def split_names(text):
    return [name for name in text.split(",") if name]


def print_list():
    print("Rows (* in --quick):")
    for row in ROWS:
        print(f"  {'*' if row.quick else ' '} {row.name:12} {row.group:13} {row.title}")
    print("\nContenders:")
    for contender in CONTENDERS.values():
        print(f"    {contender.name:15} {contender.why_missing() or contender.family}")


def _take_room(folder):
    """Raises OSError unless files can be written to FOLDER, and it has room for the results."""
    path = os.path.join(folder, ".room")
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
    finally:
        if os.path.exists(path):
            os.unlink(path)


def open_results(options):
    """The folder of the results is there and has room, and the document in it is begun."""
    out = options.out or os.path.join(TOP, "build", "bench",
                                      datetime.now().strftime("%Y-%m-%d-%H%M%S"))
    results = Results(os.path.join(out, "results.json"), quick=options.quick,
                      lab="loopback" if options.loopback else "veth", rounds=options.rounds,
                      decisive_rounds=options.decisive, cell_seconds=options.seconds,
                      culvert=describe_culvert(options.culvert))
    if os.path.exists(out) and not os.path.isdir(out):
        raise OutputError(f"results cannot be written to {out}: it is not a directory")
    if os.path.isdir(results.path):
        raise OutputError(f"{results.path} is in the way: it is a directory")
    try:
        os.makedirs(out, exist_ok=True)
        _take_room(out)
    except OSError as error:
        needed = f"; {ROOM_BYTES >> 20} MiB are needed" if error.errno == errno.ENOSPC else ""
        raise OutputError(f"results cannot be written to {out}: {error.strerror}{needed}") from None
    return results


def announce(plan, missing, path):
    print(f"results  {path}")
    print(f"rows     {', '.join(row.name for rows in plan.groups for row in rows)}")
    print(f"of       {', '.join(plan.contenders)}")
    for name, why in missing.items():
        print(f"LEFT OUT {name}: {why}")
    decisive = max(map(plan.decisive_rounds_of, plan.groups), default=0)
    more = f", up to {decisive} decisive ones" if decisive else ""
    print(f"time     {plan.options.rounds} rounds{more}, {plan.options.seconds:g} s a cell: about "
          f"{minutes_text(plan.seconds())}\n", flush=True)


def make_report(path):
    """Returns whether the report was made."""
    script = os.path.join(TOP, "scripts", "report")
    if not os.path.exists(script):
        print("bench: scripts/report is missing: no report", file=sys.stderr)
        return False
    return subprocess.run([script, path], check=False, stdin=subprocess.DEVNULL).returncode == 0


def conclude(results, strict):
    """Tells what went wrong; returns the exit code. STRICT: a failed cell is a failure."""
    cells = list(results.cells())
    failed = [(row, name) for row, name, cell in cells if "failed" in cell]
    wrong = [(row, name) for row, name, cell in cells if cell.get("wrong")]
    for text, found in (("failed", failed), ("WRONG PAYLOAD", wrong)):
        for row, name in dict.fromkeys(found):
            print(f"bench: {row}: {name}: {text} in {found.count((row, name))} cells",
                  file=sys.stderr)
    if not cells or len(failed) == len(cells):
        print("bench: nothing could be measured", file=sys.stderr)
        return 1
    return 1 if wrong or (strict and failed) else 0
