"""The dataset formats by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from penstock.datasets.format import Format
from penstock.datasets.format_table import FORMAT_MODULES
from penstock.errors import UserError
from penstock.plugins import FORMATS as PLUGIN_GROUP
from penstock.plugins import load_plugins
from penstock.suggest import nearest

FORMATS: tuple[Format, ...] = tuple([import_module(module).FORMAT for module in FORMAT_MODULES.values()])

PLANNED = (
    "baseten_trace",
    "sagemaker_data_capture",
    "tracelab",
    "weka_trace",
)
"""Formats of AIPerf that this version does not read, and refuses by name."""

_PLANNED_PREFIXES = ("speedbench",)
"""Prefixes of the names of other such formats."""


@cache
def formats() -> tuple[Format, ...]:
    """Return the formats, those of installed packages last."""
    return (*FORMATS, *(format_ for _, format_ in load_plugins(PLUGIN_GROUP, Format, "dataset format")))


def find(name: str) -> Format | None:
    key = _plain_name(name)
    known = next((each for each in FORMATS if _plain_name(each.name) == key), None)
    return known or next((each for each in formats() if _plain_name(each.name) == key), None)


def lookup(name: str, spelling: str = "--custom-dataset-type") -> Format:
    """Return a format, or raise `UserError`. `spelling` is what named it."""
    if format_ := find(name):
        return format_
    if planned := _planned_name(name):
        raise UserError(f"The dataset format '{planned}' is not supported yet. {supported_formats()}")
    guess = nearest(name.strip().lower().replace("-", "_"), [each.name for each in formats()])
    hint = f"; did you mean {guess}?" if guess else f". {supported_formats()}"
    raise UserError(f"There is no dataset format '{name}' ({spelling}){hint}")


def is_known(name: str) -> bool:
    """Return whether the name is that of a format, supported or planned."""
    return find(name) is not None or _planned_name(name) is not None


def _planned_name(name: str) -> str | None:
    key = _plain_name(name)
    if key.startswith(_PLANNED_PREFIXES):
        return name
    return next((each for each in PLANNED if _plain_name(each) == key), None)


def supported_formats() -> str:
    """Return the supported formats, one per line, to append to an error message."""
    return "\n  ".join(["This version reads:", *(f"{each.name}: {each.needs}" for each in formats())])


def _plain_name(name: str) -> str:
    """Return the name without case, hyphens and underscores, for comparisons."""
    return name.strip().lower().replace("-", "").replace("_", "")
