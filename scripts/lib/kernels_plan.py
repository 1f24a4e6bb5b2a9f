# SPDX-License-Identifier: BSD-2-Clause
"""What is run on each kernel: steps with a name, a time limit and a command."""

import glob
import os
from dataclasses import dataclass

# veth is a module of Debian's cloud kernels; what else the tests need is one, too.
REQUIRED_MODULES = ("veth", "sch_ingress", "cls_bpf")
# Without these some tests skip, and say so.
OPTIONAL_MODULES = ("tls", "sch_tbf", "sch_netem", "tcp_diag")
MODULES = REQUIRED_MODULES + OPTIONAL_MODULES
TINY = "--soft-limit 100K --hard-limit 200K --concurrency 8 --stall-timeout 120 --json"
ENGINES = ("sockmap", "auto")


@dataclass(frozen=True)
class Step:
    name: str
    limit: int
    command: str


def kernel_tests(build):
    programs = sorted(glob.glob(os.path.join(build, "tests/kernel/test_*")))
    return [path for path in programs if os.access(path, os.X_OK) and "." not in
            os.path.basename(path)]


def programs(build, cases=False):
    """Paths of all that a plan runs."""
    names = ["culvert", "culvert-bench", "tests/flow/test_torture"]
    if cases:
        names.append("tests/flow/test_cases")
    return [os.path.join(build, name) for name in names] + kernel_tests(build)


def torture_steps(bin_dir, sessions, storm):
    base = f"{bin_dir}/test_torture --culvert {bin_dir}/culvert {TINY}"
    limit = 60 + sessions
    for engine in ENGINES:
        yield Step(f"torture/{engine}", limit, f"{base} --engine {engine} --sessions {sessions}")
    yield Step("torture/sockmap-storm", 60 + int(storm),
               f"{base} --engine sockmap --storm --minutes {storm / 60:.4f}")


def veth_steps(bin_dir, script):
    for name, arguments in (("sockmap", "sockmap"), ("auto", "auto"),
                            ("sockmap-loss", "sockmap loss")):
        yield Step(f"veth/{name}", 90, f"{script} {bin_dir} {arguments}")


def steps(bin_dir, scripts, tests, options):
    """BIN_DIR holds all programs under their base names; TESTS are those of tests/kernel."""
    plan = [Step("probe", 60, f"{bin_dir}/culvert probe --json")]
    for test in tests:
        name = os.path.basename(test)
        plan.append(Step(f"kernel/{name.removeprefix('test_')}", 150, f"{bin_dir}/{name}"))
    plan += veth_steps(bin_dir, f"/bin/sh {scripts}/kernels_veth.sh")
    plan += torture_steps(bin_dir, options.sessions, options.storm)
    if options.cases:
        plan.append(Step("cases", 900,
                         f"{bin_dir}/test_cases --culvert {bin_dir}/culvert"))
    return plan


def render(plan):
    return "".join(f"{step.name} {step.limit} {step.command}\n" for step in plan)
