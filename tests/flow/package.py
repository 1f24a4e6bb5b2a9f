# SPDX-License-Identifier: BSD-2-Clause
"""Does the Debian package work in a clean Debian?

`make deb` makes it, and lintian looks at it. In a small Debian of this machine's release, which has
a systemd of its own (systemd_guest.py), apt installs it, upgrades it while sessions run, removes
and purges it: package_checks.py. The small Debian is made once, with the apt sources of this
machine. With --shell -s a shell in there follows the checks.
"""

import glob
import os
import pathlib
import shutil
import subprocess

import systemd_guest
from labkit import expect

SHELLS = "bash-completion,zsh,fish"
INCLUDED = f"systemd-sysv,python3,iproute2,procps,logrotate,{SHELLS}"
NEXT = "9999"  # version of an upgrade


def run(*command, **options):
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)


def make_package(build):
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    run("make", "-s", "deb", f"O={build}", cwd=systemd_guest.ROOT, env=environment)
    made, = glob.glob(f"{build}/culvert_*.deb")
    said = run("lintian", "-I", "--pedantic", "--allow-root", made, stdout=subprocess.PIPE,
               text=True).stdout
    expect(not said, f"lintian: {said}")
    return made


def make_next(package, folder):
    """The same as PACKAGE, but for the version."""
    tree = folder / "tree"
    run("dpkg-deb", "--raw-extract", package, tree)
    control = tree / "DEBIAN/control"
    lines = control.read_text(encoding="utf-8").splitlines(keepends=True)
    control.write_text("".join(f"Version: {NEXT}\n" if line.startswith("Version:") else line
                               for line in lines), encoding="utf-8")
    run("dpkg-deb", "--root-owner-group", "--build", tree, folder / "next.deb",
        stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)


def release():
    lines = pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    return next(line.split("=")[1] for line in lines if line.startswith("VERSION_CODENAME="))


def sources():
    """Those of Debian alone."""
    found = [path for path in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")
             if os.path.exists(path)]
    if not found:
        raise systemd_guest.Unavailable("no apt sources of Debian")
    return found[0]


def make_image(folder):
    image = folder / f"image-{release()}"
    if not image.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        done = subprocess.run(["mmdebstrap", "--quiet", "--variant=apt", f"--include={INCLUDED}",
                               release(), unfinished, sources()], check=False,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise systemd_guest.Unavailable(f"mmdebstrap: {done.stderr[-300:].strip()}")
        unfinished.rename(image)
    return image


def fetch_dependencies(image, package):
    """Into the image's cache, since its guest has no network. They are not installed."""
    shutil.copy("/etc/resolv.conf", image / "etc/resolv.conf")
    shutil.copy(package, image / "tmp/culvert.deb")
    for words in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends",
                               "/tmp/culvert.deb"]):
        run("chroot", image, "apt-get", "-qq", *words, stdout=subprocess.DEVNULL)
    (image / "tmp/culvert.deb").unlink()


def install(package):
    def install_into(folder):
        place = folder / "opt"
        place.mkdir()
        shutil.copy(package, place / "culvert.deb")
        make_next(package, place)
    return install_into


def test_package(request, culvert):
    build = pathlib.Path(culvert).parent
    os.nice(10)

    def prepare():
        package = make_package(build)
        image = make_image(build / "package")
        fetch_dependencies(image, package)
        return install(package), image

    systemd_guest.run_checks("package_checks.py", prepare, request.config.option.shell)
