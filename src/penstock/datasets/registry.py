"""The dataset formats by name: those that are read, and those that are only known, so that they can be named.

A new format is a file that defines a FORMAT and a line in `FORMATS`; its entry in `PLANNED` goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.datasets import inputs_json, multi_turn, raw_payload, single_turn, trace
from penstock.datasets.format import Format
from penstock.errors import UserError
from penstock.suggest import nearest

__all__ = ["FORMATS", "PLANNED", "lookup", "plain_name", "planned_name", "what_is_read"]

FORMATS: tuple[Format, ...] = (
    single_turn.FORMAT,
    multi_turn.FORMAT,
    inputs_json.FORMAT,
    raw_payload.FORMAT,
    trace.FORMAT,
)
"""In the order in which to ask whether a file is of the format."""


def _branching_turns(first: dict[str, Any]) -> bool:
    turns = first.get("turns")
    marks = multi_turn.BRANCHING
    return isinstance(turns, list) and any(isinstance(turn, dict) and marks & turn.keys() for turn in turns)


def _never(_: dict[str, Any]) -> bool:
    return False


PLANNED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "dag_jsonl": _branching_turns,
    "bailian_trace": lambda first: {"chat_id", "timestamp", "input_length", "output_length"} <= first.keys(),
    "sagemaker_data_capture": lambda first: {"captureData", "eventMetadata"} <= first.keys(),
    "random_pool": _never,
    "burst_gpt_trace": _never,
    "baseten_trace": _never,
    "tracelab": _never,
    "weka_trace": _never,
}
"""Known and not built yet: what the first line of such a file looks like, in the order in which to ask."""

_PLANNED_FAMILIES = ("speedbench",)
"""Beginnings of whole families of names."""


def lookup(name: str) -> Format:
    key = plain_name(name)
    for each in FORMATS:
        if plain_name(each.name) == key:
            return each
    if planned := planned_name(name):
        raise UserError(f"The dataset format '{planned}' is not built yet. {what_is_read()}")
    guess = nearest(name.strip().lower().replace("-", "_"), [each.name for each in FORMATS])
    hint = f"; did you mean {guess}?" if guess else f". {what_is_read()}"
    raise UserError(f"There is no dataset format '{name}' (--custom-dataset-type){hint}")


def planned_name(name: str) -> str | None:
    key = plain_name(name)
    if key.startswith(_PLANNED_FAMILIES):
        return name
    return next((each for each in PLANNED if plain_name(each) == key), None)


def what_is_read() -> str:
    """To stand behind a sentence: a line for each format, since all of them in one would be a wall."""
    return "\n  ".join(["This version reads:", *(f"{each.name}: {each.needs}" for each in FORMATS)])


def plain_name(name: str) -> str:
    """The name as it is compared: `Mooncake-Trace` is `mooncake_trace`."""
    return name.strip().lower().replace("-", "").replace("_", "")
