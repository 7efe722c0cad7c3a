"""A comparison for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from penstock.compare.comparison import Comparison, Row, Side
from penstock.plural import counted

__all__ = ["comparison_text"]

_CORRECTED = " *"
"""Marks a row whose own interval leaves out 0, although the verdict is noise."""


class _Layout(NamedTuple):
    head: tuple[str, ...]
    left: tuple[int, ...]
    """The columns that are flush left."""
    named: bool
    """The metric's name is a column; else it stands on a line of its own above its rows."""


_WIDE = _Layout(("Metric", "", "A", "B", "B - A", "", "95 % interval of B - A", "verdict"), (0, 1, 7), True)
_NARROW = _Layout(("", "A", "B", "B - A", "", "95 % interval", "verdict"), (0, 6), False)


def comparison_text(found: Comparison, width: int) -> str:
    """As wide as it needs to be, or else narrow enough for `width` columns where that can be."""
    how = "the same body" if found.paired_by == "body" else "the same payload of an interleaved run"
    lines = [*_prose(_side("A", found.a), width), *_prose(_side("B", found.b), width)]
    lines += [f"{counted(found.pairs, 'pair')} of requests with {how}.", ""]
    table = _table(found.rows, _WIDE)
    lines += table if max(map(len, table)) <= width else _table(found.rows, _NARROW)
    lines.append("")
    for text in (found.conclusion, *_footer(found.rows), *(f"Note: {note}" for note in found.notes)):
        lines += _prose(text, width)
    return "\n".join(lines) + "\n"


def _prose(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")


def _side(letter: str, side: Side) -> str:
    where = ", ".join(url for url in side.urls if url)
    place = f" ({where})" if where and where != side.name else ""
    rest = f", {side.unpaired:,} of them without a partner" if side.unpaired else ""
    verdict = "no certificate" if side.verdict is None else side.verdict
    return f"{letter}: {side.name}{place}, {counted(side.requests, 'request')}{rest}, {verdict}"


def _table(rows: list[Row], layout: _Layout) -> list[str]:
    cells = [_cells(row, layout) for row in rows]
    widths = [max(map(len, column)) for column in zip(layout.head, *cells, strict=True)]
    lines = [_line(layout.head, widths, layout), "  ".join("─" * width for width in widths)]
    for row, each in zip(rows, cells, strict=True):
        if not layout.named and _is_first(row):
            lines.append(f"{row.name} ({row.unit})")
        lines.append(_line(each, widths, layout))
    return lines


def _line(cells: tuple[str, ...], widths: list[int], layout: _Layout) -> str:
    placed = (
        cell.ljust(width) if i in layout.left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(placed).rstrip()


def _is_first(row: Row) -> bool:
    """The mean is the first of a metric's rows."""
    return row.statistic == "avg"


def _cells(row: Row, layout: _Layout) -> tuple[str, ...]:
    interval = "" if row.low is None or row.high is None else f"{_number(row.low, True)} to {_number(row.high, True)}"
    percent = "" if row.percent is None else f"{row.percent:+.1f} %"
    verdict = row.verdict + (_CORRECTED if _is_corrected(row) else "")
    numbers = (_number(row.a), _number(row.b), _number(row.difference, True), percent, interval, verdict)
    name = f"{row.name} ({row.unit})" if _is_first(row) else ""
    return (name, row.statistic, *numbers) if layout.named else (row.statistic, *numbers)


def _is_corrected(row: Row) -> bool:
    if row.verdict != "within noise" or row.low is None or row.high is None:
        return False
    return row.low > 0 or row.high < 0


def _footer(rows: list[Row]) -> Iterator[str]:
    """Intervals are those of each row alone, verdicts are corrected: without a word on that they contradict each other."""
    judged = sum(row.p is not None for row in rows)
    if judged > 1:
        yield f"Each interval is that of its row alone; the verdicts are corrected for {judged} rows (Holm)."
    if any(map(_is_corrected, rows)):
        yield f"{_CORRECTED.strip()} The interval leaves out 0, but that is not enough after the correction."


def _number(value: float, signed: bool = False) -> str:
    value = round(value, 2) + 0.0  # never -0.00
    return f"{value:+,.2f}" if signed else f"{value:,.2f}"
