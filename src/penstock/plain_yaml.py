"""YAML files as trees of nodes, which know their lines.

Scalars follow YAML 1.2, where `no`, `on`, `12:30:00` and `2026-01-31` are strings.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

TAG_PREFIX: Final = "tag:yaml.org,2002:"
MAX_DEPTH: Final = 32
MAX_NODES: Final = 500_000
"""Limits for readers of the nodes: with aliases, a small file can describe a huge or endless tree."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InvalidYaml(Exception):
    """A file is not valid YAML. The message says where and why, and quotes nothing of the file, which may be secret."""


class _PlainLoader(_Loader):  # type: ignore[misc]  # the base is one of two classes
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  # name and type of PyYAML


for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)\Z", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[1-9][0-9]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z", list("-+.0123456789")),
):
    _PlainLoader.add_implicit_resolver(TAG_PREFIX + _tag, re.compile(_pattern), _first)


def compose(data: bytes) -> yaml.Node | None:
    """Return the root node, or None for an empty file; raise `InvalidYaml`."""
    try:
        loader = _PlainLoader(data)
        try:
            node: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise InvalidYaml(f"not valid YAML{position}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"not valid YAML: {getattr(error, 'reason', None) or 'it cannot be parsed'}") from None
    return node
