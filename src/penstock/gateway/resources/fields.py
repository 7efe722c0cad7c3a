"""Typed access to a mapping in a file. Each getter returns a valid value, or records an error and returns a default."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from penstock.gateway.resources.yaml_tree import INVALID, ConfigErrors

_T = TypeVar("_T")
_ABSENT = object()
_MAX_SECRET_CHARS = 1 << 16
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")


class Fields:
    """The fields of the mapping at `path`. A null counts as absent."""

    def __init__(self, value: Any, path: str, errors: ConfigErrors) -> None:
        self.path = path
        self.errors = errors
        self._values: dict[str, Any] = value if isinstance(value, dict) else {}
        if not isinstance(value, dict) and value is not INVALID:
            errors.add(path, "must be a mapping")
        self._unread = dict.fromkeys(self._values)
        self._unreadable = value is INVALID or not isinstance(value, dict)

    def error(self, name: str, message: str) -> None:
        self.errors.add(f"{self.path}.{name}" if self.path else name, message)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """Return the value as read: None if absent, INVALID if its error is already recorded."""
        self._unread.pop(name, None)
        return self._values.get(name)

    def skip(self, *names: str) -> None:
        """Accept these fields without using them."""
        for name in names:
            self._unread.pop(name, None)

    def finish(self) -> None:
        """Record an error for every field that was not read."""
        for name in self._unread:
            self.error(name, "is not a known field")

    def missing(self, name: str) -> None:
        if not self._unreadable:
            self.error(name, "is missing")

    def _typed(self, name: str, is_valid: Callable[[Any], bool], expected: str, required: bool) -> Any:
        value = self.raw(name)
        if value is None:
            if required:
                self.missing(name)
            return _ABSENT
        if value is INVALID:
            return _ABSENT
        if not is_valid(value):
            self.error(name, f"must be {expected}")
            return _ABSENT
        return value

    def string(self, name: str, *, required: bool = False) -> str | None:
        value = self._typed(name, lambda v: isinstance(v, str) and v != "", "a non-empty string", required)
        return None if value is _ABSENT else str(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._typed(name, lambda v: isinstance(v, bool), "true or false", False)
        return default if value is _ABSENT else bool(value)

    def integer(self, name: str, low: int = 0, high: int = 2**53, *, default: int | None = None) -> int | None:
        bounds = f"a whole number of at least {low}" if high == 2**53 else f"a whole number from {low} to {high}"
        value = self._typed(name, lambda v: type(v) is int and low <= v <= high, bounds, False)
        return default if value is _ABSENT else int(value)

    def choice(self, name: str, choices: tuple[_T, ...], *, required: bool = False) -> _T | None:
        expected = "one of " + ", ".join(map(str, choices))
        value = self._typed(name, lambda v: isinstance(v, str) and v in choices, expected, required)
        return None if value is _ABSENT else next(choice for choice in choices if choice == value)

    def strings(self, name: str, *, required: bool = False) -> tuple[str, ...]:
        def is_valid(value: Any) -> bool:
            return isinstance(value, list) and all((isinstance(v, str) and v) or v is INVALID for v in value)

        value = self._typed(name, is_valid, "a list of strings", required)
        return () if value is _ABSENT else tuple(v for v in value if v is not INVALID)

    def statuses(self, name: str, low: int) -> frozenset[int] | None:
        def is_valid(value: Any) -> bool:
            return isinstance(value, list) and all(type(v) is int and low <= v <= 599 for v in value)

        value = self._typed(name, is_valid, f"a list of HTTP statuses from {low} to 599", False)
        return None if value is _ABSENT else frozenset(value)

    def string_mapping(self, name: str) -> dict[str, str]:
        def is_valid(value: Any) -> bool:
            return isinstance(value, dict) and all(isinstance(v, str) or v is INVALID for v in value.values())

        value = self._typed(name, is_valid, "a mapping of strings", False)
        return {} if value is _ABSENT else {key: text for key, text in value.items() if text is not INVALID}

    def mapping(self, name: str) -> Fields | None:
        value = self.raw(name)
        return None if value is None else Fields(value, f"{self.path}.{name}", self.errors)

    def list(self, name: str) -> Iterator[Fields]:
        for index, item in enumerate(self.items(name)):
            yield Fields(item, f"{self.path}.{name}[{index}]" if self.path else f"{name}[{index}]", self.errors)

    def items(self, name: str) -> Sequence[Any]:
        """Return the items of a list, of any type."""
        value = self.raw(name)
        if value is None or value is INVALID:
            return ()
        if not isinstance(value, list):
            self.error(name, "must be a list")
            return ()
        return value

    def one_of(self, *names: str, required: bool = True) -> str | None:
        """Return the value of the field that is given. Giving several is an error."""
        given = [name for name in names if self.has(name)]
        for other in given[1:]:
            self.error(other, f"cannot be combined with {given[0]}: give only one of them")
        if required and not given:
            self.errors.add(self.path, f"needs {' or '.join(names)}")
        values = [self.string(name) for name in names]
        return next((value for value in values if value), None)

    def secret(self, name: str, folder: str) -> str | None:
        """Return the text of the file that the field names, relative to `folder`, without white space around it."""
        path = self.string(name)
        if path is None:
            return None
        path = os.path.join(folder, path)
        self.errors.files.append(path)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_MAX_SECRET_CHARS).strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            self.error(name, f"names a file that cannot be read: {reason}")
            return None
        if not text:
            self.error(name, "names an empty file")
        return text or None

    def check_printable(self, name: str, value: str | None) -> None:
        """Record an error for a value with line breaks or other control characters. The message does not quote it."""
        if value is not None and not value.isprintable():
            self.error(name, "contains a line break or control character")

    def time(self, name: str) -> float | None:
        text = self.string(name)
        if text is None:
            return None
        try:
            if _RFC3339.match(text):
                return datetime.fromisoformat(text.upper()).timestamp()
        except (ValueError, OverflowError):
            pass
        self.error(name, "must be a time with a time zone, such as 2030-01-31T12:00:00Z")
        return None

    def refuse(self, name: str, message: str) -> None:
        """Record an error if a field that Penstock does not support is set to something other than empty or false."""
        value = self.raw(name)
        if value is not None and value is not False and value not in ([], {}, ""):
            self.error(name, message)


def entries(top: Fields, collection: str, name_field: str) -> Iterator[tuple[Fields, str | None]]:
    """Yield each entry of a collection with its name, or None if it has none. A duplicate name is an error."""
    seen: dict[str, int] = {}
    for index, item in enumerate(top.items(collection)):
        path = f"{collection}[{index}]"
        if not isinstance(item, dict):
            top.errors.add(path, "must be a mapping")
            continue
        fields = Fields(item, path, top.errors)
        name = fields.string(name_field, required=True)
        if name is not None:
            top.errors.set_name(path, name)
            fields.check_printable(name_field, name)
            first = seen.setdefault(name, index)
            if first != index:
                fields.error(name_field, f"is already used by {collection}[{first}]")
        yield fields, name
