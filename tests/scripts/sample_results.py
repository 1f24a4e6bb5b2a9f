# SPDX-License-Identifier: BSD-2-Clause
"""Invented results in the format of scripts/bench, for the tests of reports: all rows and
contenders, failures, and a contender that is missing. Repeatable: the seed is fixed."""

import argparse
import json
import math
import random

ROUNDS = 5
DECISIVE = 7

# name, family, its rate in bulk and in conversations relative to direct, its CPU likewise
CONTENDERS = (
    ("direct", "direct", 1.00, 1.00, 1.0),
    ("auto", "culvert", 0.92, 0.78, 1.5),
    ("auto-again", "culvert", 0.92, 0.78, 1.5),
    ("sockmap", "culvert", 0.42, 0.79, 1.4),
    ("splice", "culvert", 0.93, 0.58, 1.6),
    ("copy", "culvert", 0.72, 0.62, 2.0),
    ("copy-8K", "culvert", 0.41, 0.61, 2.9),
    ("copy-16K", "culvert", 0.55, 0.62, 2.5),
    ("copy-64K", "culvert", 0.72, 0.62, 2.0),
    ("copy-256K", "culvert", 0.78, 0.60, 2.1),
    ("haproxy", "peer", 0.55, 0.49, 2.4),
    ("haproxy-splice", "peer", 0.78, 0.46, 2.0),
    ("nginx", "peer", 0.60, 0.51, 2.3),
    ("socat", "peer", 0.38, 0.40, 3.1),
    ("rinetd", "peer", 0.30, 0.44, 3.3),
    ("redir", "peer", 0.64, 0.41, 2.6),
)

# name, title, group, kind, unit, work unit, direct's value, direct's median latency in us
ROWS = (
    ("bulk-1", "Bulk, 1 stream to the server", "bulk", "throughput", "Gbit/s", "GB", 31.4, None),
    ("bulk-8", "Bulk, 8 streams to the server", "bulk", "throughput", "Gbit/s", "GB", 33.9, None),
    ("bulk-both", "Bulk, both ways at once on 1 connection", "bulk", "throughput", "Gbit/s", "GB",
     35.2, None),
    ("rr-64x64", "Request/response, 64 B, 64 connections", "conversation", "rate", "requests/s",
     "request", 214000, 270),
    ("rr-1Kx512", "Request/response, 1 KiB, 512 connections", "conversation", "rate",
     "requests/s", "request", 172000, 2900),
    ("rr-16Kx64", "Request/response, 16 KiB, 64 connections", "conversation", "rate",
     "requests/s", "request", 61000, 1000),
    ("wrk", "wrk to nginx, keep-alive, 64 connections", "conversation", "rate", "requests/s",
     "request", 88000, 690),
    ("crr", "Connect, request/response, close: 16 at a time", "connect", "rate",
     "transactions/s", "transaction", 21000, 1500),
    ("idle", "Idle sessions: memory of the relay", "idle", "memory", "bytes/session", "session",
     None, None),
    ("mixed-0", "64 B x 64 request/response, no idle sessions", "mixed", "rate", "requests/s",
     "request", 209000, 280),
    ("mixed", "64 B x 64 request/response beside the idle sessions", "mixed", "rate",
     "requests/s", "request", 206000, 283),
    ("slow", "32 slow readers: kernel memory", "slow", "memory", "bytes/session", "GB", None, None),
    ("sweep-bulk", "Copy by buffer: bulk, 1 stream", "sweep", "throughput", "Gbit/s", "GB", 31.0,
     None),
    ("sweep-rr", "Copy by buffer: request/response, 16 KiB, 64 connections", "sweep", "rate",
     "requests/s", "request", 61000, 1000),
)

MEMORY = {"auto": 420, "auto-again": 420, "sockmap": 430, "splice": 410, "copy": 400,
          "haproxy": 3300, "haproxy-splice": 3350, "nginx": 9700, "rinetd": 5200}
# Who takes part in the decisive rounds of the rows with a target.
DECIDERS = {"bulk": ["auto", "auto-again", "splice", "haproxy-splice"],
            "conversation": ["auto", "auto-again", "sockmap", "nginx", "haproxy"],
            "connect": ["auto", "auto-again", "sockmap", "nginx", "haproxy"],
            "mixed": ["auto", "auto-again"]}
ROUNDS_OF = {"idle": 3, "mixed-0": 3, "mixed": 3, "slow": 3}


def histogram(random_source, middle, count):
    """Log-normal latencies around MIDDLE us in buckets 4 % wide."""
    buckets = {}
    for _ in range(count):
        value = middle * math.exp(random_source.gauss(0, 0.28))
        if random_source.random() < 0.004:
            value *= random_source.uniform(3, 14)
        bound = round(1.04 ** math.ceil(math.log(value, 1.04)), 2)
        buckets[bound] = buckets.get(bound, 0) + 1
    return [[bound, buckets[bound]] for bound in sorted(buckets)]


def carriers(name, group, amount):
    shares = {"copy": {"copy": 1.0}, "splice": {"splice": 0.9999, "copy": 0.0001},
              "sockmap": {"sockmap": 0.93, "copy": 0.07} if group == "bulk"
              else {"sockmap": 0.9996, "copy": 0.0004},
              "auto": {"splice": 0.991, "copy": 0.009} if group == "bulk"
              else {"sockmap": 0.984, "copy": 0.016}}.get(name.split("-")[0])
    if shares is None:
        return None
    return {one: int(shares.get(one, 0) * amount) for one in ("copy", "splice", "sockmap")}


def memory_cell(source, row, contender, number):
    who, family, *_rest = contender
    extra = {}
    if row[0] == "idle":
        value, work = MEMORY[who] * source.uniform(0.985, 1.015), 20000
        extra = {"kernel_bytes_beyond_sockets": source.uniform(3000, 3400)
                 if family == "culvert" else None, "sessions": 20000}
    else:
        value, work = 4.2e6 * (1 if who == "direct" else 1.6) * source.uniform(0.9, 1.1), 0.32
    return {"round": number, "value": value, "latency_us": None, "histogram": None,
            "cpu_seconds": None, "work": work, "relay_cpu_seconds": None, "relay_syscalls": None,
            "relay_switches": None, "kernel_peak_bytes": None, "errors": 0, "wrong": 0,
            "carriers": None, "extra": extra}


def speed_cell(source, row, contender, number):
    _name, _title, group, kind, _unit, work_unit, base, middle = row
    who, family, bulk, talk, cpu = contender
    speed = bulk if kind == "throughput" else talk
    # connections cost a relay that forks more
    speed *= 0.35 if group == "connect" and who in ("socat", "redir") else 1
    value = base * speed * (1 + 0.04 * math.sin(number)) * source.uniform(0.975, 1.025)
    work = value * 5 / (8 if work_unit == "GB" else 1)
    relay = family != "direct"
    in_kernel = who in ("auto", "auto-again", "sockmap") and group in ("conversation", "mixed")
    calls = 0.004 if in_kernel else 14000 if work_unit == "GB" else 2.2
    seconds = 9.6 * source.uniform(0.97, 1.03)
    return {
        "round": number, "value": value, "latency_us": None,
        "histogram": histogram(source, middle / talk, 4000) if middle else None,
        "cpu_seconds": seconds, "work": work,
        "relay_cpu_seconds": seconds * (0.03 if in_kernel else 0.1 * cpu) if relay else None,
        "relay_syscalls": work * calls if relay else None,
        "relay_switches": work * calls * 0.3 if relay else None,
        "kernel_peak_bytes": int(source.uniform(4e6, 9e6)), "errors": 0, "wrong": 0,
        "carriers": carriers(who, group, work * 1e6), "extra": {}}


def takes_part(row, contender):
    who = contender[0]
    if who == "auto-again" and row[2] in ("sweep", "slow"):
        return False
    if row[2] == "sweep":
        return who == "direct" or who.startswith("copy-")
    return not who.startswith("copy-") and (row[0] != "idle" or who in MEMORY)


def ordinary_rounds(row, rounds):
    return min(rounds, ROUNDS_OF.get(row[0], rounds))


def make_contender(source, row, contender, rounds, decisive):
    make_cell = memory_cell if row[3] == "memory" else speed_cell
    more = decisive if contender[0] in DECIDERS.get(row[2], ()) else 0
    cells = [make_cell(source, row, contender, number)
             for number in range(1, ordinary_rounds(row, rounds) + more + 1)]
    name = "auto" if contender[0] == "auto-again" else contender[0]
    config = {"direct": "routed, no relay", "culvert": f"--engine {name}, 2 workers",
              "peer": f"{contender[0]}, 2 workers, 16 KiB buffers, nodelay"}[contender[1]]
    return {"name": contender[0], "family": contender[1], "config": config, "cells": cells}


def make_row(source, row, rounds, decisive):
    name, title, group, kind, unit, work_unit, _base, _middle = row
    known = {"ordinary_rounds": ordinary_rounds(row, rounds), "decisive": DECIDERS[group]} \
        if decisive and group in DECIDERS else {}
    return {**known, "name": name, "title": title, "group": group, "kind": kind, "unit": unit,
            "better": "lower" if kind == "memory" else "higher", "work_unit": work_unit,
            "note": "Readers are slower than what sends to them.\nThis is memory, not speed."
            if group == "slow" else "",
            "contenders": [make_contender(source, row, one, rounds, decisive)
                           for one in CONTENDERS if takes_part(row, one)]}


def find(results, row, contender):
    """The contender's object in the row of that name."""
    rows = {one["name"]: one for one in results["rows"]}
    return next(one for one in rows[row]["contenders"] if one["name"] == contender)


def make_results(rounds=ROUNDS, decisive=DECISIVE):
    """A whole run; a single round has no decisive ones after it."""
    decisive = decisive if rounds > 1 else 0
    source = random.Random(20240607)
    results = {
        "format": 1, "culvert": {"version": "0.1.0", "commit": "0123456789abcdef0123456789abcdef",
                                 "dirty": False},
        "started": "2024-06-07T09:30:00+00:00", "seconds": 4210.5, "quick": False, "complete": True,
        "lab": "veth", "rounds": rounds, "decisive_rounds": decisive, "cell_seconds": 5,
        "machine": {"kernel": "Linux 6.1.0-21-amd64 x86_64", "cpu": "Invented CPU",
                    "cpus": 2,
                    "memory_bytes": 8 << 30, "virtualization": "kvm",
                    "sysctls": {"net.ipv4.tcp_congestion_control": "cubic",
                                "net.ipv4.tcp_rmem": "4096\t131072\t6291456"},
                    "methods": {"relay CPU": "cpu.stat of a cgroup of its own"},
                    "packages": {"haproxy": "2.6.12-1", "nginx": "1.22.1-9", "socat": "1.7.4.4-2"}},
        "left_out": [{"contender": "gost", "why": "not installed"}],
        "rows": [make_row(source, row, rounds, decisive) for row in ROWS],
        "calibration": [{"row": "bulk-1", "contender": "haproxy", "chosen": "2 threads, 64 KiB",
                         "tried": [{"config": "1 thread, 16 KiB", "value": 14.1},
                                   {"config": "2 threads, 64 KiB", "value": 17.2}]}]}
    # wrk reports percentiles only
    for one in results["rows"][6]["contenders"]:
        for cell in one["cells"]:
            cell["histogram"] = None
            cell["latency_us"] = {"p50": 700, "p90": 900, "p99": 1900, "p99_9": None}
    if rounds > 2:
        find(results, "rr-1Kx512", "socat")["cells"] = [
            {"round": number, "failed": "out of processes: 512 connections need 512 of them"}
            for number in range(1, rounds + 1)]
        find(results, "bulk-8", "rinetd")["cells"][1] = {"round": 2, "failed": "no answer in 20 s"}
        find(results, "crr", "socat")["cells"][0]["errors"] = 17
    return results


def main():
    parser = argparse.ArgumentParser(description="writes invented results")
    parser.add_argument("path")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with open(options.path, "w", encoding="utf-8") as file:
        json.dump(make_results(options.rounds), file, indent=1)


if __name__ == "__main__":
    main()
