"""The dataset formats by name.

To add a format, define a FORMAT in a module of its own, list it in `FORMATS` and remove its name from `PLANNED`.
"""

from __future__ import annotations

from penstock.datasets import inputs_json, multi_turn, raw_payload, single_turn, trace
from penstock.datasets.format import Format
from penstock.errors import UserError
from penstock.suggest import nearest

__all__ = ["FORMATS", "PLANNED", "is_known", "lookup", "plain_name", "what_is_read"]

FORMATS: tuple[Format, ...] = (
    single_turn.FORMAT,
    multi_turn.FORMAT,
    inputs_json.FORMAT,
    raw_payload.FORMAT,
    trace.FORMAT,
)
"""In the order in which to ask whether a file is of the format."""


PLANNED = (
    "bailian_trace",
    "baseten_trace",
    "burst_gpt_trace",
    "dag_jsonl",
    "random_pool",
    "sagemaker_data_capture",
    "tracelab",
    "weka_trace",
)
"""Formats of AIPerf that are not built yet."""

_PLANNED_FAMILIES = ("speedbench",)
"""Beginnings of whole families of names."""


def lookup(name: str) -> Format:
    key = plain_name(name)
    for each in FORMATS:
        if plain_name(each.name) == key:
            return each
    if planned := _planned_name(name):
        raise UserError(f"The dataset format '{planned}' is not built yet. {what_is_read()}")
    guess = nearest(name.strip().lower().replace("-", "_"), [each.name for each in FORMATS])
    hint = f"; did you mean {guess}?" if guess else f". {what_is_read()}"
    raise UserError(f"There is no dataset format '{name}' (--custom-dataset-type){hint}")


def is_known(name: str) -> bool:
    """Return whether the name is that of a format, built or planned."""
    return plain_name(name) in {plain_name(each.name) for each in FORMATS} or _planned_name(name) is not None


def _planned_name(name: str) -> str | None:
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
