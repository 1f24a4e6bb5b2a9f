#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The life of the Debian package; run by package.py in a small Debian of its own.

The checks follow one another: each finds the package as the one before has left it.
"""

import os
import pathlib
import pwd
import socket
import subprocess
import sys

from service_rig import (FILE, PATIENCE, SESSION_LOG, UNIT, Failure, Session, configure, expect,
                         forward, main_pid, prop, run, run_checks, systemctl, wait_logged,
                         wait_until)

PACKAGE, NEXT = "/opt/culvert.deb", "/opt/next.deb"
GRAFTED, COPIED = 81, 82
GOOD = (f"[culvert]\nstop-timeout = 10\nsession-log = {SESSION_LOG}\n" +
        forward("grafted", GRAFTED) + forward("copied", COPIED, engine="copy"))
# What apt, systemd, shells and others write; the account stays, as Debian's policy has it
OTHERS = ("/dev", "/opt", "/proc", "/root", "/run", "/sys", "/tmp", "/tree", "/var/cache",
          "/var/lib/apt", "/var/lib/dpkg", "/var/lib/logrotate", "/var/lib/systemd", "/var/log/apt",
          "/var/log/dpkg.log", "/var/log/private", "/var/tmp", "/etc/ld.so.cache")
ACCOUNTS = {f"/etc/{name}{old}" for name in ("passwd", "group", "shadow", "gshadow")
            for old in ("", "-")} | {"/etc/.pwd.lock"}

# zsh completes only at a terminal: type a line into one, and wait for what it shows
ZSH = r"""
zmodload zsh/zpty
complete() {
    zpty shell zsh -f -i
    zpty -w shell "PS1=; autoload -Uz compinit; compinit -D; bindkey '^I' list-choices"
    zpty -w shell "echo be''gin"
    zpty -r -m shell shown '*begin*'
    zpty -w -n shell "$1"$'\t'
    zpty -r -m shell shown "*$2*" && print -r -- "$2"
    zpty -d shell
}
complete 'culvert ' sessions
complete 'culvert run --eng' --engine
complete 'culvert run --engine ' sockmap
complete 'culvert upstream web a:1 ' ready
"""


def apt(*words):
    return run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "-qq",
               "--no-install-recommends", *words)


def all_files():
    found = set()
    for folder, folders, files in os.walk("/"):
        paths = {os.path.join(folder, name): name for name in files + folders}
        found |= {path for path in paths if path not in OTHERS}
        folders[:] = [name for name in folders if os.path.join(folder, name) not in OTHERS]
    return found - ACCOUNTS


def check_install():
    """apt finds what it depends on; nothing listens until the administrator says so."""
    apt("install", PACKAGE)
    expect(pwd.getpwnam("culvert").pw_shell, "/usr/sbin/nologin", "shell of the account")
    expect((prop("ActiveState"), prop("UnitFileState")), ("inactive", "disabled"), "the unit")
    # the file has no forward yet: the command says so, as the start would
    expect(f"{FILE} has no forward" in run("culvert", "check", FILE, code=2), True, "the check")
    run("logrotate", "--debug", "/etc/logrotate.d/culvert")
    version = run("culvert", "--version")
    if "unknown" in version:
        raise Failure(version)
    return version.strip()


def check_completions():
    """Each shell finds them; the commands, the options, and the values of one."""
    fish = run("fish", "-c", "complete -C 'culvert ' ; complete -C 'culvert run --eng' ; "
                             "complete -C 'culvert run --engine ' ; "
                             "complete -C 'culvert upstream web a:1 '")
    bash = run("bash", "-c", """. /usr/share/bash-completion/bash_completion
        _completion_loader culvert
        complete -p culvert""")
    zsh = run("env", "TERM=xterm", "zsh", "-f", "-c", ZSH)
    expect(" _culvert " in f" {bash}", True, "bash's; the words: tests/scripts/test_install.py")
    for shell, said in (("fish", fish), ("zsh", zsh)):
        for word in "sessions", "--engine", "sockmap", "ready":
            if word not in said:
                raise Failure(f"{shell}: no {word} in {said!r}")


def check_start():
    """The unit as it is shipped, with the account of the package."""
    configure(GOOD)
    systemctl("enable", "--now", UNIT)
    uid = int(run("ps", "-o", "uid=", "-p", str(main_pid())))
    expect(uid, pwd.getpwnam("culvert").pw_uid, "account of the daemon")


def check_upgrade():
    """A grafted session goes on; another one has its time to finish; the file stays as it is."""
    grafted, copied = Session(GRAFTED), Session(COPIED)
    grafted.talk_until("grafted", "graft")
    copied.talk_until("copied", "copy")
    before = main_pid()
    with subprocess.Popen(["apt-get", "--yes", "-qq", "install", NEXT], text=True,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as upgrade:
        wait_until(lambda: prop("ActiveState") == "deactivating", "the stop of the old daemon")
        grafted.talk()
        copied.talk(5)
        copied.client.shutdown(socket.SHUT_WR)
        expect(copied.server.recv(1), b"", "the upstream's end")
        copied.server.close()
        expect(copied.ends(), "fin", "a session that finishes")
        said = upgrade.communicate(timeout=2 * PATIENCE)[0]
    expect(upgrade.returncode, 0, f"apt-get install: {said}")
    expect(run("dpkg-query", "-W", "-f", "${Version}", "culvert"), "9999", "version")
    expect(prop("ActiveState"), "active", "the unit")
    expect(main_pid() != before, True, "a new daemon")
    wait_logged("1 grafted sessions of an earlier daemon are adopted", main_pid())
    grafted.talk_until("grafted", "graft")
    expect(FILE.read_text(encoding="utf-8"), GOOD, "the file")
    grafted.close()
    copied.close()


def check_remove():
    """Sessions end, grafted ones as well; file and log stay for another time."""
    session = Session(GRAFTED)
    session.talk_until("grafted", "graft")
    apt("remove", "culvert")
    expect(session.ends(), "reset", "a grafted session")
    expect(pathlib.Path("/sys/fs/bpf/culvert").exists(), False, "pins are left")
    expect(run("systemctl", "is-active", UNIT, code=None).strip(), "inactive", "the unit")
    expect((FILE.exists(), SESSION_LOG.exists()), (True, True), "file and log")
    run("logrotate", "--force", "/etc/logrotate.d/culvert")
    session.close()


def check_purge():
    apt("purge", "culvert")
    apt("autoremove", "--purge")
    left = sorted(all_files() ^ before_install)
    expect(left, [], "files that are left, or gone")


if __name__ == "__main__":
    before_install = all_files()
    sys.exit(run_checks([value for name, value in globals().items() if name.startswith("check_")]))
