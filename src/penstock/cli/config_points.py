"""The settings that a configuration file describes: one point, or those of a sweep."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.runs.read_settings import asks_for_experiment, read_settings
from penstock.settings.flag_values import ParsedArguments, ValueList
from penstock.settings.schema import Settings
from penstock.settings.sweep import combinations

__all__ = ["ConfigPoints", "read_points"]


class ConfigPoints(NamedTuple):
    sweep: dict[str, ValueList]
    """The values of the sweep by their targets; empty without one."""
    points: list[tuple[dict[str, Any], Settings]]
    """For each point its values by their targets, and its settings."""


def read_points(parsed: ParsedArguments) -> ConfigPoints:
    """Read and check every point as a run would, or raise `UserError`."""
    sweep = {target: value for target, value in parsed.values.items() if isinstance(value, ValueList)}
    if not asks_for_experiment(parsed):
        return ConfigPoints(sweep, [({}, read_settings(parsed))])
    from penstock.runs.read_experiment import make_experiment, read_variations

    variations = read_variations(parsed)
    make_experiment(variations, variations[0].settings.output.folder)  # checks what only experiments have
    values = [{target: point.values[target] for target in sweep} for _, point in combinations(parsed)]
    return ConfigPoints(sweep, [(each, point.settings) for each, point in zip(values, variations, strict=True)])
