"""The folders of repeated runs and sweeps, relative to that of the experiment. They have AIPerf's names."""

from __future__ import annotations

import os

from penstock.records.log import variation_label
from penstock.settings.schema import ExperimentSettings, Parameter


def run_folder(settings: ExperimentSettings, parameters: dict[str, Parameter], trial: int) -> str:
    """Return the folder of the `trial`-th run, counted from 0, with these values."""
    value, runs = variation_label(parameters), "profile_runs"
    if settings.runs == 1:
        return value
    run = f"run_{trial + 1:04d}"
    if not parameters:
        return os.path.join(runs, run)
    if not settings.trial_folders:
        return os.path.join(value, runs, run)
    run = f"trial_{trial + 1:04d}"
    return os.path.join(value, runs, run) if settings.order == "independent" else os.path.join(runs, run, value)


def aggregate_folder(settings: ExperimentSettings, parameters: dict[str, Parameter]) -> str:
    """Return the folder of the figures over all runs with these values."""
    if not parameters:
        return "aggregate"
    value = variation_label(parameters)
    before = settings.trial_folders and settings.order == "independent"
    return os.path.join(value, "aggregate") if before else os.path.join("aggregate", value)


def sweep_folder(settings: ExperimentSettings) -> str:
    """Return the folder of the figures over all points."""
    inside = settings.trial_folders and settings.runs > 1 and settings.order == "repeated"
    return os.path.join("aggregate", "sweep_aggregate") if inside else "sweep_aggregate"
