"""The settings that a configuration file describes: one point, or those of a sweep."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from penstock.errors import UserError
from penstock.runs.read_settings import read_settings
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags import SPELLINGS, Flag
from penstock.settings.schema import Settings

__all__ = ["ConfigPoints", "read_points"]


class ConfigPoints(NamedTuple):
    sweep: dict[str, tuple[Any, ...]]
    """The values of the sweep by their targets; empty without one."""
    points: list[tuple[dict[str, Any], Settings]]
    """For each point its values by their targets, and its settings."""


def read_points(parsed: ParsedArguments) -> ConfigPoints:
    """Read and check every point as a run would, or raise `UserError`."""
    sweep = {target: value for target, value in parsed.values.items() if isinstance(value, tuple)}
    lists = list(sweep.values())
    sweep_type = SPELLINGS["--sweep-type"]
    zipped = isinstance(sweep_type, Flag) and parsed.values.get(str(sweep_type.target)) == "zip"
    if zipped and len({len(values) for values in lists}) > 1:
        raise UserError("The lists of a zip sweep must have the same length.")
    combinations = zip(*lists, strict=True) if zipped else product(*lists)
    points = []
    for combination in combinations:
        values = dict(zip(sweep, combination, strict=True))
        single = parsed.values | values
        if sweep:
            single["experiment.parameters"] = tuple(sweep)  # for the checks of settings that only a sweep has
        points.append((values, read_settings(parsed._replace(values=single))))
    return ConfigPoints(sweep, points)
