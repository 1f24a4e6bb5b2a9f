# SPDX-License-Identifier: BSD-2-Clause
"""What the Python tests of this folder have in common: options, the lab, reasons to skip."""

import os
import shutil
import time

import pytest
from labkit import ENGINES, TOP, Lab, handle_signals, has_ipv6, tail

EXIT_SKIP = 77  # as other tests end that could not run here
os.environ["PATH"] += ":/usr/sbin:/sbin"


def pytest_addoption(parser):
    add = parser.getgroup("culvert").addoption
    add("--culvert", type=os.path.abspath, default=os.path.join(TOP, "build/culvert"), metavar="FILE")
    add("--engine", action="append", help="in place of those of the test; may be repeated")
    add("--quick", action="store_true", help="only what belongs before each push")
    add("--storm", type=float, metavar="N",
        help="the long run of a test in place of its cases: minutes of udp.py, rounds of "
        "fleet_storm.py, else seconds")
    add("--seed", type=int, default=int(time.time()), help="of all that is done at random")
    add("--seconds", type=float, default=60.0, help="of random_operations.py")
    add("--sessions", type=int, help="of metrics.py, graft_wire.py, endurance.py")
    add("--size", type=int, help="MiB of real_programs.py's big file; bytes of foreign.py's bulk")
    add("--shell", action="store_true", help="service_systemd.py, package.py: a shell there, with -s")
    add("--udp", action="store_true", help="networks.py: datagrams alone")
    add("--jobs", type=int, default=6, help="networks.py: runs at a time")


def pytest_sessionstart():
    handle_signals()


def pytest_report_header(config):
    return f"seed {config.option.seed}"


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        engines = metafunc.config.option.engine or getattr(metafunc.module, "ENGINES", ENGINES)
        metafunc.parametrize("engine", engines, scope="module")


def pytest_collection_modifyitems(config, items):
    def has(item, name):
        mark = item.get_closest_marker(name)
        return mark and (not mark.args or item.callspec.params["engine"] in mark.args)

    def is_chosen(item):
        return (has(item, "quick") or not config.option.quick) and \
            (has(item, "engines") or not item.get_closest_marker("engines")) and \
            (item.originalname == "test_storm") == bool(config.option.storm)

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = filter(is_chosen, items)


def why_not(programs, packages="test", ipv6=False):
    """Why a test that needs PROGRAMS, which `scripts/deps PACKAGES` installs, cannot run here."""
    missing = [name for name in programs if not shutil.which(name)]
    if os.geteuid() != 0:
        return "network namespaces need root"
    if ipv6 and not has_ipv6():
        return "this kernel has no IPv6"
    return f"missing: {', '.join(missing)} (scripts/deps {packages})" if missing else None


def pytest_runtest_setup(item):
    for mark in item.iter_markers("needs"):
        if reason := why_not(mark.args, **mark.kwargs):
            pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """With the ends of the daemons' logs."""
    report, trial = (yield).get_result(), item.funcargs.get("trial")
    if report.failed and call.when == "call":
        daemons = getattr(trial, "relays", {"culvert": getattr(trial, "daemon", None)})
        report.sections += [(name, tail(daemon.process.log))
                            for name, daemon in daemons.items() if daemon]


def pytest_sessionfinish(session, exitstatus):
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if exitstatus == 0 and stats.get("skipped") and not stats.get("passed"):
        session.exitstatus = EXIT_SKIP


@pytest.fixture(scope="session")
def culvert(request):
    return request.config.option.culvert


@pytest.fixture(scope="module")
def lab():
    with Lab() as the_lab:
        yield the_lab


@pytest.fixture(autouse=True)
def end(request):
    """Of what a case has begun in a trial that others have as well."""
    yield
    if hasattr(request.node.funcargs.get("trial"), "end"):
        request.node.funcargs["trial"].end()
