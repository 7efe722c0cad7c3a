"""Converts the text of a flag to its typed value, by the flag's row in the table."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import UserError
from penstock.settings.flags import Flag, expected_value
from penstock.suggest import nearest

if TYPE_CHECKING:
    from penstock.settings.schema import Parameter

_INTEGER = re.compile(r"[+-]?(?=[0-9_]{1,100}\Z)[0-9]+(?:_[0-9]+)*\Z")
"""Digits, which may be grouped by underscores, as in Python."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class ValueList(tuple[int | float, ...]):
    """The values of a flag with a comma-separated list: a sweep over them."""

    __slots__ = ()

    def __str__(self) -> str:
        return ",".join(f"{value:.15g}" for value in self)


class Variant(NamedTuple):
    """A point of a sweep over other things than numbers of flags."""

    parameters: dict[str, Parameter]
    values: dict[str, Any]
    """All values, as in `ParsedArguments`."""
    spellings: dict[str, str]


class ParsedArguments(NamedTuple):
    """The arguments that the user gave; no defaults."""

    values: dict[str, Any]
    """Values by the target of their row."""
    spellings: dict[str, str]
    """For each target, the flag as the user wrote it, for error messages."""
    command: str = ""
    """The command line with secrets redacted."""
    program: str = "penstock"
    """Name that the program was called by."""
    variants: tuple[Variant, ...] = ()
    """Points of a configuration file, each of which replaces the values."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""

    def section(self, name: str) -> dict[str, Any]:
        """Return the values whose target begins with `name.`, by the rest of the target."""
        prefix = name + "."
        return {
            target.removeprefix(prefix): value for target, value in self.values.items() if target.startswith(prefix)
        }


def read_value(flag: Flag, spelling: str, text: str) -> Any:
    """Return the value of `text`, or raise `UserError`. A flag that accumulates returns a list."""
    if not text.strip():
        raise UserError(f"{spelling} needs a value, but the value is empty.")
    match flag.kind:
        case "bool":
            return _boolean(flag, spelling, text)
        case "int" | "float":
            return _numbers(flag, spelling, text)
        case "enum":
            return _choice(flag, spelling, text)
        case "list":
            return _list(flag, spelling, text)
        case "extra":
            from penstock.settings.pairs import extra_fields

            return extra_fields(text, spelling)
        case "headers":
            from penstock.settings.pairs import headers

            return headers(text, spelling)
        case "path":
            return os.path.expanduser(text)  # the shell does not expand the ~ in --flag=~/file
    return text


def parse_bool(text: str) -> bool | None:
    return _BOOLEANS.get(text.strip().lower())


def _boolean(flag: Flag, spelling: str, text: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise UserError(f"{spelling} must be true or false, not {text!r}.")
    if flag.always_on and not value:
        raise UserError(
            f"{spelling}={text} asks for a feature that this version of Penstock does not have yet; leave the flag out."
        )
    return value is flag.stores(spelling)


def _numbers(flag: Flag, spelling: str, text: str) -> int | float | ValueList:
    if not flag.sweepable or "," not in text:
        return _number(flag, spelling, text)
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        raise UserError(f"{spelling} {text!r} has an empty value next to a comma.")
    return ValueList(_number(flag, spelling, part) for part in parts)


def _number(flag: Flag, spelling: str, text: str) -> int | float:
    stripped = text.strip()
    value: int | float = math.nan
    if flag.kind == "int" and _INTEGER.match(stripped):
        value = int(stripped)
    elif flag.kind == "float" and (
        _NUMBER.match(stripped) or (flag.allows_inf and stripped.lower() in ("inf", "infinity"))
    ):
        value = float(stripped)
    above_min = (flag.ge is None or value >= flag.ge) and (flag.gt is None or value > flag.gt)
    below_max = (flag.le is None or value <= flag.le) and (flag.allows_inf or value < math.inf)
    if not (above_min and below_max):  # nan fails both comparisons
        has_unit = flag.metavar == "SECONDS" and stripped[:1].isdigit() and stripped[-1:].isalpha()
        hint = " (a plain number of seconds, without a unit)" if has_unit else ""
        raise UserError(f"{spelling} must be {expected_value(flag)}, not {text!r}{hint}.")
    if value < flag.hard_min:
        raise UserError(f"{spelling} must be at least {flag.hard_min}, not {text!r}.")
    if value > flag.hard_max and value != math.inf:
        raise UserError(f"{spelling} must be at most {flag.hard_max:,}, not {text!r}.")
    return value


def _choice(flag: Flag, spelling: str, text: str) -> str:
    key = _normalized(text)
    known = {_normalized(choice): choice for choice in flag.choices}
    if key not in known:
        known |= {_normalized(choice): choice for choice in _plugin_choices(flag)}
    if key in known:
        return known[key]
    flag = flag._replace(choices=tuple(known.values()))
    for choice in flag.unsupported_choices:
        if _normalized(choice) == key:
            supported = " and ".join(
                [", ".join(flag.choices[:-1]), flag.choices[-1]] if flag.choices[1:] else flag.choices
            )
            raise UserError(f"{spelling} {choice} is not supported yet; this version of Penstock has {supported}.")
    guess = nearest(key, known)
    hint = "" if guess is None else f" (did you mean {known[guess]}?)"
    raise UserError(f"{spelling} must be {expected_value(flag)}, not {text!r}{hint}.")


def _plugin_choices(flag: Flag) -> list[str]:
    """Return the choices that installed packages add. The lookup takes 20 ms or more, so unknown names alone need it."""
    if not flag.plugin_group:
        return []
    from importlib.metadata import entry_points

    return sorted({plugin.name for plugin in entry_points(group=flag.plugin_group)})


def _list(flag: Flag, spelling: str, text: str) -> list[str]:
    if not flag.comma_separated:
        return [text.strip()]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"{spelling} {text!r} has an empty name next to a comma.")
    return names


def _normalized(text: str) -> str:
    return text.strip().lower().replace("-", "_")
