# SPDX-License-Identifier: BSD-2-Clause
"""Kernel images: the newest of a series in the sources that apt has configured, fetched, unpacked
and cached. Nothing is installed.

An image in the cache is a folder PACKAGE_VERSION, which holds the package's files.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile


class Unavailable(Exception):
    """Cannot be tried here; the text says why."""


def run(*command, **options):
    """Output of a command; Unavailable if it fails."""
    environment = dict(os.environ, LC_ALL="C")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env=environment, stdin=subprocess.DEVNULL, **options)
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"{' '.join(command[:2])}: {lines[-1] if lines else 'failed'}")
    return done.stdout


def compare_versions(left, right):
    for relation, answer in (("lt", -1), ("gt", 1)):
        if not subprocess.call(["dpkg", "--compare-versions", left, relation, right]):
            return answer
    return 0


def newest(images):
    """The newest of (package, version) pairs."""
    key = functools.cmp_to_key(compare_versions)
    return max(images, key=lambda image: key(image[1]))


def pattern_of(series, cards):
    """Cloud kernels of SERIES, or those with drivers of CARDS; no meta package, -dbg, -unsigned."""
    kind = "[0-9.]+(-[0-9]+)?([+~][a-z0-9.]+)*" if cards else "[^ _]*-cloud"
    return rf"linux-image-{re.escape(series)}[.~-]{kind}-amd64"


def offered(pattern):
    """(package, version) of all images that the configured sources offer."""
    found = run("apt-cache", "search", "--names-only", f"^{pattern}$")
    names = [line.split()[0] for line in found.splitlines() if line.strip()]
    lines = run("apt-cache", "madison", *names).splitlines() if names else []
    return [tuple(field.strip() for field in line.split("|")[:2]) for line in lines
            if line.endswith("Packages")]


def cached(cache, pattern):
    """(package, version) of images in the cache."""
    names = os.listdir(cache) if os.path.isdir(cache) else []
    return [tuple(name.split("_", 1)) for name in names
            if re.fullmatch(pattern + "_.+", name)]


def download(package, version, cache, folder):
    """Fetches and unpacks; FOLDER appears only once it is complete."""
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as work:
        sandbox = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        run("apt-get", *sandbox, "download", f"{package}={version}", cwd=work)
        [deb] = [name for name in os.listdir(work) if name.endswith(".deb")]
        tree = os.path.join(work, "tree")
        run("dpkg-deb", "-x", os.path.join(work, deb), tree)
        shutil.rmtree(os.path.join(tree, "usr/share"), ignore_errors=True)
        os.rename(tree, folder)


def fetch(series, cache, cards=False):
    """The folder of the newest image of SERIES; without a network, of the newest in the cache."""
    pattern = pattern_of(series, cards)
    try:
        images = offered(pattern)
        if not images and os.geteuid() == 0:  # apt's lists may be empty yet
            run("apt-get", "update")
            images = offered(pattern)
    except Unavailable:
        images = []
    images = images or cached(cache, pattern)
    if not images:
        raise Unavailable(f"no image for kernel {series} in the configured package sources")
    package, version = newest(images)
    folder = os.path.join(cache, f"{package}_{version}")
    if not os.path.isdir(folder):
        download(package, version, cache, folder)
    return folder
