#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Profiles a relay under a row of the benchmark: scripts/profile prepares this and calls it.

Two runs through a fresh relay: one counts CPU time, context switches and system calls, the other
records stacks of the whole machine. Each figure is divided by the work for the relay's clients in
that time (requests, transactions or GB), so that two relays can be compared.
"""

import argparse
import collections
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from bench.contenders import CONTENDERS, PLENTY, Forward, Relay, raise_descriptor_limit
from bench.loads import BenchLab, Interrupts, Loads
from bench.measuring import PATIENCE_SECONDS, CpuMeters, processes_of
from bench.rows import CULVERT_BENCH, IDLE_TOOL, ROWS, Timing
from cost import machine_cpu_seconds
from labkit import RELAY, Interrupted, LabError

WORKLOADS = {row.name: row for row in ROWS if row.workload.tool != IDLE_TOOL}
PROFILED = {name: one for name, one in CONTENDERS.items() if one.family in ("culvert", "peer")}
FREQUENCY = 999  # samples a second on each CPU
WARM_UP = 1.0
TOP = 15

# The layer of a sample is that of its innermost function that has one: a lock or a list helper
# counts for its caller, and a buffer or timer of TCP for the direction that uses it.
LAYERS = tuple((layer, re.compile(pattern)) for layer, pattern in (
    ("idle", r"(pv_)?native_safe_halt|default_idle|intel_idle.*|mwait_.*|acpi_.*idle.*|do_idle|"
     r"cpuidle_.*|arch_cpu_idle|cpu_idle_poll"),
    ("profiler", r"_{0,2}perf_.*|ctx_sched_.*|bpf_trace_run.*|trace_(event|call)_.*|__traceiter_.*"),
    ("copy", r"_?copy_(to|from)_(user|iter).*|__?copy_.*user.*|copyin|copyout|rep_(movs|stos)_.*|"
     r"copy_page_.*|(__)?skb_(copy_)?datagram_.*|_{0,2}memcpy.*|skb_copy_bits|simple_copy_to_iter"),
    ("splice", r"(?!skb_).*splice.*|pipe_.*|.*_pipe_buf.*|sock_spd_release|iter_to_pipe"),
    ("BPF, sockmap", r"_{0,4}bpf_.*|sk_psock_.*|sock_(map|hash)_.*|tcp_bpf_.*|__?skb_send_sock.*|"
     r"sendmsg_(un)?locked|tcp_(read|eat)_skb|ringbuf_.*|(htab|array)_map_.*|__sys_bpf"),
    ("epoll", r"_{0,2}ep_.*|eventpoll_.*|do_epoll_.*|__x64_sys_epoll.*"),
    ("scheduler, work queues", r"_{0,2}schedule(_.*)?|try_to_wake_up|ttwu_.*|select_task_rq.*|"
     r"(en|de)queue_(task|entit).*|pick_.*|__pick_.*|update_(curr|load_avg|rq_clock).*|_{0,2}wake_.*|"
     r"finish_task_switch.*|switch_mm.*|__switch_to.*|resched_.*|(worker|kthread)_.*|kthread|"
     r"process_one_work|_{0,2}queue_(delayed_)?work.*|insert_work|sched_.*|futex_.*|do_futex|"
     r"sock_def_(readable|write_space)|sk_stream_write_space|flush_smp_call.*|.*call_function.*"),
    ("IP", r"_{0,2}ip6?_.*|ipv[46]_.*|nf_.*|_{0,2}fib_.*|neigh_.*|rt6?_.*|dst_.*|icmp.*"),
    ("softirq, devices", r"handle_softirqs|.*do_softirq.*|__local_bh_.*|net_[rt]x_action|"
     r"_{0,2}napi_.*|process_backlog|_{0,2}netif_.*|_{0,2}dev_.*|veth_.*|sch_direct_xmit|.*qdisc.*|"
     r"enqueue_to_backlog|.*gro_.*|run_ksoftirqd|loopback_xmit|validate_xmit_.*|skb_defer_.*"),
    ("memory mapping", r".*page_fault.*|.*handle_mm_fault|do_(anonymous|wp|cow)_.*|_{0,2}vma_.*|"
     r"unmap_.*|zap_.*|mas_.*|tlb_.*|flush_tlb.*|do_m(un)?map.*"),
    ("system calls, files", r"entry_SYSCALL.*|do_syscall_.*|syscall_.*|__?x64_sys_.*|__sys_.*|"
     r"ksys_.*|vfs_.*|_{0,2}f(d)?get.*|_{0,2}fput.*|security_.*|apparmor_.*|aa_.*|"
     r"exit_to_user_mode.*|import_.*|sockfd_.*|alloc_(file|fd).*|close_fd.*|dput.*|iput.*"),
    ("connections", r"tcp_v[46]_(connect|conn_request|syn_recv_sock)|inet_csk_(accept|destroy_sock)|"
     r"tcp_(conn_request|check_req|rcv_state_process|fin|send_fin|time_wait.*)|_{0,2}tcp_close|"
     r"inet_(release|shutdown|accept)|__sys_socket|sock_close|__sock_release"),
    ("TCP tx", r"tcp_sendmsg.*|tcp_write_xmit|__tcp_transmit_skb|tcp_push.*|__tcp_push.*|"
     r"tcp_tsq_.*|_{0,2}tcp_send_ack|tcp_mtu_probe"),
    ("TCP rx", r"tcp_recvmsg.*|tcp_v[46]_(do_)?rcv|tcp_rcv_established|tcp_data_queue|tcp_ack|"
     r"tcp_data_ready|tcp_cleanup_rbuf|tcp_read_sock|tcp_gro_receive"),
))
OTHER = "kernel, other"
OUTSIDE = "other programs"  # not part of the workload
SAMPLE = re.compile(r"^\s*(?P<comm>\S.*?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s")
FRAME = re.compile(r"^\s+[0-9a-f]+ (.*?) \((.*)\)$")


def say(label, text):
    print(f"{label:9} {text}", flush=True)


# The samples of perf

def layer_of_frame(name, path):
    """None for a kernel function that the table does not know."""
    if name.startswith("bpf_prog_"):
        return "BPF, sockmap"
    if not re.match(r"\[(kernel|[a-z]\w+\])", path) or path in ("[vdso]", "[heap]", "[stack]"):
        return "user"
    name = re.sub(r"\.(part|constprop|isra|cold)\b.*$", "", name)
    return next((layer for layer, pattern in LAYERS if pattern.fullmatch(name)), None)


def read_samples(lines):
    """Yields (pid, comm, layer, function) from LINES of perf script, innermost frame first."""
    head, layer, function, known = None, None, None, {}
    for line in lines:
        line = line.rstrip("\n")
        frame = FRAME.match(line) if line[:1] in "\t " else None
        if frame and head:
            key = frame.groups()
            if key not in known:
                known[key] = layer_of_frame(*key)
            function = function or key[0]
            layer = layer or known[key]
        elif not line and head:
            yield int(head["pid"]), head["comm"], layer or OTHER, function or "?"
            head, layer, function = None, None, None
        elif line:
            head = SAMPLE.match(line)
    if head:
        yield int(head["pid"]), head["comm"], layer or OTHER, function or "?"


class Roles:
    """Which part each process plays, by the network namespace that it is in."""

    def __init__(self, lab, relay):
        self._parts = {os.stat(f"/run/netns/{lab.name}-{part}").st_ino: name for part, name in
                       (("client", "client"), ("server", "server"), ("relay", relay))}
        self._known = {pid: self._look(pid) for pid in os.listdir("/proc") if pid.isdigit()}

    def _look(self, pid):
        try:
            return self._parts.get(os.stat(f"/proc/{pid}/ns/net").st_ino)
        except OSError:
            return None

    def of(self, pid, comm):
        known = self._known.get(str(pid))
        if known or pid == 0:
            return known or "interrupts while idle"
        return next((name for name in ("kworker", "ksoftirqd") if comm.startswith(name)),
                    OUTSIDE)


# The load

class Load:
    """Servers in the lab, and clients that go on until they are told to end."""

    def __init__(self, lab, program, row):
        self._row = row
        # as in the benchmark
        self._loads = Loads(lab, program, max(1, len(os.sched_getaffinity(0)) // 2))
        port = self._loads.upstream_port(row.workload)
        self.forward = Forward(9000, port or 7000, row.workload.host, row.workload.protocols)
        lab.start_servers({row.workload.tool})
        if not port:
            lab.start_sink(program, row.workload.host, [7000], self._loads.processes,
                           row.workload.protocol)

    def start(self, seconds):
        """A client that measures for SECONDS, after a warm-up that is over when this returns."""
        workload = self._row.workload
        timing = Timing(seconds, WARM_UP) if workload.tool == CULVERT_BENCH else \
            Timing(seconds + WARM_UP, 0)
        client = self._loads.start(workload, [(RELAY, self.forward.listen)], timing)
        time.sleep(WARM_UP)
        return client

    def finish(self, client):
        """Units of work a second, as the client reports them."""
        self._loads.wait(client, PATIENCE_SECONDS)
        measurement = self._loads.finish(self._row.workload, client)
        if measurement.wrong:
            raise LabError("wrong bytes")
        return measurement.per_second


# The two runs

class Profile:
    def __init__(self, options, lab, meters):
        self._options, self._lab, self._meters = options, lab, meters
        self._row = WORKLOADS[options.workload]
        self._contender = PROFILED[options.relay]
        self.config = self._contender.configs(self._row.goal, os.cpu_count())[0]
        self._load = Load(lab, os.path.abspath(options.bench), self._row)

    def _run(self, work):
        """WORK(relay) while the load goes through a fresh relay; and the rate."""
        sessions = min(PLENTY, self._contender.sessions_per_process(raise_descriptor_limit()))
        relay = Relay(self._lab, self._contender, self.config, [self._load.forward],
                      self._meters.make())
        relay.start(os.path.abspath(self._options.culvert), sessions)
        client = None
        try:
            client = self._load.start(self._options.seconds + 0.5)
            answer = work(relay)
            rate = self._load.finish(client)
            client = None
            relay.check()
            return answer, rate
        finally:
            if client:
                self._lab.stop(client)
            relay.stop()

    def _counted(self, relay):
        pids = ",".join(map(str, sorted(processes_of(relay.pids))))
        begin = machine_cpu_seconds(), relay.cpu.seconds() if relay.cpu else None
        started = time.monotonic()
        switches = run(self._lab, ["perf", "stat", "-j", "-a", "-e", "context-switches", "--",
                                   "sleep", str(self._options.seconds)])
        seconds = time.monotonic() - started
        cpu = (machine_cpu_seconds() - begin[0]) / seconds
        own = (relay.cpu.seconds() - begin[1]) / seconds if relay.cpu else None
        found = re.search(r'"counter-value" : "([\d.]+)"', switches)
        return pids, cpu, own, float(found[1]) / seconds if found else None

    def count(self):
        (_, cpu, own, switches), rate = self._run(self._counted)
        rows = [("CPU, machine", cpu / rate), ("CPU, relay", own / rate if own else None)]
        return rate, rows, ("context switches, machine", switches / rate if switches else None)

    def calls(self):
        """[(system call, number per unit of work)]: by strace, in a run of its own, as it slows."""
        def work(relay):
            output = self._lab.path("strace")
            pids = [word for pid in processes_of(relay.pids) for word in ("-p", str(pid))]
            process = self._lab.start("relay", "strace", "-f", "-c", "-o", output, *pids)
            time.sleep(max(0.5, self._options.seconds - 0.5))
            process.send_signal(signal.SIGINT)
            self._lab.stop(process)
            return output

        seconds = max(0.5, self._options.seconds - 0.5)
        output, rate = self._run(work)
        with open(output, encoding="utf-8") as file:
            rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?([a-z]\w*)$",
                              file.read(), re.M)
        return sorted(((name, int(calls) / seconds / rate) for calls, name in rows
                       if name != "total"), key=lambda row: -row[1])

    def record(self):
        """Counter of (layer, function, role), and the data file, which stays."""
        data = os.path.join(self._options.out, "perf.data")

        def work(_relay):
            roles = Roles(self._lab, self._options.relay)
            run(self._lab, ["perf", "record", "-a", "-g", "-F", str(FREQUENCY), "-o", data, "--",
                            "sleep", str(self._options.seconds)])
            return roles

        roles, rate = self._run(work)
        table = collections.Counter()
        with subprocess.Popen(["perf", "script", "-i", data, "-F", "comm,pid,tid,ip,sym,dso"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              errors="replace") as script:
            for pid, comm, layer, function in read_samples(script.stdout):
                if layer not in ("idle", "profiler"):
                    table[layer, function, roles.of(pid, comm)] += 1
        if not table:
            raise LabError("perf recorded no samples")
        return table, rate


def run(lab, command):
    """The output of COMMAND, both streams."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False, cwd=lab.path("."), env=dict(os.environ, LC_ALL="C"))
    if result.returncode:
        raise LabError(f"{' '.join(command[:2])} failed:\n{result.stdout[-500:]}")
    return result.stdout


# The report

def table_lines(columns, rows):
    lines = [columns, ["---"] + ["--:"] * (len(columns) - 1), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines] + [""]


def figure(value):
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def report(profile, options, counted, calls, recorded):
    row, (rate, cpu_rows, switches) = WORKLOADS[options.workload], counted
    scale, unit = (1, "s") if row.work_unit == "GB" else (1e6, "us")
    busy = sum(recorded[0].values())
    table = {key: n for key, n in recorded[0].items() if key[2] != OUTSIDE}
    foreign = 1 - sum(table.values()) / busy
    machine = cpu_rows[0][1]
    roles = sorted({role for _, _, role in table},
                   key=lambda role: -sum(n for (_, _, r), n in table.items() if r == role))
    by_layer = collections.defaultdict(collections.Counter)
    functions = collections.Counter()
    for (layer, function, role), number in table.items():
        by_layer[layer][role] += number
        functions[layer, function] += number
    yield f"### {options.relay}, {options.workload}: {rate:,.1f} {row.work_unit} a second"
    yield ""
    yield (f"{row.title}. {PROFILED[options.relay].describe(profile.config)}. {os.cpu_count()} "
           f"CPUs, Linux {os.uname().release}, `scripts/profile {options.relay} "
           f"{options.workload}`.")
    yield ""
    yield from table_lines((f"per {row.work_unit}", "value"), [
        *((f"{name} ({unit})", figure(value * scale) if value else "-")
          for name, value in cpu_rows),
        (switches[0], figure(switches[1])),
        ("system calls, relay (under strace)", figure(sum(n for _, n in calls)) + " (" + ", ".join(
            f"{name} {figure(n)}" for name, n in calls[:8]) + ")")])

    def cell(number):
        return figure(number / busy * machine * scale) if number else ""

    yield from table_lines(("layer", "share", f"{unit}/{row.work_unit}", *roles), [
        (layer, f"{sum(row_.values()) / busy:.1%}", cell(sum(row_.values())),
         *(cell(row_[role]) for role in roles))
        for layer, row_ in sorted(by_layer.items(), key=lambda item: -sum(item[1].values()))])
    yield from table_lines(("layer: function", "self"), [
        (f"{layer}: `{function}`", f"{number / busy:.1%}")
        for (layer, function), number in functions.most_common(TOP)])
    if foreign > 0.02:
        yield f"{OUTSIDE} took {foreign:.1%} of the busy time: the machine was not quiet."
    yield "The stacks are in perf.data, for `perf report` and tools that draw flame graphs."


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/profile", allow_abbrev=False)
    parser.add_argument("relay", choices=PROFILED, metavar="RELAY")
    parser.add_argument("workload", choices=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--culvert", required=True)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    return parser.parse_args()


def main():
    options = parse_options()
    options.out = os.path.abspath(options.out)
    try:
        os.makedirs(options.out, exist_ok=True)
        for tool in ("perf", "strace"):
            if not shutil.which(tool):
                raise LabError(f"{tool} is missing: scripts/deps bench")
        if reason := PROFILED[options.relay].why_missing():
            raise LabError(f"{options.relay}: {reason}")
        interrupts, meters = Interrupts(), CpuMeters()
        try:
            with BenchLab(interrupts, False) as lab:
                profile = Profile(options, lab, meters)
                counted, calls, recorded = profile.count(), profile.calls(), profile.record()
        finally:
            meters.close()
        path = os.path.join(options.out, "profile.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(report(profile, options, counted, calls, recorded)) + "\n")
        say("report", path)
    except (LabError, OSError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    except Interrupted as number:
        print("\nprofile: interrupted; the lab is gone", file=sys.stderr)
        return 128 + number.args[0]
    return 0


if __name__ == "__main__":
    sys.exit(main())
