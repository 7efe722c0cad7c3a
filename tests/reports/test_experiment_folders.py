"""The folders of repeated runs and sweeps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.reports.experiment_folders import aggregate_folder, run_folder, sweep_folder
from penstock.settings.schema import ExperimentSettings

VALUES: dict[str, int | float] = {"concurrency": 8}


@pytest.mark.parametrize(
    ("settings", "values", "run", "aggregate", "sweep"),
    [
        ({"runs": 2}, {}, "profile_runs/run_0003", "aggregate", "aggregate/sweep_aggregate"),
        ({}, VALUES, "concurrency_8", "aggregate/concurrency_8", "sweep_aggregate"),
        (
            {"runs": 3},
            VALUES,
            "profile_runs/trial_0003/concurrency_8",
            "aggregate/concurrency_8",
            "aggregate/sweep_aggregate",
        ),
        (
            {"runs": 3, "order": "independent"},
            VALUES,
            "concurrency_8/profile_runs/trial_0003",
            "concurrency_8/aggregate",
            "sweep_aggregate",
        ),
    ],
)
def test_folders_have_the_names_of_aiperf(
    settings: dict[str, Any], values: dict[str, int | float], run: str, aggregate: str, sweep: str
) -> None:
    experiment = ExperimentSettings(**settings, trial_folders=True)
    assert run_folder(experiment, values, 2) == run
    assert aggregate_folder(experiment, values) == aggregate
    assert sweep_folder(experiment) == sweep


@pytest.mark.parametrize("order", ["repeated", "independent"])
def test_folders_of_an_earlier_log_keep_their_names(order: str) -> None:
    logged = msgspec.convert({"runs": 3, "order": order, "parameters": ["concurrency"]}, ExperimentSettings)
    assert run_folder(logged, VALUES, 0) == "concurrency_8/profile_runs/run_0001"
    assert aggregate_folder(logged, VALUES) == "aggregate/concurrency_8"
    assert sweep_folder(logged) == "sweep_aggregate"
