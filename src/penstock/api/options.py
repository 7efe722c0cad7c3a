"""Keyword arguments as options of the command line: the same names, values, checks and error messages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from penstock.runs.read_settings import read_settings, refuse_experiment
from penstock.settings.command_line import CommandLine
from penstock.settings.config import with_config
from penstock.settings.flag_values import ParsedArguments, ValueList
from penstock.settings.flags import GROUPS, UNSUPPORTED_FLAGS
from penstock.settings.flags.flag import Flag, by_spelling
from penstock.settings.parse import parse
from penstock.settings.schema import Settings

_PROFILE = CommandLine("profile", "", groups=GROUPS, unsupported=UNSUPPORTED_FLAGS)


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return the settings of one run."""
    parsed = parse_options(options)
    refuse_experiment(parsed, "penstock.Runner")
    return read_settings(parsed)


def parse_options(options: Mapping[str, Any], *, sweep: bool = False) -> ParsedArguments:
    """Parse options as the command line would, with the file that `config` names. With `sweep`, a list of one value asks for a
    sweep, too."""
    rows = by_spelling(_PROFILE.flags)
    words: list[str] = []
    lists: list[str] = []
    for name, value in options.items():
        spelling = f"--{name.replace('_', '-')}"
        flag = rows.get(spelling)
        if value is not None:
            words += _words(spelling, flag if isinstance(flag, Flag) else None, value)
            if sweep and isinstance(flag, Flag) and flag.sweepable and isinstance(value, list | tuple):
                lists.append(str(flag.target))
    parsed = with_config(parse(_PROFILE, words))
    for target in lists:
        if not isinstance(parsed.values[target], ValueList):
            parsed.values[target] = ValueList([parsed.values[target]])
    return parsed


def _words(spelling: str, flag: Flag | None, value: Any) -> list[str]:
    """Return the words for an option. Those without a flag are refused by the parser."""
    if isinstance(value, dict):
        return [f"{spelling}={json.dumps(value)}"]
    if isinstance(value, list | tuple):
        texts = [str(item) for item in value]
        return (
            [f"{spelling}={','.join(texts)}"]
            if flag and (flag.comma_separated or flag.sweepable)
            else [f"{spelling}={t}" for t in texts]
        )
    if isinstance(value, bool):
        return [f"{spelling}={str(value).lower()}"]
    return [f"{spelling}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]
