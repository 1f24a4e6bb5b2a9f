# SPDX-License-Identifier: BSD-2-Clause
"""What service_checks.py works with: the unit as systemctl shows it, and sessions through it."""

import json
import os
import pathlib
import socket
import subprocess
import time

PATIENCE = 60
MESSAGE = 64
UPSTREAM = ("127.0.0.1", 9100)
UNIT = "culvert.service"
FILE = pathlib.Path("/etc/culvert/culvert.conf")
SESSION_LOG = pathlib.Path("/var/log/culvert/sessions.log")
DROP_INS = pathlib.Path("/etc/systemd/system/culvert.service.d")


class Failure(Exception):
    """A check does not hold."""


def expect(got, want, what):
    if got != want:
        raise Failure(f"{what}: {got!r}, expected {want!r}")


def wait_until(condition, what, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return value


# ---- the unit


def run(*command, code=0):
    """What COMMAND prints; CODE None: any exit code."""
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, timeout=2 * PATIENCE,
                          capture_output=True, text=True)
    if code is not None and done.returncode != code:
        raise Failure(f"{' '.join(map(str, command))}: exit code {done.returncode}, not {code}: "
                      f"{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def systemctl(*words, code=0):
    return run("systemctl", "--no-ask-password", *words, code=code)


def prop(name):
    return systemctl("show", "--property", name, "--value", UNIT).strip()


def main_pid():
    return int(prop("MainPID"))


def await_value(get, want, what):
    """systemd and the daemon tell each other things: until both know, get() may be another."""
    last = None

    def is_so():
        nonlocal last
        last = get()
        return last == want
    try:
        wait_until(is_so, what)
    except Failure as error:
        raise Failure(f"{error}: {last!r}, expected {want!r}") from None


def wait_state(state):
    await_value(lambda: prop("ActiveState"), state, f"state of {UNIT}")


def wait_goes_on(pid):
    """The unit is active, and has been all the while."""
    wait_state("active")
    expect(main_pid(), pid, "main process")


def wait_status(text):
    """What `systemctl status` shows begins with TEXT."""
    await_value(lambda: prop("StatusText")[:len(text)], text, "status text")


def ask(*words):
    return json.loads(run("culvert", *words, "--json"))


def configure(text):
    FILE.parent.mkdir(mode=0o755, exist_ok=True)
    FILE.write_text(text, encoding="utf-8")


def drop_in(name, text):
    """A drop-in of the unit; without a TEXT, there is none any more."""
    DROP_INS.mkdir(exist_ok=True)
    path = DROP_INS / f"{name}.conf"
    if text:
        path.write_text(text, encoding="utf-8")
    else:
        path.unlink()
    systemctl("daemon-reload")


def forward(name, port, upstream=UPSTREAM[1], **keys):
    lines = [f"[forward {name}]", f"listen = 127.0.0.1:{port}",
             f"upstream = 127.0.0.1:{upstream}"]
    return "\n".join(lines + [f"{key.replace('_', '-')} = {value}"
                              for key, value in keys.items()]) + "\n"


def journal(*filters):
    """Entries of the unit, what is on its way included."""
    run("journalctl", "--sync")
    lines = run("journalctl", "--no-pager", "--output", "json", "--unit", UNIT, *filters)
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]


def logged(text, pid=None):
    """The last entry that has TEXT, of process PID if given; None: there is none."""
    found = [entry for entry in journal() if text in entry["MESSAGE"]
             and (pid is None or entry["_PID"] == str(pid))]
    return found[-1] if found else None


def wait_logged(text, pid=None):
    """The same, once there is one."""
    return wait_until(lambda: logged(text, pid), f"{text!r} in the journal")


def status_of(pid):
    """/proc/PID/status as a dict."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}


# ---- sessions


class Session:
    """A connection through culvert, and what has come of it at the upstream."""

    upstream = None  # the listening socket

    def __init__(self, port, header=b"", source=None):
        self.client = socket.create_connection(
            ("127.0.0.1", port), PATIENCE, source_address=(source, 0) if source else None)
        self.client.sendall(header)
        self.server, self.peer = self.upstream.accept()
        self.server.settimeout(PATIENCE)

    def talk(self, rounds=1):
        for _ in range(rounds):
            for sender, receiver in ((self.client, self.server), (self.server, self.client)):
                message = os.urandom(MESSAGE)
                sender.sendall(message)
                expect(receiver.recv(MESSAGE, socket.MSG_WAITALL), message, "bytes")

    def talk_until(self, name, carrier):
        """As long as it takes until CARRIER has both directions."""
        def is_carried():
            self.talk(50)
            flows = ask("sessions", "--forward", name)["sessions"][0]["flows"]
            return all(flow["carrier"] == carrier for flow in flows)
        wait_until(is_carried, f"{name} is carried by {carrier}")

    def ends(self):
        """How it ends for the client: "" (FIN) or the error's name."""
        try:
            expect(self.client.recv(1), b"", "the end")
        except ConnectionResetError:
            return "reset"
        return "fin"

    def close(self):
        self.client.close()
        self.server.close()


def serve(port, rounds=1):
    session = Session(port)
    session.talk(rounds)
    session.close()


# ---- all of them


def run_checks(checks, *journal_options):
    """Functions named check_*, one after another; the exit code."""
    with socket.create_server(UPSTREAM, backlog=1000) as upstream:
        upstream.settimeout(PATIENCE)
        Session.upstream = upstream
        for check in checks:
            begin = time.monotonic()
            try:
                note = check()
            except (Failure, OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
                print(run("journalctl", "--no-pager", "--lines", "40", *journal_options, code=None))
                print(f"FAIL {check.__name__}: {type(error).__name__}: {error}")
                return 1
            print(f"ok   {check.__name__}, {time.monotonic() - begin:.1f} s"
                  f"{': ' + note if note else ''}")
    return 0
