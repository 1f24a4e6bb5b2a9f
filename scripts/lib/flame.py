#!/usr/bin/python3 -B
# SPDX-License-Identifier: BSD-2-Clause
"""Flame graphs: the text of perf script is folded into stacks, and stacks become an SVG.

The SVG needs no other file. In a browser a click zooms into a frame, "search" (or Ctrl-F) marks
the frames whose name matches a regular expression and says which share of the total they hold;
"?s=EXPRESSION" behind its address searches at once.

Usage: perf script -F comm,pid,tid,cpu,time,event,ip,sym,dso | flame.py [TITLE] > graph.svg
"""

import collections
import html
import os
import re
import sys

KERNEL, BPF, USER, NOTE = "kernel", "bpf", "user", "note"

# A function: its name, where its code is (KERNEL, BPF, USER; NOTE for a frame that is none), and
# the base name of the file.
Frame = collections.namedtuple("Frame", "name place file")
# One event: stack is a tuple of frames, outermost first; trace is the text of a tracepoint.
Sample = collections.namedtuple("Sample", "comm pid tid cpu time event trace stack")
# A rectangle: depth 0 is the outermost; start and weight are in the unit of the stacks.
Box = collections.namedtuple("Box", "frame depth start weight own")

HEADER = re.compile(r"^\s*(?P<comm>\S.*?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+\[(?P<cpu>\d+)\]\s+"
                    r"(?P<time>\d+\.\d+):\s+(?P<event>\S+?):(?:\s+(?P<trace>.*))?$")
STACK_LINE = re.compile(r"^\s+([0-9a-f]+) (.*?) \((.*)\)$")


def make_frame(name, path):
    """The frame of a symbol NAME in the file PATH, as perf script prints both."""
    # A field of one perf script line is "sym+0xoff" if somebody asked for offsets.
    name = re.sub(r"\+0x[0-9a-f]+$", "", name)
    if name.startswith("bpf_prog_"):
        # bpf_prog_<digest>_<name>: the digest changes with each build
        return Frame(re.sub(r"^bpf_prog_[0-9a-f]{16}_?", "bpf_prog_", name), BPF, "bpf")
    if path.startswith("[kernel") or path.endswith(".ko") or re.fullmatch(r"\[[a-z]\w+\]", path) \
            and path not in ("[unknown]", "[vdso]", "[heap]", "[stack]"):
        return Frame("[kernel]" if name == "[unknown]" else name, KERNEL, "kernel")
    file = os.path.basename(path)
    if name == "[unknown]":
        name = file if file.startswith("[") else f"[{file}]"
    return Frame(name, USER, file)


class PerfScript:
    """Reads what perf script prints. Frames are made once for each different line."""

    def __init__(self):
        self._frames = {}

    def _frame(self, line):
        match = STACK_LINE.match(line)
        if not match:
            return None
        key = match.group(2), match.group(3)
        if key not in self._frames:
            self._frames[key] = make_frame(*key)
        return self._frames[key]

    def _stack(self, lines):
        """Outermost first; neighbouring frames without a name are one."""
        stack = []
        for line in reversed(lines):
            frame = self._frame(line)
            if frame and not (stack and frame == stack[-1] and frame.name.startswith("[")):
                stack.append(frame)
        return tuple(stack)

    def samples(self, lines):
        """Yields a Sample for each event of LINES."""
        header, stack = None, []
        for line in lines:
            line = line.rstrip("\n")
            if not line:
                continue
            if line[0] == "\t":
                stack.append(line)
                continue
            if header:
                yield self._sample(header, stack)
            header, stack = HEADER.match(line), []
        if header:
            yield self._sample(header, stack)

    def _sample(self, header, lines):
        return Sample(header["comm"], int(header["pid"]), int(header["tid"]), int(header["cpu"]),
                      float(header["time"]), header["event"].split(":ppp")[0],
                      header["trace"] or "", self._stack(lines))


def fold(weighted_stacks):
    """Sums the weights of equal stacks: {stack: weight}."""
    folded = collections.Counter()
    for stack, weight in weighted_stacks:
        folded[stack] += weight
    return folded


def folded_lines(folded):
    """The common text form, one stack a line: "outer;inner;leaf weight"; kernel frames end in _[k].

    A ";" within a name would end it, so it becomes ":".
    """
    marks = {KERNEL: "_[k]", BPF: "_[b]"}
    return sorted(";".join(frame.name.replace(";", ":") + marks.get(frame.place, "")
                           for frame in stack) + f" {round(weight)}"
                  for stack, weight in folded.items())


class Node:
    """A frame below the same callers: weight is what passed through it, own what ended in it."""

    __slots__ = ("frame", "weight", "own", "children")

    def __init__(self, frame):
        self.frame = frame
        self.weight = self.own = 0
        self.children = {}


def build_tree(folded, root_name="all"):
    root = Node(Frame(root_name, NOTE, ""))
    for stack, weight in folded.items():
        node = root
        node.weight += weight
        for frame in stack:
            if frame not in node.children:
                node.children[frame] = Node(frame)
            node = node.children[frame]
            node.weight += weight
        node.own += weight
    return root


def layout(root, least=0.0):
    """The boxes of a tree: children side by side in the order of their names, none lost between.

    Frames that hold less than the share LEAST of the whole are left out, and their callees too;
    what remains keeps its place.
    """
    boxes = []
    limit = root.weight * least
    pending = [(root, 0, 0)]
    while pending:
        node, depth, start = pending.pop()
        boxes.append(Box(node.frame, depth, start, node.weight, node.own))
        for child in sorted(node.children.values(), key=lambda child: child.frame):
            if child.weight > 0 and child.weight >= limit:
                pending.append((child, depth + 1, start))
            start += child.weight
    return boxes


# Colours by what a frame does, if the caller classifies, else by where its code is.
PLACE_COLOURS = {KERNEL: "#8fb3dd", BPF: "#6cc28a", USER: "#f0a35e", NOTE: "#c9ccd1"}
ROW, WIDTH, TOP, SIDE, CHARACTER = 17, 1400, 58, 10, 7.25  # pixels

STYLE = """
svg { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; background: #fff }
.f { cursor: pointer } .f rect { stroke: #fff; stroke-width: .6 } .f:hover rect { stroke: #000 }
.f text { pointer-events: none; fill: #111 }
.above rect { opacity: .45 } .hit rect { fill: #e33bd6 }
.title { font-size: 17px; fill: #111 } .quiet { fill: #555 }
.key { cursor: pointer; fill: #1a5fb4 }
"""

SCRIPT = r"""
(function () {
  "use strict";
  var svg = document.documentElement, width = +svg.dataset.width, side = +svg.dataset.side;
  var total = +svg.dataset.total, character = +svg.dataset.character;
  var boxes = Array.prototype.map.call(document.querySelectorAll(".f"), function (g) {
    return { g: g, x: +g.dataset.x, w: +g.dataset.w, d: +g.dataset.d,
             title: g.querySelector("title").textContent, name: g.dataset.n,
             rect: g.querySelector("rect"), text: g.querySelector("text") };
  });
  var detail = document.getElementById("detail"), found = document.getElementById("found");
  var reset = document.getElementById("reset"), zoomed = boxes[0];

  function label(name, pixels) {
    var room = Math.floor((pixels - 6) / character);
    if (room < 3) return "";
    return name.length <= room ? name : name.slice(0, room - 2) + "..";
  }
  function zoom(target) {
    var scale = (width - 2 * side) / target.w;
    zoomed = target;
    boxes.forEach(function (b) {
      var within = b.x >= target.x && b.x + b.w <= target.x + target.w && b.d >= target.d;
      var above = b.d < target.d && b.x <= target.x && b.x + b.w >= target.x + target.w;
      var x = above ? side : side + (b.x - target.x) * scale;
      var w = above ? width - 2 * side : b.w * scale;
      var shown = above || (within && w >= 0.2);
      b.g.style.display = shown ? "" : "none";
      b.g.classList.toggle("above", above);
      if (!shown) return;
      b.rect.setAttribute("x", x);
      b.rect.setAttribute("width", w);
      b.text.setAttribute("x", x + 3);
      b.text.textContent = label(b.name, w);
    });
    reset.style.display = target === boxes[0] ? "none" : "";
  }
  // Frames within a frame that matches are not counted again: boxes come callers first.
  function search(expression) {
    var match = null, sum = 0, taken = [];
    if (expression) {
      try { match = new RegExp(expression); } catch (error) { alert(error.message); return; }
    }
    boxes.forEach(function (b) {
      var hit = match !== null && match.test(b.name);
      b.g.classList.toggle("hit", hit);
      if (hit) taken.push(b);
    });
    taken.sort(function (a, b) { return a.x - b.x || b.w - a.w; });
    var end = -1;
    taken.forEach(function (b) {
      if (b.x >= end) { sum += b.w; end = b.x + b.w; }
    });
    var share = (100 * sum / total).toFixed(1);
    found.textContent = match ? "/" + expression + "/ matches " + share + "%" : "";
  }
  function ask() {
    var expression = prompt("Regular expression; empty clears", "");
    if (expression !== null) search(expression);
  }
  boxes.forEach(function (b) {
    b.g.addEventListener("click", function () { zoom(b); });
    b.g.addEventListener("mouseover", function () { detail.textContent = b.title; });
    b.g.addEventListener("mouseout", function () { detail.textContent = ""; });
  });
  reset.addEventListener("click", function () { zoom(boxes[0]); });
  document.getElementById("search").addEventListener("click", ask);
  window.addEventListener("keydown", function (event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "f") { event.preventDefault(); ask(); }
    if (event.key === "Escape") { zoom(boxes[0]); search(""); }
  });
  zoom(boxes[0]);
  var asked = new URLSearchParams(window.location.search).get("s");
  if (asked) search(asked);
})();
"""


def escape(text):
    return html.escape(text, quote=True)


def _number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _label(name, pixels):
    room = int((pixels - 6) / CHARACTER)
    if room < 3:
        return ""
    return name if len(name) <= room else name[:room - 2] + ".."


def _box_svg(box, total, bottom, colour, describe):
    scale = (WIDTH - 2 * SIDE) / total
    x, width = SIDE + box.start * scale, box.weight * scale
    y = bottom - (box.depth + 1) * ROW
    title = f"{box.frame.name} ({describe(box.weight)}, {box.weight / total:.2%}"
    title += f"; itself {describe(box.own)}, {box.own / total:.2%})" if box.own else ")"
    return (f'<g class="f" data-x="{_number(box.start)}" data-w="{_number(box.weight)}" '
            f'data-d="{box.depth}" data-n="{escape(box.frame.name)}"><title>{escape(title)}</title>'
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" rx="1" '
            f'fill="{colour}"/><text x="{x + 3:.1f}" y="{y + 12}">'
            f'{escape(_label(box.frame.name, width))}</text></g>')


def legend_places(names):
    """[(name, x, row)]: names one after the other, in as many rows as they need."""
    places, x, row = [], SIDE, 0
    for name in names:
        width = 15 + CHARACTER * len(name) + 16
        if x > SIDE and x + width > WIDTH - SIDE:
            x, row = SIDE, row + 1
        places.append((name, x, row))
        x += width
    return places


def _legend(places, colours, top):
    return "".join(f'<rect x="{x:.0f}" y="{top + row * ROW}" width="11" height="11" '
                   f'fill="{colours[name]}"/><text class="quiet" x="{x + 15:.0f}" '
                   f'y="{top + row * ROW + 10}">{escape(name)}</text>' for name, x, row in places)


def render_svg(folded, title, subtitle="", describe=None, classify=None, colours=None,
               least=0.0003):
    """The flame graph of {stack: weight}.

    DESCRIBE(weight) -> text with the unit. CLASSIFY(frame) -> a key of COLOURS (an ordered dict of
    name: colour, which is also the legend); without, frames are coloured by place. Frames with a
    share below LEAST are left out.
    """
    describe = describe or (lambda weight: f"{weight:,.0f} samples")
    colours = colours or PLACE_COLOURS
    classify = classify or (lambda frame: frame.place)
    root = build_tree(folded)
    if root.weight <= 0:
        root.weight = root.own = 1
        subtitle = "nothing was recorded"
    boxes = layout(root, least)
    bottom = TOP + (max(box.depth for box in boxes) + 1) * ROW
    drawn = [_box_svg(box, root.weight, bottom, colours[classify(box.frame)], describe)
             for box in boxes]
    used = {classify(box.frame) for box in boxes}
    places = legend_places([name for name in colours if name in used])
    legend = _legend(places, colours, bottom + 8)
    height = bottom + 12 + (places[-1][2] + 1) * ROW
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" \
data-width="{WIDTH}" data-side="{SIDE}" data-character="{CHARACTER}" \
data-total="{_number(root.weight)}">
<style>{STYLE}</style>
<rect width="100%" height="100%" fill="#fff"/>
<text class="title" x="{SIDE}" y="22">{escape(title)}</text>
<text class="quiet" x="{SIDE}" y="40">{escape(subtitle)}</text>
<text class="key" id="reset" x="{WIDTH - 190}" y="22" style="display:none">zoom out</text>
<text class="key" id="search" x="{WIDTH - 70}" y="22">search</text>
<text id="found" x="{WIDTH - SIDE}" y="40" text-anchor="end"></text>
<text id="detail" x="{SIDE}" y="54"></text>
{chr(10).join(drawn)}
{legend}
<script><![CDATA[{SCRIPT}]]></script>
</svg>
"""


def main():
    if len(sys.argv) > 2 or sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0 if len(sys.argv) == 2 else 2
    folded = fold(((Frame(sample.comm, NOTE, ""), *sample.stack), 1)
                  for sample in PerfScript().samples(sys.stdin))
    if not folded:
        print("flame.py: no samples on the standard input", file=sys.stderr)
        return 1
    try:
        print(render_svg(folded, *(sys.argv[1:] or ["Flame graph"])), end="", flush=True)
    except OSError as error:
        print(f"flame.py: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
