#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Folding, the layout of flame graphs, time off CPU, and what the tools print."""

import os
import sys
import unittest
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../scripts/lib"))

# pylint: disable=wrong-import-position
import flame
import profile_components
import profile_heap
import profile_offcpu
import profile_perf
import profile_window
from flame import BPF, KERNEL, USER, Frame

SCRIPT = """\
culvert 41/42 [001]   627.652844: cpu-clock:ppp: 
\tffffffff815f2d5c tcp_sendmsg ([kernel.kallsyms])
\tffffffff821ef691 do_syscall_64 ([kernel.kallsyms])
\t           20ca3 send (/usr/lib/x86_64-linux-gnu/libc.so.6)
\t    7f953e1818a8 [unknown] ([unknown])
\t               0 [unknown] ([unknown])

nginx: worker  7/7     [000]   627.653847: cpu-clock:ppp: 
\tffffffffc00268cb bpf_prog_734af7bb38d48f2f_culvert_verdict (bpf_prog_734af7bb38d48f2f_culvert_\
verdict)
\tffffffffc0261234 nf_hook+0x12 ([nf_tables])
\t           b1c2d main (/opt/a dir/nginx (deleted))

perf 50/50 [001]   627.700000: sched:sched_waking: comm=culvert pid=42 prio=120 target_cpu=001 \
ffffffff813aa9c4 try_to_wake_up ([kernel.kallsyms])
"""


def samples(text):
    return list(flame.PerfScript().samples(text.splitlines(keepends=True)))


def stack(*names):
    return tuple(Frame(name, USER, "a") for name in names)


class Reading(unittest.TestCase):
    def test_headers(self):
        first, second, third = samples(SCRIPT)
        self.assertEqual((first.comm, first.pid, first.tid, first.cpu, first.time, first.event),
                         ("culvert", 41, 42, 1, 627.652844, "cpu-clock"))
        self.assertEqual((second.comm, second.pid), ("nginx: worker", 7))
        self.assertEqual(third.event, "sched:sched_waking")
        self.assertTrue(third.trace.startswith("comm=culvert pid=42"))
        self.assertEqual(third.stack, ())

    def test_stacks_are_outermost_first_and_unknown_neighbours_are_one(self):
        first = samples(SCRIPT)[0]
        self.assertEqual([frame.name for frame in first.stack],
                         ["[unknown]", "send", "do_syscall_64", "tcp_sendmsg"])
        self.assertEqual(first.stack[1], Frame("send", USER, "libc.so.6"))
        self.assertEqual(first.stack[3].place, KERNEL)

    def test_bpf_and_modules_and_odd_file_names(self):
        frames = samples(SCRIPT)[1].stack
        self.assertEqual(frames[2], Frame("bpf_prog_culvert_verdict", BPF, "bpf"))
        self.assertEqual(frames[1], Frame("nf_hook", KERNEL, "kernel"))
        self.assertEqual(frames[0].name, "main")

    def test_nothing(self):
        self.assertEqual(samples(""), [])


class Folding(unittest.TestCase):
    def test_equal_stacks_are_summed(self):
        folded = flame.fold([(stack("a", "b"), 1), (stack("a"), 2), (stack("a", "b"), 3)])
        self.assertEqual(dict(folded), {stack("a", "b"): 4, stack("a"): 2})

    def test_lines(self):
        folded = {(Frame("x;y", USER, "a"), Frame("k", KERNEL, "kernel"),
                   Frame("p", BPF, "bpf")): 2.6}
        self.assertEqual(flame.folded_lines(folded), ["x:y;k_[k];p_[b] 3"])


class Layout(unittest.TestCase):
    FOLDED = {stack("m", "b"): 3, stack("m", "a"): 5, stack("m"): 2, stack("z"): 10}

    def boxes(self, least=0.0):
        return {box.frame.name: box
                for box in flame.layout(flame.build_tree(self.FOLDED), least)}

    def test_weights(self):
        boxes = self.boxes()
        self.assertEqual((boxes["all"].weight, boxes["all"].own, boxes["all"].depth), (20, 0, 0))
        self.assertEqual((boxes["m"].weight, boxes["m"].own, boxes["m"].depth), (10, 2, 1))

    def test_callees_lie_side_by_side_within_their_caller(self):
        boxes = self.boxes()
        self.assertEqual([(boxes[name].start, boxes[name].weight) for name in ("m", "z", "a", "b")],
                         [(0, 10), (10, 10), (0, 5), (5, 3)])

    def test_no_two_boxes_of_a_depth_overlap(self):
        folded = {stack(*(letters)): weight for weight, letters in
                  enumerate(("abc", "abd", "ab", "acd", "bcd", "b", "cabc"), start=1)}
        rows = {}
        for box in flame.layout(flame.build_tree(folded)):
            rows.setdefault(box.depth, []).append((box.start, box.start + box.weight))
        for row in rows.values():
            row.sort()
            for (_, end), (start, _) in zip(row, row[1:]):
                self.assertLessEqual(end, start)

    def test_small_frames_are_left_out_and_the_others_stay(self):
        boxes = self.boxes(least=0.2)
        self.assertNotIn("b", boxes)
        self.assertEqual(boxes["a"].start, 0)
        self.assertEqual(boxes["z"].start, 10)

    def test_recursion_is_no_loop(self):
        boxes = flame.layout(flame.build_tree({stack("a", "a", "a"): 1}))
        self.assertEqual(sorted(box.depth for box in boxes), [0, 1, 2, 3])

    def test_legend_breaks_rows(self):
        places = flame.legend_places(["x" * 60] * 4)
        self.assertEqual([row for _, _, row in places], [0, 0, 1, 1])
        for name, x, _ in places:
            self.assertLess(x + flame.CHARACTER * len(name), flame.WIDTH)


class Svg(unittest.TestCase):
    def test_is_well_formed_and_names_are_escaped(self):
        text = flame.render_svg({stack("operator<", 'a"b&c'): 4}, "<title>")
        root = xml.etree.ElementTree.fromstring(text)
        names = {group.get("data-n") for group in root.iter() if group.get("class") == "f"}
        self.assertEqual(names, {"all", "operator<", 'a"b&c'})
        self.assertNotIn("http://", text.replace("http://www.w3.org/2000/svg", ""))

    def test_nothing_recorded(self):
        self.assertIn("nothing was recorded", flame.render_svg({}, "t"))

    def test_shares(self):
        text = flame.render_svg({stack("a"): 1, stack("b"): 3}, "t")
        self.assertIn("b (3 samples, 75.00%; itself 3 samples, 75.00%)", text)


class Components(unittest.TestCase):
    @staticmethod
    def of(*names):
        return profile_components.component_of_stack(
            tuple(Frame(name, KERNEL, "kernel") for name in names))

    def test_innermost_known_function_counts(self):
        self.assertEqual(self.of("tcp_sendmsg", "_copy_from_iter"), "copying payload")
        self.assertEqual(self.of("do_epoll_wait", "_raw_spin_unlock_irq"), "epoll")
        self.assertEqual(self.of("sk_psock_verdict_recv", "ep_poll_callback", "try_to_wake_up"),
                         "scheduler and wake-ups")
        self.assertEqual(self.of("finish_task_switch.isra.0"), "scheduler and wake-ups")
        self.assertEqual(self.of("no_such_function"), profile_components.KERNEL_OTHER)
        self.assertEqual(self.of(), profile_components.KERNEL_OTHER)

    def test_user_and_bpf(self):
        kernel = Frame("do_syscall_64", KERNEL, "kernel")
        self.assertEqual(profile_components.component_of_stack((kernel, *stack("main"))),
                         profile_components.USER_CODE)
        self.assertEqual(profile_components.component_of_stack((Frame("bpf_prog_x", BPF, "bpf"),)),
                         "verdict program (BPF)")

    def test_each_component_has_a_colour(self):
        for frame in (Frame("tcp_ack", KERNEL, ""), Frame("?", KERNEL, ""), Frame("m", USER, ""),
                      Frame("do_idle", KERNEL, ""), profile_components.named("client")):
            self.assertIn(profile_components.colour_class(frame), profile_components.COLOURS)

    def test_top_symbols(self):
        lock = Frame("_raw_spin_lock", KERNEL, "kernel")
        caller = Frame("tcp_ack", KERNEL, "kernel")
        found = profile_components.top_symbols({(caller, lock): 3, (caller, caller): 2}, 5)
        self.assertEqual([(name, own, inclusive) for name, _, own, inclusive in found],
                         [("_raw_spin_lock < tcp_ack", 3, 3), ("tcp_ack", 2, 5)])

    def test_paths_count_a_sample_once(self):
        sending = Frame("tcp_sendmsg", KERNEL, "kernel")
        self.assertEqual(profile_components.path_shares({(sending, sending): 1, stack("a"): 3}, 4),
                         [("sending (tcp_sendmsg)", 0.25)])


def switch(time, prev, state, next_, pid=None):
    return flame.Sample("c", pid if pid is not None else prev, prev, 0, time, "sched:sched_switch",
                        f"prev_comm=a b prev_pid={prev} prev_prio=120 prev_state={state} ==> "
                        f"next_comm=c d next_pid={next_} next_prio=120", stack("wait"))


def waking(time, waker, woken):
    return flame.Sample("c", waker, waker, 0, time, "sched:sched_waking",
                        f"comm=a b pid={woken} prio=120 target_cpu=000", ())


def off(*events):
    waits = profile_offcpu.OffCpu()
    for event in events:
        waits.add(event)
    waits.finish()
    return waits


class OffCpu(unittest.TestCase):
    def parts(self, *events):
        return [tuple(round(part, 6) for part in profile_offcpu.parts(interval))
                for interval in off(*events).intervals]

    def test_sleep_ends_with_the_wake_up(self):
        self.assertEqual(self.parts(switch(1, 5, "S", 0), waking(3, 9, 5), switch(3.5, 0, "R", 5)),
                         [(2, 0.5)])

    def test_preempted_is_never_asleep(self):
        self.assertEqual(self.parts(switch(1, 5, "R+", 0), switch(3, 0, "R", 5)), [(0, 2)])

    def test_only_the_first_wake_up_counts(self):
        self.assertEqual(self.parts(switch(1, 5, "S", 0), waking(2, 9, 5), waking(3, 9, 5),
                                    switch(4, 0, "R", 5)), [(1, 2)])

    def test_open_intervals_end_with_the_recording(self):
        self.assertEqual(self.parts(switch(1, 5, "D", 0), waking(2, 9, 77)), [(1, 0)])

    def test_idle_is_no_thread(self):
        self.assertEqual(self.parts(switch(1, 0, "R", 0), switch(2, 0, "R", 0)), [])

    def test_counts(self):
        waits = off(switch(1, 5, "S", 6, pid=4), switch(2, 6, "R", 5), waking(2.5, 6, 5))
        self.assertEqual(dict(waits.switches), {4: 1, 6: 1})
        self.assertEqual(dict(waits.preempted), {4: 0, 6: 1})
        self.assertEqual(dict(waits.wakeups), {(6, 5): 1})

    def test_stacks(self):
        waits = off(switch(1, 5, "S", 0), waking(2, 9, 5), switch(2.25, 0, "R", 5))
        found = {names[-1].name: weight for names, weight in
                 profile_offcpu.stacks_of(waits.intervals, lambda interval: interval.comm)}
        self.assertEqual(found, {profile_offcpu.ASLEEP.name: 1e6, profile_offcpu.READY.name: 25e4})
        self.assertEqual(list(profile_offcpu.stacks_of(waits.intervals, lambda _: None)), [])

    def test_quantile(self):
        values = list(range(1, 101))
        self.assertEqual([profile_offcpu.quantile(values, share) for share in (0, .5, .99, 1)],
                         [1, 50, 99, 100])
        self.assertEqual(profile_offcpu.quantile([7], 0.99), 7)
        self.assertIsNone(profile_offcpu.quantile([], 0.5))


class Tools(unittest.TestCase):
    def test_perf_stat(self):
        lines = ['{"counter-value" : "12.5", "unit" : "msec", "event" : "task-clock"}',
                 '{"counter-value" : "<not supported>", "unit" : "", "event" : "cycles"}',
                 '{"metric-value" : "1.0", "metric-unit" : "insn per cycle"}', "", "# text"]
        self.assertEqual(profile_perf.parse_stat(lines), {"task-clock": 12.5, "cycles": None})

    def test_strace(self):
        text = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.002000           2      1000         7 recvfrom
 40.00    0.001000           1       500           sendto
------ ----------- ----------- --------- --------- ----------------
100.00    0.003000           2      1500         7 total
"""
        self.assertEqual(profile_perf.parse_strace(text.splitlines()),
                         {"recvfrom": 1000, "sendto": 500})

    MASSIF = """desc: x
time_unit: ms
#-----------
snapshot=0
#-----------
time=5
mem_heap_B=9000
mem_heap_extra_B=10
mem_stacks_B=0
heap_tree=detailed
n0: 9000 (heap allocation functions) malloc
#-----------
snapshot=1
#-----------
time=20
mem_heap_B=700
mem_heap_extra_B=7
mem_stacks_B=0
heap_tree=peak
n2: 700 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.
 n1: 500 0x4865792: session_open (session.c:432)
  n0: 500 0x4865C3D: accept_one (in /usr/lib/libx.so.1)
 n0: 200 in 3 places, all below massif's threshold (1.00%)
#-----------
snapshot=2
#-----------
time=30
mem_heap_B=600
mem_heap_extra_B=6
mem_stacks_B=0
heap_tree=empty
""".splitlines()

    def test_massif_leaves_the_start_out(self):
        self.assertEqual(profile_heap.parse_massif(self.MASSIF, 10), (700, 7, [
            (500, "session_open (session.c:432) < accept_one (libx.so.1)"),
            (200, "in 3 places, all below massif's threshold (1.00%)")]))
        self.assertEqual(profile_heap.parse_massif(self.MASSIF, 25)[:2], (600, 6))
        with self.assertRaises(profile_heap.LabError):
            profile_heap.parse_massif(self.MASSIF, 31)

    def test_window(self):
        def status(uptime, copied, finished, lost):
            return {"uptime_ms": uptime, "carriers": [{"carrier": "copy", "bytes": copied}],
                    "forwards": [{"finished": finished}], "resources": {"sessions": 8},
                    "handovers": {"to_copy": 0}, "errors": {"client-lost": lost}}

        found = profile_window.difference(status(1000, 50, 3, 1), status(3500, 80, 7, 3))
        self.assertEqual(found, {"bytes": {"copy": 30}, "handovers": {},
                                 "errors": {"client-lost": 2}})


if __name__ == "__main__":
    unittest.main()
