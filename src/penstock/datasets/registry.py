"""The dataset formats by name.

To add a format, define a FORMAT in a module of its own, list it in `FORMATS` and remove its name from `PLANNED`.
"""

from __future__ import annotations

from penstock.datasets import inputs_json, multi_turn, raw_payload, single_turn, trace
from penstock.datasets.format import Format
from penstock.errors import UserError
from penstock.suggest import nearest

__all__ = ["FORMATS", "PLANNED", "is_known", "lookup", "plain_name", "supported_formats"]

FORMATS: tuple[Format, ...] = (
    single_turn.FORMAT,
    multi_turn.FORMAT,
    inputs_json.FORMAT,
    raw_payload.FORMAT,
    trace.FORMAT,
)
"""Formats are tried in this order to detect that of a file."""


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

_PLANNED_PREFIXES = ("speedbench",)
"""Prefixes of names that are not built either."""


def lookup(name: str) -> Format:
    key = plain_name(name)
    for format_ in FORMATS:
        if plain_name(format_.name) == key:
            return format_
    if planned := _planned_name(name):
        raise UserError(f"The dataset format '{planned}' is not built yet. {supported_formats()}")
    guess = nearest(name.strip().lower().replace("-", "_"), [each.name for each in FORMATS])
    hint = f"; did you mean {guess}?" if guess else f". {supported_formats()}"
    raise UserError(f"There is no dataset format '{name}' (--custom-dataset-type){hint}")


def is_known(name: str) -> bool:
    """Return whether the name is that of a format, built or planned."""
    return plain_name(name) in {plain_name(each.name) for each in FORMATS} or _planned_name(name) is not None


def _planned_name(name: str) -> str | None:
    key = plain_name(name)
    if key.startswith(_PLANNED_PREFIXES):
        return name
    return next((each for each in PLANNED if plain_name(each) == key), None)


def supported_formats() -> str:
    """Return the supported formats, one per line, to append to an error message."""
    return "\n  ".join(["This version reads:", *(f"{each.name}: {each.needs}" for each in FORMATS)])


def plain_name(name: str) -> str:
    """Return the name without case, hyphens and underscores, for comparisons."""
    return name.strip().lower().replace("-", "").replace("_", "")
