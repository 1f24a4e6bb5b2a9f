# SPDX-License-Identifier: BSD-2-Clause
"""profile.md: a profile in three short tables, to be put beside that of another relay.

Every sample belongs to one layer. What belongs to TCP alone, or to what it needs (buffers, locks,
timers), is told apart by its way: the innermost function on the stack that only sends, receives,
opens or closes decides.
"""

import collections
import datetime
import os
import platform
import shutil
import subprocess

import profile_components as components
from labkit import TOP
from profile_report import NOISE, OUTSIDE, figure, foreign_share, percent

TX, RX, SET_UP = "TCP tx", "TCP rx", "connections: open and close"
USER, CALLS, OTHER = "user", "system calls, files", "kernel, other"
TOP_FUNCTIONS = 15
TOP_CALLS = 8

# Components that are a layer, or part of one, whatever their callers.
_LAYERS = {
    "copying payload": "copy",
    "splice and pipes": "splice",
    "BPF system call, verifier": "BPF, sockmap",
    "verdict program (BPF)": "BPF, sockmap",
    "sockmap (psock)": "BPF, sockmap",
    "epoll": "epoll",
    "scheduler and wake-ups": "scheduler",
    "work queue": "scheduler",
    "IP": "IP",
    "softirq and devices": "softirq, netdev",
    "memory mapping and faults": "memory mapping",
    "system call entry, files": CALLS,
    "profiler": "profiler",
    components.USER_CODE: USER,
    components.IDLE: "interrupt entry, idle loop",
}
_DIRECTIONS = {
    TX: {"tcp_sendmsg", "tcp_sendmsg_locked", "tcp_write_xmit", "__tcp_transmit_skb", "tcp_push",
         "__tcp_push_pending_frames", "tcp_tsq_handler", "tcp_tasklet_func", "tcp_send_ack",
         "__tcp_send_ack", "sk_psock_backlog", "__skb_send_sock", "skb_send_sock",
         "skb_send_sock_locked", "tcp_splice_eof", "tcp_mtu_probe", "tcp_pacing_check"},
    RX: {"tcp_recvmsg", "tcp_recvmsg_locked", "tcp_v4_rcv", "tcp_v6_rcv", "tcp_v4_do_rcv",
         "tcp_v6_do_rcv", "tcp_rcv_established", "tcp_data_queue", "tcp_ack", "tcp_read_skb",
         "tcp_read_sock", "tcp_splice_read", "tcp_data_ready", "tcp_cleanup_rbuf",
         "sock_def_readable", "sk_psock_verdict_data_ready", "tcp_gro_receive"},
    SET_UP: {"tcp_v4_connect", "tcp_v6_connect", "__inet_stream_connect", "inet_csk_accept",
             "inet_accept", "tcp_conn_request", "tcp_check_req", "tcp_v4_syn_recv_sock",
             "tcp_v6_syn_recv_sock", "tcp_rcv_state_process", "tcp_close", "__tcp_close",
             "inet_release", "inet_shutdown", "tcp_fin", "tcp_send_fin", "tcp_time_wait",
             "tcp_timewait_state_process", "inet_csk_destroy_sock", "__sys_socket", "sock_close",
             "__sock_release"},
}
_DIRECTION_OF = {name: layer for layer, names in _DIRECTIONS.items() for name in names}


def layer_of_stack(stack):
    """The layer of a stack (outermost frame first)."""
    component = components.component_of_stack(stack)
    if component in _LAYERS:
        return _LAYERS[component]
    # A lock of epoll's or of the scheduler's is theirs.
    if component == "lock contention":
        for frame in reversed(stack):
            layer = _LAYERS.get(components.component_of_frame(frame))
            if layer and layer not in (CALLS, USER):
                return layer
            if frame.name in _DIRECTION_OF:
                break
    for frame in reversed(stack):
        if frame.name in _DIRECTION_OF:
            return _DIRECTION_OF[frame.name]
    return OTHER


def layer_table(by_role):
    """{layer: {role: weight}} of {role: {stack: weight}}."""
    table = collections.defaultdict(collections.Counter)
    for role, stacks in by_role.items():
        for stack, weight in stacks.items():
            table[layer_of_stack(stack)][role] += weight
    return table


def top_functions(by_role, count):
    """[(layer, function, weight)]: those with the largest own weight, layer by layer."""
    own = collections.Counter()
    for stacks in by_role.values():
        for stack, weight in stacks.items():
            if stack:
                own[layer_of_stack(stack), components.symbol_of(stack)] += weight
    best = own.most_common(count)
    sums = collections.Counter()
    for (layer, _name), weight in best:
        sums[layer] += weight
    return [(layer, name, weight) for (layer, name), weight in
            sorted(best, key=lambda item: (-sums[item[0][0]], item[0][0], -item[1]))]


def _table(columns, rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), "|---" + "|--:" * (len(columns) - 1) + "|", *map(line, rows), ""]


class Units:
    """How costs are written: seconds a GB, microseconds a request."""

    def __init__(self, unit):
        self._scale, self.name = (1, "s") if unit == "GB" else (1e6, "us")
        self.per = f"{self.name}/{unit}"

    def text(self, seconds):
        return figure(seconds * self._scale)


def _heading(result):
    part = next(iter(result.gained), None)
    yield f"### {result.subject.contender.name}, {result.workload.name}" + (
        f": {result.rate(part)}" if part else "")
    yield ""
    yield (f"{result.workload.title}. {result.relay}: {result.subject.describe()} "
           f"({result.subject.source}). {os.cpu_count()} CPUs, Linux {platform.release()}, "
           f"culvert {commit()}, {datetime.date.today()}, `scripts/profile "
           f"{result.subject.contender.name} {result.workload.name}`.")
    yield ""


def commit():
    """Of the sources, as far as git is there and knows them."""
    if not shutil.which("git") or not os.path.exists(os.path.join(TOP, ".git")):
        return "without git"
    answer = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False)
    return answer.stdout.strip() if answer.returncode == 0 else "without git"


def _cost_lines(result):
    """Of the workload's unit: CPU, system calls, switches."""
    unit = result.workload.unit
    units, rows = Units(unit), []
    if result.cost:
        gained, work = result.gained["cost"], result.units("cost")
        machine, relay = result.cost
        rows.append((f"CPU, machine ({units.name})", units.text(gained["machine_cpu"] / work)))
        if gained["relay_cpu"] is not None:
            rows.append((f"CPU, {result.relay} ({units.name})",
                         units.text(gained["relay_cpu"] / work)))
        rows += [(f"context switches, {place}", figure(values["context-switches"] / work))
                 for place, values in (("machine", machine), (result.relay, relay))
                 if values.get("context-switches") is not None]
    if result.events:
        rows += [(words, figure(result.events[words] / result.units("events")))
                 for words in ("system calls, of all programs", "wake-ups of threads",
                               "packets sent by devices", "work items run")
                 if words in result.events]
    if result.calls is not None:
        work = result.units("syscalls")
        total = sum(result.calls.values())
        order = sorted(result.calls.items(), key=lambda item: -item[1])[:TOP_CALLS]
        names = ", ".join(f"{name} {figure(calls / work)}" for name, calls in order)
        rows.append((f"system calls, {result.relay}", f"{figure(total / work)} ({names})"))
    if rows:
        yield from _table((f"per {unit}", "value"), rows)


def _busy(result):
    """{role: {stack: samples}} of the workload, and the sum of all samples."""
    by_role = {role: stacks for role, stacks in (result.oncpu or {}).items()
               if role not in OUTSIDE}
    return by_role, sum(sum(stacks.values()) for stacks in by_role.values())


def seconds_of_sample(result):
    """The CPU time that a sample stands for: all samples but the idle ones are the busy time."""
    busy = sum(sum(stacks.values()) for role, stacks in result.oncpu.items() if role != "idle")
    return result.gained["oncpu"]["machine_cpu"] / busy


def _cpu_lines(result):
    """CPU time by layer and role, all of the run in which the samples were taken."""
    by_role, total = _busy(result)
    if not total:
        return
    roles = sorted(by_role, key=lambda role: -sum(by_role[role].values()))
    units, seconds = Units(result.workload.unit), seconds_of_sample(result)

    def cell(weight):
        return units.text(weight * seconds / result.units("oncpu")) if weight else ""

    table = layer_table(by_role)
    rows = [(layer, percent(sum(row.values()) / total), cell(sum(row.values())),
             *(cell(row[role]) for role in roles))
            for layer, row in sorted(table.items(), key=lambda item: -sum(item[1].values()))]
    rows.append(("all", percent(1), cell(total), *(cell(sum(by_role[role].values()))
                                                  for role in roles)))
    yield from _table(("layer", "share", units.per, *roles), rows)


def _function_lines(result):
    by_role, total = _busy(result)
    if total:
        yield from _table(("layer: function", "self"), [
            (f"{layer}: `{name}`", percent(weight / total))
            for layer, name, weight in top_functions(by_role, TOP_FUNCTIONS)])


def compact(result):
    """The text of profile.md."""
    lines = [*_heading(result), *_cost_lines(result), *_cpu_lines(result),
             *_function_lines(result)]
    if foreign_share(result) > NOISE:
        lines += [f"Other programs took {percent(foreign_share(result))} of the busy time, and are "
                  "in the first table's CPU time of the machine: it was not quiet.", ""]
    lines += [f"Not measured: {part}: {' '.join(reason.split())}"
              for part, reason in result.missing.items()]
    return "\n".join(lines).rstrip() + "\n"


def write_compact(result, folder):
    with open(os.path.join(folder, "profile.md"), "w", encoding="utf-8") as file:
        file.write(compact(result))
