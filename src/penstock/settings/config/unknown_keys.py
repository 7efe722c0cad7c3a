"""Sentences for unknown keys of the configuration file, with the likely name."""

from __future__ import annotations

import re

from penstock.settings.config.document import Node, snake_case
from penstock.settings.config.keys import Refused, Section, flags_of, rows
from penstock.settings.flags import SPELLINGS
from penstock.suggest import nearest

__all__ = ["camel_case", "unknown_key"]

_MOST_LISTED = 12


def camel_case(path: str) -> str:
    """Return a key path as AIPerf's documentation writes it."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), path)


def unknown_key(node: Node, parent: str, keys: Section) -> str:
    return f"{node.name} is not a key of {parent or 'the file'}; {_hint(snake_case(node.key), keys)}"


def _hint(key: str, keys: Section) -> str:
    if (path := _same_key_elsewhere(key) or _key_of_flag(key)) is not None:
        return f"did you mean {camel_case(path)}?"
    usual = [name for name, row in keys.items() if name and not isinstance(row, Refused)]
    if (guess := nearest(key, usual, cutoff=0.6)) is not None:
        return f"did you mean {camel_case(guess)}?"
    if len(usual) <= _MOST_LISTED:
        return f"its keys are {', '.join(map(camel_case, usual))}."
    return "see `config init` for the usual ones."


def _same_key_elsewhere(key: str) -> str | None:
    """Return the path of the section or value with this key, if there is one outside phases, which share their keys."""
    found = list(dict.fromkeys(_prefix(path, key) for path, _ in rows() if key in path.split(".")))
    found = [path for path in found if not path.startswith("benchmark.warmup.")]
    return found[0] if len(found) == 1 else None


def _prefix(path: str, key: str) -> str:
    names = path.split(".")
    return ".".join(names[: names.index(key) + 1])


def _key_of_flag(key: str) -> str | None:
    """Return the key of the flag with this name."""
    flag = SPELLINGS.get(f"--{key.replace('_', '-')}")
    return next((path for path, row in rows() if flag is not None and flag.name in flags_of(row)), None)
