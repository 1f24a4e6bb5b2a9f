# SPDX-License-Identifier: BSD-2-Clause
"""A report as one HTML file that needs no other: styles and plots are inside."""

import os
from html import escape

from report_blocks import (Figures, Heading, Items, Links, Paragraph, Table, WideFigure)

STYLE_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "report.css")


def cell_html(cell, column, index):
    classes = [name for name in ("number" if column.numeric else "", column.width) if name]
    text = escape(cell.text)
    if cell.color:
        text = f"<i class=\"swatch\" style=\"background:{cell.color}\"></i>{text}"
    if cell.tone:
        text = f"<span class=\"{cell.tone}\">{text}</span>"
    tag = "th scope=\"row\"" if index == 0 else "td"
    shown = f" class=\"{' '.join(classes)}\"" if classes else ""
    return f"<{tag}{shown}>{text}</{tag.split()[0]}>"


# A heading longer than this must not be broken into a word a line.
SHORT_TITLE = 24


def head_html(column):
    classes = (["number"] if column.numeric else []) \
        + (["titled"] if len(column.title) > SHORT_TITLE else [])
    shown = f" class=\"{' '.join(classes)}\"" if classes else ""
    return f"<th scope=\"col\"{shown}>{escape(column.title)}</th>"


def table_html(table):
    head = "".join(map(head_html, table.columns))
    lines = []
    for number, row in enumerate(table.rows):
        cells = "".join(cell_html(cell, column, index) for index, (cell, column)
                        in enumerate(zip(row, table.columns)))
        lines.append(f"<tr{' class=accent' if number in table.accented else ''}>{cells}</tr>")
    return (f"<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>{head}</tr></thead>\n<tbody>\n"
            + "\n".join(lines) + "\n</tbody></table></div>")


def figure_html(svg, extra=""):
    return f"<figure class=\"plot{extra}\">{svg}</figure>"


def wide_html(block, drawings):
    if not block.narrow:
        return figure_html(drawings[block.name], " scrolls")
    return (figure_html(drawings[block.name], " wide")
            + figure_html(drawings[block.narrow], " narrow"))


def links_html(places):
    return "<nav class=\"rows\">" + "".join(
        f"<a href=\"#{escape(anchor)}\">{escape(text)}</a>" for text, anchor in places) + "</nav>"


def block_html(block, drawings):
    """BLOCK as HTML; DRAWINGS are the SVG texts by name."""
    match block:
        case Heading():
            return (f"<h{block.level} id=\"{escape(block.anchor)}\">{escape(block.text)}"
                    f"</h{block.level}>")
        case Paragraph():
            shown = f" class=\"{block.tone}\"" if block.tone else ""
            return f"<p{shown}>{escape(block.text)}</p>"
        case Items():
            return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in block.texts) + "</ul>"
        case Links():
            return links_html(block.places)
        case Figures():
            return ("<div class=\"plots\">"
                    + "".join(figure_html(drawings[name]) for name in block.names) + "</div>")
        case WideFigure():
            return wide_html(block, drawings)
        case Table():
            return table_html(block)
    raise TypeError(f"no HTML for {type(block).__name__}")


def render(document, drawings):
    """The HTML text of DOCUMENT."""
    with open(STYLE_FILE, encoding="utf-8") as file:
        css = file.read()
    parts = [(block.text, block.anchor) for block in document.blocks
             if isinstance(block, Heading) and block.level == 2]
    body = "\n".join(block_html(block, drawings) for block in document.blocks)
    contents = "".join(f"<a href=\"#{escape(anchor)}\">{escape(text)}</a>"
                       for text, anchor in parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(document.title)}</title>
<style>
{css}</style>
</head>
<body>
<header>
<h1>{escape(document.title)}</h1>
<p class="meta">{escape(document.subtitle)}</p>
<nav class="parts">{contents}</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""
