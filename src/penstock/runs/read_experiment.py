"""Makes an experiment from the parsed flags: repeated runs, sweeps and searches."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.metrics.capacity import parse_slo
from penstock.runs.auto_sweep import AutoSweep
from penstock.runs.points import Experiment, Variation, Variations
from penstock.runs.read_settings import read_settings
from penstock.runs.search import Search
from penstock.settings.artifact_folder import sweep_folder
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.schema import Settings
from penstock.settings.sweep import combinations, parameter_names

__all__ = ["read_experiment"]

_HIGHEST_CONCURRENCY = 256
"""Highest concurrency of a search for saturation, unless the user sets another one."""


def read_experiment(parsed: ParsedArguments) -> Experiment:
    """Raise `UserError` for values that are missing or contradict each other, at any point."""
    names = parameter_names(parsed)
    if "experiment.find_max" in parsed.values or "experiment.recipe" in parsed.values:
        return _search(parsed, names)
    if parsed.values.get("experiment.sweep") == "auto":
        return _auto_sweep(parsed, names)
    if names:
        parsed.values["experiment.parameters"] = tuple(names)
    variations = [
        Variation(read_settings(combination.arguments), combination.parameters) for combination in combinations(parsed)
    ]
    return Variations(variations, _folder(parsed, variations[0].settings, names))


def _auto_sweep(parsed: ParsedArguments, lists: list[str]) -> AutoSweep:
    if lists:
        raise UserError(f"--sweep auto chooses the points by itself; give one value for {lists[0].replace('_', ' ')}.")
    parsed.values.setdefault("load.concurrency", _HIGHEST_CONCURRENCY)
    parsed.values["experiment.parameters"] = ("concurrency",)
    settings = read_settings(parsed)
    return AutoSweep(settings, _folder(parsed, settings, ["auto"]))


def _search(parsed: ParsedArguments, lists: list[str]) -> Search:
    if lists:
        raise UserError(f"A search chooses the loads by itself; give one value for {lists[0].replace('_', ' ')}.")
    by_rate = parsed.values.get("experiment.find_max") == "request-rate"
    parsed.values["experiment.parameters"] = ("request_rate" if by_rate else "concurrency",)
    settings = read_settings(parsed)
    slos = tuple(parse_slo(text) for text in settings.experiment.slos)
    return Search(settings, _folder(parsed, settings, ["search"]), slos)


def _folder(parsed: ParsedArguments, settings: Settings, names: list[str]) -> str:
    """Return the artifact folder of the experiment. That of a sweep is named after its parameters, not after a value."""
    if not names or "output.folder" in parsed.values:
        return settings.output.folder
    return sweep_folder(settings.models, settings.endpoint.type, names)
