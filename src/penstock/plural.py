"""Words for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 reply`, `2,000 replies`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
