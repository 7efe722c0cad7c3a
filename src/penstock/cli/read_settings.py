"""From the words of a command to its settings: what the flags say, and what only the input file can."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.parse import parse
from penstock.settings.flag_values import Given
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings

__all__ = ["settle"]


def settle(words: Sequence[str], program: str, command: str = "profile") -> Settings:
    """Everything wrong with the words is a `UserError`."""
    given = parse(words, program, command)
    if _is_timed_trace(given):
        given.values["load.schedule.on"] = True
    return resolve(given, "" if command == "profile" else f"{command}-")


def _is_timed_trace(given: Given) -> bool:
    """A trace that is named as one is sent at its times, as AIPerf does it, unless the user says when to send."""
    values = given.values
    if not {"input.file", "input.format"} <= values.keys() or {"load.schedule.on", "load.rate"} & values.keys():
        return False
    from penstock.datasets.registry import plain_name
    from penstock.datasets.trace import FORMAT, first_row_is_timed

    return plain_name(values["input.format"]) == plain_name(FORMAT.name) and first_row_is_timed(values["input.file"])
