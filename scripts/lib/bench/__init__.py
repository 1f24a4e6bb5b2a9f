# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark: see scripts/bench, and docs/evidence.md for the method.

    rows        the rows and their workloads, as data; the plan of a run, and its duration
    contenders  culvert's engines, the peers, the direct path: configured, started, stopped
    loads       the lab, its servers, and the load generators
    measuring   one cell: speed, CPU time, system calls, memory; idle sessions
    running     a run: rounds, configurations, decisive rounds, results; the command line
    paths       the run of --paths: transfers over ways that have a length and lose frames

A module imports only modules above it. Reports are made by ../report.py, of the results alone.
"""
