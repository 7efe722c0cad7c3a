"""The texts of scalars, as flags take them and as messages may show them."""

from __future__ import annotations

import re

from penstock.settings.config.document import Node
from penstock.settings.flags import Flag

__all__ = ["describe", "flag_text", "has_unknown_unit", "hide_value"]

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|sec|m|min|h|hr|hour)\Z", re.IGNORECASE)
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "hour": 3600}
_PER_SECOND = {"SECONDS": 1, "MS": 1000}
"""The number of a flag's units in a second, by its metavariable."""
_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*\Z")


def flag_text(flag: Flag, node: Node) -> str:
    """Return the text of a scalar as the flag takes it: without a unit of time, and without the .0 of a whole number."""
    text = node.text.strip()
    if flag.metavar in _PER_SECOND and (match := _DURATION.match(text)):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2].lower()]
        return f"{seconds * _PER_SECOND[flag.metavar]:.12g}"
    if flag.kind == "int" and (match := _WHOLE.match(text)):
        return match[1]
    if flag.kind in ("int", "float") and node.kind == "int":
        return str(node.value())  # also that of 0x10
    return node.text


def has_unknown_unit(flag: Flag, text: str) -> bool:
    return flag.metavar in _PER_SECOND and text[:1].isdigit() and text[-1:].isalpha()


def describe(node: Node) -> str:
    """Return the value in words that follow "not"."""
    if node.is_scalar:
        return f"the value of {node.variables}" if node.variables else repr(node.text)
    return "a list" if node.kind == "seq" else "a mapping"


def hide_value(message: str, text: str, node: Node) -> str:
    """Replace a value from the environment, which may be secret, in an error message."""
    return message.replace(repr(text), describe(node)) if node.variables else message
