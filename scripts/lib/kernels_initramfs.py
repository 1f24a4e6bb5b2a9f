# SPDX-License-Identifier: BSD-2-Clause
"""The guest's file system: an uncompressed cpio archive that the kernel unpacks into memory.

Written here and not by cpio(1), so that it needs neither root nor a folder with all files in it.
"""

import lzma
import os
import re
import shutil
import stat
import subprocess

BUSYBOX = "busybox"


class Problem(Exception):
    """The guest cannot be put together; the text says why."""


class Archive:
    """A cpio archive in the "newc" format. Folders are added with what lies in them."""

    def __init__(self, file):
        self.file = file
        self.inode = 0
        self.names = set()

    def _entry(self, name, mode, data):
        self.inode += 1
        raw = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        self._write_padded(header + raw)
        self._write_padded(data)

    def _write_padded(self, data):
        self.file.write(data + b"\0" * (-len(data) % 4))

    def add_folder(self, name):
        name = name.strip("/")
        if not name or name in self.names:
            return
        self.add_folder(os.path.dirname(name))
        self.names.add(name)
        self._entry(name, stat.S_IFDIR | 0o755, b"")

    def add(self, name, data, mode=0o644):
        name = name.strip("/")
        if name in self.names:
            return
        self.add_folder(os.path.dirname(name))
        self.names.add(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def add_link(self, name, target):
        self.add_folder(os.path.dirname(name))
        self._entry(name.strip("/"), stat.S_IFLNK | 0o777, target.encode())

    def add_console(self):
        """What /init has for output before it mounts anything."""
        self.add_folder("dev")
        self.inode += 1
        raw = b"dev/console\0"
        fields = (self.inode, stat.S_IFCHR | 0o600, 0, 0, 1, 0, 0, 0, 0, 5, 1, len(raw), 0)
        self._write_padded(b"070701" + b"".join(b"%08X" % field for field in fields) + raw)

    def finish(self):
        self._entry("TRAILER!!!", 0, b"")


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Problem(f"{path}: {error.strerror}") from error


def parse_ldd(text):
    """Paths of `ldd`'s output; a library that is not found is a Problem."""
    missing = re.findall(r"(\S+) => not found", text)
    if missing:
        raise Problem(f"library not found: {', '.join(missing)}")
    return re.findall(r"(/\S+) \(0x", text)


def libraries(program):
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return parse_ldd(done.stdout)  # of a static program: "not a dynamic executable", none


def add_program(archive, path, name):
    archive.add(name, read(path), 0o755)
    for library in libraries(path):
        archive.add(library, read(library), 0o755)


# --- modules ---


def release_of(folder):
    """Where the modules of an unpacked package are, and the image."""
    for base in ("lib/modules", "usr/lib/modules"):
        top = os.path.join(folder, base)
        if os.path.isdir(top) and os.listdir(top):
            [release] = os.listdir(top)
            image = os.path.join(folder, "boot", f"vmlinuz-{release}")
            if not os.path.exists(image):
                raise Problem(f"no image {image} in the package")
            return release, os.path.join(top, release), image
    raise Problem(f"no modules below {folder}: is it a kernel package?")


def find_modules(folder):
    """Path of each module by its name, as the kernel spells it (with _)."""
    found = {}
    for base, _, files in os.walk(folder):
        for name in files:
            if match := re.fullmatch(r"(.+)\.ko(\.xz|\.zst|\.gz)?", name):
                found[match[1].replace("-", "_")] = os.path.join(base, name)
    return found


def builtin_modules(folder):
    with open(os.path.join(folder, "modules.builtin"), encoding="ascii") as file:
        return {os.path.basename(line.strip())[:-len(".ko")].replace("-", "_") for line in file}


def module_content(path):
    data = read(path)
    if path.endswith(".xz"):
        return lzma.decompress(data)
    if path.endswith((".zst", ".gz")):
        program = "zstd" if path.endswith(".zst") else "gzip"
        if not shutil.which(program):
            raise Problem(f"{program} is missing, which unpacks this kernel's modules")
        return subprocess.run([program, "-dc"], input=data, capture_output=True,
                              check=True).stdout
    return data


def dependencies(content):
    """Of a module: what .modinfo says."""
    match = re.search(rb"(?:^|\0)depends=([^\0]*)\0", content)
    names = match[1].decode().split(",") if match else []
    return [name.replace("-", "_") for name in names if name]


def load_order(wanted, paths, builtin, content=module_content):
    """[(name, content)] in the order of loading, and those wanted that the kernel has not."""
    order, missing = {}, []

    def visit(name):
        if name in order or name in builtin:
            return
        if name not in paths:
            missing.append(name)
            return
        data = content(paths[name])
        for need in dependencies(data):
            visit(need)
        order[name] = data

    for name in wanted:
        visit(name)
    return list(order.items()), missing


def add_modules(archive, folder, wanted):
    """Adds modules and the list that init reads; returns what the kernel has not at all."""
    order, missing = load_order(wanted, find_modules(folder), builtin_modules(folder))
    for name, data in order:
        archive.add(f"culvert/modules/{name}.ko", data)
    archive.add("culvert/modules/order", "".join(f"{name}.ko\n" for name, _ in order).encode())
    return missing


# --- all of it ---

ETC = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def add_base(archive, scripts):
    """Busybox, accounts, and SCRIPTS: path by name.

    The shell is this machine's: busybox's would prefer its own ip and tc to those in PATH.
    """
    busybox = shutil.which(BUSYBOX)
    if not busybox:
        raise Problem("busybox is missing: sudo scripts/deps kernels")
    archive.add_console()
    add_program(archive, busybox, "bin/busybox")
    add_program(archive, os.path.realpath("/bin/sh"), "bin/sh")
    for name, text in ETC.items():
        archive.add(name, text.encode())
    for name, path in scripts.items():
        archive.add(name, read(path), 0o755)


def add_programs(archive, paths):
    """Programs into the folder that is first in the guest's PATH."""
    for path in paths:
        add_program(archive, os.path.realpath(path), f"culvert/bin/{os.path.basename(path)}")
