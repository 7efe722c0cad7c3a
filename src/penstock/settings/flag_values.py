"""One text to one typed value, as its row in the table says."""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple

from penstock.errors import UserError
from penstock.settings.flags import Flag, expected_value
from penstock.suggest import nearest

__all__ = ["ParsedArguments", "parse_bool", "read_value"]

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}\Z")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class ParsedArguments(NamedTuple):
    """What the user gave, and nothing that the user did not."""

    values: dict[str, Any]
    """By target in `Settings`."""
    spellings: dict[str, str]
    """Target to the flag as the user wrote it, for sentences about it."""
    command: str = ""
    """The command line, secrets replaced."""
    program: str = "penstock"
    """The name the program was called by."""

    def section(self, name: str) -> dict[str, Any]:
        """The values whose target lies in that part of `Settings`, by what is left of the target."""
        mark = name + "."
        return {target.removeprefix(mark): value for target, value in self.values.items() if target.startswith(mark)}


def read_value(flag: Flag, spelling: str, text: str) -> Any:
    """The value in `text`, or a sentence. A flag that accumulates gives a list."""
    if not text.strip():
        raise UserError(f"{spelling} needs a value, and was given an empty one.")
    match flag.kind:
        case "bool":
            return _boolean(flag, spelling, text)
        case "int" | "float":
            return _number(flag, spelling, text)
        case "enum":
            return _choice(flag, spelling, text)
        case "list":
            return _names(flag, spelling, text)
        case "extra":
            from penstock.settings.pairs import extra_fields

            return extra_fields(text, spelling)
        case "headers":
            from penstock.settings.pairs import headers

            return headers(text, spelling)
        case "path":
            return os.path.expanduser(text)  # a shell leaves the ~ of --flag=~/file as it is
    return text


def parse_bool(text: str) -> bool | None:
    return _BOOLEANS.get(text.strip().lower())


def _boolean(flag: Flag, spelling: str, text: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise UserError(f"{spelling} must be true or false, not {text!r}.")
    if flag.always_on and not value:
        raise UserError(
            f"{spelling}={text} asks for something that this version of Penstock does not have yet; leave it out."
        )
    return value is flag.stored_value


def _number(flag: Flag, spelling: str, text: str) -> int | float:
    if flag.sweepable and "," in text:
        raise UserError(
            f"{spelling} {text} asks for a sweep, which this version of Penstock does not have yet; give one value."
        )
    bare = text.strip()
    value: int | float = math.nan
    if flag.kind == "int" and _WHOLE.match(bare):
        value = int(bare)
    elif flag.kind == "float" and (_NUMBER.match(bare) or (flag.allows_inf and bare.lower() in ("inf", "infinity"))):
        value = float(bare)
    low = (flag.ge is None or value >= flag.ge) and (flag.gt is None or value > flag.gt)
    high = (flag.le is None or value <= flag.le) and (flag.allows_inf or value < math.inf)
    if not (low and high):  # nan is neither
        has_unit = flag.metavar == "SECONDS" and bare[:1].isdigit() and bare[-1:].isalpha()
        hint = " (a plain number of seconds, without a unit)" if has_unit else ""
        raise UserError(f"{spelling} must be {expected_value(flag)}, not {text!r}{hint}.")
    if value < flag.hard_min:
        raise UserError(f"{spelling} must be at least {flag.hard_min}, not {text!r}.")
    if value > flag.hard_max and value != math.inf:
        raise UserError(f"{spelling} must be at most {flag.hard_max:,}, not {text!r}.")
    return value


def _choice(flag: Flag, spelling: str, text: str) -> str:
    plain = _plain(text)
    known = {_plain(choice): choice for choice in flag.choices}
    if plain not in known:
        known |= {_plain(choice): choice for choice in _plugged(flag)}
    if plain in known:
        return known[plain]
    flag = flag._replace(choices=tuple(known.values()))
    for choice in flag.unsupported_choices:
        if _plain(choice) == plain:
            have = " and ".join([", ".join(flag.choices[:-1]), flag.choices[-1]] if flag.choices[1:] else flag.choices)
            raise UserError(f"{spelling} {choice} is not built yet; this version of Penstock has {have}.")
    guess = nearest(plain, known)
    hint = "" if guess is None else f" (did you mean {known[guess]}?)"
    raise UserError(f"{spelling} must be {expected_value(flag)}, not {text!r}{hint}.")


def _plugged(flag: Flag) -> list[str]:
    """The names that installed packages add. Looking for them takes 20 ms and more: only for a name that is not our own."""
    if not flag.plugin_group:
        return []
    from importlib.metadata import entry_points

    return sorted({plugin.name for plugin in entry_points(group=flag.plugin_group)})


def _names(flag: Flag, spelling: str, text: str) -> list[str]:
    if not flag.comma_separated:
        return [text.strip()]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UserError(f"{spelling} {text!r} has an empty name beside a comma.")
    return names


def _plain(text: str) -> str:
    return text.strip().lower().replace("-", "_")
