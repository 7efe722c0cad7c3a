"""Format a comparison as a text table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from penstock.comparison.compare_pairs import Comparison, Row, Side
from penstock.metrics.catalogue import CATALOGUE
from penstock.plural import counted

_CORRECTED = " *"
"""Marks a row whose interval excludes 0 although the verdict is `within noise`."""


class _Layout(NamedTuple):
    head: tuple[str, ...]
    left: tuple[int, ...]
    """Columns that are left-aligned."""
    named: bool
    """The metric's name is a column; otherwise it is on a separate line above its rows."""


_WIDE = _Layout(("Metric", "", "A", "B", "B - A", "", "95 % interval of B - A", "verdict"), (0, 1, 7), True)
_NARROW = _Layout(("", "A", "B", "B - A", "", "95 % interval", "verdict"), (0, 6), False)


def comparison_text(comparison: Comparison, width: int) -> str:
    """Format a comparison. Use the narrow layout if the wide table exceeds `width` columns."""
    lines = [*_wrap(_side("A", comparison.a), width), *_wrap(_side("B", comparison.b), width)]
    lines += [_pairs(comparison), ""]
    table = _table(comparison.rows, _WIDE)
    lines += table if max(map(len, table)) <= width else _table(comparison.rows, _NARROW)
    lines.append("")
    for text in (comparison.conclusion, *_footer(comparison), *(f"Note: {note}" for note in comparison.notes)):
        lines += _wrap(text, width)
    return "\n".join(lines) + "\n"


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent="  ")


def _pairs(comparison: Comparison) -> str:
    if comparison.paired_by is None:
        return "The requests are not paired."
    same = "body" if comparison.paired_by == "body" else "position in the schedule of an interleaved run"
    return f"{counted(comparison.pairs, 'pair')} of requests with the same {same}."


def _side(letter: str, side: Side) -> str:
    urls = ", ".join(url for url in side.urls if url)
    server = f" ({urls})" if urls and urls != side.name else ""
    unpaired = f", {side.unpaired:,} of them unpaired" if side.unpaired else ""
    verdict = "no certificate" if side.verdict is None else side.verdict
    return f"{letter}: {side.name}{server}, {counted(side.requests, 'request')}{unpaired}, {verdict}"


def _table(rows: list[Row], layout: _Layout) -> list[str]:
    cells = [_cells(row, layout) for row in rows]
    widths = [max(map(len, column)) for column in zip(layout.head, *cells, strict=True)]
    lines = [_line(layout.head, widths, layout), "  ".join("─" * width for width in widths)]
    for row, row_cells in zip(rows, cells, strict=True):
        if not layout.named and _is_first(row):
            lines.append(f"{row.name} ({row.unit})")
        lines.append(_line(row_cells, widths, layout))
    return lines


def _line(cells: tuple[str, ...], widths: list[int], layout: _Layout) -> str:
    aligned = (
        cell.ljust(width) if i in layout.left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(aligned).rstrip()


def _is_first(row: Row) -> bool:
    """Return whether this is the first row of a metric: the mean."""
    return row.statistic == "avg"


def _cells(row: Row, layout: _Layout) -> tuple[str, ...]:
    interval = "" if row.low is None or row.high is None else f"{_number(row.low, True)} to {_number(row.high, True)}"
    percent = "" if row.percent is None else f"{row.percent:+.1f} %"
    verdict = (row.verdict or _reference(row)) + (_CORRECTED if _is_corrected(row) else "")
    numbers = (_number(row.a), _number(row.b), _number(row.difference, True), percent, interval, verdict)
    name = f"{row.name} ({row.unit})" if _is_first(row) else ""
    return (name, row.statistic, *numbers) if layout.named else (row.statistic, *numbers)


def _reference(row: Row) -> str:
    """Return where to find the verdict for a metric that is not tested; nothing for percentiles."""
    return f"see {CATALOGUE[row.follows].header}" if row.follows and _is_first(row) else ""


def _is_corrected(row: Row) -> bool:
    if row.verdict != "within noise" or row.low is None or row.high is None:
        return False
    return row.low > 0 or row.high < 0


def _footer(comparison: Comparison) -> Iterator[str]:
    """Explain which rows are tested, and why an interval and a verdict can disagree: only verdicts are corrected."""
    rows = comparison.rows
    corrected = sum(row.test == "corrected" and row.p is not None for row in rows)
    if corrected:
        yield (
            f"The primary metric is {CATALOGUE[comparison.metric].header}. The verdicts of "
            f"{counted(corrected, 'other metric')} are corrected (Holm); each interval is for its row alone."
        )
    if smallest := list(_detectable(rows)):
        yield f"Smallest difference of means that these runs find in 4 of 5 cases: {', '.join(smallest)}."
    for row in rows:
        if _is_corrected(row) and row.p is not None:
            yield (
                f"{_CORRECTED.strip()} {row.name}: its own interval excludes 0, but {corrected} metrics are tested together, "
                f"and between equal servers one of them differs this clearly in {row.p:.0%} of the comparisons; up to 5 % "
                f"would be a difference. If you decided beforehand to compare by it, --metric {row.metric} tests it alone."
            )


def _detectable(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if row.test is not None and row.detectable is not None:
            percent = f" ({100 * row.detectable / row.a:.1f} %)" if row.a else ""
            yield f"{row.name} {_number(row.detectable)} {row.unit}{percent}"


def _number(value: float, signed: bool = False) -> str:
    value = round(value, 2) + 0.0  # + 0.0 turns -0.00 into 0.00
    return f"{value:+,.2f}" if signed else f"{value:,.2f}"
