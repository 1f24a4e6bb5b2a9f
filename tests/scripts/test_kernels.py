# SPDX-License-Identifier: BSD-2-Clause
"""Tests of scripts/kernels, without an emulator: what is fetched, packed, and read from a guest."""

import io
import os
import re
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "scripts/lib"))

import kernels_initramfs as initramfs  # noqa: E402
import kernels_packages as packages  # noqa: E402
import kernels_plan as plans  # noqa: E402
import kernels_results as results  # noqa: E402
import kernels_table as table  # noqa: E402
from kernels_guest import Outcome, current_step  # noqa: E402

PATTERN = re.compile(packages.IMAGE.format(arch="amd64"))
MADISON = """\
linux-image-6.1.0-56-cloud-amd64 | 6.1.192-2 | http://deb/security suite/main amd64 Packages
linux-image-6.1.0-56-cloud-amd64 | 6.1.192-2 | http://deb/debian suite/main amd64 Packages
linux-image-6.1.0-9-cloud-amd64 |  6.1.27-1 | http://deb/debian suite/main amd64 Packages
linux-image-6.12.117+deb12-cloud-amd64 | 6.12.117-1~deb12u1 | http://deb x/main amd64 Packages
linux-signed-amd64 | 6.1.192+2 | http://deb/security suite/main Sources
"""
CMOCKA = """\
[==========] Running 3 test(s).
[ RUN      ] t1_has_no_bound
T1: present: sent 5 bytes
[       OK ] t1_has_no_bound
[ RUN      ] t2_is_refused
T15: skipped: no kTLS in this kernel
[  SKIPPED ] t2_is_refused
[ RUN      ] t3_breaks
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- test.c:3: error: Failure!
[  FAILED  ] t3_breaks
[==========] 3 test(s) run.
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] t3_breaks
"""


def guest_text(*steps, verdict="ok 0"):
    """Text of a guest: (name, output, code), code None for a step that did not end."""
    text = "@@ boot 6.1.0\n"
    for name, output, code in steps:
        text += f"@@ begin {name}\n{output}"
        text += "" if code is None else f"\n@@ end {name} {code}\n"
    return text + (f"@@ verdict {verdict}\n" if verdict else "")


def outcome(text, console="", in_time=True):
    return Outcome("6.1.0", text, console, 5.0, in_time, 60, [])


def states(rows):
    return {row.name: row.state for row in rows}


class Packages(unittest.TestCase):
    def test_names_of_images(self):
        for name, series in (("linux-image-6.1.0-56-cloud-amd64", "6.1"),
                             ("linux-image-6.12.117+deb12-cloud-amd64", "6.12"),
                             ("linux-image-7.0~rc3-cloud-amd64", "7.0")):
            self.assertEqual(PATTERN.fullmatch(name)["series"], series)

    def test_names_of_others(self):
        for name in ("linux-image-cloud-amd64", "linux-image-6.12-cloud-amd64",
                     "linux-image-6.1.0-56-cloud-amd64-dbg", "linux-image-6.1.0-56-amd64",
                     "linux-image-6.1.0-56-cloud-amd64-unsigned",
                     "linux-image-6.1.0-56-cloud-arm64"):
            self.assertIsNone(PATTERN.fullmatch(name), name)

    def test_madison(self):
        images = packages.parse_madison(MADISON, PATTERN)
        self.assertEqual([(image.series, image.version) for image in images],
                         [("6.1", "6.1.192-2"), ("6.1", "6.1.27-1"),
                          ("6.12", "6.12.117-1~deb12u1")])

    def test_newest(self):
        images = packages.parse_madison(MADISON, PATTERN)
        self.assertEqual(packages.resolve("6.1", images).version, "6.1.192-2")
        self.assertEqual(packages.resolve("linux-image-6.1.0-9-cloud-amd64", images).version,
                         "6.1.27-1")
        with self.assertRaisesRegex(packages.Unavailable, "no image for kernel 5.4"):
            packages.resolve("5.4", images)

    def test_versions_are_compared_as_debian_does(self):
        self.assertEqual(packages.compare_versions("6.1.9-1", "6.1.10-1"), -1)
        self.assertEqual(packages.compare_versions("6.12.1-1", "6.12.1-1~deb12u1"), 1)
        self.assertEqual(packages.compare_versions("6.1-1", "6.1-1"), 0)

    def test_cache_without_network(self):
        with tempfile.TemporaryDirectory() as cache:
            for name in ("linux-image-6.1.0-9-cloud-amd64_6.1.9-1", "tmp-x",
                         "linux-image-6.1.0-10-cloud-amd64_6.1.10-1",
                         "linux-image-6.12.1+deb12-cloud-amd64_6.12.1-1"):
                os.mkdir(os.path.join(cache, name))
            found = packages.cached_folders(cache, "6.1")
        self.assertEqual([os.path.basename(path).partition("_")[2] for path in found],
                         ["6.1.10-1", "6.1.9-1"])
        self.assertEqual(packages.cached_folders("/does/not/exist", "6.1"), [])


class Initramfs(unittest.TestCase):
    def test_archive_can_be_unpacked(self):
        file = io.BytesIO()
        archive = initramfs.Archive(file)
        archive.add("a/b/one", b"odd")
        archive.add("a/b/program", b"\x7fELF" * 100, 0o755)
        archive.add("a/b/one", b"a second time")
        archive.add_link("a/link", "b/one")
        archive.finish()
        with tempfile.TemporaryDirectory() as folder:
            busybox = initramfs.shutil.which("busybox") or self.skipTest("no busybox")
            subprocess.run([busybox, "cpio", "-i"], input=file.getvalue(), cwd=folder, check=True,
                           capture_output=True)
            with open(os.path.join(folder, "a/link"), "rb") as one:
                self.assertEqual(one.read(), b"odd")
            self.assertTrue(os.access(os.path.join(folder, "a/b/program"), os.X_OK))

    def test_entries_are_aligned(self):
        file = io.BytesIO()
        archive = initramfs.Archive(file)
        for size in range(9):
            archive.add("x" * (size + 1), b"y" * size)
            self.assertEqual(file.tell() % 4, 0)

    def test_order_of_modules(self):
        content = {"veth": b"\0depends=\0", "cls_bpf": b"\0depends=lib-a,lib_b\0",
                   "lib_a": b"x\0depends=lib_b\0", "lib_b": b"name=lib_b\0"}
        order, missing = initramfs.load_order(["cls_bpf", "unix", "veth", "tls"],
                                              {name: name for name in content}, {"unix"},
                                              content.get)
        self.assertEqual([name for name, _ in order], ["lib_b", "lib_a", "cls_bpf", "veth"])
        self.assertEqual(missing, ["tls"])

    def test_ldd(self):
        self.assertEqual(initramfs.parse_ldd("\tlinux-vdso.so.1 (0x1)\n"
                                             "\tliba.so => /lib/liba.so (0x2)\n"
                                             "\t/lib64/ld.so (0x3)\n"),
                         ["/lib/liba.so", "/lib64/ld.so"])
        self.assertEqual(initramfs.parse_ldd("\tnot a dynamic executable\n"), [])
        with self.assertRaisesRegex(initramfs.Problem, "libx.so"):
            initramfs.parse_ldd("\tlibx.so => not found\n")


class Results(unittest.TestCase):
    def test_cmocka(self):
        rows = results.behaviours(guest_text(("kernel/a", CMOCKA, 1)), ["kernel/a"])
        self.assertEqual(states(rows), {"kernel/a/t1_has_no_bound": "ok",
                                        "kernel/a/t2_is_refused": "skipped",
                                        "kernel/a/t3_breaks": "failed"})
        self.assertEqual([row.detail for row in rows][:2],
                         ["present: sent 5 bytes", "no kTLS in this kernel"])
        self.assertIn("0x1 != 0x2", rows[2].detail)

    def test_program_that_dies_within_a_test(self):
        text = "[==========] Running 2 test(s).\n[ RUN      ] one\n[       OK ] one\n" \
               "[ RUN      ] two\n"
        rows = results.behaviours(guest_text(("kernel/a", text, 142)), ["kernel/a"])
        self.assertEqual(states(rows), {"kernel/a/one": "ok", "kernel/a/two": "failed"})
        self.assertIn("exit code 142", rows[1].detail)

    def test_lost_results_are_a_failure(self):
        text = "[==========] Running 2 test(s).\n[ RUN      ] one\n[       OK ] one\n"
        rows = results.behaviours(guest_text(("kernel/a", text, 0)), ["kernel/a"])
        self.assertEqual(states(rows)["kernel/a"], "failed")
        rows = results.behaviours(guest_text(("kernel/a", "", 0)), ["kernel/a"])
        self.assertEqual(states(rows), {"kernel/a": "failed"})

    def test_step_that_was_not_reached(self):
        rows = results.behaviours(guest_text(("probe", "", None), verdict=None),
                                  ["probe", "veth/auto"])
        self.assertEqual(states(rows), {"probe": "failed", "veth/auto": "failed"})

    def test_probe(self):
        text = '{"usable":false,"checks":[{"name":"load","ok":true,"detail":"a"},' \
               '{"name":"fence","ok":false,"detail":"b"},{"name":"leave","ok":null,"detail":"c"}]}'
        rows = results.behaviours(guest_text(("probe", text, 3)), ["probe"])
        self.assertEqual(states(rows), {"probe/load": "ok", "probe/fence": "failed",
                                        "probe/leave": "skipped"})
        self.assertEqual(states(results.behaviours(guest_text(("probe", "", 127)), ["probe"])),
                         {"probe": "failed"})

    def test_traffic_must_have_been_carried_by_the_kernel(self):
        def veth(carrier, name="veth/sockmap"):
            text = '{"workload":"rr","bytes":4096}\n{"carriers":[{"carrier":"%s","bytes":9000}]}' \
                % carrier
            return results.behaviours(guest_text((name, text, 0)), [name])[0]

        self.assertEqual(veth("sockmap").state, "ok")
        self.assertEqual(veth("copy").state, "failed")
        self.assertEqual(veth("copy", "veth/auto").state, "ok")

    def test_torture_must_have_entered_the_kernel(self):
        def torture(entered, code=0):
            text = '{"seed":1,"sessions":2,"bytes":3,"wrong":0,"reset_by_daemon":0,"stops":0,' \
                '"handovers":{"to_sockmap":%d}}' % entered
            return results.behaviours(guest_text(("torture/sockmap", text, code)),
                                      ["torture/sockmap"])[0]

        self.assertEqual(torture(5).state, "ok")
        self.assertEqual(torture(0).state, "failed")
        self.assertEqual(torture(5, 1).state, "failed")
        self.assertIn("seed 1", torture(5, 1).detail)

    def test_torture_that_the_daemon_refuses_is_a_failure(self):
        text = "skip torture: engine sockmap: cannot be used\n"
        rows = results.behaviours(guest_text(("torture/sockmap", text, 77)), ["torture/sockmap"])
        self.assertEqual((rows[0].state, rows[0].detail),
                         ("failed", "skip torture: engine sockmap: cannot be used"))

    def test_flow_cases(self):
        text = "ok   auto     half-close    10 ms\nFAIL copy     refused    1 ms: late\n"
        rows = results.behaviours(guest_text(("cases", text, 1)), ["cases"])
        self.assertEqual(states(rows), {"cases/auto/half-close": "ok",
                                        "cases/copy/refused": "failed"})

    def test_step_that_skips(self):
        rows = results.behaviours(guest_text(("veth/auto", "skipped: no veth here\n", 77)),
                                  ["veth/auto"])
        self.assertEqual((rows[0].state, rows[0].detail), ("skipped", "no veth here"))


class Verdict(unittest.TestCase):
    GOOD = guest_text(("log", "no complaint\n", 0))

    def verdict(self, *arguments, **options):
        return results.rows_of(outcome(*arguments, **options), ["log"])[0]

    def test_good(self):
        self.assertEqual(self.verdict(self.GOOD).state, "ok")

    def test_panic_counts_even_with_a_verdict(self):
        row = self.verdict(self.GOOD, "Kernel panic - not syncing: panic_on_warn set ...\n")
        self.assertEqual(row.state, "failed")
        self.assertIn("panic_on_warn", row.detail)

    def test_hang(self):
        row = self.verdict(guest_text(("log", "", None), verdict=None), in_time=False)
        self.assertEqual(row.state, "failed")
        self.assertRegex(row.detail, "no verdict within 60 s; it was at log")

    def test_silence(self):
        row = self.verdict("", "reboot: Power down\n")
        self.assertEqual((row.state, row.detail),
                         ("failed", "the guest ended without a verdict: reboot: Power down"))

    def test_verdict_that_no_result_explains(self):
        row = self.verdict(guest_text(("log", "", 0), verdict="failed 1"))
        self.assertEqual(row.state, "failed")

    def test_current_step(self):
        self.assertEqual(current_step(""), "boot")
        self.assertEqual(current_step("@@ begin a\n@@ end a 0\n@@ begin b\n"), "b")


class Table(unittest.TestCase):
    COLUMNS = [("6.1", [results.Behaviour("a", "ok", "present: 5 | 6"),
                        results.Behaviour("b", "ok", "x"), results.Behaviour("c", "ok", "y")]),
               ("6.12", [results.Behaviour("a", "ok", "fixed"),
                         results.Behaviour("b", "failed", "z"), results.Behaviour("c", "ok")])]

    def test_terminal(self):
        lines = table.terminal(self.COLUMNS).splitlines()
        self.assertEqual([line.split() for line in lines[1:]],
                         [["a", "ok:", "present", "ok:", "fixed"], ["b", "ok", "FAILED"],
                          ["c", "ok", "ok"]])

    def test_markdown(self):
        self.assertEqual(table.markdown(self.COLUMNS, brief=True).splitlines()[2:],
                         ["| `a` | ok: present: 5 \\| 6 | ok: fixed |",
                          "| `b` | ok: x | **FAILED**: z |", "| `c` | ok | ok |"])


class Plan(unittest.TestCase):
    def test_lines_can_be_read_by_the_shell(self):
        lines = plans.render([plans.Step("a/b", 5, "run it now")])
        self.assertEqual(lines, "a/b 5 run it now\n")

    def test_each_breakage_has_a_step_or_leaves_something_out(self):
        for kind, breakage in plans.BREAKAGES.items():
            self.assertTrue(plans.broken_step(kind) or breakage.left_out, kind)


if __name__ == "__main__":
    unittest.main()
