"""Rows of tables that are written as text: a line with cells between bars, and indented lines with a text."""

from __future__ import annotations

from collections.abc import Iterator


def table_rows(table: str) -> Iterator[tuple[list[str], str]]:
    """Yield the cells and the text of each row. Blank lines are ignored."""
    cells: list[str] = []
    text: list[str] = []
    for line in table.splitlines():
        if line.startswith(" "):
            text.append(line.strip())
        elif line:
            if cells:
                yield cells, " ".join(text)
            cells, text = line.split(" | "), []
    if cells:
        yield cells, " ".join(text)
