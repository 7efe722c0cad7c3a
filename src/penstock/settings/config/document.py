"""A configuration file as a tree of nodes, with environment variables replaced. Each node knows its key and its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from penstock.errors import UserError
from penstock.plain_yaml import MAX_DEPTH, MAX_NODES, TAG_PREFIX, InvalidYaml, compose
from penstock.settings.pairs import value_of

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\})?")
"""`${NAME}`, `${NAME:default}`, `$${` for the two characters, and `${` without a name, which is an error."""
_UPPER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class ConfigError(UserError):
    """The errors of a configuration file, of which each names the file, the line and the key."""

    def __init__(self, path: str, errors: list[str]) -> None:
        single = errors[0] if len(errors) == 1 else "\n  ".join((f"{path} has {len(errors)} errors:", *errors))
        super().__init__(single)
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Node:
    key: str
    """The last key of the path, as the file has it."""
    path: str
    """Path of the node, as in `benchmark.phases[0].rate`."""
    file: str
    line: int
    kind: str
    """The YAML tag without its prefix: map, seq, str, null, bool, int or float."""
    text: str = ""
    """The text of a scalar, with environment variables replaced."""
    plain: bool = True
    """False for a scalar in quotes."""
    variables: str = ""
    """The text before replacement if it names environment variables."""
    children: tuple[Node, ...] = ()

    @property
    def name(self) -> str:
        """The key as sentences name it, after its file and line."""
        return f"{self.file}:{self.line} {self.path}".rstrip()

    @property
    def is_scalar(self) -> bool:
        return self.kind not in ("map", "seq")

    @property
    def off(self) -> bool:
        """True if the node asks for nothing: null, false or an empty collection."""
        return self.kind == "null" or (self.kind == "bool" and self.value() is False) or self.empty

    @property
    def empty(self) -> bool:
        return not self.is_scalar and not self.children

    def value(self) -> Any:
        """Return the node as plain data."""
        match self.kind:
            case "map":
                return {child.key: child.value() for child in self.children}
            case "seq":
                return [child.value() for child in self.children]
            case "null":
                return None
            case "int":
                return int(self.text, 0)
            case "float":
                return float(self.text)
            case "bool":
                return self.text.lower() == "true"
        return value_of(self.text) if self.variables and self.plain else self.text


def read_document(path: str, environment: Mapping[str, str]) -> Node:
    """Return the root of a file, or raise `UserError`."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise UserError(f"--config {path!r} cannot be read: {error.strerror}.") from None
    try:
        root = compose(data)
    except InvalidYaml as error:
        raise UserError(f"{path} is {error}.") from None
    if root is None:
        raise UserError(f"{path} is empty; `config init` prints a file to begin with.")
    builder = _Builder(path, environment)
    node = builder.node(root, "", "", 0)
    if builder.errors:
        raise ConfigError(path, builder.errors)
    return node


def _tag_fits(raw: yaml.Node, kind: str) -> bool:
    if not isinstance(raw, yaml.ScalarNode):
        return kind == ("seq" if isinstance(raw, yaml.SequenceNode) else "map")
    try:
        Node("", "", "", 0, kind, raw.value).value()
    except ValueError:  # such as !!int x
        return False
    return kind in ("str", "null", "bool", "int", "float")


def snake_case(key: str) -> str:
    return _UPPER.sub("_", key).replace("-", "_").lower()


class _Builder:
    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        self._file = file
        self._environment = environment
        self._count = 0
        self.errors: list[str] = []

    def node(self, raw: yaml.Node, key: str, path: str, depth: int, line: int | None = None) -> Node:
        self._count += 1
        line = (raw.start_mark.line if line is None else line) + 1
        node = Node(key, path, self._file, line, raw.tag.removeprefix(TAG_PREFIX))
        if depth > MAX_DEPTH or self._count > MAX_NODES:
            raise UserError(f"{node.name} is nested too deeply or refers to itself.")
        if not _tag_fits(raw, node.kind):
            self.errors.append(f"{node.name} has the tag {raw.tag}, which is not allowed here.")
            return node
        if isinstance(raw, yaml.ScalarNode):
            return self._scalar(raw, node)
        children = (self._items if node.kind == "seq" else self._entries)(raw, path, depth)
        return replace(node, children=tuple(children))

    def _items(self, raw: Any, path: str, depth: int) -> list[Node]:
        return [self.node(item, "", f"{path}[{number}]", depth + 1) for number, item in enumerate(raw.value)]

    def _entries(self, raw: Any, path: str, depth: int) -> list[Node]:
        children: dict[str, Node] = {}
        for key_node, value in raw.value:
            line = key_node.start_mark.line
            key = key_node.value
            if not isinstance(key, str):
                self.errors.append(f"{self._file}:{line + 1} {path} has a key that is not a scalar.".replace("  ", " "))
                continue
            child = self.node(value, key, f"{path}.{key}" if path else key, depth + 1, line)
            if key in children:
                self.errors.append(f"{child.name} is given twice; keep one of them.")
            children[key] = child
        return list(children.values())

    def _scalar(self, raw: yaml.ScalarNode, node: Node) -> Node:
        text = raw.value
        if node.kind == "str" and "${" in text:
            text = _REFERENCE.sub(lambda match: self._replacement(match, node), text)
        variables = raw.value if text != raw.value else ""
        return replace(node, text=text, plain=not raw.style, variables=variables)

    def _replacement(self, match: re.Match[str], node: Node) -> str:
        name, default = match.groups()
        if match[0] == "$${":
            return "${"
        if name is None:
            self.errors.append(f"{node.name} has ${{ without the name of a variable; write $${{ for these characters.")
            return ""
        if value := self._environment.get(name):
            return value
        if default is None:
            self.errors.append(
                f"{node.name} needs the environment variable {name}, which is unset or empty; set it, or give a default as in "
                f"${{{name}:default}}."
            )
        return default or ""
