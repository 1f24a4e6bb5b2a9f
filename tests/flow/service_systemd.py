#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Does culvert.service work with a real systemd?

`make install` puts culvert into a systemd of its own (systemd_guest.py), and there the unit is
started, reloaded, stopped, and made to fail. Each check prints a line; the first that fails ends
the test with the journal of the unit.

usage: service_systemd.py [--build DIR] [--shell]        (as root)

  --build DIR  what `make O=DIR` has built (default build)
  --shell      a shell in there, after the checks or at the failure
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys

import systemd_guest

SKIP = 77
LIMIT_SECONDS = 300
SETTINGS = ("MAKEFLAGS", "MFLAGS", "DESTDIR", "PREFIX", "UNITDIR", "MANDIR", "DOCDIR", "O")


def install(build):
    def install_into(folder):
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        subprocess.run(["make", "-s", "install", f"O={build}", f"DESTDIR={folder}"],
                       cwd=systemd_guest.ROOT, env=environment, check=True,
                       stdout=subprocess.DEVNULL)
    return install_into


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--shell", action="store_true")
    return parser.parse_args()


def interrupt(number, _frame):
    raise SystemExit(f"FAIL: signal {number}" if number != signal.SIGALRM else
                     f"FAIL: not done within {LIMIT_SECONDS} s")


def main():
    options = parse_options()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, interrupt)
    if not options.shell:
        signal.alarm(LIMIT_SECONDS)
    checks = pathlib.Path("/tree/tests/flow/service_checks.py")
    try:
        with systemd_guest.Guest(install(options.build)) as guest:
            code = guest.run("/usr/bin/python3", "-B", "-u", checks).returncode
            if options.shell:
                guest.run("/bin/sh", stdin=None)
    except systemd_guest.Unavailable as error:
        print(f"skip service_systemd: {error}")
        return SKIP
    return code


if __name__ == "__main__":
    sys.exit(main())
