"""Makes an experiment from the parsed flags: repeated runs and sweeps."""

from __future__ import annotations

from penstock.runs.points import Experiment, Variation, Variations
from penstock.runs.read_settings import read_settings
from penstock.settings.flag_values import ParsedArguments

__all__ = ["read_experiment"]


def read_experiment(parsed: ParsedArguments) -> Experiment:
    """Raise `UserError` for values that are missing or contradict each other, at any point."""
    settings = read_settings(parsed)
    return Variations([Variation(settings)], settings.output.folder)
