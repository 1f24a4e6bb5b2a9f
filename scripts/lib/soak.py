# SPDX-License-Identifier: BSD-2-Clause
"""Soak: mixed real traffic through one daemon for a long time, with churn, hand-overs and faults.

A run is a row of cycles. In each, all clients work while faults happen; then they end, and at rest
the daemon must hold nothing and be as it was. At the end nothing may have grown.
"""

import argparse
import json
import os
import shutil
import sys
import time

from labkit import Daemon, Interrupted, Lab, LabError, handle_signals, tail
from soak_faults import Faults
from soak_load import Load, Site, forwards, wait_idle
from soak_samples import Samples, judge

PROGRAMS = ("ip", "ss", "nsenter", "curl", "iperf3", "nginx", "haproxy", "socat", "sha256sum")
# Low enough that flows leave the kernel all the time
LIMITS = ("--soft-limit", "512K", "--hard-limit", "2M", "--settle", "0.05", "--grace", "10")
CYCLE = 60.0
# A hand-over that cannot be proved resets its session. That is right, but must stay rare.
UNPROVED = 1e-4


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--engine", default="auto",
                        choices=("auto", "graft", "sockmap", "splice", "copy"))
    parser.add_argument("--build", default="build", help="where the programs are")
    parser.add_argument("--out", default="build/soak", help="folder of the results")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-faults", action="store_true", help="traffic alone")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error("MINUTES must be positive")
    return options


class Soak:
    """One run."""

    def __init__(self, lab, options):
        self.options = options
        self.site = Site(lab, options.build)
        self.daemon = Daemon(lab, os.path.join(options.build, "culvert"), options.engine,
                             forwards(), *LIMITS)
        self.load = Load(self.site, options.seed)
        self.samples = Samples(self.daemon.control, self.daemon.pid)
        self.faults = Faults(lab, self.daemon, self.load, options.seed, self.samples.begin)
        self.baseline = None
        self.problems = []

    def cycle(self, seconds):
        self.samples.phase = "load"
        if not self.options.no_faults:
            self.faults.begin(seconds)
        try:
            self.load.run_cycle(seconds)
        finally:
            self.faults.end()
        self.samples.phase = "ending"
        self.rest()

    def rest(self):
        wait_idle(self.daemon.control)
        row = self.samples.take_rest()
        if self.baseline is None:
            self.baseline = row
        elif row["fds"] > self.baseline["fds"]:
            self.problems.append(f"{row['fds']} descriptors at rest, {self.baseline['fds']} after "
                                 "the start")
        print(f"{row['second'] / 60:6.1f} min  at rest: {row['fds']} descriptors, "
              f"{row['rss_kib']} KiB resident, TCP memory {row['relay_tcp_kib']:.0f} KiB, "
              f"{row['slab_unreclaimable_kib'] >> 10} MiB of slab; so far "
              f"{self.load.counts['peer_sessions']} verified peer sessions, "
              f"{self.load.counts['downloads']} downloads, {row['handovers']} hand-overs, "
              f"{len(self.faults.events)} faults, bad {sum(self.load.bad.values())}", flush=True)

    def run(self):
        self.rest()
        end = time.monotonic() + self.options.minutes * 60
        while (left := end - time.monotonic()) > 5:
            # a cycle is not worth while if it is hardly longer than its end
            self.cycle(min(CYCLE, max(left / 4, 10), left))
            if self.daemon.process.poll() is not None:
                raise LabError(f"the daemon is gone:\n{tail(self.daemon.process.log)}")

    def finish(self):
        """Ends the run; returns the summary. Called once, also after a failure."""
        self.load.over = True
        self.samples.stop()
        code = self.daemon.stop()
        if code != 0:
            self.problems.append(f"SIGTERM: culvert ended with {code}:\n"
                                 f"{tail(self.daemon.process.log)}")
        sink = self.site.sink_report()
        if sink["wrong"]:
            self.problems.append(f"the sink has received {sink['wrong']} wrong")
        return self.summary(sink)

    def summary(self, sink):
        counts, bad = self.load.counts, self.load.bad
        last = self.samples.rests[-1] if self.samples.rests else {}
        # the first rest was before any session: sessions fill pools that stay (buffers, the heap)
        verdicts = judge(self.samples.rests[1:])
        for name, grown, mean, allowed, holds in verdicts:
            if not holds:
                self.problems.append(f"{name} grows: {grown:+.0f} over the second half (mean "
                                     f"{mean:.0f}, allowed {allowed:.0f})")
        for kind, number in bad.items():
            if number:
                self.problems.append(f"{kind}: {number}")
        # resets by the daemon are allowed only where it could not prove a hand-over
        if last.get("resets", 0) > 1 + last.get("handovers", 0) * UNPROVED:
            self.problems.append(f"the daemon has reset {last['resets']} sessions by itself")
        return {
            "minutes": self.samples.rows[-1]["second"] / 60, "engine": self.options.engine,
            "seed": self.options.seed, "passed": not self.problems, "problems": self.problems,
            "counts": counts, "bad": bad, "sink": sink, "faults": self.faults.counts(),
            "complaints": self.load.complaints[:50], "baseline": self.baseline, "last": last,
            "growth": [dict(zip(("figure", "grown", "mean", "allowed", "holds"), verdict))
                       for verdict in verdicts],
        }

    def write(self, summary):
        out = self.options.out
        self.samples.write(os.path.join(out, "samples.csv"))
        with open(os.path.join(out, "faults.csv"), "w", encoding="ascii") as file:
            file.writelines(f"{second},{kind},{detail}\n"
                            for second, kind, detail in self.faults.events)
        with open(os.path.join(out, "summary.json"), "w", encoding="ascii") as file:
            json.dump(summary, file, indent=1)
        shutil.copy(self.daemon.process.log, os.path.join(out, "culvert.log"))


def run(options):
    os.makedirs(options.out, exist_ok=True)
    failure = None
    with Lab() as lab:
        soak = Soak(lab, options)
        try:
            soak.run()
        except LabError as error:
            soak.problems.append(str(error))
        except Interrupted as error:
            failure = error
            soak.problems.append("interrupted")
        summary = soak.finish()
        soak.write(summary)
    show(summary, options.out)
    if failure:
        return 128 + failure.args[0]
    return 0 if summary["passed"] else 1


def show(summary, out):
    print("\nfigures at rest, over the second half of the run:")
    for row in summary["growth"]:
        print(f"  {row['figure']:24} mean {row['mean']:12.0f}  growth {row['grown']:+10.1f}"
              f"  allowed {row['allowed']:8.0f}  {'ok' if row['holds'] else 'GROWS'}")
    print("  " + ", ".join(f"{name} {count:,}" for name, count in summary["counts"].items()))
    print("  faults: " + ", ".join(f"{kind} {n}" for kind, n in summary["faults"].items()))
    print("  bad: " + ", ".join(f"{name} {count}" for name, count in summary["bad"].items()))
    for problem in summary["problems"]:
        print(f"FAILED: {problem}")
    print(f"{'ok' if summary['passed'] else 'FAILED'}: {summary['minutes']:.1f} minutes; samples, "
          f"faults and summary in {out}")


def main():
    options = parse_options()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if os.geteuid() != 0 or missing:
        print("soak: " + (f"missing: {', '.join(missing)}" if missing else "needs root"))
        return 1
    handle_signals()
    try:
        return run(options)
    except LabError as error:
        print(f"FAILED: {error}")
        return 1
    except Interrupted as number:
        return 128 + number.args[0]


sys.exit(main())
