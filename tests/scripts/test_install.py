# SPDX-License-Identifier: BSD-2-Clause
"""make install puts each file where it belongs, and make uninstall takes all of them away."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIX = "opt/culvert-test"  # below the top
FILES = {"sbin/culvert": 0o755, **dict.fromkeys((
    "lib/systemd/system/culvert.service",
    "lib/systemd/system/culvert-standby@.service",
    "share/man/man8/culvert.8",
    "share/man/man5/culvert.conf.5",
    "share/doc/culvert/LICENSE",
    *(f"share/doc/culvert/{name}.md" for name in
      ("CHANGELOG", "comparison", "control", "operations", "security")),
    *(f"share/doc/culvert/examples/{name}" for name in
      ("culvert.conf", "culvert.logrotate", "culvert.socket", "culvert-alerts.yml",
       "grafana-dashboard.json", "keepalived.conf", "bird-relay.conf", "bird-router.conf",
       "culvert-announce", "culvert-announce.service", "culvert-reflect.service",
       "culvert-redis.sh")),
    "share/bash-completion/completions/culvert",
    "share/zsh/site-functions/_culvert",
    "share/fish/vendor_completions.d/culvert.fish"), 0o644)}

# what `culvert forwards` prints, of the daemon at /s or the default one
DAEMON = """#!/bin/sh
[ "$*" = forwards ] || [ "$*" = "forwards --control /s" ] || exit 4
cat <<'END'
NAME   LISTEN  UPSTREAM                 ENGINE
web    :80     10.0.0.1:80 10.0.0.2:80  auto
:9000  :9000   10.0.0.3:80              auto

NAME   SERVER       STATE
web    10.0.0.1:80  up
web    10.0.0.2:80  up
:9000  10.0.0.3:80  up
END
"""
COMPLETE = """. "$1"
COMP_LINE=$2 COMP_POINT=${#2}
read -ra COMP_WORDS <<<"$2"
[[ $2 != *' ' ]] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_culvert
printf '%s\\n' "${COMPREPLY[@]}"
"""


def make(target, destdir):
    environment = {name: value for name, value in os.environ.items() if name not in
                   ("MAKEFLAGS", "MFLAGS", "DESTDIR", "PREFIX")}
    subprocess.run(["make", "-s", target, f"PREFIX=/{PREFIX}", f"DESTDIR={destdir}"], cwd=ROOT,
                   env=environment, check=True, stdout=subprocess.DEVNULL)


def files_below(folder):
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o7777
            for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def top(tmp_path, request):
    """The folder of an installation under an umask that hides files: root's may be such."""
    umask = os.umask(0o077)
    request.addfinalizer(lambda: os.umask(umask))
    make("install", tmp_path)
    return tmp_path


def test_files(top):
    assert files_below(top / PREFIX) == FILES
    assert set(files_below(top)) == {f"{PREFIX}/{name}" for name in FILES}


def test_paths(top):
    """What names other installed files names them where they are."""
    unit = (top / PREFIX / "lib/systemd/system/culvert.service").read_text(encoding="utf-8")
    assert f"ExecStart=/{PREFIX}/sbin/culvert run" in unit
    for page in ("man8/culvert.8", "man5/culvert.conf.5"):
        text = (top / PREFIX / "share/man" / page).read_text(encoding="utf-8")
        assert f"/{PREFIX}/share/doc/culvert/" in text and "/usr/local" not in text


def test_links(top):
    """Each link in a document leads to what is installed as well, or out of here."""
    docs = top / PREFIX / "share/doc/culvert"
    links = {(path.name, target) for path in docs.glob("*.md") for target in
             re.findall(r"\]\(([^)\s#]+)", path.read_text(encoding="utf-8"))}
    assert ("operations.md", "comparison.md") in links
    dead = {(name, target) for name, target in links
            if "://" not in target and not (docs / target).exists()}
    assert dead == set()
    comparison = (docs / "comparison.md").read_text(encoding="utf-8")
    assert "| splice(2) | yes | `option splice-auto`" in comparison
    assert "without a start | yes, by `check` | `-c` |" in comparison
    assert "][" not in comparison and "]: " not in comparison


def test_bash_completion(top):
    """Each word at its place; names of forwards and servers are those of the daemon."""
    (top / "culvert").write_text(DAEMON, encoding="utf-8")
    (top / "culvert").chmod(0o755)
    for line, due in (("sess", "sessions"), ("engine ", "web :9000"), ("engine w", "web"),
                      ("engine web ", "auto sockmap splice copy graft default"),
                      ("engine web auto ", "--forward --engine --json --control --config --help"),
                      ("upstream web ", "10.0.0.1:80 10.0.0.2:80"),
                      ("upstream web 10.0.0.1:8", "80"),
                      ("upstream --control /s web 10.0.0.1:80 ", "ready drain down weight as-configured add remove"),
                      ("upstream --json web 10.0.0.1:80 d", "drain down"),
                      ("drain :9", "9000"), ("kill --forward ", "web :9000"),
                      ("run --engine s", "sockmap splice"), ("log-level d", "debug")):
        done = subprocess.run(
            ["bash", "-c", COMPLETE, "bash",
             top / PREFIX / "share/bash-completion/completions/culvert", f"culvert {line}"],
            env={**os.environ, "PATH": f"{top}:{os.environ['PATH']}"}, check=True,
            capture_output=True, text=True)
        assert done.stdout.split() == due.split(), f"{line}: {done.stderr}"


def test_uninstall(top):
    foreign = top / PREFIX / "share/doc/culvert/examples/mine"
    foreign.write_text("", encoding="utf-8")
    make("uninstall", top)
    assert list(files_below(top)) == [str(foreign.relative_to(top))]
    foreign.unlink()
    make("install", top)
    make("uninstall", top)
    assert files_below(top) == {}
    assert not (top / PREFIX / "share/doc/culvert").exists()
