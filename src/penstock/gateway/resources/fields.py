"""Typed reading of one mapping of a file: each getter returns a value of its type, or the default and a error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from penstock.gateway.resources.yaml_tree import INVALID, ConfigErrors

__all__ = ["Fields", "entries"]

_T = TypeVar("_T")
_ABSENT = object()
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")


class Fields:
    """The fields of the mapping at `where`. A null is the same as an absent field."""

    def __init__(self, value: Any, where: str, errors: ConfigErrors) -> None:
        self.where = where
        self.errors = errors
        self._values: dict[str, Any] = value if isinstance(value, dict) else {}
        if not isinstance(value, dict) and value is not INVALID:
            errors.add(where, "must be a mapping")
        self._unread = dict.fromkeys(self._values)
        self._unreadable = value is INVALID or not isinstance(value, dict)

    def error(self, name: str, what: str) -> None:
        self.errors.add(f"{self.where}.{name}" if self.where else name, what)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """None when absent; INVALID when its error is known already."""
        self._unread.pop(name, None)
        return self._values.get(name)

    def skip(self, *names: str) -> None:
        """These fields may be there and change nothing."""
        for name in names:
            self._unread.pop(name, None)

    def finish(self) -> None:
        """Whatever was not read is unknown."""
        for name in self._unread:
            self.error(name, "is not a field that Penstock knows")

    def missing(self, name: str) -> None:
        if not self._unreadable:
            self.error(name, "is missing")

    def _typed(self, name: str, fits: Callable[[Any], bool], what: str, required: bool) -> Any:
        value = self.raw(name)
        if value is None:
            if required:
                self.missing(name)
            return _ABSENT
        if value is INVALID:
            return _ABSENT
        if not fits(value):
            self.error(name, f"must be {what}")
            return _ABSENT
        return value

    def string(self, name: str, *, required: bool = False) -> str | None:
        value = self._typed(name, lambda v: isinstance(v, str) and v != "", "a text that is not empty", required)
        return None if value is _ABSENT else str(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._typed(name, lambda v: isinstance(v, bool), "true or false", False)
        return default if value is _ABSENT else bool(value)

    def integer(self, name: str, low: int = 0, high: int = 2**53, *, default: int | None = None) -> int | None:
        bounds = f"a whole number of at least {low}" if high == 2**53 else f"a whole number from {low} to {high}"
        value = self._typed(name, lambda v: type(v) is int and low <= v <= high, bounds, False)
        return default if value is _ABSENT else int(value)

    def choice(self, name: str, known: tuple[_T, ...], *, required: bool = False) -> _T | None:
        what = "one of " + ", ".join(str(one) for one in known)
        value = self._typed(name, lambda v: isinstance(v, str) and v in known, what, required)
        return None if value is _ABSENT else next(one for one in known if one == value)

    def strings(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all((isinstance(v, str) and v) or v is INVALID for v in value)

        value = self._typed(name, fits, "a list of texts", required)
        return () if value is _ABSENT else tuple(v for v in value if v is not INVALID)

    def statuses(self, name: str, low: int) -> frozenset[int] | None:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(type(v) is int and low <= v <= 599 for v in value)

        value = self._typed(name, fits, f"a list of HTTP statuses from {low} to 599", False)
        return None if value is _ABSENT else frozenset(value)

    def texts(self, name: str) -> dict[str, str]:
        """A mapping of texts."""

        def fits(value: Any) -> bool:
            return isinstance(value, dict) and all(isinstance(v, str) or v is INVALID for v in value.values())

        value = self._typed(name, fits, "a mapping of texts", False)
        return {} if value is _ABSENT else {key: text for key, text in value.items() if text is not INVALID}

    def mapping(self, name: str) -> Fields | None:
        value = self.raw(name)
        return None if value is None else Fields(value, f"{self.where}.{name}", self.errors)

    def list(self, name: str) -> Iterator[Fields]:
        for at, item in enumerate(self.items(name)):
            yield Fields(item, f"{self.where}.{name}[{at}]", self.errors)

    def items(self, name: str) -> Sequence[Any]:
        """What is in a list, whatever that is."""
        value = self.raw(name)
        if value is None or value is INVALID:
            return ()
        if not isinstance(value, list):
            self.error(name, "must be a list")
            return ()
        return value

    def one_of(self, first: str, second: str, *, required: bool = True) -> str | None:
        """The value of whichever of the two is given; both at once is a error."""
        if self.has(first) and self.has(second):
            self.error(second, f"does not go together with {first}: give one of the two")
        elif required and not self.has(first) and not self.has(second):
            self.errors.add(self.where, f"needs {first} or {second}")
        values = (self.string(first), self.string(second))
        return values[0] or values[1]

    def time(self, name: str) -> float | None:
        text = self.string(name)
        if text is None:
            return None
        try:
            if _RFC3339.match(text):
                return datetime.fromisoformat(text.upper()).timestamp()
        except (ValueError, OverflowError):
            pass
        self.error(name, "must be a time with its zone, such as 2030-01-31T12:00:00Z")
        return None

    def refuse(self, name: str, what: str) -> None:
        """A known field that asks for something Penstock does not do; empty, null or false asks for nothing."""
        value = self.raw(name)
        if value is not None and value is not False and value not in ([], {}, ""):
            self.error(name, what)


def entries(tree: Fields, collection: str, identity: str) -> Iterator[tuple[Fields, str | None]]:
    """Each entry of a collection with its name, which is unique within it; None when it has none to be known by."""
    seen: dict[str, int] = {}
    for at, item in enumerate(tree.items(collection)):
        where = f"{collection}[{at}]"
        if not isinstance(item, dict):
            tree.errors.add(where, "must be a mapping")
            continue
        fields = Fields(item, where, tree.errors)
        name = fields.string(identity, required=True)
        if name is not None:
            tree.errors.name(where, name)
            first = seen.setdefault(name, at)
            if first != at:
                fields.error(identity, f"is already used by {collection}[{first}]")
        yield fields, name
