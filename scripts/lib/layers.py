#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Usage: layers.py [ROOT]   checks the quoted includes of user/ and bpf/

A module is a .c with its .h. No module includes itself by way of others. A folder of user/ includes
only itself and those before it in FOLDERS. Inside a folder a module includes only modules on lower
lines of the block of its README.md that begins with ```order: on each line names, then, if you
like, two spaces and text.
"""

import collections
import re
import sys
from pathlib import Path

FOLDERS = "base config datapath probe relay daemon cli".split()
ORDERED = {"config", "datapath", "relay", "daemon"}  # these must have an order
END = re.compile(r"(\.bpf)?\.[ch]$")


def modules(root):
    """The modules that each module includes, with the file that does."""
    found = collections.defaultdict(dict)
    for path in sorted([*root.glob("user/**/*.[ch]"), *root.glob("bpf/*.[ch]")]):
        module = END.sub("", str(path.relative_to(root)))
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            for header in (path.parent / name, root / "user" / name):
                if header.is_file():
                    found[module][END.sub("", str(header.relative_to(root)))] = path.name
        found[module].pop(module, None)
    return dict(found)


def circles(includes):
    """The shortest ways on which modules include themselves, none of which meets another."""
    told = set()
    for start in includes:
        ways, seen = [[start]], set()
        for way in ways:  # grows meanwhile
            for other in includes[way[-1]]:
                if other not in seen:
                    seen.add(other)
                    ways.append([*way, other])
        way = next((way for way in ways[1:] if way[-1] == start), [])
        if way and told.isdisjoint(way):
            told.update(way)
            yield way


def levels(readme):
    """Module -> line number, and the names that are there twice."""
    block = re.search(r"^```order\n(.*?)^```$", readme, re.M | re.S)
    lines = [re.split(r"^ |  |$", line)[0] for line in block[1].splitlines()] if block else []
    names = [(name, at) for at, line in enumerate(lines) for name in re.findall(r"[^\s,]+", line)]
    times = collections.Counter(name for name, _ in names)
    return dict(names), [name for name in times if times[name] > 1]


def wrong_order(root, folder, includes):
    """The contradictions to the README of FOLDER."""
    readme = folder / "README.md"
    level, twice = levels(readme.read_text() if readme.is_file() else "")
    where = f"{readme.relative_to(root)}: "
    inside = {module.rsplit("/", 1)[1]: module for module in includes
              if (root / module).parent == folder}
    if not level:
        return [where + "no ```order"] if folder.name in ORDERED else []
    return [f"{where}{name} is there twice" for name in twice] + \
           [f"{where}{name} is missing" for name in inside if name not in level] + \
           [f"{where}there is no module {name}" for name in level if name not in inside] + \
           [f"{where}{name} is not above {other}, which {file} includes"
            for name, module in inside.items() for other in inside
            if (file := includes[module].get(inside[other]))
            and level.get(name, 0) >= level.get(other, sys.maxsize)]


def upward(includes):
    """Includes of a higher folder; a folder that is not in FOLDERS is above all."""
    def height(module):
        folder = module.split("/")[1]
        return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)

    return [f"{module.rsplit('/', 1)[0]}/{file} includes {other}, which stands higher"
            for module, others in includes.items() if module.split("/")[1] in FOLDERS
            for other, file in others.items() if height(other) > height(module)]


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    includes = modules(root)
    mistakes = upward(includes)
    mistakes += ["a circle: " + " -> ".join(way) for way in circles(includes)]
    for folder in sorted({(root / module).parent for module in includes}):
        mistakes += wrong_order(root, folder, includes)
    print("\n".join(mistakes) or "every include points down")
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main())
