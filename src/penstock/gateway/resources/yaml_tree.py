"""Parsing of a YAML file into plain values. `${VAR}` is replaced, and all errors are collected.

Duplicate keys and tags other than those of plain data are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from penstock.plain_yaml import MAX_DEPTH, MAX_NODES, TAG_PREFIX, InvalidYaml, compose

INVALID: Final = object()
"""Replaces a value that could not be read and whose error is already recorded."""

_REFERENCE = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)\}|(\{))")
_LINE = re.compile(r"\bline [0-9]")
_ENTRY = re.compile(r"(\w+\[\d+\])\.?(.*)")


class ConfigErrors:
    """The errors in a file, each with the path of its value, such as `models[2].routing.strategy`, and its line.

    Values from the environment may be secrets and are never shown.
    """

    def __init__(self) -> None:
        self._errors: list[tuple[str, str]] = []
        self._hidden: set[str] = set()
        self._names: dict[str, str] = {}
        self.files: list[str] = []
        """Other files that were read."""
        self.line_numbers: dict[str, int] = {}
        """Line number by path."""
        self.interpolated: set[str] = set()
        """Paths of the values that contain an environment variable."""

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, path: str, message: str) -> None:
        self._errors.append((path, message))

    def set_name(self, entry: str, name: str) -> None:
        """Set the name of an entry such as `models[2]`. Its errors then include the name."""
        self._names[entry] = self.show(name)

    def hide(self, value: str) -> None:
        self._hidden.add(value)

    def show(self, value: str) -> str:
        if value in self._hidden:
            return "'…' (from the environment)"
        if not value.isprintable():
            value = value.encode("unicode_escape").decode()
        return f"'{value}'" if len(value) <= 80 else f"'{value[:79]}…'"

    def lines(self) -> list[str]:
        return [self._line(path, message) for path, message in self._errors]

    def _line(self, path: str, message: str) -> str:
        number = self._line_number(path)
        return self._text(path, message if number is None or _LINE.search(message) else f"{message} (line {number})")

    def _line_number(self, path: str) -> int | None:
        """Return the line of a value, or of the closest value around it."""
        while path and path not in self.line_numbers:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.line_numbers.get(path)

    def _text(self, path: str, message: str) -> str:
        match = _ENTRY.match(path)
        if match is None:
            return f"{path} {message}".lstrip()
        entry, rest = match.groups()
        name = self._names.get(entry)
        return " ".join(part for part in (f"{entry} {name}:" if name else f"{entry}:", rest, message) if part)


def read_tree(data: bytes, environment: Mapping[str, str], errors: ConfigErrors) -> Any:
    """Return the value of the file: None if it is empty, INVALID if it is not valid YAML."""
    try:
        node = compose(data)
    except InvalidYaml as error:
        errors.add("", str(error))
        return INVALID
    return None if node is None else _Builder(environment, errors).value(node, "", 0)


class _Builder:
    def __init__(self, environment: Mapping[str, str], errors: ConfigErrors) -> None:
        self._environment = environment
        self._errors = errors
        self._nodes = 0

    def value(self, node: Any, path: str, depth: int) -> Any:
        self._nodes += 1
        if path:
            self._errors.line_numbers.setdefault(path, node.start_mark.line + 1)
        if depth > MAX_DEPTH or self._nodes == MAX_NODES:
            self._errors.add(path, "is nested too deeply or refers to itself")
        if depth > MAX_DEPTH or self._nodes >= MAX_NODES:
            return INVALID
        tag = node.tag.removeprefix(TAG_PREFIX)
        if tag not in ("map", "seq", "str", "null", "bool", "int", "float"):
            self._errors.add(path, f"has the tag {tag}, which is not allowed")
            return INVALID
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: Any, path: str, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._errors.add(path, f"has a key on line {line} that is not a scalar")
            elif (key := key_node.value) in built:
                self._errors.add(path, f"repeats the key '{key}' on line {line}")
            else:
                self._errors.line_numbers.setdefault(f"{path}.{key}" if path else key, line)
                built[key] = self.value(value_node, f"{path}.{key}" if path else key, depth + 1)
        return built

    def _scalar(self, node: Any, path: str) -> Any:
        text: str = node.value
        try:
            match node.tag.removeprefix(TAG_PREFIX):
                case "str":
                    return self._interpolate(text, path)
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
        self._errors.add(path, "does not match its YAML tag")
        return INVALID

    def _interpolate(self, text: str, path: str) -> Any:
        if "$" not in text:
            return text
        parts: list[str] = []
        position = 0
        valid = True
        for match in _REFERENCE.finditer(text):
            parts.append(text[position : match.start()])
            position = match.end()
            escaped_dollar, name, unnamed = match.groups()
            if escaped_dollar:
                parts.append("$")
            elif unnamed:
                self._errors.add(path, "contains ${ without a variable name; write $$ for a dollar sign")
                valid = False
            elif value := self._environment.get(name):
                parts.append(value)
            else:
                self._errors.add(path, f"needs the environment variable {name}, which is unset or empty")
                valid = False
        if not valid:
            return INVALID
        replaced = "".join((*parts, text[position:]))
        if "${" in text:
            self._errors.hide(replaced)
            self._errors.interpolated.add(path)
        return replaced
