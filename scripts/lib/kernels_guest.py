# SPDX-License-Identifier: BSD-2-Clause
"""One kernel in an emulator: from an unpacked package to the text that the guest has written.

qemu ends with 0 whatever happens in the guest, so the results are the text that init writes to the
second serial port; the first is the kernel's console.
"""

import glob
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

LIB = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(LIB))
# Modules of Debian's cloud kernels that the tests cannot do without.
REQUIRED_MODULES = ("veth", "sch_ingress", "cls_bpf")
# Without these some tests skip, and say so.
OPTIONAL_MODULES = ("tls", "sch_tbf", "sch_netem", "tcp_diag", "8021q", "wireguard", "bridge",
                    "tun", "nf_tables", "nfnetlink_hook", "nft_reject_inet", "nft_limit")
# A warning, an oops and a panic end the guest at once (-no-reboot: and qemu). With loglevel=5 the
# console shows the warning itself, too ("quiet" leaves only that there was one).
APPEND = "console=ttyS0 loglevel=5 panic=-1 panic_on_warn=1 oops=panic rdinit=/init"
# A guest of qemu 7.2 met a double fault just after CMPXCHG16B, with which kmalloc() begins, as if its
# flags were another instruction's.  Without it Linux disables interrupts instead.
CPU = "max,-cx16"
# The shell is this machine's: busybox's would prefer its own ip and tc to those in PATH.
TOOLS = {"busybox": "bin/busybox", "sh": "bin/sh", "ip": "culvert/bin/ip", "tc": "culvert/bin/tc",
         "wg": "culvert/bin/wg", "flock": "culvert/bin/flock", "nsenter": "culvert/bin/nsenter",
         "nft": "culvert/bin/nft", "ss": "culvert/bin/ss", "curl": "culvert/bin/curl",
         "/usr/bin/python3": "usr/bin/python3"}
# Tests in Python with the programs that they run, and the modules of all these.
SCRIPTS = ("tests/pytest.ini", "tests/flow/conftest.py", "tests/flow/grafted.py",
           "tests/flow/from_syn.py", "tests/flow/echo_server.py",
           "scripts/lib/labkit.py", "scripts/lab",
           *(os.path.relpath(path, TOP) for name in ("networks", "standby", "udp")
             for path in glob.glob(os.path.join(TOP, f"tests/flow/{name}*.py"))))
MODULES = ("argparse", "array", "asyncio", "concurrent.futures.thread", "contextlib", "ctypes",
           "dataclasses", "encodings.ascii", "encodings.idna", "encodings.unicode_escape", "fcntl",
           "hashlib", "ipaddress", "json", "pdb", "pwd", "pytest.__main__", "random", "select",
           "statistics", "struct", "subprocess", "tempfile", "threading", "traceback")
FILES = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


class Problem(Exception):
    """The guest cannot be put together; the text says why."""


@dataclass(frozen=True)
class Equipment:
    """Things that a guest has beside the usual ones."""
    tools: dict = field(default_factory=dict)  # as TOOLS
    scripts: tuple = ()
    python: tuple = ()  # modules of the programs that the scripts start
    modules: tuple = ()  # of the kernel; optional
    files: dict = field(default_factory=dict)  # data by name
    options: tuple = ()  # of qemu
    wrapper: tuple = ()  # command that runs qemu


@dataclass
class Outcome:
    """The results of a guest that has ended."""
    release: str
    text: str     # of the second serial port
    console: str  # of the first, and of qemu
    in_time: bool


def output_of(*command, **options):
    try:
        return subprocess.run(command, check=True, capture_output=True, **options).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Problem(f"{command[0]}: {getattr(error, 'stderr', None) or error}") from error


def add(root, name, data, mode=0o644):
    path = os.path.join(root, name.lstrip("/"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def add_file(root, path, name):
    with open(path, "rb") as file:
        add(root, name, file.read(), 0o755)


def add_modules_of_python(root, modules):
    """With their bytecode, which is valid for a source of the same time; pytest with plugins."""
    files = output_of("/usr/bin/python3", "-c", f"import sys, {', '.join(modules)}\n"
                      "pytest.Config.fromdictargs({}, [])\n"
                      "for module in list(sys.modules.values()):\n"
                      "    for name in '__file__', '__cached__':\n"
                      "        print(getattr(module, name, None) or '')", text=True)
    for path in filter(os.path.isfile, files.splitlines()):
        (add_program if path.endswith(".so") else add_file)(root, path, path)
        os.utime(os.path.join(root, path.lstrip("/")), (0, os.stat(path).st_mtime))


def add_program(root, path, name):
    """With its libraries."""
    add_file(root, path, name)
    ldd = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    for library in re.findall(r"(/\S+) \(0x", ldd.stdout):  # none, of a static program
        add_file(root, library, library)


def kernel_of(package):
    """(release, image) of an unpacked package, whose modules have their index afterwards."""
    modules = os.path.join(package, "lib/modules")
    if not os.path.isdir(modules):
        os.makedirs(os.path.dirname(modules), exist_ok=True)
        os.symlink("../usr/lib/modules", modules)
    [release] = os.listdir(modules)
    output_of("depmod", "--basedir", os.path.abspath(package), release)
    return release, os.path.join(package, "boot", f"vmlinuz-{release}")


def add_modules(root, package, release, optional):
    """Modules with those that they need, and the order in which init loads them."""
    order = []
    for name in REQUIRED_MODULES + optional:
        try:
            lines = output_of("modprobe", "--dirname", os.path.abspath(package), "--set-version",
                              release, "--show-depends", name, text=True).splitlines()
        except Problem:
            if name in REQUIRED_MODULES:
                raise
            continue
        for path in (line.split()[1] for line in lines if line.startswith("insmod ")):
            with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
                module = os.path.basename(path).removesuffix(".xz")
                if module not in order:
                    order.append(module)
                    add(root, f"culvert/modules/{module}", file.read())
    add(root, "culvert/modules/order", "".join(f"{name}\n" for name in order).encode())


def build_initramfs(path, package, release, plan, programs, more):
    """PLAN: the text that init reads; PROGRAMS: paths, for the first folder in the guest's PATH."""
    with tempfile.TemporaryDirectory(prefix="culvert-initramfs.") as root:
        os.chmod(root, 0o755)  # the guest's /, for the daemon's account as well
        for name, text in FILES.items():
            add(root, name, text.encode())
        for tool, name in (TOOLS | more.tools).items():
            program = shutil.which(tool)
            if not program:
                raise Problem(f"{tool} is missing: sudo scripts/deps kernels")
            add_program(root, os.path.realpath(program), name)
        for program in programs:
            add_program(root, program, f"culvert/bin/{os.path.basename(program)}")
        add_modules_of_python(root, MODULES + more.python)
        for script in SCRIPTS + more.scripts:
            add_file(root, os.path.join(TOP, script), f"culvert/{script}")
        add_file(root, os.path.join(LIB, "kernels_init.sh"), "init")
        for script in ("kernels_veth.sh", "kernels_log.sh"):
            add_file(root, os.path.join(LIB, script), f"culvert/{script}")
        add(root, "culvert/plan", plan.encode())
        for name, data in more.files.items():
            add(root, name, data, 0o755)
        add_modules(root, package, release, OPTIONAL_MODULES + more.modules)
        output_of("sh", "-c", 'find . | busybox cpio -o -H newc -R 0:0 >"$0"',
                  os.path.abspath(path), cwd=root)


def read_text(path):
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return file.read().replace("\r", "")


def boot(package, folder, plan, programs, limit, more=Equipment()):
    """Boots the kernel of an unpacked package and runs PLAN, for LIMIT seconds at most."""
    release, image = kernel_of(package)
    os.makedirs(folder, exist_ok=True)
    initramfs, console, results, log = (os.path.join(folder, name) for name in (
        "initramfs.cpio", "console.log", "results.log", "qemu.log"))
    for path in (console, results):
        open(path, "wb").close()
    build_initramfs(initramfs, package, release, plan, programs, more)
    # qemu ends with us, even if we are killed.
    command = ["setpriv", "--pdeathsig", "KILL", *more.wrapper, "qemu-system-x86_64",
               "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "2", "-m", "1024",
               "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
               "-serial", f"file:{console}", "-serial", f"file:{results}",
               "-kernel", image, "-initrd", initramfs, "-append", APPEND,
               *more.options]
    in_time = True
    try:
        with open(log, "wb") as output:
            subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                           timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        os.unlink(initramfs)
    return Outcome(release, read_text(results), read_text(console) + read_text(log), in_time)
