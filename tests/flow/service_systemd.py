# SPDX-License-Identifier: BSD-2-Clause
"""Does culvert.service work with a real systemd?

`make install` puts culvert into a systemd of its own (systemd_guest.py), and there the unit is
started, reloaded, stopped, and made to fail. Each check prints a line; the first that fails ends
the test with the journal of the unit. With --shell -s a shell in there follows.
"""

import os
import subprocess

import systemd_guest

SETTINGS = ("MAKEFLAGS", "MFLAGS", "DESTDIR", "PREFIX", "UNITDIR", "MANDIR", "DOCDIR", "O")


def test_service(request, culvert):
    def install(folder):
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        subprocess.run(["make", "-s", "install", f"O={os.path.dirname(culvert)}", f"DESTDIR={folder}"],
                       cwd=systemd_guest.ROOT, env=environment, check=True,
                       stdout=subprocess.DEVNULL)

    systemd_guest.run_checks("service_checks.py", lambda: [install], request.config.option.shell)
