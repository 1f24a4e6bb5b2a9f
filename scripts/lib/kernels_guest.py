# SPDX-License-Identifier: BSD-2-Clause
"""One kernel in an emulator: from an unpacked package to the text that the guest has written.

qemu ends with 0 whatever happens in the guest, so what counts is the verdict line that init writes
last to the second serial port; the first is the kernel's console.
"""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass

from kernels_initramfs import (Archive, Problem, add_base, add_modules, add_programs, release_of)
from kernels_plan import MODULES, OPTIONAL_MODULES, render

LIB = os.path.dirname(os.path.abspath(__file__))
QEMU = "qemu-system-x86_64"
# A warning, an oops and a panic end the guest at once (-no-reboot: and qemu). With loglevel=5 the
# console shows the warning itself, too ("quiet" leaves only that there was one).
APPEND = "console=ttyS0 loglevel=5 panic=-1 panic_on_warn=1 oops=panic rdinit=/init"
SCRIPTS = {
    "init": "kernels_init.sh",
    "culvert/steps.sh": "kernels_steps.sh",
    "culvert/kernels_veth.sh": "kernels_veth.sh",
    "culvert/kernels_log.sh": "kernels_log.sh",
}


@dataclass
class Outcome:
    """What a guest has left behind."""
    release: str
    text: str          # of the second serial port
    console: str       # of the first
    seconds: float
    in_time: bool
    limit: float
    missing_modules: list


def build_initramfs(path, package, plan, programs):
    """Writes the archive; returns the modules that this kernel has not."""
    with open(path, "wb") as file:
        archive = Archive(file)
        add_base(archive, {name: os.path.join(LIB, script) for name, script in SCRIPTS.items()})
        archive.add("culvert/plan", render(plan).encode())
        add_programs(archive, programs)
        missing = add_modules(archive, release_of(package)[1], MODULES)
        archive.finish()
    required = [name for name in missing if name not in OPTIONAL_MODULES]
    if required:
        raise Problem(f"modules that are neither built in nor in the package: "
                      f"{', '.join(required)}")
    return missing


def command(image, initramfs, folder, options):
    """qemu ends with us, even if we are killed."""
    qemu = shutil.which(QEMU)
    if not qemu:
        raise Problem(f"{QEMU} is missing: sudo scripts/deps kernels")
    return ["setpriv", "--pdeathsig", "KILL", qemu,
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(options.cpus),
            "-m", str(options.memory), "-nodefaults", "-no-user-config", "-no-reboot",
            "-display", "none", "-serial", f"file:{folder}/console.log",
            "-serial", f"file:{folder}/results.log",
            "-kernel", image, "-initrd", initramfs, "-append", APPEND]


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read().replace("\r", "")
    except OSError:
        return ""


def current_step(text):
    begins = [line for line in text.splitlines() if line.startswith("@@ begin ")]
    return begins[-1].removeprefix("@@ begin ") if begins else "boot"


def end_process(process):
    if process.poll() is None:
        process.kill()  # it holds nothing that would need an orderly end
    process.wait()


def wait_for(process, seconds, watch):
    """True if PROCESS ends in time. WATCH is called now and then."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            process.wait(min(left, 0.5))
            return True
        except subprocess.TimeoutExpired:
            watch()
    return False


def boot(package, folder, plan, programs, options, limit, progress=lambda step: None):
    """Boots the kernel of an unpacked package, runs PLAN, returns the Outcome."""
    release, _, image = release_of(package)
    os.makedirs(folder, exist_ok=True)
    initramfs = os.path.join(folder, "initramfs.cpio")
    results = os.path.join(folder, "results.log")
    for name in ("console.log", "results.log"):
        if os.path.exists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    begin = time.monotonic()
    try:
        missing = build_initramfs(initramfs, package, plan, programs)
        with open(os.path.join(folder, "qemu.log"), "wb") as log, \
             subprocess.Popen(command(image, initramfs, folder, options), stdout=log, stderr=log,
                              stdin=subprocess.DEVNULL, start_new_session=True) as process:
            try:
                in_time = wait_for(process, limit,
                                   lambda: progress(current_step(read_text(results))))
            finally:
                end_process(process)
    finally:
        if os.path.exists(initramfs):
            os.unlink(initramfs)
    console = read_text(os.path.join(folder, "console.log"))
    console += read_text(os.path.join(folder, "qemu.log"))
    return Outcome(release, read_text(results), console, time.monotonic() - begin, in_time,
                   limit, missing)


def run_here(folder, plan, limit, progress=lambda step: None):
    """The same plan on the running kernel."""
    os.makedirs(folder, exist_ok=True)
    results, plan_file = os.path.join(folder, "results.log"), os.path.join(folder, "plan")
    with open(plan_file, "w", encoding="utf-8") as file:
        file.write(render(plan))
    begin = time.monotonic()
    with open(results, "wb") as log, \
         subprocess.Popen(["sh", os.path.join(LIB, "kernels_steps.sh"), plan_file], stdout=log,
                          stderr=log, stdin=subprocess.DEVNULL) as process:
        try:
            in_time = wait_for(process, limit, lambda: progress(current_step(read_text(results))))
        finally:
            stop_here(process)
    return Outcome(os.uname().release, read_text(results), "", time.monotonic() - begin, in_time,
                   limit, [])


def descendants(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            found = [int(child) for child in file.read().split()]
    except OSError:
        return []
    return found + [below for child in found for below in descendants(child)]


def send_term(pid):
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass


def stop_here(process):
    """timeout(1) makes a process group of its own, so the signal has to go to each process."""
    if process.poll() is None:
        for pid in [process.pid, *descendants(process.pid)]:
            send_term(pid)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        end_process(process)
