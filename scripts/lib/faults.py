# SPDX-License-Identifier: BSD-2-Clause
"""Fault injection on each engine, and the tables of what happened.

"calls" is tests/faults/test_faults: every call of the session path made to fail in turn, and then
whether the interposer and the list of exceptions cover every system call that the daemon was seen to
make. "network" is tests/faults/test_network.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENGINES = ("copy", "splice", "sockmap", "auto")
PARTS = ("calls", "network")
EXIT_SKIP = 77
SHOWN = ("FAIL", "     |")  # of a failed run's log; the second is what the daemon has said
COLUMNS = ("hits", "wrong", "truncated", "leaks", "stuck", "resets")


class FaultsError(Exception):
    """Something is missing or does not hold; the text is for the user."""


# ---- what is covered


def symbols(path, *options):
    """Names of PATH's dynamic symbols, without versions."""
    result = subprocess.run(["nm", "-D", *options, path], capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        raise FaultsError(f"nm {path}: {result.stderr.strip()}")
    return {line.split()[-1].split("@")[0] for line in result.stdout.splitlines() if line.strip()}


def exceptions():
    """The lists of uninjected.txt: system calls, and {system call: injected functions}."""
    syscalls, via = set(), {}
    with open(os.path.join(TOP, "tests/faults/uninjected.txt"), encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if line.startswith("syscall "):
                syscalls.update(words[1:])
            elif line.startswith("via "):
                via[words[1]] = words[2:]
    return syscalls, via


def check_syscalls(path, injected):
    """Every system call that strace has counted is injected or has a reason why not: their number."""
    syscalls, via = exceptions()
    try:
        with open(path, encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise FaultsError(f"no list of system calls: {error}") from None
    # "% time ... syscall", a rule, the calls, a rule, "total"
    seen = {line.split()[-1] for line in lines[2:] if line and not line.startswith("---")}
    seen.discard("total")
    missing = {name for name in seen - syscalls - injected if not set(via.get(name, ())) & injected}
    if missing:
        raise FaultsError("system calls of running sessions that are neither injected nor in "
                          "tests/faults/uninjected.txt: " + ", ".join(sorted(missing)))
    return len(seen)


# ---- the runs


class Runs:
    """One process for each engine and part; most of a sweep is waiting."""

    def __init__(self, options):
        self.options = options
        self.waiting = [(part, engine) for part in options.part or PARTS
                        for engine in options.engine or ENGINES]
        self.running = {}
        self.codes = {}

    def path(self, run, kind):
        return os.path.join(self.options.out, f"{'-'.join(run)}.{kind}")

    def command(self, run):
        part, engine = run
        options = self.options
        program = {"calls": "test_faults", "network": "test_network"}[part]
        command = [os.path.join(options.build, "tests/faults", program), "--engine", engine,
                   "--json", self.path(run, "json")]
        if options.culvert:
            command += ["--culvert", options.culvert]
        if options.only:
            command += ["--only", options.only]
        if part == "calls":
            command += ["--seed", str(options.seed)]
            command += [flag for flag in ("--full", "--verbose") if getattr(options, flag[2:])]
            if options.most:
                command += ["--most", str(options.most)]
            if not options.culvert:
                command += ["--syscalls", os.path.abspath(self.path(run, "syscalls"))]
        return command

    def start(self, run):
        with open(self.path(run, "log"), "wb") as log:
            self.running[run] = subprocess.Popen(self.command(run), stdout=log, stderr=log,
                                                 stdin=subprocess.DEVNULL, start_new_session=True)

    def reap(self, run, process):
        self.codes[run] = process.returncode
        del self.running[run]
        with open(self.path(run, "log"), encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()
        for line in lines if self.options.verbose else lines[-1:]:
            print(f"{' '.join(run)}: {line}", flush=True)
        if process.returncode not in (0, EXIT_SKIP) and not self.options.verbose:
            print("\n".join(line for line in lines if line.startswith(SHOWN))[:6000], flush=True)

    def run(self):
        try:
            while self.waiting or self.running:
                while self.waiting and len(self.running) < self.options.jobs:
                    self.start(self.waiting.pop(0))
                for run, process in list(self.running.items()):
                    if process.poll() is not None:
                        self.reap(run, process)
                time.sleep(0.05)
        finally:
            for process in self.running.values():
                process.terminate()
                process.wait()
        return self.codes


# ---- the table


def load(runs, part):
    results = []
    for run, code in runs.codes.items():
        if run[0] == part and code != EXIT_SKIP and os.path.exists(runs.path(run, "json")):
            with open(runs.path(run, "json"), encoding="utf-8") as file:
                results += json.load(file)
    return results


def add_up(results, key):
    rows = {}
    for result in results:
        row = rows.setdefault(key(result), dict.fromkeys(COLUMNS, 0)
                              | {"runs": 0, "sessions": 0, "places": set(), "engines": set()})
        for column in COLUMNS:
            row[column] += result[column]
        row["runs"] += result["hits"] > 0
        row["sessions"] += result["sessions"]
        row["engines"].add(result["engine"])
        if result["hits"]:
            row["places"].add(result.get("place"))
    return rows


def markdown(results, engines):
    """One row for each function and error; injected where it is called in the session path."""
    rows = add_up(results, lambda result: (result["function"], result["error"]))
    lines = ["| fault | places | injected | wrong bytes | cut off with FIN | leaks | stuck "
             "| reset sessions |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    total = dict.fromkeys(COLUMNS, 0)
    for (function, error), row in sorted(rows.items()):
        if not row["hits"]:
            continue
        for column in COLUMNS:
            total[column] += row[column]
        lines.append(f"| `{function}`: {error} | {len(row['places'])} | {row['hits']:,} | "
                     f"{row['wrong']} | {row['truncated']} | {row['leaks']} | {row['stuck']} | "
                     f"{row['resets']:,} |")
    places = {result["place"] for result in results if result["hits"]}
    lines.append(f"| **all**, engines {', '.join(engines)} | {len(places)} | {total['hits']:,} | "
                 f"{total['wrong']} | {total['truncated']} | {total['leaks']} | {total['stuck']} | "
                 f"{total['resets']:,} |")
    return lines


def unreached(results):
    """Places that were never reached while armed, though they had been seen before."""
    rows = add_up(results, lambda result: result["place"])
    return sorted(place for place, row in rows.items() if not row["hits"])


def network_markdown(results):
    """One row for each fault of the network or the machine."""
    lines = ["| fault | engines | times | sessions | wrong bytes | cut off with FIN | leaks "
             "| stuck | reset sessions |", "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for (name, what), row in add_up(results, lambda r: (r["case"], r["what"])).items():
        engines = ", ".join(engine for engine in ENGINES if engine in row["engines"])
        lines.append(f"| `{name}`: {what} | {engines} | {row['hits']:,} | {row['sessions']:,} | "
                     f"{row['wrong']} | {row['truncated']} | {row['leaks']} | {row['stuck']} | "
                     f"{row['resets']:,} |")
    return lines


def calls_report(results, seconds):
    engines = [engine for engine in ENGINES if any(r["engine"] == engine for r in results)]
    sessions = sum(result["sessions"] for result in results)
    injections = sum(result["hits"] > 0 for result in results)
    print(f"{injections:,} injections at {len({r['place'] for r in results if r['hits']})} places, "
          f"{sessions:,} sessions")
    lines = [f"{injections:,} injections (a fault once, each third time, or every time for 60 ms), "
             f"{sessions:,} verified sessions, {seconds:.0f} s.", "", *markdown(results, engines)]
    missing = unreached(results)
    if missing:
        lines += ["", "Seen once, but not reached again while armed: "
                  + ", ".join(f"`{place}`" for place in missing) + "."]
    return lines


def write_report(runs, seconds):
    calls, network = load(runs, "calls"), load(runs, "network")
    lines = calls_report(calls, seconds) if calls else []
    if network:
        lines += ["", *network_markdown(network)]
    path = os.path.join(runs.options.out, "faults.md")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(f"{seconds:.0f} s; tables: {path}")
    return bool(calls or network)


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--most", type=int)
    parser.add_argument("--only")
    parser.add_argument("--culvert")
    parser.add_argument("--build", default="build")
    parser.add_argument("--out", default="build/faults")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def run(options):
    os.makedirs(options.out, exist_ok=True)
    begin = time.monotonic()
    injected = symbols(os.path.join(options.build, "tests/faults/libculvert_faults.so"),
                       "--defined-only")
    runs = Runs(options)
    print(f"faults: seed {options.seed}", flush=True)
    codes = runs.run()
    something = write_report(runs, time.monotonic() - begin)
    for name, code in codes.items():
        # a sanitizer has calls of its own
        if name[0] == "calls" and code != EXIT_SKIP and not options.culvert:
            count = check_syscalls(runs.path(name, "syscalls"), injected)
            print(f"engine {name[1]}: each of its {count} system calls is injected "
                  "or excepted")
    if not all(code in (0, EXIT_SKIP) for code in codes.values()):
        return 1
    if not something:
        print("SKIP: no engine works here")
    return 0 if something else EXIT_SKIP


def main():
    options = parse_options()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        return run(options)
    except FaultsError as error:
        print(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


sys.exit(main())
