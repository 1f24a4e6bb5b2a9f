# SPDX-License-Identifier: BSD-2-Clause
"""The faults of a soak run: one after the other, at random, all the time."""

import os
import random
import signal
import subprocess
import threading
import time

KINDS = ("stop", "stop", "stop", "stop", "kill-client", "kill-client", "kill-upstream", "link",
         "mtu")


class Faults:
    """A thread that inflicts one fault after the other between begin() and end()."""

    def __init__(self, lab, daemon, load, seed, begin):
        self.lab = lab
        self.daemon = daemon
        self.load = load
        self.random = random.Random(seed ^ 0xfa17)
        self.started = begin
        self.events = []  # (second, kind, detail)
        self._over = threading.Event()
        self._thread = None

    def begin(self, seconds):
        self._over.clear()
        self._thread = threading.Thread(target=self._run, args=(time.monotonic() + seconds,),
                                        daemon=True)
        self._thread.start()

    def end(self):
        self._over.set()
        if self._thread:
            self._thread.join()
        self.undo()

    def undo(self):
        """Restores the state before the faults, also after an interruption in the middle of one."""
        if self.daemon.process.poll() is None:
            os.kill(self.daemon.pid, signal.SIGCONT)
        for side in ("client", "server"):
            self._ip("relay", "link", "set", f"to-{side}", "up")
            self._set_mtu(side, 1500)

    def counts(self):
        counted = {}
        for _, kind, _ in self.events:
            counted[kind] = counted.get(kind, 0) + 1
        return counted

    def _run(self, until):
        while time.monotonic() < until:
            if self._over.wait(self.random.uniform(0.2, 3.0)):
                return
            kind = self.random.choice(KINDS)
            detail = getattr(self, "_" + kind.replace("-", "_"))()
            if detail is not None:
                self.events.append((round(time.monotonic() - self.started, 1), kind, detail))

    def _ip(self, namespace, *arguments):
        subprocess.run(["ip", "netns", "exec", f"{self.lab.name}-{namespace}", "ip", *arguments],
                       check=False, start_new_session=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def _stop(self):
        """SIGSTOP, mostly for milliseconds, now and then for seconds."""
        seconds = self.random.choice((0.005, 0.02, 0.1, 0.3, 1.0, 2.5))
        os.kill(self.daemon.pid, signal.SIGSTOP)
        self._over.wait(seconds)
        os.kill(self.daemon.pid, signal.SIGCONT)
        return f"{seconds:g} s"

    def _kill_client(self):
        return self.load.kill_one(self.random.choice)

    def _kill_upstream(self):
        port = self.random.choice(list(self.load.site.mortal))
        victim = self.load.site.mortal[port]
        self.load.upstreams_killed += 1
        try:
            os.killpg(victim.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        # connections are refused until the upstream is back
        self._over.wait(self.random.uniform(0.1, 1.0))
        self.load.site.start_mortal()
        self.load.upstreams_killed += 1
        return victim.title

    def _link(self):
        """Nothing goes through; TCP sends the lost segments again."""
        device = self.random.choice(("to-client", "to-server"))
        seconds = self.random.choice((0.05, 0.3, 1.0))
        self.load.link_changes += 1
        self._ip("relay", "link", "set", device, "down")
        self._over.wait(seconds)
        self._ip("relay", "link", "set", device, "up")
        self.load.link_changes += 1
        return f"{device} down for {seconds:g} s"

    def _mtu(self):
        side = self.random.choice(("client", "server"))
        mtu = self.random.choice((1280, 1400, 1500, 9000))
        self._set_mtu(side, mtu)
        return f"{side} {mtu}"

    def _set_mtu(self, side, mtu):
        """At both ends: a device silently drops packets that are longer than its own MTU."""
        self._ip("relay", "link", "set", f"to-{side}", "mtu", str(mtu))
        self._ip(side, "link", "set", "to-relay", "mtu", str(mtu))
