# SPDX-License-Identifier: BSD-2-Clause
"""Runs spin over the models in tests/model, and says whether each search ends as it must."""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import model_rows

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(TOP, "tests", "model")
LIMIT_S = 300
DEPTH = 100000
MEMORY_MB = 2048


class Broken(Exception):
    """A tool failed, or the search was not exhaustive: no verdict."""


class Result:
    """The outcome of one search."""

    def __init__(self, row, output, seconds):
        self.row = row
        self.seconds = seconds
        self.states = _number(output, r"(\d+) states, stored")
        self.depth = _number(output, r"depth reached (\d+)")
        self.errors = _number(output, r"errors: (\d+)")
        self.memory = _number(output, r"(\d+)\.\d+\s+total actual memory usage")
        self.said = _said(output, row.expected)
        self.unreached = _unreached(output)
        _require_exhaustive(row, output, self.errors)

    @property
    def good(self):
        return self.said == self.row.expected


def _number(output, pattern):
    match = re.search(pattern, output)
    if not match:
        raise Broken(f"no \"{pattern}\" in what the search printed:\n{output}")
    return int(match.group(1))


def _said(output, expected):
    match = re.search(r"^pan:\d+: (.*) \(at depth", output, re.M)
    if match:
        return match.group(1)
    return model_rows.ACYCLIC if expected == model_rows.ACYCLIC else model_rows.NOTHING


def _require_exhaustive(row, output, errors):
    for sign in ("max search depth too small", "out of memory", "error: "):
        if sign in output:
            raise Broken(f"{row.name}: {sign}\n{output}")
    if errors:
        return
    for sign in ("Search not completed", "aborting", "hash-compact", "Bit statespace"):
        if sign in output:
            raise Broken(f"{row.name}: {sign}: not every state was searched\n{output}")
    if "Full statespace search for:" not in output:
        raise Broken(f"{row.name}: not a full search\n{output}")


def _unreached(output):
    """(process, line, statement) that this search did not reach; the ends of processes left out."""
    found, process = set(), None
    for line in output.splitlines():
        match = re.match(r"unreached in proctype (\w+)", line)
        if match:
            process = match.group(1)
            continue
        match = re.match(r"\s+\S+:(\d+), state \d+, \"(.*)\"$", line)
        if process and match and match.group(2) != "-end-":
            found.add((process, int(match.group(1)), match.group(2)))
    return found


class Programs:
    """The running commands of all threads: a signal comes to the main thread alone."""

    def __init__(self):
        self._running = set()
        self._over = False

    def run(self, command, folder, limit=LIMIT_S):
        if self._over:
            raise Broken("interrupted")
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as process:
            self._running.add(process)
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired as error:
                raise Broken(f"{' '.join(command)}: not done after {limit} s") from error
            finally:
                process.kill()
                self._running.discard(process)
        return process.returncode, output

    def end(self, number, _frame):
        """The handler of signals."""
        self._over = True
        for process in list(self._running):
            process.kill()
        sys.exit(128 + number)


programs = Programs()


def symbols_of(row):
    return [f"-D{symbol}" for symbol in row.symbols.split()]


def source_of(row):
    return os.path.join(MODELS, f"{row.model}.pml")


def build(row, folder):
    """The search program of ROW in FOLDER."""
    # a mutation is found soon: to optimise its search would cost more than it saves
    level = "-O0" if row.kind == "mutation" else "-O1"
    mode = "-DNP" if row.expected == model_rows.ACYCLIC else "-DSAFETY"
    for command in (["spin", "-a", *symbols_of(row), source_of(row)],
                    ["gcc", level, "-w", mode, f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c"]):
        code, output = programs.run(command, folder)
        if code or "rror:" in output:
            raise Broken(f"{row.name}: {' '.join(command)}:\n{output}")


def search(row, home):
    folder = os.path.join(home, row.name)
    os.makedirs(folder, exist_ok=True)
    begin = time.monotonic()
    build(row, folder)
    command = ["./pan", f"-m{DEPTH}", "-w22"]
    if row.expected == model_rows.ACYCLIC:
        command.append("-l")
    _, output = programs.run(command, folder)
    with open(os.path.join(folder, "output"), "w", encoding="utf-8") as file:
        file.write(output)
    return Result(row, output, time.monotonic() - begin)


def print_result(result):
    verdict = "ok" if result.good else f"FAILED: expected {result.row.expected}"
    print(f"{result.row.kind:10} {result.row.name:33} {result.states:>9,} states  depth "
          f"{result.depth:>4}  {result.memory:>4} MB {result.seconds:5.1f} s  {result.said}: "
          f"{verdict}", flush=True)


def judge_unreached(results):
    """Code that no search of the protocol reaches needs a reason. Counts statements without one."""
    never = set()
    for model in {r.row.model for r in results}:
        never |= set.intersection(*(r.unreached for r in results
                                    if r.row.kind == "protocol" and r.row.model == model
                                    and r.row.expected == model_rows.NOTHING))
    without = 0
    for process, line, statement in sorted(never):
        why = model_rows.EXPLAINED.get((process, statement))
        without += why is None
        print(f"unreached  {process}, line {line}: {statement}: {why or 'FAILED: no reason known'}")
    return without


def print_trail(row, home):
    result = search(row, home)
    if not result.errors:
        print(f"model: {row.name}: the search finds no error, so there is no trail")
        return 0
    trail = os.path.join(home, row.name, f"{row.model}.pml.trail")
    _, output = programs.run(["spin", "-t", "-p", "-g", "-l", "-k", trail, *symbols_of(row),
                              source_of(row)], os.path.join(home, row.name))
    print(output)
    return 0


def run_all(rows, home, jobs):
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = []
        for result in pool.map(lambda row: search(row, home), rows):
            print_result(result)
            results.append(result)
    failed = sum(not r.good for r in results)
    if len(rows) == len(model_rows.ROWS):
        failed += judge_unreached(results)
    mutations = [r for r in results if r.row.kind == "mutation"]
    caught = sum(r.errors > 0 for r in mutations)
    print(f"{len(results)} searches, {sum(r.states for r in results):,} states, "
          f"{caught} of {len(mutations)} mutations caught, {failed} not as expected, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


def parse_arguments():
    parser = argparse.ArgumentParser(prog="model", add_help=False, allow_abbrev=False)
    parser.add_argument("--only", default="")
    parser.add_argument("--trail")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs: at least 1")
    names = [row.name for row in model_rows.ROWS]
    if arguments.trail and arguments.trail not in names:
        parser.error(f"--trail: no row is named {arguments.trail}: see --list")
    if not any(arguments.only in name for name in names):
        parser.error(f"--only: no row has a name like {arguments.only}")
    return arguments


def main():
    arguments = parse_arguments()
    rows = [row for row in model_rows.ROWS if arguments.only in row.name]
    if arguments.list:
        print("\n".join(row.name for row in rows))
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, programs.end)
    home = os.path.abspath(arguments.keep) if arguments.keep else tempfile.mkdtemp(prefix="model-")
    try:
        if arguments.trail:
            row = next(row for row in model_rows.ROWS if row.name == arguments.trail)
            return print_trail(row, home)
        return run_all(rows, home, arguments.jobs)
    except Broken as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    finally:
        if not arguments.keep:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
