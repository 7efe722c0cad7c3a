"""Counts of requests that several objects take parts of."""

from __future__ import annotations

from typing import Self

import msgspec


class Counts(msgspec.Struct):
    """The base of a structure whose fields are all numbers that are added up."""

    def merge(self, other: Self) -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
