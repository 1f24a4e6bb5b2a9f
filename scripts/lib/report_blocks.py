# SPDX-License-Identifier: BSD-2-Clause
"""What a report is made of, whatever it is written in: headings, texts, tables, plots."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Heading:
    """LEVEL 2 or 3; ANCHOR is what links inside the page call it."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Paragraph:
    text: str
    tone: str = ""  # "", "note" (small) or "warning"


@dataclass(frozen=True)
class Items:
    """A list of texts."""

    texts: tuple


@dataclass(frozen=True)
class Cell:
    text: str
    tone: str = ""  # "", "held", "missed", "unknown", "bad"
    color: str = ""  # of the contender, as in the plots


@dataclass(frozen=True)
class Column:
    title: str
    numeric: bool = True
    width: str = ""  # "" (never broken), or "wraps", "broad", "long" as texts get longer


@dataclass(frozen=True)
class Table:
    columns: tuple
    rows: list  # of lists of Cell
    accented: frozenset = field(default_factory=frozenset)  # the indices of culvert auto's rows


@dataclass(frozen=True)
class Figures:
    """Plots side by side, by name."""

    names: tuple


@dataclass(frozen=True)
class WideFigure:
    """One plot in full width, and what stands for it on a narrow screen (or "")."""

    name: str
    narrow: str
    text: str  # what it shows


@dataclass(frozen=True)
class Links:
    """(text, anchor) of the parts of the page."""

    places: tuple


@dataclass(frozen=True)
class Document:
    title: str
    subtitle: str
    blocks: list
