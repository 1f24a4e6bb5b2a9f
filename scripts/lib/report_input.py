# SPDX-License-Identifier: BSD-2-Clause
"""Reads the results of a benchmark run and makes sure that a report can be made of them."""

import gzip
import json
import math
import re
import zlib

FORMAT = 1

NUMBER, TEXT, FLAG, LIST, OBJECT = "a number", "a text", "true or false", "a list", "an object"

# name: kind. With "?" it may be missing or null.
RESULTS = {"format": NUMBER, "culvert": OBJECT, "started": TEXT, "seconds": NUMBER, "quick": FLAG,
           "complete": FLAG, "lab": TEXT, "rounds": NUMBER, "cell_seconds": NUMBER,
           "decisive_rounds?": NUMBER, "machine": OBJECT, "rows": LIST, "calibration?": LIST,
           "left_out?": LIST}
CULVERT = {"version": TEXT, "commit": TEXT, "dirty": FLAG}
MACHINE = {"kernel": TEXT, "cpu": TEXT, "cpus": NUMBER, "memory_bytes": NUMBER,
           "virtualization?": TEXT, "sysctls?": OBJECT, "packages?": OBJECT, "methods?": OBJECT}
ROW = {"name": TEXT, "title": TEXT, "group": TEXT, "kind": TEXT, "unit": TEXT, "better": TEXT,
       "work_unit": TEXT, "note?": TEXT, "ordinary_rounds?": NUMBER, "decisive?": LIST,
       "contenders": LIST}
CONTENDER = {"name": TEXT, "family": TEXT, "config?": TEXT, "cells": LIST}
FAILED_CELL = {"round": NUMBER, "failed": TEXT}
CELL = {"round": NUMBER, "value": NUMBER, "cpu_seconds?": NUMBER, "work?": NUMBER,
        "errors": NUMBER, "wrong": NUMBER, "latency_us?": OBJECT, "histogram?": LIST,
        "relay_cpu_seconds?": NUMBER, "relay_syscalls?": NUMBER, "relay_switches?": NUMBER,
        "kernel_peak_bytes?": NUMBER, "carriers?": OBJECT, "extra?": OBJECT}
CALIBRATION = {"row": TEXT, "contender": TEXT, "tried": LIST, "chosen": TEXT}
TRIED = {"config": TEXT, "value?": NUMBER}
LEFT_OUT = {"contender": TEXT, "why": TEXT}

CHOICES = {"better": ("higher", "lower"), "family": ("direct", "culvert", "peer"),
           "kind": ("rate", "throughput", "memory")}


class InputError(Exception):
    """The results cannot be read; the text says what is missing or wrong, and where."""


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


KINDS = {NUMBER: _is_number, TEXT: lambda value: isinstance(value, str),
         FLAG: lambda value: isinstance(value, bool),
         LIST: lambda value: isinstance(value, list),
         OBJECT: lambda value: isinstance(value, dict)}


def _check(value, kind, where):
    if not KINDS[kind](value):
        raise InputError(f"{where} is not {kind}")


def _check_object(value, form, where):
    _check(value, OBJECT, where)
    for key, kind in form.items():
        name = key.rstrip("?")
        if value.get(name) is None:
            if key.endswith("?"):
                continue
            problem = "is null" if name in value else "is missing"
            raise InputError(f"{where}: \"{name}\" {problem}")
        _check(value[name], kind, f"{where}: \"{name}\"")
        if name in CHOICES and value[name] not in CHOICES[name]:
            raise InputError(f"{where}: \"{name}\" is \"{value[name]}\", not one of "
                             + ", ".join(CHOICES[name]))


def _check_numbers(values, where):
    for name, value in (values or {}).items():
        if value is not None:
            _check(value, NUMBER, f"{where}: \"{name}\"")


def _check_texts(values, where):
    for name, value in (values or {}).items():
        _check(value, TEXT, f"{where}: \"{name}\"")


def _check_histogram(histogram, where):
    for index, bucket in enumerate(histogram or []):
        if (not isinstance(bucket, list) or len(bucket) != 2 or not all(map(_is_number, bucket))
                or bucket[0] < 0 or bucket[1] < 0):
            raise InputError(f"{where}: \"histogram\"[{index}] is not [upper bound, count]")


def _check_cell(cell, where):
    _check(cell, OBJECT, where)
    if "failed" in cell:
        _check_object(cell, FAILED_CELL, where)
        return
    _check_object(cell, CELL, where)
    for name in ("latency_us", "carriers", "extra"):
        _check_numbers(cell.get(name), f"{where}: \"{name}\"")
    _check_histogram(cell.get("histogram"), where)


def _check_names(items, where):
    names = [item["name"] for item in items]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}: \"{name}\" is there {names.count(name)} times")


def _check_contender(contender, where):
    _check_object(contender, CONTENDER, where)
    where = f"{where} ({contender['name']})"
    rounds = set()
    for index, cell in enumerate(contender["cells"]):
        _check_cell(cell, f"{where}: cells[{index}]")
        if cell["round"] in rounds:
            raise InputError(f"{where}: round {cell['round']} is there twice")
        rounds.add(cell["round"])


def _check_row(row, where):
    _check_object(row, ROW, where)
    # Files of plots and anchors are named after it.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", row["name"]):
        raise InputError(f"{where}: \"name\" has other characters than letters, digits and . _ -")
    where = f"{where} ({row['name']})"
    for index, name in enumerate(row.get("decisive") or []):
        _check(name, TEXT, f"{where}: \"decisive\"[{index}]")
    for index, contender in enumerate(row["contenders"]):
        _check_contender(contender, f"{where}: contenders[{index}]")
    _check_names(row["contenders"], where)


def check(results):
    """Raises InputError unless RESULTS has all that a report needs."""
    where = "results"
    _check(results, OBJECT, where)
    if "format" in results and results["format"] != FORMAT:
        raise InputError(f"results: \"format\" is {results['format']}; "
                         f"this program reads format {FORMAT}")
    _check_object(results, RESULTS, where)
    _check_object(results["culvert"], CULVERT, "culvert")
    _check_object(results["machine"], MACHINE, "machine")
    for name in ("packages", "methods"):
        _check_texts(results["machine"].get(name), f"machine: \"{name}\"")
    for index, entry in enumerate(results.get("left_out") or []):
        _check_object(entry, LEFT_OUT, f"left_out[{index}]")
    for index, row in enumerate(results["rows"]):
        _check_row(row, f"rows[{index}]")
    _check_names(results["rows"], "rows")
    for index, entry in enumerate(results.get("calibration") or []):
        where = f"calibration[{index}]"
        _check_object(entry, CALIBRATION, where)
        for number, tried in enumerate(entry["tried"]):
            _check_object(tried, TRIED, f"{where}: tried[{number}]")


GZIP_MAGIC = b"\x1f\x8b"


def _read(path):
    """The bytes of the file at PATH, which may be compressed with gzip."""
    with open(path, "rb") as file:
        data = file.read()
    return gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data


def load(path):
    """The checked results in the file at PATH."""
    try:
        results = json.loads(_read(path).decode("utf-8"))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"not a whole gzip file: {error}") from None
    except OSError as error:
        raise InputError(error.strerror) from None
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}") from None
    check(results)
    return results
