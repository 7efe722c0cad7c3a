"""What the command line says about an experiment that has ended."""

from __future__ import annotations

import pytest

from penstock.cli.exit_status import EXIT_FAILED
from penstock.cli.experiment import search_status
from penstock.metrics.capacity import Level, SearchOutcome, SearchResult, parse_slo
from penstock.runs.experiment import FinishedExperiment


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ([Level(1.0, 20, (20,), "fail", observed=(5.0,))], "No concurrency met the objectives, not even 1.\n"),
        ([], "Nothing was measured.\n"),
    ],
)
def test_quiet_search_without_a_result_says_so(
    capsys: pytest.CaptureFixture[str], levels: list[Level], sentence: str
) -> None:
    result = SearchResult(levels, None, [(1.0,)] * len(levels))
    search = SearchOutcome("concurrency", (parse_slo("p99 time_to_first_token<3"),), result)
    assert search_status(FinishedExperiment([], 0), search, quiet=True) == EXIT_FAILED
    assert capsys.readouterr().err == sentence
