# SPDX-License-Identifier: BSD-2-Clause
"""scripts/lab and labkit: what is refused, what is removed, and what a killed owner leaves."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIB = os.path.join(TOP, "scripts", "lib")
sys.path.insert(0, LIB)

from labkit import Guard, wait_until  # noqa: E402 (the path comes first)

SCRIPT = os.path.join(TOP, "scripts", "lab")

# A program with a lab, which tells its name and folder, and what runs in there, and waits.
OWNER = """
import sys, time
from labkit import Lab
with Lab(loopback=True) as lab:
    process = lab.start("relay", "sleep", "1000")
    # It leaves the session of what was started, and forgets its parent.
    lab.start("relay", "sh", "-c", "setsid sleep 1000 & exec sleep 1000")
    print(lab.name, lab.home, flush=True)
    time.sleep(1000)
"""


def lab(*words, name="cvltest"):
    return subprocess.run([SCRIPT, *words], env=dict(os.environ, CULVERT_LAB=name), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


def namespaces():
    return subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True,
                          check=False).stdout


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class UsageTest(unittest.TestCase):
    def test_mistakes_are_one_line(self):
        for words in ((), ("bogus",), ("up", "--bogus"), ("up", "--owner"), ("up", "--owner", "x"),
                      ("up", "--files", "/tmp/culvert-lab.x"), ("down", "extra"), ("exec",),
                      ("exec", "client"), ("exec", "router", "true"), ("status", "x"),
                      ("up", "--owner", "1", "--files", "/etc")):
            result = lab(*words)
            self.assertEqual(result.returncode, 2, words)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn("see scripts/lab --help", result.stderr)

    def test_names_that_are_no_names(self):
        for name in ("../x", "a b", "a;b"):
            self.assertEqual(lab("status", name=name).returncode, 2)

    def test_help(self):
        result = lab("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("--owner", "--stale", "--force", "list", "keep"):
            self.assertIn(word, result.stdout)


class GuardTest(unittest.TestCase):
    def test_runs_when_the_owner_is_gone_and_not_when_dismissed(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, end in (("dismissed", "guard.dismiss()"),
                              ("killed", "os.kill(os.getpid(), signal.SIGKILL)")):
                program = (f"import os, signal\nfrom labkit import Guard\n"
                           f"guard = Guard(('touch', '{folder}/{name}'), dict(os.environ))\n{end}")
                subprocess.run([sys.executable, "-B", "-c", program], cwd=LIB, check=False)
            wait_until(lambda: os.path.exists(f"{folder}/killed"), "the guard to act")
            self.assertFalse(os.path.exists(f"{folder}/dismissed"))

    def test_dismissing_a_killed_guard_is_no_error(self):
        guard = Guard(("false",), dict(os.environ))
        guard._process.kill()
        guard.dismiss()


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class LabTest(unittest.TestCase):
    def setUp(self):
        self.name = f"cvltest{os.getpid()}"
        self.started = []

    def tearDown(self):
        for process in self.started:
            process.kill()
            process.wait()
        lab("down", "--force", name=self.name)
        self.assertNotIn(self.name, namespaces())
        self.assertFalse(os.path.exists(f"/run/culvert-lab/{self.name}"))

    def start(self, *command, **options):
        process = subprocess.Popen(command, start_new_session=True, **options)
        self.started.append(process)
        return process

    def up(self, *options):
        result = lab("up", "--loopback", *options, name=self.name)
        self.assertEqual(result.returncode, 0, result.stderr)

    def inside(self):
        process = self.start(SCRIPT, "exec", "relay", "sleep", "1000",
                             env=dict(os.environ, CULVERT_LAB=self.name))
        wait_until(lambda: str(process.pid) in lab("status", name=self.name).stdout,
                   "the process to be inside")
        return process

    def test_down_refuses_while_processes_are_inside(self):
        self.up()
        process = self.inside()
        result = lab("down", name=self.name)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{self.name}-loopback {process.pid} sleep", result.stderr)
        self.assertIn(self.name, namespaces())
        self.assertIsNone(process.poll())
        self.assertEqual(lab("down", "--force", name=self.name).returncode, 0)
        self.assertEqual(process.wait(), -signal.SIGTERM)

    def test_force_kills_what_ignores_term(self):
        self.up()
        process = self.start(SCRIPT, "exec", "relay", "sh", "-c", "trap '' TERM; echo; sleep 1000",
                             env=dict(os.environ, CULVERT_LAB=self.name), stdout=subprocess.PIPE)
        with process.stdout:
            process.stdout.readline()
        self.assertEqual(lab("down", "--force", name=self.name).returncode, 0)
        self.assertEqual(process.wait(), -signal.SIGKILL)

    def test_down_from_within_is_refused(self):
        self.up()
        result = lab("exec", "relay", SCRIPT, "down", "--force", name=self.name)
        self.assertEqual(result.returncode, 1)
        self.assertIn("inside", result.stderr)

    def test_only_labs_of_ended_owners_are_stale(self):
        owner = self.start("sleep", "1000")
        self.up("--owner", str(owner.pid))
        process = self.inside()
        self.assertEqual(lab("down", "--stale").returncode, 0)
        self.assertIn(self.name, namespaces())
        self.assertIn(f"owner {owner.pid} (sleep)", lab("list").stdout)
        owner.kill()
        owner.wait()
        self.assertIn("STALE", lab("list").stdout)
        self.assertEqual(lab("down", "--stale").returncode, 0)
        self.assertNotIn(self.name, namespaces())
        self.assertEqual(process.wait(), -signal.SIGTERM)

    def test_labs_without_owner_stay(self):
        self.up()
        lab("down", "--stale")
        self.assertIn(self.name, namespaces())
        owner = self.start("sleep", "1000")
        lab("down", name=self.name)
        self.up("--owner", str(owner.pid))
        self.assertEqual(lab("keep", name=self.name).returncode, 0)
        owner.kill()
        owner.wait()
        lab("down", "--stale")
        self.assertIn(self.name, namespaces())

    def test_a_number_used_again_is_another_process(self):
        owner = self.start("sleep", "1000")
        self.up("--owner", str(owner.pid))
        record = f"/run/culvert-lab/{self.name}/owner"
        with open(record, encoding="ascii") as file:
            pid, began, space = file.readline().split()
        with open(record, "w", encoding="ascii") as file:
            file.write(f"{pid} {int(began) - 1} {space}\n\n")
        lab("down", "--stale")
        self.assertNotIn(self.name, namespaces())

    def kill_owner(self, *also):
        """An owner that is killed (and what ALSO says of it): the name and folder of its lab."""
        owner = self.start(sys.executable, "-B", "-c", OWNER, cwd=LIB, stdout=subprocess.PIPE,
                           text=True)
        with owner.stdout:
            name, home = owner.stdout.readline().split()
        wait_until(lambda: lab("list").stdout.split(name)[1].split()[1] == "3", "all to run")
        for kill in also:
            kill(owner)
        owner.kill()
        owner.wait()
        return name, home

    def test_nothing_is_left_of_a_killed_owner(self):
        name, home = self.kill_owner()
        wait_until(lambda: not os.path.exists(f"/run/culvert-lab/{name}"), "the guard", 15)
        self.assertNotIn(name, namespaces())
        self.assertFalse(os.path.exists(home))

    def test_the_next_lab_removes_what_a_killed_guard_left(self):
        def kill_guard(owner):
            path = f"/proc/{owner.pid}/task/{owner.pid}/children"
            with open(path, encoding="ascii") as file:
                children = [int(pid) for pid in file.read().split()]
            for pid in children:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                    if "\0guard\0" in file.read():
                        os.kill(pid, signal.SIGKILL)
                        return
            self.fail("no guard")

        name, home = self.kill_owner(kill_guard)
        time.sleep(0.5)
        self.assertIn(name, namespaces())
        self.up()
        self.assertNotIn(name, namespaces())
        self.assertFalse(os.path.exists(home))


if __name__ == "__main__":
    unittest.main()
