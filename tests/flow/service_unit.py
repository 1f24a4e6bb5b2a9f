#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Does culvert work under what scripts/culvert.service leaves it?

Without systemd as init the unit cannot be started, so its parts are taken from the file and applied
by other means: the account and the capabilities by setpriv, the filter of system calls, the address
families and no_new_privs by libseccomp, MemoryDenyWriteExecute by prctl where the kernel has it.
Then the daemon must come up with the kernel path and its privileged process, tell NOTIFY_SOCKET
that it is ready and that it is alive, forward a session from a socket that it is given, and one
from its own, and end with 0.  And it must take a socket from systemd-socket-activate.

usage: service_unit.py [CULVERT]        (as root)
"""

import ctypes
import errno
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
UNIT_NAME = "culvert.service"
# Inside, all that is needed lies beside this file.
UNIT = (HERE.parent if sys.argv[1:2] == ["--inside"] else ROOT / "scripts") / UNIT_NAME
SKIP = 77
ACCOUNT = "61234"
LISTEN, GIVEN, UPSTREAM = ("127.0.0.1", 80), ("127.0.0.1", 81), ("127.0.0.1", 9100)
WATCHDOG_USEC = 2000000
LISTEN_FDS_START = 3
PATIENCE = 30
ACT_ALLOW, ACT_ERRNO_EPERM = 0x7fff0000, 0x00050000 | errno.EPERM
CMP_EQ = 4
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 38, 65


class ArgCmp(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64),
                ("b", ctypes.c_uint64)]


def settings(name):
    """The values of setting NAME, one for each line of the unit."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [line.split("=", 1)[1] for line in lines if line.startswith(name + "=")]


def call_sets():
    """systemd's sets of system calls, by name."""
    text = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"], check=True,
                          capture_output=True, text=True).stdout
    sets, current = {}, None
    for line in text.splitlines():
        word = line.strip()
        if line.startswith("@"):
            current = sets.setdefault(word, [])
        elif current is not None and word and not word.startswith("#"):
            current.append(word)
    return sets


def expand(word, sets):
    if not word.startswith("@"):
        return {word}
    return set().union(*(expand(member, sets) for member in sets[word]))


def allowed_calls():
    """What all SystemCallFilter= lines allow: the first says what kind of list it is."""
    sets, allowed = call_sets(), set()
    for value in settings("SystemCallFilter"):
        for word in value.lstrip("~").split():
            calls = expand(word, sets)
            allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


def load_filter(lib, allowed, families):
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(ACT_ERRNO_EPERM)))
    allow = ctypes.c_uint32(ACT_ALLOW)
    for name in sorted(allowed - {"socket"}):
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number != -1:  # one that libseccomp does not know culvert does not make
            lib.seccomp_rule_add(context, allow, number, 0)
    number = lib.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        lib.seccomp_rule_add_array(context, allow, number, 1,
                                   ctypes.byref(ArgCmp(0, CMP_EQ, family, 0)))
    if lib.seccomp_load(context):
        raise OSError("seccomp_load failed")


def become_service(argv):
    """In the process that will be culvert: confine it, then be it."""
    os.dup2(int(os.environ["SERVICE_UNIT_GIVEN"]), LISTEN_FDS_START)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
    libc = ctypes.CDLL(None, use_errno=True)
    lib = ctypes.CDLL("libseccomp.so.2")
    allowed = allowed_calls()
    families = [getattr(socket, name) for name in settings("RestrictAddressFamilies")[0].split()]
    nofile = int(settings("LimitNOFILE")[0])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard >= nofile:
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.umask(int(settings("UMask")[0], 8))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_MDWE, 1, 0, 0, 0):
        print("note: this kernel has no PR_SET_MDWE", file=sys.stderr)
    load_filter(lib, allowed, families)
    os.execv(argv[0], argv)


def start(culvert, folder, given):
    """culvert as the unit would start it, with the ambient capabilities of the unit."""
    caps = [name.lower().removeprefix("cap_") for name in
            settings("AmbientCapabilities")[0].split()]
    plus = "-all," + ",".join("+" + name for name in caps)
    bounding = settings("CapabilityBoundingSet")[0].lower().split()
    if sorted(name.removeprefix("cap_") for name in bounding) != sorted(caps):
        raise SystemExit("FAIL: the bounding set is not the ambient set")
    command = ["setpriv", "--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups",
               "--bounding-set", plus, "--inh-caps", plus, "--ambient-caps", plus,
               sys.executable, "-B", str(culvert.parent / HERE.name), "--inside",
               str(culvert), "run", "--engine", "sockmap", "--seccomp", "kill",
               "--max-sessions", "1000", "--control", f"{folder}/control.sock",
               "--config", f"{folder}/culvert.conf"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[given.fileno()],
                            env=dict(os.environ, NOTIFY_SOCKET=f"{folder}/notify",
                                     WATCHDOG_USEC=str(WATCHDOG_USEC),
                                     SERVICE_UNIT_GIVEN=str(given.fileno())))


def check(culvert, folder):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, \
            socket.create_server(UPSTREAM) as upstream, socket.create_server(GIVEN) as given:
        notify.bind(f"{folder}/notify")
        os.chmod(f"{folder}/notify", 0o666)
        notify.settimeout(PATIENCE)
        upstream.settimeout(PATIENCE)
        daemon = start(culvert, folder, given)
        try:
            expect(notify.recv(1000), b"READY=1\nSTATUS=2 forwards")
            for address in (LISTEN, GIVEN):
                forward(address, upstream)
            for _ in range(3):
                expect(notify.recv(100), b"WATCHDOG=1")
            reload(culvert, folder)
            expect(next_but(notify, b"WATCHDOG=1")[:12], b"RELOADING=1\n")
            expect(next_but(notify, b"WATCHDOG=1")[:7], b"READY=1")
            daemon.send_signal(signal.SIGTERM)
            expect(next_but(notify, b"WATCHDOG=1")[:18], b"STOPPING=1\nSTATUS=")
            expect(daemon.wait(PATIENCE), 0)
        except (OSError, AssertionError, subprocess.CalledProcessError) as error:
            daemon.kill()
            raise SystemExit(f"FAIL: {error}\n{daemon.stderr.read()}") from None
        finally:
            daemon.kill()
            daemon.wait()
        print(daemon.stderr.read(), end="")


def check_activation(culvert, folder):
    """systemd's own way to give a socket: the first client starts culvert, and is served."""
    address = "%s:%d" % GIVEN
    with socket.create_server(UPSTREAM) as upstream:
        upstream.settimeout(PATIENCE)
        daemon = subprocess.Popen(["systemd-socket-activate", "-l", address, str(culvert), "run",
                                   "--max-sessions", "1000", "--control",
                                   f"{folder}/activated.sock", address, "%s:%d" % UPSTREAM],
                                  stderr=subprocess.PIPE, text=True)
        try:
            for line in daemon.stderr:
                if "Listening" in line:
                    break
            forward(GIVEN, upstream)
            daemon.send_signal(signal.SIGTERM)
            expect(daemon.wait(PATIENCE), 0)
        except (OSError, AssertionError) as error:
            daemon.kill()
            raise SystemExit(f"FAIL: socket activation: {error}\n{daemon.stderr.read()}") from None
        finally:
            daemon.kill()
            daemon.wait()
        expect("culvert: ready" in daemon.stderr.read(), True)


def copy_in(culvert, folder):
    """Copies that the account can read, wherever the sources are; the program's path."""
    for path in (HERE, UNIT, culvert):
        shutil.copy(path, folder)
        os.chmod(pathlib.Path(folder, path.name), 0o755)
    return pathlib.Path(folder, culvert.name)


def reload(culvert, folder):
    """As ExecReload= does it, by the daemon's account."""
    command = settings("ExecReload")[0].split()[1:]
    subprocess.run(["setpriv", "--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups",
                    str(culvert), *command, "--control", f"{folder}/control.sock"], check=True,
                   stdout=subprocess.DEVNULL)


def forward(address, upstream):
    """A session by way of ADDRESS."""
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(b"hello")
        server, _ = upstream.accept()
        with server:
            expect(server.recv(5), b"hello")


def next_but(notify, what):
    """The next message that is not WHAT."""
    while (message := notify.recv(1000)) == what:
        pass
    return message


def expect(got, want):
    if got != want:
        raise AssertionError(f"{got!r}, expected {want!r}")


def main():
    if sys.argv[1:2] == ["--inside"]:
        become_service(sys.argv[2:])
    culvert = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "culvert")
    if os.geteuid():
        print("skip service_unit: needs root")
        return SKIP
    for tool in ("systemd-analyze", "systemd-socket-activate", "setpriv", "unshare", "ip"):
        if not shutil.which(tool):
            print(f"skip service_unit: {tool} is not installed")
            return SKIP
    if "SERVICE_UNIT_NETNS" not in os.environ:
        os.environ["SERVICE_UNIT_NETNS"] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, "-B", str(HERE), str(culvert)])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="culvert-service.") as folder:
        pathlib.Path(folder, "culvert.conf").write_text(
            "".join("[forward f%d]\nlisten = %s:%d\nupstream = %s:%d\n" %
                    (number, *listen, *UPSTREAM) for number, listen in enumerate((LISTEN, GIVEN))),
            encoding="utf-8")
        os.chown(folder, int(ACCOUNT), int(ACCOUNT))
        culvert = copy_in(culvert, folder)
        check(culvert, folder)
        check_activation(culvert, folder)
    print("ok: culvert runs under the unit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
