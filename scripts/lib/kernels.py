# SPDX-License-Identifier: BSD-2-Clause
"""Boots other kernels in an emulator and shows which behaviours hold there. See scripts/kernels."""

import argparse
import json
import os
import re
import shutil
import sys

import kernels_guest as guest
import kernels_packages as packages
import kernels_plan as plans
import kernels_results as results
import kernels_table as table
from kernels_initramfs import Problem
from labkit import TOP, Interrupted, handle_signals

SKIP = 77
GUEST_BIN = "/culvert/bin"


def positive(text):
    value = float(text) if "." in text else int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def whole(text):
    return int(positive(text))


def parse_options(arguments):
    parser = argparse.ArgumentParser(prog="kernels", add_help=False, allow_abbrev=False)
    parser.add_argument("--kernel", action="append", dest="kernels")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--sessions", type=whole, default=20)
    parser.add_argument("--storm", type=positive, default=5)
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--cpus", type=whole, default=2)
    parser.add_argument("--memory", type=whole, default=1024)
    parser.add_argument("--limit", type=positive)
    parser.add_argument("--build", default=os.path.join(TOP, "build"))
    parser.add_argument("--out", default=os.path.join(TOP, "build/kernels"))
    parser.add_argument("--cache")
    options = parser.parse_args(arguments)
    options.kernels = options.kernels or ["6.1", "6.12"]
    for name in ("build", "out"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
    options.cache = os.path.abspath(options.cache or os.path.join(options.out, "cache"))
    if options.here and os.geteuid():
        parser.error("--here needs root")
    return options


def limit_of(options):
    """An emulated session of the torture peer takes about 0.1 s; ten times that is allowed for."""
    if options.limit:
        return options.limit
    return 300 + 2 * max(0, options.sessions - 20) + 2 * options.storm + 900 * options.cases


def say(text):
    print(text, flush=True)


def show_step(name):
    """Overwritten by the next one; only where somebody looks."""
    if sys.stdout.isatty():
        print(f"\r  {name:<40}", end="\r", flush=True)


def list_images(options):
    images = packages.offered(packages.architecture())
    newest = packages.newest_of_each_series(images)
    for image in newest:
        folder = os.path.join(options.cache, f"{image.package}_{image.version}")
        cached = "  (cached)" if os.path.isdir(folder) else ""
        say(f"{image.series:<6} {image.version:<22} {image.package}  {image.origin}{cached}")
    if not newest:
        raise packages.Unavailable("the configured package sources offer no cloud kernel")
    return 0


def label(name):
    """For a folder: of a path the last part."""
    return re.sub(r"[^\w.+-]", "_", os.path.basename(name))


def guest_plan(options):
    """Steps and programs."""
    programs = plans.programs(options.build, options.cases)
    for path in programs:
        if not os.access(path, os.X_OK):
            raise Problem(f"{path} is not built")
    if not plans.kernel_tests(options.build):
        raise Problem(f"no programs in {options.build}/tests/kernel")
    steps = plans.steps(GUEST_BIN, "/culvert", plans.kernel_tests(options.build), options)
    helpers = [shutil.which(name) for name in ("ip", "tc")]
    if None in helpers:
        raise Problem("ip or tc is missing: sudo scripts/deps kernels")
    steps.append(plans.Step("log", 30, "/bin/sh /culvert/kernels_log.sh"))
    return steps, programs + helpers


def try_kernel(name, options):
    """(the kernel's release, its behaviours)"""
    package, origin = packages.fetch(name, options.cache)
    say(f"kernel {name}: {origin}")
    steps, programs = guest_plan(options)
    outcome = guest.boot(package, os.path.join(options.out, label(name)), steps, programs, options,
                         limit_of(options), show_step)
    rows = results.rows_of(outcome, [step.name for step in steps])
    if outcome.missing_modules:
        rows.append(results.Behaviour("guest/optional_modules", results.SKIPPED,
                                      f"not in this kernel: {', '.join(outcome.missing_modules)}"))
    say(f"  {outcome.release}: {table.counts(rows)}, {outcome.seconds:.0f} s")
    return outcome.release, rows


def link_programs(options, folder):
    """All programs under their base names in one folder, as the guest has them."""
    os.makedirs(folder, exist_ok=True)
    for path in plans.programs(options.build, options.cases):
        link = os.path.join(folder, os.path.basename(path))
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(path, link)


def try_here(options):
    say(f"kernel {os.uname().release}: the running one, without emulation")
    folder = os.path.join(options.out, "here")
    link_programs(options, os.path.join(folder, "bin"))
    steps = plans.steps(os.path.join(folder, "bin"), guest.LIB, plans.kernel_tests(options.build),
                        options)
    outcome = guest.run_here(folder, steps, limit_of(options), show_step)
    rows = results.rows_of(outcome, [step.name for step in steps])
    say(f"  {outcome.release}: {table.counts(rows)}, {outcome.seconds:.0f} s")
    return outcome.release, rows


def write_files(columns, options):
    with open(os.path.join(options.out, "table.md"), "w", encoding="utf-8") as file:
        file.write(table.markdown(columns))
    with open(os.path.join(options.out, "results.json"), "w", encoding="utf-8") as file:
        json.dump({kernel: [vars(row) for row in rows] for kernel, rows in columns}, file, indent=1)


def report(columns, options):
    """Prints the table and what failed; returns the number of failures."""
    failures = [(kernel, row) for kernel, rows in columns for row in rows
                if row.state == results.FAILED]
    skips = [(kernel, row) for kernel, rows in columns for row in rows
             if row.state == results.SKIPPED]
    say("\n" + table.terminal(columns))
    for kernel, row in skips:
        say(f"skip {kernel}: {row.name}: {row.detail}"[:300])
    for kernel, row in failures:
        say(f"FAIL {kernel}: {row.name}: {row.detail}"[:600])
    say(f"table and logs: {os.path.relpath(options.out)}")
    return len(failures)


def run_matrix(options):
    columns, skipped = [], []
    os.makedirs(options.out, exist_ok=True)
    for name in options.kernels:
        try:
            columns.append(try_kernel(name, options))
        except packages.Unavailable as error:
            skipped.append(f"skipped: kernel {name}: {error}")
    if options.here:
        columns.append(try_here(options))
    failures = 0
    if columns:
        write_files(columns, options)
        failures = report(columns, options)
    for line in skipped:
        say(line)
    return 1 if failures else SKIP if skipped else 0


def main(arguments):
    options = parse_options(arguments)
    handle_signals()
    try:
        if options.list:
            return list_images(options)
        return run_matrix(options)
    except packages.Unavailable as error:
        say(f"skipped: {error}")
        return SKIP
    except (Problem, OSError) as error:
        say(f"FAIL: {error}")
        return 1
    except Interrupted as signal:
        say("\ninterrupted")
        return 128 + signal.args[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
