"""Add up the counts of objects that took parts of the same requests."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

__all__ = ["add_counts", "add_fields"]


def add_fields(target: object, other: object, names: Iterable[str]) -> None:
    """Add the fields of `other` with these names to those of `target`."""
    for name in names:
        setattr(target, name, getattr(target, name) + getattr(other, name))


def add_counts(target: MutableMapping[str, int], other: MutableMapping[str, int]) -> None:
    for name, count in other.items():
        target[name] = target.get(name, 0) + count
