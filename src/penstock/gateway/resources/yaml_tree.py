"""A YAML file as plain values, with `${VAR}` replaced and everything that is wrong with it collected.

Scalars are read by the rules of YAML 1.2, where `no`, `on`, `12:30:00` and `2026-01-31` are strings; a key that occurs
twice is an error, and so is a tag that asks for anything but plain data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

__all__ = ["INVALID", "ConfigErrors", "read_tree"]

INVALID: Final = object()
"""Stands for a value that could not be read, when the reason is already among the errors."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 32
_MAX_NODES = 500_000
"""Aliases are followed, so a small file can stand for an endless tree."""

_TAG = "tag:yaml.org,2002:"
_REFERENCE = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)\}|(\{))")
_ENTRY = re.compile(r"(\w+\[\d+\])\.?(.*)")


class ConfigErrors:
    """What is wrong, each with the path of the value it is about: `models[2].routing.strategy` `is not …`.

    A value that came from the environment may be a secret and is never shown.
    """

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []
        self._hidden: set[str] = set()
        self._names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, where: str, what: str) -> None:
        self._found.append((where, what))

    def name(self, entry: str, name: str) -> None:
        """`models[2]` is called `name`, which its errors then mention."""
        self._names[entry] = self.show(name)

    def hide(self, value: str) -> None:
        self._hidden.add(value)

    def show(self, value: str) -> str:
        if value in self._hidden:
            return "'…' (from the environment)"
        return f"'{value}'" if len(value) <= 80 else f"'{value[:79]}…'"

    def lines(self) -> list[str]:
        return [self._line(where, what) for where, what in self._found]

    def _line(self, where: str, what: str) -> str:
        match = _ENTRY.match(where)
        if match is None:
            return f"{where} {what}".lstrip()
        entry, rest = match.groups()
        name = self._names.get(entry)
        return " ".join(part for part in (f"{entry} {name}:" if name else f"{entry}:", rest, what) if part)


class _PlainLoader(_Loader):  # type: ignore[misc]  # the base is one of two classes
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  # PyYAML's own name and type


for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)\Z", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[1-9][0-9]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z", list("-+.0123456789")),
):
    _PlainLoader.add_implicit_resolver(_TAG + _tag, re.compile(_pattern), _first)


def read_tree(data: bytes, environment: Mapping[str, str], errors: ConfigErrors) -> Any:
    """The file's value: None when it is empty, INVALID when it is not YAML."""
    try:
        loader = _PlainLoader(data)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        errors.add("", f"not valid YAML{at}: {error.problem or error.context}")
        return INVALID
    except yaml.YAMLError as error:
        # printed, a reader's error quotes the bytes around it; its reason does not
        errors.add("", f"not valid YAML: {getattr(error, 'reason', None) or 'it cannot be decoded'}")
        return INVALID
    return None if node is None else _Builder(environment, errors).value(node, "", 0)


class _Builder:
    def __init__(self, environment: Mapping[str, str], errors: ConfigErrors) -> None:
        self._environment = environment
        self._errors = errors
        self._nodes = 0

    def value(self, node: Any, where: str, depth: int) -> Any:
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes == _MAX_NODES:
            self._errors.add(where, "is nested too deep, or refers to itself")
        if depth > _MAX_DEPTH or self._nodes >= _MAX_NODES:
            return INVALID
        tag = node.tag.removeprefix(_TAG)
        if tag not in ("map", "seq", "str", "null", "bool", "int", "float"):
            self._errors.add(where, f"has the tag {tag}, which is not allowed")
            return INVALID
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, f"{where}[{at}]", depth + 1) for at, child in enumerate(node.value)]
        return self._scalar(node, where)

    def _mapping(self, node: Any, where: str, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._errors.add(where, f"has a key on line {line} that is not a plain word")
            elif (key := key_node.value) in built:
                self._errors.add(where, f"gives '{key}' a second time on line {line}")
            else:
                built[key] = self.value(value_node, f"{where}.{key}" if where else key, depth + 1)
        return built

    def _scalar(self, node: Any, where: str) -> Any:
        text: str = node.value
        try:
            match node.tag.removeprefix(_TAG):
                case "str":
                    return self._interpolate(text, where)
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return int(text, 0)
                case "float":
                    return float(text)
        except ValueError:
            pass
        self._errors.add(where, "does not fit its tag")
        return INVALID

    def _interpolate(self, text: str, where: str) -> Any:
        if "$" not in text:
            return text
        parts: list[str] = []
        at = 0
        sound = True
        for match in _REFERENCE.finditer(text):
            parts.append(text[at : match.start()])
            at = match.end()
            dollar, name, broken = match.groups()
            if dollar:
                parts.append("$")
            elif broken:
                self._errors.add(where, "has a ${ that names no variable; a dollar sign is written $$")
                sound = False
            elif value := self._environment.get(name):
                parts.append(value)
            else:
                self._errors.add(where, f"needs the environment variable {name}, which is not set or empty")
                sound = False
        if not sound:
            return INVALID
        replaced = "".join((*parts, text[at:]))
        if "${" in text:
            self._errors.hide(replaced)
        return replaced
