# SPDX-License-Identifier: BSD-2-Clause
"""What a profile says, as a list of blocks: for summary.md, index.html and the flame graphs.

A block is ("heading", text), ("text", text), ("list", texts), ("table", columns, rows) or
("graph", file, text).
"""

import html
import os

import profile_components as components
import profile_offcpu as offcpu
from flame import fold, folded_lines, render_svg
from profile_heap import HEAP_NOTE

TOP = 15
# Not part of the workload: idle time, the measuring itself, and what else this machine does.
OUTSIDE = ("idle", "perf", "other programs")
# The share of other programs that is worth telling.
NOISE = 0.02


def percent(share):
    return f"{100 * share:.1f} %"


def figure(value):
    """Three significant digits, no exponent."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def microseconds(seconds):
    return "-" if seconds is None else f"{seconds * 1e6:,.1f}"


def cost_blocks(result):
    if not result.cost:
        return
    gained, units, unit = result.gained["cost"], result.units("cost"), result.workload.unit
    seconds = gained["seconds"]
    scale, name = (1, "s") if unit == "GB" else (1e6, "us")
    yield "heading", "What it costs"
    rows = [(label, figure(value), figure(value / seconds),
             f"{figure(value * scale / units)} {name}")
            for label, value in (("CPU seconds, machine", gained["machine_cpu"]),
                                 (f"CPU seconds, {result.relay}", gained["relay_cpu"]))
            if value is not None]
    for place, values in zip(("machine", result.relay), result.cost):
        rows += [(f"{event}, {place}", figure(value), figure(value / seconds),
                  figure(value / units))
                 for event, value in values.items() if value is not None and event != "task-clock"]
    yield "table", ("counter", "value", "per second", f"per {unit}"), rows
    machine = result.cost[0]
    if machine.get("instructions") and machine.get("cycles"):
        yield "text", ("Instructions per cycle: "
                       f"{machine['instructions'] / machine['cycles']:.2f} (machine).")
    yield from _carrier_blocks(gained)


def _carrier_blocks(gained):
    if "bytes" not in gained:
        return
    total = sum(gained["bytes"].values())
    if total:
        shares = ", ".join(f"{carrier} {percent(value / total)}"
                           for carrier, value in gained["bytes"].items() if value)
        yield "text", f"Carriers, by bytes: {shares}."
    for key, words in (("handovers", "Hand-overs meanwhile"), ("errors", "Errors meanwhile")):
        if gained[key]:
            yield "text", f"{words}: " + ", ".join(
                f"{name} {value:,}" for name, value in gained[key].items()) + "."


def event_blocks(result):
    if not result.events:
        return
    units = result.units("events")
    yield "heading", "What the kernel does, whole machine"
    yield "table", ("event", "per second", f"per {result.workload.unit}"), [
        (words, figure(value / result.gained["events"]["seconds"]), figure(value / units))
        for words, value in result.events.items()]


def call_blocks(result):
    if result.calls is None:
        return
    units, unit = result.units("syscalls"), result.workload.unit
    yield "heading", f"System calls of {result.relay}"
    yield "text", (f"By {result.calls_by}, in a run of its own: "
                   f"{result.rate('syscalls')} while they were counted. " +
                   ("About 40 calls are answers to the two requests for culvert's counters."
                    if result.subject.is_culvert else ""))
    order = sorted(result.calls.items(), key=lambda item: -item[1])
    rows = [(name, f"{calls:,}", figure(calls / units)) for name, calls in order]
    total = sum(result.calls.values())
    rows.append(("all", f"{total:,}", figure(total / units)))
    yield "table", ("call", "calls", f"per {unit}"), rows


def inside(by_role):
    """{stack: samples} of the workload alone, all roles together."""
    return fold(item for role, stacks in by_role.items() if role not in OUTSIDE
                for item in stacks.items())


def oncpu_blocks(result):
    by_role = result.oncpu
    if not by_role:
        return
    weights = {role: sum(stacks.values()) for role, stacks in by_role.items()}
    everything = sum(weights.values())
    total = sum(weight for role, weight in weights.items() if role not in OUTSIDE)
    yield "heading", "Where the CPU time goes"
    outside = ", ".join(f"{role} {percent(weights.get(role, 0) / everything)}" for role in OUTSIDE)
    yield "text", (f"{everything:,} samples of {result.sampled} on all CPUs. Of all CPU time: "
                   f"{outside}. The shares below are of the rest, {total:,} samples, "
                   "which belong to the workload.")
    if not total:
        return
    yield "graph", "oncpu-system.svg", "on-CPU time of the whole system"
    yield "graph", "oncpu-daemon.svg", f"on-CPU time of {result.relay}"
    roles = sorted((role for role in weights if role not in OUTSIDE),
                   key=lambda role: -weights[role])
    table = components.component_table({role: by_role[role] for role in roles})
    rows = [(name, percent(sum(row.values()) / total),
             *(percent(row[role] / total) if row[role] else "" for role in roles))
            for name, row in sorted(table.items(), key=lambda item: -sum(item[1].values()))]
    rows.append(("all", "100.0 %", *(percent(weights[role] / total) for role in roles)))
    yield "table", ("component", "all", *roles), rows
    yield "text", ("The role is the process in whose context the CPU was. What softirq does "
                   "on behalf of another is counted where it ran: in the veth lab a sender "
                   "usually runs the whole path of its packets itself.")
    stacks = inside(by_role)
    yield "table", ("passed through", "share"), [
        (text, percent(share)) for text, share in components.path_shares(stacks, total)]
    yield from _symbol_blocks("Top symbols, system", stacks, total)
    relay = by_role.get(result.relay, {})
    if relay:
        yield from _symbol_blocks(f"Top symbols, {result.relay}", relay, sum(relay.values()))


def _symbol_blocks(title, stacks, total):
    yield "heading", title
    yield "table", ("symbol", "where", "component", "itself", "with callees"), [
        (name, frame.file or frame.place,
         components.component_of_frame(frame) or "(its caller's)", percent(own / total),
         percent(inclusive / total))
        for name, frame, own, inclusive in components.top_symbols(stacks, TOP)]


def offcpu_blocks(result):
    waits = result.offcpu
    if not waits:
        return
    seconds = waits.seconds
    units, unit = result.units("offcpu"), result.workload.unit
    yield "heading", "Waiting"
    yield "text", (f"Every switch of threads in {seconds:.1f} s, with "
                   f"{result.rate('offcpu')}.")
    yield "graph", "offcpu-daemon.svg", f"off-CPU time of {result.relay}"
    yield "graph", "offcpu-system.svg", "off-CPU time of the whole system"
    rows = []
    for role, intervals in sorted(waits.by_role.items(), key=lambda item: -len(item[1])):
        ordered = offcpu.waits_for_cpu(intervals)
        asleep = [offcpu.parts(interval)[0] for interval in intervals]
        switches = waits.switches[role]
        rows.append((role, figure(switches / units),
                     percent(waits.preempted[role] / switches) if switches else "-",
                     figure(sum(asleep) / seconds), figure(sum(ordered) / seconds),
                     microseconds(offcpu.quantile(ordered, 0.5)),
                     microseconds(offcpu.quantile(ordered, 0.99))))
    yield "table", ("role", f"switches per {unit}", "preempted", "threads asleep (mean)",
                    "threads ready without CPU (mean)", "us until it runs, median", "99 %"), rows
    yield "text", ("Who wakes whom. A wake-up from an interrupt or softirq counts for the process "
                   "that was running there.")
    yield "table", ("by", "woken", "per second", f"per {unit}"), [
        (waker, woken, figure(count / seconds), figure(count / units))
        for (waker, woken), count in waits.wakeups.most_common(12)]


def heap_blocks(result):
    if not result.resident:
        return
    yield "heading", f"Memory of {result.relay} for a session"
    rows = []
    if result.heap:
        heap = result.heap
        sessions = heap.sessions
        rows.append(("heap in use, massif of valgrind", f"{heap.base:,}", f"{heap.peak:,}",
                     figure((heap.peak - heap.base) / sessions)))
        rows.append(("malloc's own bytes beside it", f"{heap.overhead_base:,}",
                     f"{heap.overhead_peak:,}",
                     figure((heap.overhead_peak - heap.overhead_base) / sessions)))
    sessions = result.sessions
    base, peak = result.resident
    rows.append(("memory of its processes (Pss), without valgrind", f"{base:,}", f"{peak:,}",
                 figure((peak - base) / sessions)))
    yield "table", ("bytes", "no session", f"{sessions:,} idle sessions", "per session"), rows
    if result.heap:
        yield "text", HEAP_NOTE
        yield "table", ("bytes in use", "allocated by"), [
            (f"{size:,}", text) for size, text in result.heap.sites]


def _read(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _addresses_hidden():
    """Whether /proc/kallsyms has names but no addresses."""
    try:
        with open("/proc/kallsyms", encoding="ascii") as file:
            return all(set(file.readline().split()[0]) == {"0"} for _ in range(3))
    except (OSError, IndexError):
        return True


def foreign_share(result):
    """The share of busy time that was of programs outside of the lab."""
    sums = {role: sum(stacks.values()) for role, stacks in (result.oncpu or {}).items()
            if role not in ("idle", "perf")}
    busy = sum(sums.values())
    return sums.get("other programs", 0) / busy if busy else 0.0


def notes(result):
    if result.hardware:
        yield f"Hardware counters: {', '.join(result.hardware)}; stacks are sampled by cycles."
    else:
        yield ("This machine offers no hardware counters (no PMU): only software events were "
               "counted, and stacks are sampled by a timer. The timer's interrupt waits while "
               "interrupts are off, so such code is counted where they come on again "
               "(_raw_spin_unlock_irqrestore, for one).")
    if _addresses_hidden():
        yield ("The kernel hides its symbols' addresses (kernel.kptr_restrict is "
               f"{_read('/proc/sys/kernel/kptr_restrict') or 'unknown'}): its functions have "
               "no names here.")
    if result.oncpu:
        kernel, user = components.unresolved_share(inside(result.oncpu))
        yield (f"Frames without a name: {percent(kernel)} of the kernel's, {percent(user)} of "
               "the programs'.")
    if result.subject.is_culvert:
        yield ("culvert is built with frame pointers, Debian's libc is not: where culvert calls "
               "libc, the function that made the call may be missing from the stack, its callers "
               "are there.")
    else:
        yield (f"{result.relay} is the distribution's, without frame pointers and perhaps without "
               "symbols: of its own code, stacks show the innermost function at most. The kernel's "
               "part of them is whole.")
    if os.path.exists("/proc/sys/net/core/bpf_jit_kallsyms") and \
            _read("/proc/sys/net/core/bpf_jit_kallsyms") == "0":
        yield "net.core.bpf_jit_kallsyms is 0: the verdict program may have no name here."
    for name, count in (result.lost or {}).items():
        if count:
            yield f"perf lost {count:,} events of {name}: the figures of that part are too low."
    if foreign_share(result) > NOISE:
        yield (f"Other programs took {percent(foreign_share(result))} of the busy time: the "
               "machine was not quiet, and the rates are lower than they could be.")
    for part, reason in result.missing.items():
        yield f"Not measured: {part}: {reason}"


def blocks(result):
    yield "heading", "Rates"
    yield "text", (f"{result.workload.title}; {result.relay}: {result.subject.describe()} "
                   f"({result.subject.source}); {result.seconds:g} s each. "
                   "Each part is a run of its own; only \"cost\" is next to undisturbed.")
    yield "table", ("part", "rate while recorded", "latency in us, p50", "p99"), [
        (part, result.rate(part), *_latencies(report))
        for part, report in result.reports.items()]
    yield "list", list(notes(result))
    for part in (cost_blocks, oncpu_blocks, call_blocks, event_blocks, offcpu_blocks, heap_blocks):
        yield from part(result)


def _latencies(report):
    latency = report.get("latency_us") or {}
    return tuple("-" if latency.get(key) is None else figure(latency[key])
                 for key in ("p50", "p99"))


def markdown(title, parts):
    def cell(text):
        return str(text).replace("|", "\\|")

    lines = [f"# {title}", ""]
    for kind, *content in parts:
        if kind == "heading":
            lines += [f"## {content[0]}", ""]
        elif kind == "text":
            lines += [content[0], ""]
        elif kind == "list":
            lines += [f"- {text}" for text in content[0]] + [""]
        elif kind == "graph":
            lines += [f"[Flame graph: {content[1]}]({content[0]})", ""]
        else:
            columns, rows = content
            lines.append("| " + " | ".join(columns) + " |")
            lines.append("|---" + "|--:" * (len(columns) - 1) + "|")
            lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows] + [""]
    return "\n".join(lines)


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1400px; padding: 0 1em;
       color: #1c2024 }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums }
td, th { padding: .2em .8em; border-bottom: 1px solid #e2e5e9; text-align: right }
td:first-child, th:first-child { text-align: left } th { background: #f5f7f9 }
object { width: 100%; border: 1px solid #e2e5e9 } a { color: #1a5fb4 }
tr:hover td { background: #f5f7f9 }
"""


def page(title, parts):
    body = []
    for kind, *content in parts:
        if kind == "heading":
            body.append(f"<h2>{html.escape(content[0])}</h2>")
        elif kind == "text":
            body.append(f"<p>{html.escape(content[0])}</p>")
        elif kind == "list":
            items = "".join(f"<li>{html.escape(text)}</li>" for text in content[0])
            body.append(f"<ul>{items}</ul>")
        elif kind == "graph":
            file, text = map(html.escape, content)
            body.append(f'<p>{text.capitalize()} (<a href="{file}">alone</a>): click to zoom, '
                        f'Escape to leave.</p><object type="image/svg+xml" data="{file}"></object>')
        else:
            body.append(_html_table(*content))
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
            f"<h1>{html.escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n")


def _html_table(columns, rows):
    def line(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(text))}</{tag}>" for text in cells) + \
            "</tr>"

    return "<table>" + line(columns, "th") + "\n".join(line(row, "td") for row in rows) + "</table>"


def write_graph(folder, name, stacks, title, subtitle, describe):
    with open(os.path.join(folder, f"{name}.folded"), "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in folded_lines(stacks))
    with open(os.path.join(folder, f"{name}.svg"), "w", encoding="utf-8") as file:
        file.write(render_svg(stacks, title, subtitle, describe, components.colour_class,
                              components.COLOURS))


def write_graphs(result, folder, title):
    def samples(weight):
        return f"{weight:,.0f} samples"

    def waited(weight):
        return f"{weight / 1000:,.1f} ms" if weight >= 1000 else f"{weight:,.0f} us"

    if result.oncpu:
        system = fold(((components.named(role), *stack), weight)
                      for role, stacks in result.oncpu.items() if role not in OUTSIDE
                      for stack, weight in stacks.items())
        write_graph(folder, "oncpu-system", system, f"{title}: on-CPU, whole system",
                    f"samples of {result.sampled}, without idle time, perf and other programs; "
                    "colours by component", samples)
        write_graph(folder, "oncpu-daemon", fold(result.oncpu.get(result.relay, {}).items()),
                    f"{title}: on-CPU, {result.relay}", f"samples of {result.sampled}", samples)
    if result.offcpu:
        by_role = result.offcpu.by_role
        subtitle = "time between being switched out and in again, at the stack that waits"
        write_graph(folder, "offcpu-daemon",
                    fold(offcpu.stacks_of(by_role.get(result.relay, []), _thread_name)),
                    f"{title}: off-CPU, {result.relay}", subtitle, waited)
        system = fold(item for role, intervals in by_role.items() if role not in OUTSIDE
                      for item in offcpu.stacks_of(intervals, lambda _, role=role: role))
        write_graph(folder, "offcpu-system", system, f"{title}: off-CPU, whole system", subtitle,
                    waited)


def _thread_name(interval):
    return f"{interval.comm} {interval.tid}"


def write_report(result, folder):
    """Writes summary.md, index.html and the graphs into FOLDER."""
    title = f"Profile of {result.subject.contender.name}, {result.workload.name}"
    parts = list(blocks(result))
    write_graphs(result, folder, title)
    for name, text in (("summary.md", markdown(title, parts)), ("index.html", page(title, parts))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
