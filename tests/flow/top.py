# SPDX-License-Identifier: BSD-2-Clause
"""culvert top in a terminal of tmux: what the screen shows, and what its keys do.

    echo conversations of several speeds  -->  culvert, two forwards  -->  echo server
"""

import contextlib
import itertools
import os
import re
import socket
import subprocess
import threading
import time

import pytest
from labkit import RELAY, SERVER, Daemon, expect, wait_until

pytestmark = pytest.mark.needs("ip", "tmux")
ECHO = 7100
WEB, DATABASE = 9100, 9101
SESSIONS = 10  # half of them on each forward: that many rows fit

CONF = f"""
[forward web]
listen = {RELAY}:{WEB}
upstream = {SERVER}:{ECHO}
check = 0.1
[forward database]
listen = {RELAY}:{DATABASE}
upstream = {SERVER}:{ECHO}
engine = splice
"""


def talk(sock, size):
    """Sends SIZE bytes at a time until it is reset."""
    with contextlib.suppress(OSError):
        while True:
            sock.sendall(bytes(size))
            sock.recv(size, socket.MSG_WAITALL)
            time.sleep(0.02)


class Terminal:
    """A window of a tmux server of its own, with COMMAND in it, and at the end its exit code."""

    def __init__(self, lab, *command):
        self._tmux = ("tmux", "-L", "top", "-f", "/dev/null")
        self._environment = dict(os.environ, TMUX_TMPDIR=lab.home, LC_ALL="C")
        self._environment.pop("TMUX", None)
        lab.start("relay", "env", f"TMUX_TMPDIR={lab.home}", *self._tmux, "-D")
        wait_until(lambda: self._run("show", "-s").returncode == 0, "tmux")
        self._run("new-session", "-d", "-x", "80", "-y", "24", "sh", "-c",
                  '"$@"; echo "exit code $?"; read -r _', "sh", *command, check=True)

    def _run(self, *words, check=False):
        return subprocess.run([*self._tmux, *words], env=self._environment, check=check, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10)

    def resize(self, columns, lines):
        self._run("resize-window", "-x", str(columns), "-y", str(lines), check=True)

    def press(self, *keys):
        self._run("send-keys", *keys, check=True)

    def text(self):
        return self._run("capture-pane", "-p", check=True).stdout

    def wait(self, condition, what):
        """Polls until CONDITION, a pattern or a function of the text, holds."""
        holds = condition if callable(condition) else re.compile(condition, re.M).search
        return wait_until(lambda: holds(self.text()), lambda: f"{what}; the screen:\n{self.text()}")


def session_ids(text):
    return [int(number) for number in re.findall(r"^ *(\d+) 10\.0\.1\.1:", text, re.M)]


def rates(text):
    """Of the sessions, in bytes a second."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
    return [float(number) * units[unit] for number, unit in re.findall(
        r"^ *\d+ 10\.0\.1\.1:\d+ +([0-9.]+) ([KM]?i?B) ", text, re.M)]


def look(daemon, terminal):
    """What it shows by itself, and in another order, or less of it."""
    terminal.wait(lambda text: len(session_ids(text)) == SESSIONS, "all sessions")
    terminal.wait(r"^web .*10\.0\.2\.2:7100.* 5 .* auto$", "the forward web")
    terminal.wait(r"^database .* 5 .* splice$", "the forward database")
    terminal.wait(lambda text: len(rates(text)) == SESSIONS and min(rates(text)) > 0 and
                  rates(text) == sorted(rates(text), reverse=True), "rates, in order")
    terminal.press(*"<<<<")  # from rate to id
    numbers = sorted(s["id"] for s in daemon.ask("sessions")["sessions"])
    terminal.wait(lambda text: session_ids(text) == numbers[::-1], "the newest session first")
    terminal.press("r")
    terminal.wait(lambda text: session_ids(text) == numbers, "the oldest session first")
    terminal.press("/", *"SPLICE", "Enter")
    terminal.wait(lambda text: len(session_ids(text)) == SESSIONS // 2, "filtered sessions")
    terminal.press("Escape")
    terminal.wait(lambda text: len(session_ids(text)) == SESSIONS, "all sessions again")


def change(daemon, terminal):
    """The engine of a forward, and the end of a session."""
    def engine():
        return {f["name"]: f["engine"] for f in daemon.ask("forwards")["forwards"]}["database"]

    terminal.press("/", *"database", "Enter", "e")
    terminal.wait("^Engine of database: .* c copy", "the menu")
    terminal.press("x")
    terminal.wait("^q quit", "the menu to go")
    expect(engine() == "splice", "a wrong key has changed the engine")
    terminal.press("e", "c")
    terminal.wait("^database .* copy/splice$", "the new engine")
    expect(engine() == "copy", "the engine is not changed")
    terminal.press("Down")
    victim = session_ids(terminal.text())[1]
    for key, left in ("n", True), ("y", False):
        terminal.press("k")
        terminal.wait(fr"^Kill session {victim} of 10\.0\.1\.1:\d+\?  y/n", "the question")
        terminal.press(key)
        terminal.wait("^q quit" if left else r"^10\.0\.1\.1:\d+: reset", "an answer")
        expect((victim in [s["id"] for s in daemon.ask("sessions")["sessions"]]) == left,
               f"session {victim} after the key {key}")
    terminal.press("Escape")


def order(daemon, terminal):
    """A server is drained, and used again."""
    def states():
        return {f["name"]: f["servers"][0]["state"] for f in daemon.ask("forwards")["forwards"]}

    server = f"{SERVER}:{ECHO}"
    terminal.press("s", "Home")
    terminal.wait(lambda text: all(re.search(fr"^{name}/{server} +up +5 +0 +0 *$", text, re.M)
                                   for name in ("database", "web")), "the servers")
    terminal.resize(130, 24)
    terminal.wait(fr"^web/{server} .* connects *$", "the answer of a check")
    terminal.resize(80, 24)
    for key, answer, word, state in (("d", "n", "drain", "up"), ("d", "y", "drain", "drain"),
                                     ("u", "y", "ready", "up|returning")):
        terminal.press(key)
        terminal.wait(fr"^Server {server} of database: {word}\?  y/n", "the question")
        terminal.press(answer)
        terminal.wait("^q quit" if answer == "n" else fr"^{server}: {word}", "an answer")
        terminal.wait(fr"^database/{server} +({state}) ", f"the server to be {state}")
        expect(re.fullmatch(state, states()["database"]) and states()["web"] == "up",
               f"{states()} after the keys {key} and {answer}")
    terminal.press("e")
    terminal.wait("^Engine of database: ", "the menu")
    terminal.press("x", "s")
    terminal.wait("^database .* auto$|^database .* splice$", "the forwards again")


def clients(daemon, terminal):
    """The sums of the sessions of each client."""
    terminal.press("c")
    terminal.wait(fr"^10\.0\.1\.1 +{SESSIONS} +[1-9][0-9.]* [KM]iB ", "the client")
    terminal.press("k", "d", "e")
    terminal.wait("^q quit .*c sessions$", "no question")
    expect(len(daemon.ask("sessions")["sessions"]) == SESSIONS, "a session has ended")
    terminal.press("c")
    terminal.wait(lambda text: len(session_ids(text)) == SESSIONS, "the sessions again")


def survive(daemon, terminal):
    """A terminal of any size, and the end of the daemon."""
    for size in (40, 10), (10, 3), (1, 1), (200, 50), (80, 24):
        terminal.resize(*size)
        head = "culvert 0."[:size[0]] if size[1] > 1 else ""
        terminal.wait(lambda text, size=size, head=head: text.startswith(head) and
                      len(text.splitlines()) == size[1], f"a screen of {size}")
        if size[0] > 100:
            terminal.wait(" tcp +(graft|splice) ", "the protocol")
    terminal.wait(lambda text: len(session_ids(text)) == SESSIONS - 1, "the sessions that are left")
    daemon.process.kill()
    daemon.stop()
    terminal.wait("^culvert: no answer for .*trying again", "the loss of the daemon")
    daemon.start()
    terminal.wait("^culvert 0.* sessions 0/", "the new daemon")
    terminal.press("q")
    terminal.wait("^exit code 0", "the end")


def test_top(lab, culvert):
    lab.start_echo("server", ECHO)
    daemon = Daemon(lab, culvert, "auto", (), "--config", lab.write("culvert.conf", CONF))
    with lab.inside("client"):
        for port, kib in itertools.product((WEB, DATABASE), range(1, SESSIONS // 2 + 1)):
            sock = socket.create_connection((RELAY, port))
            threading.Thread(target=talk, args=(sock, kib << 10), daemon=True).start()
    terminal = Terminal(lab, culvert, "top", "--control", daemon.control)
    for case in look, order, clients, change, survive:
        case(daemon, terminal)
