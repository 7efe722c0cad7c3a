"""Combines the flags with the configuration file that `--config` names. Flags override the file."""

from __future__ import annotations

import os
from typing import Any

from penstock.settings.api_key import KEY_FIELDS
from penstock.settings.config.read import read_config
from penstock.settings.flag_values import ParsedArguments

__all__ = ["overlay"]

_ALTERNATIVES = (
    {f"endpoint.{field}" for field in KEY_FIELDS},
    {"load.rate", "load.conversation_rate", "load.rate_series", "load.user_rate"},
)
"""Targets that exclude each other: a flag for one of them replaces the others in the file."""
_PAIRS = ("endpoint.headers", "endpoint.extra")


def overlay(parsed: ParsedArguments) -> ParsedArguments:
    """Return the values of the file that `config_file` names, overridden by the other values of `parsed`."""
    flags = dict(parsed.values)
    file = read_config(flags["config_file"], os.environ)
    replaced = {other for target in flags for group in _ALTERNATIVES if target in group for other in group}
    values = {target: value for target, value in file.values.items() if target not in replaced}
    for target in _PAIRS:
        if target in flags and target in values:
            flags[target] = _merged(values[target], flags[target])
    return parsed._replace(values=values | flags, spellings=file.spellings | parsed.spellings)


def _merged(pairs: list[tuple[str, Any]], overriding: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the pairs of both. Header names are case-insensitive; names of body fields differ in more than case."""
    names = {name.lower() for name, _ in overriding}
    return [pair for pair in pairs if pair[0].lower() not in names] + overriding
