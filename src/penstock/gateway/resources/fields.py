"""Typed access to a mapping in a file. Each getter returns a valid value, or records an error and returns a default."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from penstock.gateway.resources.config import Count, Positive
from penstock.gateway.resources.snapshot import ErrorStatuses, Priority, Statuses, Text
from penstock.gateway.resources.yaml_tree import INVALID, ConfigErrors

_T = TypeVar("_T", bound=msgspec.Struct)
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/api7/aisix#resources-file")
"""Defined by the format, so that ids in a file mean the same to all its readers."""
_MAX_SECRET_CHARS = 1 << 16
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)\Z")
_EXPECTED: Final[dict[Any, str]] = {
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "a mapping",
    Text: "a non-empty string",
    Count: "a whole number of at least 0",
    Positive: "a whole number of at least 1",
    Priority: "a whole number from -2147483648 to 2147483647",
    Statuses: "a list of HTTP statuses from 100 to 599",
    ErrorStatuses: "a list of HTTP statuses from 400 to 599",
    tuple[Text, ...]: "a list of strings",
    dict[str, str]: "a mapping of strings",
}


def _expected(type_: Any) -> str:
    """Return what a value of a type must be."""
    if NoneType in get_args(type_):
        type_ = get_args(type_)[0]
    return "one of " + ", ".join(get_args(type_)) if get_origin(type_) is Literal else _EXPECTED[type_]


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

    def value(self, name: str, type_: Any, default: Any = None, *, required: bool = False) -> Any:
        """Return the value of a field as a type of `_EXPECTED` or a Literal. Members that could not be read are left out."""
        value = self.raw(name)
        if value is None and required:
            self.missing(name)
        if isinstance(value, list):
            value = [item for item in value if item is not INVALID]
        elif isinstance(value, dict):
            value = {key: item for key, item in value.items() if item is not INVALID}
        if value is None or value is INVALID:
            return default
        try:
            return msgspec.convert(value, type_)
        except msgspec.ValidationError:
            self.error(name, f"must be {_expected(type_)}")
            return default

    def struct(self, type_: type[_T], names: Mapping[str, str] | None = None, **values: Any) -> _T:
        """Build a struct of the fields with the names of its members, or with those in `names`, and of `values`."""
        for member in msgspec.structs.fields(type_):
            if member.name not in values:
                name = (names or {}).get(member.name, member.name)
                value = self.value(name, member.type, required=member.required)
                if value is not None or member.required:
                    values[member.name] = value
        return type_(**values)

    def mapping(self, name: str) -> Fields | None:
        value = self.raw(name)
        return None if value is None else Fields(value, f"{self.path}.{name}", self.errors)

    def list(self, name: str) -> Iterator[Fields]:
        """Yield the items of a list of mappings, and check that all of their fields were read."""
        for index, item in enumerate(self.items(name)):
            fields = Fields(item, f"{self.path}.{name}[{index}]" if self.path else f"{name}[{index}]", self.errors)
            yield fields
            fields.finish()

    def items(self, name: str) -> Sequence[Any]:
        """Return the items of a list, of any type."""
        value = self.raw(name)
        if value is None or value is INVALID:
            return ()
        if not isinstance(value, list):
            self.error(name, "must be a list")
            return ()
        return value

    def one_of(self, *names: str, required: bool = True) -> tuple[str, str | None]:
        """Return the name and the text of the field that is given. Giving several is an error."""
        given = [name for name in names if self.has(name)]
        for other in given[1:]:
            self.error(other, f"cannot be combined with {given[0]}: give only one of them")
        if required and not given:
            self.errors.add(self.path, f"needs {' or '.join(names)}")
        texts = {name: self.value(name, Text) for name in names}
        return next(((name, text) for name, text in texts.items() if text), (names[0], None))

    def reference(self, name: str, text: str | None, collection: str, known: Mapping[str, str]) -> str | None:
        """Return the value in `known`, by names and ids, of the entry of a collection that the field `name` refers to."""
        if text is not None and text not in known:
            self.error(name, f"names {self.errors.show(text)}, which is not in {collection}")
        return known.get(text) if text is not None else None

    def secret(self, name: str, path: str | None, folder: str) -> str | None:
        """Return the text of the file that the field `name` gives, relative to `folder`, without white space around it."""
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
        text = self.value(name, Text)
        if text is None:
            return None
        try:
            if _RFC3339.match(text):
                return datetime.fromisoformat(text.upper()).timestamp()
        except (ValueError, OverflowError):
            pass
        self.error(name, "must be a time with a time zone, such as 2030-01-31T12:00:00Z")
        return None

    def refuse(self, *names: str, because: str = "is not supported") -> None:
        """Record an error for each field that Penstock does not support and that is not empty or false."""
        for name in names:
            value = self.raw(name)
            if value is not None and value is not False and value not in ([], {}, ""):
                self.error(name, because)


class Entry:
    """An entry of a collection. Its id is stable across processes and reloads, so counters and references stay valid."""

    def __init__(self, fields: Fields, collection: str, name: str) -> None:
        self.fields = fields
        self.name = name
        """Empty if the entry has none, which is an error."""
        self.id = str(uuid.uuid5(_NAMESPACE, f"{collection}/{name}"))


def entries(top: Fields, collection: str, name_field: str) -> list[Entry]:
    """Return the entries of a collection. A missing or duplicate name is an error."""
    found: list[Entry] = []
    seen: dict[str, int] = {}
    for index, item in enumerate(top.items(collection)):
        path = f"{collection}[{index}]"
        if not isinstance(item, dict):
            top.errors.add(path, "must be a mapping")
            continue
        fields = Fields(item, path, top.errors)
        name = fields.value(name_field, Text, required=True)
        if name is not None:
            top.errors.set_name(path, name)
            fields.check_printable(name_field, name)
            first = seen.setdefault(name, index)
            if first != index:
                fields.error(name_field, f"is already used by {collection}[{first}]")
        found.append(Entry(fields, collection, name or ""))
    return found
