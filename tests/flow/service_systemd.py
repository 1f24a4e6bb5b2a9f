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

import os
import signal
import subprocess
import sys

import systemd_guest

LIMIT_SECONDS = 300
SETTINGS = ("MAKEFLAGS", "MFLAGS", "DESTDIR", "PREFIX", "UNITDIR", "MANDIR", "DOCDIR", "O")


def install(build):
    def install_into(folder):
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        subprocess.run(["make", "-s", "install", f"O={build}", f"DESTDIR={folder}"],
                       cwd=systemd_guest.ROOT, env=environment, check=True,
                       stdout=subprocess.DEVNULL)
    return install_into


def interrupt(number, _frame):
    raise SystemExit(f"FAIL: signal {number}" if number != signal.SIGALRM else
                     f"FAIL: not done within {LIMIT_SECONDS} s")


def main():
    options = systemd_guest.options_of(__doc__)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, interrupt)
    if not options.shell:
        signal.alarm(LIMIT_SECONDS)
    return systemd_guest.run_checks("service_systemd", "service_checks.py",
                                    lambda: [install(options.build)], options.shell)


if __name__ == "__main__":
    sys.exit(main())
