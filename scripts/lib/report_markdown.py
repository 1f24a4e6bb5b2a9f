# SPDX-License-Identifier: BSD-2-Clause
"""A report as Markdown (with the tables of GitHub), plots linked from the folder plots/."""

import re

from report_blocks import (Figures, Heading, Items, Links, Paragraph, Table, WideFigure)


def escape(text):
    """TEXT as one line in which nothing is markup."""
    text = re.sub(r"([\\|*`<]|(?<!\w)_|_(?!\w))", r"\\\1", re.sub(r"\s*\n\s*", " ", text))
    return text.replace("](", "]\\(")


def cell_text(cell):
    text = escape(cell.text)
    return f"**{text}**" if cell.tone in ("missed", "bad") and text else text


def table_text(table):
    lines = ["| " + " | ".join(escape(column.title) for column in table.columns) + " |",
             "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"]
    for index, row in enumerate(table.rows):
        texts = [cell_text(cell) for cell in row]
        if index in table.accented:
            texts[0] = f"**{texts[0]}**"
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines)


def image(name, text, plots):
    return f"![{escape(text)}]({plots}/{name}.svg)"


def link(text, anchor):
    return f"[{escape(text)}](#{anchor})"


def block_text(block, plots, titles):
    """BLOCK as Markdown; PLOTS is the folder of the plots, TITLES their texts by name."""
    match block:
        case Heading():
            # An anchor of its own: what is made of a heading differs from viewer to viewer.
            return f"<a id=\"{block.anchor}\"></a>\n\n{'#' * block.level} {escape(block.text)}"
        case Paragraph(tone="warning"):
            return f"> **{escape(block.text)}**"
        case Paragraph():
            return escape(block.text)
        case Items():
            return "\n".join(f"- {escape(text)}" for text in block.texts)
        case Links():
            return "\n".join(f"- {link(text, anchor)}" for text, anchor in block.places)
        case Figures():
            return "\n".join(image(name, titles[name], plots) for name in block.names)
        case WideFigure():
            return image(block.name, block.text, plots)
        case Table():
            return table_text(block)
    raise TypeError(f"no Markdown for {type(block).__name__}")


def render(document, titles, plots="plots"):
    """The Markdown text of DOCUMENT."""
    parts = [f"# {escape(document.title)}", escape(document.subtitle)]
    parts += [block_text(block, plots, titles) for block in document.blocks]
    return "\n\n".join(parts) + "\n"
