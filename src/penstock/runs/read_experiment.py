"""Makes an experiment from the parsed flags: a single run, repeated runs, sweeps and searches."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.errors import UserError
from penstock.runs.points import Experiment, Single, Variation
from penstock.runs.read_settings import asks_for_experiment, read_settings
from penstock.settings.artifact_folder import sweep_folder
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.recipes import SEARCHES, expand_recipe
from penstock.settings.sweep import combinations, parameter_names

_HIGHEST_CONCURRENCY = 256
"""Highest concurrency of a search for saturation, unless the user sets another one."""


def read_experiment(parsed: ParsedArguments) -> Experiment:
    """Raise `UserError` for values that are missing or contradict each other, at any point."""
    if not asks_for_experiment(parsed):
        return Single(read_settings(parsed))
    variations = read_variations(parsed)
    settings = variations[0].settings
    folder = settings.output.folder
    if settings.experiment.parameters and "output.folder" not in parsed.values:
        # The folder of a sweep is named after its parameters, not after a value.
        searches = settings.experiment.find_max is not None or settings.experiment.searches_peak
        names = ["search"] if searches else list(variations[0].parameters) or ["auto"]
        folder = sweep_folder(settings.models, settings.endpoint.type, names)
    return make_experiment(variations, folder)


def read_variations(parsed: ParsedArguments) -> list[Variation]:
    """Return the settings of all combinations of values; those of a search, of which only the load changes, are one."""
    parsed = expand_recipe(parsed)
    names = parameter_names(parsed)
    chooses = "experiment.find_max" in parsed.values or parsed.values.get("experiment.recipe") in SEARCHES
    recipe = parsed.values.get("experiment.recipe")
    auto = parsed.values.get("experiment.sweep") == "auto"
    if names and (chooses or auto):
        what = "A search chooses the loads" if chooses else "--sweep auto chooses the points"
        raise UserError(f"{what} by itself; give one value for {names[0].replace('_', ' ')}.")
    if chooses:
        by_rate = parsed.values.get("experiment.find_max") == "request-rate" or recipe == "max-goodput-under-slo"
        names = ["request_rate" if by_rate else "concurrency"]
    elif auto:
        names = ["concurrency"]
    variations: list[Variation] = []
    for combination in combinations(parsed):
        endpoint = variations[0].settings.endpoint if variations else None
        settings = read_settings(combination.arguments, parameters=tuple(names), endpoint=endpoint)
        if auto and "load.concurrency" not in parsed.values:
            settings = replace(settings, load=replace(settings.load, concurrency=_HIGHEST_CONCURRENCY))
        variations.append(Variation(settings, combination.parameters))
    return variations


def make_experiment(variations: Sequence[Variation], folder: str, seed: int | None = None) -> Experiment:
    """Return the experiment with these variations, whose artifact folder is `folder`. `seed` is that of an experiment that is
    resumed."""
    settings = variations[0].settings
    if settings.experiment.find_max is not None:
        from penstock.runs.search import Search

        return Search(settings, folder, seed)
    if settings.experiment.searches_peak:
        from penstock.runs.peak_runs import PeakRuns

        return PeakRuns(settings, folder, seed)
    if settings.experiment.sweep == "auto":
        from penstock.runs.auto_sweep import AutoSweep

        return AutoSweep(settings, folder, seed)
    from penstock.runs.variations import Variations

    return Variations(variations, folder, seed)
