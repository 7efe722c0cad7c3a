"""Add up the counts of objects that took parts of the same requests."""

from __future__ import annotations

from collections.abc import MutableMapping

__all__ = ["add_counts", "add_integer_fields"]


def add_integer_fields(target: object, other: object) -> None:
    """Add the fields of `other` that are integers to those of `target`."""
    for name, value in vars(other).items():
        if type(value) is int:  # not a flag
            setattr(target, name, getattr(target, name) + value)


def add_counts(target: MutableMapping[str, int], other: MutableMapping[str, int]) -> None:
    for name, count in other.items():
        target[name] = target.get(name, 0) + count
