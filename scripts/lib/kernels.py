# SPDX-License-Identifier: BSD-2-Clause
"""Boots other kernels in an emulator and shows which behaviours hold there. See scripts/kernels."""

import argparse
import glob
import json
import os
import sys

import kernels_cards as cards
import kernels_guest as guest
import kernels_packages as packages
import kernels_results as results
from labkit import TOP, Interrupted, handle_signals

SKIP = 77
BIN = "/culvert/bin"
PYTEST = f"/usr/bin/python3 -B -m pytest --culvert {BIN}/culvert /culvert/tests/flow"
# Linux changes a jump label by way of INT3.  An emulated CPU seems to run into one that is gone: a
# guest did at boot, before anything of culvert's was loaded.
STALE = "int3: 0000"
TORTURE = (f"{BIN}/test_torture --culvert {BIN}/culvert --soft-limit 100K --hard-limit 200K "
           "--concurrency 8 --stall-timeout 120")

LOG = "log", 30, "/bin/sh /culvert/kernels_log.sh"

# Cases that depend on how the packet programs are attached.
GRAFTED = ("nothing_is_left", "interfaces_come", "filters_of_others", "survives_kill")
# Cases of UDP.
UDP = ("sizes", "moves", "killed")


def parse_options(arguments):
    parser = argparse.ArgumentParser(prog="kernels", add_help=False, allow_abbrev=False)
    parser.add_argument("--kernel", action="append", dest="kernels")
    parser.add_argument("--cards", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=3600)
    parser.add_argument("--build", default=os.path.join(TOP, "build"))
    parser.add_argument("--out", default=os.path.join(TOP, "build/kernels"))
    parser.add_argument("--cache")
    options = parser.parse_args(arguments)
    options.cache = options.cache or os.path.join(options.out, "cache")
    return options


def kernel_tests(build):
    return sorted(path for path in glob.glob(os.path.join(build, "tests/kernel/test_*"))
                  if "." not in os.path.basename(path))


def plan(tests):
    """The steps on a kernel without cards: (name, seconds at most, command)."""
    yield "probe", 60, f"{BIN}/culvert probe --json"
    for test in map(os.path.basename, tests):
        yield f"kernel/{test.removeprefix('test_')}", 150, f"{BIN}/{test}"
    for name in ("sockmap", "auto", "graft", "sockmap loss", "graft loss", "graft vlan",
                 "graft wireguard"):
        yield (f"veth/{name.replace(' ', '-')}", 90,
               f"/bin/sh /culvert/kernels_veth.sh {BIN} {name}")
    for engine in "sockmap", "auto", "graft":
        yield f"torture/{engine}", 80, f"{TORTURE} --engine {engine} --sessions 20"
    for engine in "sockmap", "graft":
        yield (f"torture/{engine}-storm", 65,
               f"{TORTURE} --engine {engine} --storm --minutes 0.0833")
    yield "flow/graft", 200, f"{BIN}/test_cases --culvert {BIN}/culvert --engine graft"
    for case in GRAFTED:
        yield f"flow/grafted-{case}", 240, f"{PYTEST}/grafted.py -k {case}"
    for case in UDP:
        yield f"flow/udp-{case}", 300, f"{PYTEST}/udp.py --engine auto -k {case}"
    yield "flow/standby-back", 1200, f"{PYTEST}/standby.py -k back"
    yield "flow/from-syn", 1800, f"{PYTEST}/from_syn.py"
    yield "flow/udp-networks", 300, f"{PYTEST}/networks.py --udp --engine auto -k plain --jobs 2"


def try_kernel(series, options):
    """(the kernel's release, its behaviours)"""
    reason = cards.why_not() if options.cards else None
    if reason:
        raise packages.Unavailable(reason)
    package = packages.fetch(series, options.cache, options.cards)
    print(f"kernel {series}: {os.path.basename(package)}", flush=True)
    tests = [] if options.cards else kernel_tests(options.build)
    programs = [os.path.join(options.build, name) for name in (
        "culvert", "culvert-bench", "tests/flow/test_torture", "tests/flow/test_cases")] + tests
    steps = [step for step in (*(cards.plan(BIN) if options.cards else plan(tests)), LOG)
             if options.only in step[0]]
    text = "".join(f"{name} {limit} {command}\n" for name, limit, command in steps)
    equipment = cards.equipment(BIN) if options.cards else guest.Equipment()
    folder = os.path.join(options.out, series)
    outcome = guest.boot(package, folder, text, programs, options.limit, equipment)
    if STALE in outcome.console:
        kept = os.path.join(folder, "console-before.log")
        os.replace(os.path.join(folder, "console.log"), kept)
        print(f"{outcome.release}: \"{STALE}\": booted once more, see {kept}", flush=True)
        outcome = guest.boot(package, folder, text, programs, options.limit, equipment)
    return outcome.release, results.rows_of(outcome, [name for name, _, _ in steps])


def run_matrix(options):
    columns, skipped = [], []
    os.makedirs(options.out, exist_ok=True)
    for series in options.kernels or (("6.12",) if options.cards else ("6.1", "6.12")):
        try:
            columns.append(try_kernel(series, options))
        except packages.Unavailable as error:
            skipped.append(f"skipped: kernel {series}: {error}")
    with open(os.path.join(options.out, "results.json"), "w", encoding="utf-8") as file:
        json.dump({kernel: [vars(row) for row in rows] for kernel, rows in columns}, file, indent=1)
    if columns:
        print("\n" + results.table(columns))
    failed = False
    for kernel, rows in columns:
        for row in rows:
            if row.state != results.OK:
                print(f"{row.state} {kernel}: {row.name}: {row.detail}"[:600])
            failed = failed or row.state == results.FAILED
    print(f"details and logs: {os.path.relpath(options.out)}", *skipped, sep="\n", flush=True)
    return 1 if failed else SKIP if skipped else 0


def main(arguments):
    options = parse_options(arguments)
    handle_signals()
    try:
        return run_matrix(options)
    except (guest.Problem, OSError) as error:
        print(f"FAIL: {error}")
        return 1
    except Interrupted as signal:
        print("\ninterrupted")
        return 128 + signal.args[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
