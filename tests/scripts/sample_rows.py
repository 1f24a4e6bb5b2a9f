# SPDX-License-Identifier: BSD-2-Clause
"""Small rows of results for tests."""

import figures

HIGHER = figures.Measure("value", "requests/s", "higher", lambda cell: cell["value"])
LOWER = figures.Measure("value", "bytes", "lower", lambda cell: cell["value"])


def cell(number, value, **more):
    return {"round": number, "value": value, "cpu_seconds": 2.0, "work": 4.0, "errors": 0,
            "wrong": 0, **more}


def failed(number, why="no answer"):
    return {"round": number, "failed": why}


def contender(name, *values, family=None, cells=None):
    """Of the values of rounds 1, 2 ...; None for a round that failed."""
    families = {"direct": "direct", "haproxy": "peer", "nginx": "peer", "socat": "peer"}
    return {"name": name, "family": family or families.get(name, "culvert"), "config": "",
            "cells": cells if cells is not None else
            [failed(number) if value is None else cell(number, value)
             for number, value in enumerate(values, 1)]}


def row(name, *contenders, better="higher", kind="rate", unit="requests/s", work_unit="request"):
    return {"name": name, "title": f"title of {name}", "group": "conversation", "kind": kind,
            "unit": unit, "better": better, "work_unit": work_unit, "note": "",
            "contenders": list(contenders)}
