# SPDX-License-Identifier: BSD-2-Clause
"""A systemd of its own, in which a unit can be tried where another init runs, or none.

It is process 1 of namespaces of its own (processes, mounts, network, IPC, host name, control
groups), with a root in memory that systemd_guest.sh makes: the programs of this machine, or a copy
of an image, and what is installed for it. It shares the kernel with this machine, and can change
nothing of it that is not in a namespace. With this process it ends, and leaves nothing.
"""

import ctypes
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import tempfile
import threading

import pytest
from labkit import LabError, expect, wait_until

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
PR_SET_PDEATHSIG = 1
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("unshare", "nsenter", "pivot_root", "mount", "systemctl", "journalctl", "systemd-analyze")
START_SECONDS = 60


class Unavailable(Exception):
    """A systemd cannot be run here; the text says why."""


def find_cgroups():
    """Where version 2 of the control groups is mounted."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            _, place, kind, options = line.split()[:4]
            if kind == "cgroup2" and "rw" in options.split(","):
                return pathlib.Path(place)
    raise Unavailable("no cgroup2 file system is mounted that can be written")


def check_tools():
    if os.geteuid():
        raise Unavailable("needs root")
    if not any(os.access(f"{place}/systemd/systemd", os.X_OK) for place in ("/usr/lib", "/lib")):
        raise Unavailable("systemd is not installed")
    for tool in TOOLS:
        if not shutil.which(tool, path=PATH):
            raise Unavailable(f"{tool} is not installed")


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Guest:
    """with Guest(install) as guest: install(folder) puts files into what becomes its root.

    Without an IMAGE, a folder with a Debian, it has the programs of this machine, and of what is
    installed only usr/local."""

    def __init__(self, install, image=None):
        check_tools()
        self.install = install
        self.image = image
        self.cgroup = find_cgroups() / f"culvert-guest-{os.getpid()}"
        self.folder = None
        self.process = None
        self.pid = None
        self.console = bytearray()

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="culvert-guest."))
        try:
            (self.folder / "root").mkdir()
            (self.folder / "stage").mkdir()
            self.install(self.folder / "stage")
            self.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def boot(self):
        try:
            for name in ("guest", "beside"):
                (self.cgroup / name).mkdir(parents=True)
        except OSError as error:
            raise Unavailable(f"no control group can be made: {error}") from None
        master, slave = pty.openpty()
        threading.Thread(target=self.read_console, args=(master,), daemon=True).start()
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--fork",
             "--kill-child", HERE.with_suffix(".sh"), self.folder / "root", self.folder / "stage",
             ROOT, os.ttyname(slave), *([self.image] if self.image else [])],
            stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, preexec_fn=self.enter("guest"))
        try:
            wait_until(self.is_systemd, "systemd", START_SECONDS)
            wait_until(self.is_up, "the end of the boot", START_SECONDS)
        except LabError as error:
            raise Unavailable(f"{error}: {self.said()}") from None
        finally:
            os.close(slave)

    def enter(self, cgroup):
        def enter():
            end_with_parent()
            self.move(0, cgroup)
        return enter

    def move(self, pid, cgroup):
        (self.cgroup / cgroup / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def read_console(self, master):
        while True:
            try:
                self.console += os.read(master, 4096)
            except OSError:  # EIO: nobody has it open any more
                break
        os.close(master)

    def said(self):
        text = self.console.decode(errors="replace").replace("\r", "")
        return text[-3000:].strip() or "it says nothing"

    def is_systemd(self):
        """Has the child of unshare(1) become systemd?"""
        number = self.process.pid
        if self.process.poll() is not None:
            raise Unavailable(f"no namespaces, or no mounts in them: {self.said()}")
        children = pathlib.Path(f"/proc/{number}/task/{number}/children").read_text().split()
        if not children:
            return False
        if self.pid is None:  # unshare(1) would keep systemd from using its own root
            self.move(number, "beside")
        self.pid = int(children[0])
        try:
            return pathlib.Path(f"/proc/{self.pid}/comm").read_text() == "systemd\n"
        except OSError:
            return False

    def is_up(self):
        if self.process.poll() is not None:
            raise Unavailable(f"systemd has ended: {self.said()}")
        done = self.run("systemctl", "is-system-running", stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL, text=True)
        return done.stdout.strip() in ("running", "degraded")

    def run(self, *command, **options):
        """COMMAND in there, as root."""
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--ipc", "--uts",
             "--cgroup", "--root", "--wd", "env", "-i", f"PATH={PATH}", "LANG=C.UTF-8", *command],
            check=False, preexec_fn=self.enter("beside"),
            **{"stdin": subprocess.DEVNULL, **options})

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.remove_cgroups()
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove_cgroups(self):
        if not self.cgroup.exists():
            return
        if (self.cgroup / "cgroup.kill").exists():
            (self.cgroup / "cgroup.kill").write_text("1", encoding="ascii")
        wait_until(lambda: "populated 0" in (self.cgroup / "cgroup.events").read_text(),
                   "the end of its processes", START_SECONDS)
        for folder, _, _ in os.walk(self.cgroup, topdown=False):
            os.rmdir(folder)


def run_checks(checks, prepare, shell):
    """CHECKS, a program of tests/flow, in a Guest of what PREPARE() returns."""
    try:
        check_tools()
        with Guest(*prepare()) as guest:
            done = guest.run("/usr/bin/python3", "-B", "-u", f"/tree/tests/flow/{checks}")
            if shell:
                guest.run("/bin/sh", stdin=None)
    except Unavailable as error:
        pytest.skip(str(error))
    expect(done.returncode == 0, f"{checks} ended with {done.returncode}")
