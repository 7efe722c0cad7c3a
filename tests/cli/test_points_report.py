"""What the command line says about an experiment that has ended."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.exit_status import EXIT_FAILED
from penstock.cli.points_report import search_status
from penstock.metrics.capacity import LoadResult, SearchOutcome, SearchResult, parse_slo
from penstock.runs.run_experiment import FinishedRun


@pytest.mark.parametrize(
    ("loads", "sentence"),
    [
        ([LoadResult(1.0, 20, (20,), "fail", observed=(5.0,))], "No concurrency met the objectives, not even 1.\n"),
        ([], "Nothing was measured.\n"),
        (
            [LoadResult(1.0, 3, (0,), None, observed=(1.0,)), LoadResult(2.0, 3, (0,), None, observed=(1.0,))],
            (
                "No concurrency could be decided: 3 requests did not suffice to decide the lowest, 1; they are too few or "
                "cover too short a time.\n"
            ),
        ),
        (
            [
                LoadResult(1.0, 10_000, (90,), None, unclear=1, observed=(3.0,)),
                LoadResult(2.0, 90, (90,), "fail", observed=(9.0,)),
            ],
            (
                "No concurrency is known to meet the objectives, and 2 fails: 10,000 requests did not suffice to decide the "
                "lowest, 1; their misses are too close to the allowed share. 1 more request may have missed an objective only "
                "because of the client.\n"
            ),
        ),
    ],
)
def test_quiet_search_without_a_result_says_so(
    capsys: pytest.CaptureFixture[str], loads: list[LoadResult], sentence: str
) -> None:
    result = SearchResult(loads, None, [(1.0,)] * len(loads))
    search = SearchOutcome("concurrency", (parse_slo("p99 time_to_first_token<3"),), result)
    none: Any = None
    assert search_status(FinishedRun(none, none, [], 0), search, quiet=True) == EXIT_FAILED
    assert capsys.readouterr().err == sentence
