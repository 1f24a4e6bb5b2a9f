# SPDX-License-Identifier: BSD-2-Clause
"""Kernel images: found by name in the sources that apt has configured, fetched, unpacked, cached.

Nothing is installed. An image in the cache is a folder NAME_VERSION, which holds the package's
files.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

# Not the meta packages (linux-image-6.12-cloud-amd64), -dbg, -unsigned.
IMAGE = r"linux-image-(?P<series>\d+\.\d+)(?:\.\d+|[~-]rc\d+)[^ ]*-cloud-{arch}"
SUPPORTED = ("amd64",)


class Unavailable(Exception):
    """Cannot be tried here; the text says why."""


@dataclass(frozen=True)
class Image:
    package: str
    version: str
    series: str
    origin: str


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


def architecture():
    arch = run("dpkg", "--print-architecture").strip()
    if arch not in SUPPORTED:
        raise Unavailable(f"not supported on {arch}, only on {', '.join(SUPPORTED)}: the guest's "
                          "machine, console and image names are known for these alone")
    return arch


def compare_versions(left, right):
    for relation, answer in (("lt", -1), ("gt", 1)):
        if not subprocess.call(["dpkg", "--compare-versions", left, relation, right]):
            return answer
    return 0


def parse_madison(text, pattern):
    """Images of `apt-cache madison`; a version that two sources have is listed once."""
    images = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        match = pattern.fullmatch(fields[0]) if len(fields) == 3 else None
        if match and fields[2].endswith("Packages"):
            key = (fields[0], fields[1])
            origin = " ".join(fields[2].split()[:2])
            images.setdefault(key, Image(*key, match["series"], origin))
    return list(images.values())


def offered(arch):
    """All images that the configured sources offer, the newest first."""
    pattern = re.compile(IMAGE.format(arch=re.escape(arch)))
    found = run("apt-cache", "search", "--names-only", f"^linux-image-[0-9].*-cloud-{arch}$")
    names = [line.split()[0] for line in found.splitlines() if line.strip()]
    names = [name for name in names if pattern.fullmatch(name)]
    images = parse_madison(run("apt-cache", "madison", *names), pattern) if names else []
    key = functools.cmp_to_key(compare_versions)
    return sorted(images, key=lambda image: key(image.version), reverse=True)


def newest_of_each_series(images):
    """IMAGES must have the newest first, and so has the answer."""
    best = {}
    for image in images:
        best.setdefault(image.series, image)
    return list(best.values())


def follow(name):
    """The image that a meta package (linux-image-6.12-rt-amd64) stands for; others are
    themselves."""
    text = run("apt-cache", "depends", "--important", name)
    match = re.search(r"^ +Depends: (linux-image-\S+)$", text, re.MULTILINE)
    return match[1] if match else name


def resolve(name, images):
    """The newest image of a series, or the package of that name."""
    if name.startswith("linux-image-"):
        fitting = [image for image in images if image.package == name]
        name = name if fitting else follow(name)
        if not fitting:  # other flavours than cloud have names that are not searched for
            fitting = parse_madison(run("apt-cache", "madison", name),
                                    re.compile(rf"(?P<series>{re.escape(name)})"))
    else:
        fitting = [image for image in images if image.series == name]
    if not fitting:
        raise Unavailable(f"no image for kernel {name} in the configured package sources "
                          "(scripts/kernels --list shows what there is)")
    return fitting[0]


def update_lists():
    """What apt knows may be nothing yet, or too old. Without root it stays so."""
    if os.geteuid() == 0:
        run("apt-get", "update")


def cached_folders(cache, series):
    """Folders of images of a series, for when there is no network: the newest first."""
    fitting = []
    for name in os.listdir(cache) if os.path.isdir(cache) else ():
        match = re.fullmatch(IMAGE.format(arch=r"\w+") + r"_(?P<version>.+)", name)
        if match and match["series"] == series:
            fitting.append((match["version"], os.path.join(cache, name)))
    key = functools.cmp_to_key(compare_versions)
    return [path for version, path in sorted(fitting, key=lambda item: key(item[0]), reverse=True)]


def unpack(deb, folder):
    run("dpkg-deb", "-x", deb, folder)
    shutil.rmtree(os.path.join(folder, "usr/share"), ignore_errors=True)


def download(image, cache, folder):
    """Fetches and unpacks; FOLDER appears only once it is complete."""
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as work:
        sandbox = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        run("apt-get", *sandbox, "download", f"{image.package}={image.version}", cwd=work)
        [deb] = [name for name in os.listdir(work) if name.endswith(".deb")]
        unpack(os.path.join(work, deb), os.path.join(work, "tree"))
        os.rename(os.path.join(work, "tree"), folder)


def folder_of_deb(deb, cache):
    """A package file's content, unpacked again if the file has changed."""
    try:
        stamp = os.stat(deb)
    except OSError as error:
        raise Unavailable(f"{deb}: {error.strerror}") from error
    folder = os.path.join(cache, f"file-{stamp.st_ino}-{stamp.st_mtime_ns}-{stamp.st_size}")
    if not os.path.isdir(folder):
        os.makedirs(cache, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="tmp-") as work:
            unpack(deb, os.path.join(work, "tree"))
            os.rename(os.path.join(work, "tree"), folder)
    return folder


def fetch(name, cache):
    """Folder of the kernel NAME, and where it came from as text."""
    if name.endswith(".deb"):
        return folder_of_deb(name, cache), name
    arch = architecture()
    try:
        return fetch_newest(name, cache, arch)
    except Unavailable as error:
        kept = cached_folders(cache, name)
        if not kept:
            raise
        return kept[0], f"{os.path.basename(kept[0])}, of the cache, because {error}"


def fetch_newest(name, cache, arch):
    for attempt in ("with what apt knows", "with new lists"):
        try:
            image = resolve(name, offered(arch))
            folder = os.path.join(cache, f"{image.package}_{image.version}")
            text = f"{image.package} {image.version}, {image.origin}"
            if os.path.isdir(folder):
                return folder, f"{text} (cached)"
            download(image, cache, folder)
            return folder, text
        except Unavailable:
            if attempt == "with new lists" or os.geteuid() != 0:
                raise
            update_lists()
    raise AssertionError("not reached")
