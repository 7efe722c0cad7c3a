"""A comparison for people."""

from __future__ import annotations

from penstock.compare.comparison import Comparison, Row

__all__ = ["comparison_text"]

_HEAD = ("Metric", "", "A", "B", "B - A", "", "95 % interval of B - A", "verdict")


def comparison_text(found: Comparison) -> str:
    lines = [_side("A", found.a.name, found.a.urls, found.a.requests, found.a.unpaired)]
    lines.append(_side("B", found.b.name, found.b.urls, found.b.requests, found.b.unpaired))
    how = "the same body" if found.paired_by == "body" else "the same payload of an interleaved run"
    lines += [f"{found.pairs:,} pairs of requests with {how}.", ""]
    rows = [_cells(row, new=row.statistic == "avg") for row in found.rows]
    widths = [max(len(each[i]) for each in [_HEAD, *rows]) for i in range(len(_HEAD))]
    for cells in [_HEAD, tuple("─" * width for width in widths), *rows]:
        left = (0, 1, 7)
        lines.append(
            "  ".join(
                cell.ljust(width) if i in left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
        )
    lines += ["", _conclusion(found)]
    lines += [f"Note: {note}" for note in found.notes]
    return "\n".join(lines) + "\n"


def _side(letter: str, name: str, urls: list[str], requests: int, alone: int) -> str:
    where = ", ".join(url for url in urls if url)
    rest = f", {alone:,} of them without a partner" if alone else ""
    return f"{letter}: {name}{f' ({where})' if where and where != name else ''}, {requests:,} requests{rest}"


def _cells(row: Row, *, new: bool) -> tuple[str, ...]:
    interval = "" if row.low is None or row.high is None else f"{_number(row.low, True)} to {_number(row.high, True)}"
    percent = "" if row.percent is None else f"{row.percent:+.1f} %"
    name = f"{row.name} ({row.unit})" if new else ""
    return (
        name,
        row.statistic,
        _number(row.a),
        _number(row.b),
        _number(row.difference, True),
        percent,
        interval,
        row.verdict,
    )


def _number(value: float, signed: bool = False) -> str:
    value = round(value, 2) + 0.0  # never -0.00
    return f"{value:+,.2f}" if signed else f"{value:,.2f}"


def _conclusion(found: Comparison) -> str:
    better = {side: [row for row in found.rows if row.verdict == f"{side} is better"] for side in "AB"}
    if not better["A"] and not better["B"]:
        return "No difference is more than noise."
    said = []
    for side, rows in better.items():
        names = list(dict.fromkeys(row.name for row in rows))
        if names:
            said.append(f"{side} is better, beyond noise, in {', '.join(names)}.")
    return " ".join(said)
