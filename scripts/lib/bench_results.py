# SPDX-License-Identifier: BSD-2-Clause
"""The results of a run: the document, and the description of the machine in it."""

import json
import os
import platform
import re
import shutil
import subprocess
import time
from datetime import datetime

from labkit import TOP

FORMAT = 1

SYSCTLS = ("net.ipv4.tcp_congestion_control", "net.ipv4.ip_local_port_range",
           "net.ipv4.tcp_tw_reuse", "net.ipv4.tcp_max_tw_buckets", "net.ipv4.tcp_no_metrics_save",
           "net.core.somaxconn", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_rmem",
           "net.ipv4.tcp_wmem", "net.ipv4.tcp_mem", "net.core.rmem_max", "net.core.wmem_max",
           "net.core.default_qdisc", "net.core.netdev_max_backlog", "fs.pipe-max-size",
           "kernel.pid_max")

# Packages of what takes part.
PACKAGES = ("haproxy", "nginx", "socat", "rinetd", "redir", "iperf3", "wrk", "redis-server",
            "dnsperf", "nsd")


def output_of(*command):
    """What COMMAND prints, on either stream; "" if it cannot be run."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def succeeds(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def find_version(text):
    """The first thing in TEXT that looks like a version."""
    match = re.search(r"\d+\.\d+[\w.+~-]*", text)
    return match.group(0) if match else "unknown"


def packages():
    """{name: version} of those that are installed."""
    lines = output_of("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES).splitlines()
    return dict(line.split() for line in lines if len(line.split()) == 2)


def read_sysctls(lab):
    """{name: value} in the relay's namespace."""
    paths = ["/proc/sys/" + name.replace(".", "/") for name in SYSCTLS]
    process = lab.start("relay", "grep", "-Hs", "", *paths)
    process.wait()
    lab.stop(process)
    with open(process.log, encoding="ascii", errors="replace") as file:
        lines = [line.rstrip("\n").partition(":") for line in file if line.startswith("/proc")]
    return {path[len("/proc/sys/"):].replace("/", "."): re.sub(r"\s+", " ", value)
            for path, _, value in lines}


def describe_machine(lab, methods):
    """METHODS: texts of how things were measured that may differ from machine to machine."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        cpuinfo = file.read()
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.M)
    return {"kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": model.group(1) if model else platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "virtualization": output_of("systemd-detect-virt") or "not known",
            "sysctls": read_sysctls(lab), "packages": packages(), "methods": methods}


def describe_culvert(program):
    git = ("git", "-C", TOP)
    known = shutil.which("git") and succeeds(*git, "rev-parse", "HEAD")
    return {"version": find_version(output_of(program, "--version")),
            "commit": output_of(*git, "rev-parse", "HEAD") if known else "unknown",
            "dirty": bool(known and output_of(*git, "status", "--porcelain"))}


class OutputError(Exception):
    """The results cannot be written; the text says where and why."""


class Results:
    """What was measured so far. Written anew after each round, so that a file is always whole."""

    def __init__(self, path, **head):
        self.path = path
        self._began = time.monotonic()
        self._document = {"format": FORMAT, "culvert": {},
                          "started": datetime.now().astimezone().isoformat(timespec="seconds"),
                          "seconds": 0, "complete": False, **head, "rows": [], "calibration": [],
                          "left_out": []}
        self._rows = {}

    def describe(self, **head):
        self._document.update(head)

    def leave_out(self, contender, why):
        self._document["left_out"].append({"contender": contender, "why": why})

    def add_row(self, row):
        entry = {"name": row.name, "title": row.title, "group": row.group, "kind": row.kind,
                 "unit": row.unit, "better": row.better, "work_unit": row.work_unit,
                 "note": row.note, "contenders": []}
        self._rows[row.name] = entry
        self._document["rows"].append(entry)

    def append_note(self, row, text):
        entry = self._rows[row.name]
        entry["note"] = f"{entry['note']}\n{text}".strip()

    def begin_decisive(self, row, rounds, names):
        """From now on only NAMES take part in ROW, of which there were so many ordinary ROUNDS."""
        self._rows[row.name].update(ordinary_rounds=rounds, decisive=names)

    def row(self, row):
        """What is known of ROW, as a report reads it."""
        return self._rows[row.name]

    def add_contender(self, row, contender, config):
        """CONFIG: as text."""
        self._rows[row.name]["contenders"].append(
            {"name": contender.name, "family": contender.family, "config": config, "cells": []})

    def contender(self, row, name):
        return next(one for one in self._rows[row.name]["contenders"] if one["name"] == name)

    def add_cell(self, row, name, number, cell):
        self.contender(row, name)["cells"].append({"round": number, **cell})

    def add_calibration(self, row, name, tried, chosen):
        """TRIED: (config, value) pairs, the value None if it failed; texts for configurations."""
        self._document["calibration"].append(
            {"row": row.name, "contender": name, "chosen": chosen,
             "tried": [{"config": config, "value": value} for config, value in tried]})

    @property
    def document(self):
        """All that a report reads."""
        return self._document

    @property
    def rows(self):
        return self._document["rows"]

    def cells(self):
        """(row name, contender name, cell) of all."""
        for row in self.rows:
            for contender in row["contenders"]:
                for cell in contender["cells"]:
                    yield row["name"], contender["name"], cell

    def write(self, complete=False):
        self._document["seconds"] = round(time.monotonic() - self._began, 1)
        self._document["complete"] = complete
        try:
            with open(f"{self.path}.new", "w", encoding="utf-8") as file:
                json.dump(self._document, file, indent=None, separators=(",", ":"))
                file.write("\n")
            os.replace(f"{self.path}.new", self.path)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror}") from None
