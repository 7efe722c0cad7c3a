"""The tables of sweeps and repeated runs on the screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock.metrics.experiment import RunFigures, VariationFigures, group_runs
from penstock.metrics.statistics import Stats
from penstock.reports.experiment_tables import draw_repeated, draw_sweep

MARK = "? Too few requests for this percentile; needed are 368 for p99."
TITLES = ("concurrency", "requests/s", "tokens/s", "TTFT p50", "ITL p50", "latency", "Certificate")


def points(*runs_of: tuple[int, int, tuple[str, ...]]) -> list[VariationFigures]:
    """Return points of two runs each: their concurrency, their requests, and the metrics that one run cannot observe."""
    runs = []
    for concurrency, count, hidden in runs_of:
        for trial in range(2):
            latency = Stats("ms", avg=150.0, p50=1_234.56 + trial, p99=2_345.67, count=count)
            metrics = {
                "time_to_first_token": latency,
                "inter_token_latency": Stats("ms", avg=4.5 + trial, p50=4.4, p99=6.6, count=count),
                "request_latency": latency,
                "request_throughput": Stats("requests/sec", avg=123.4 + trial),
                "output_token_throughput": Stats("tokens/sec", avg=12_345.0 + trial),
            }
            label = f"concurrency_{concurrency}"
            unobservable = hidden if trial else ()
            runs.append(
                RunFigures(
                    label,
                    label,
                    {"concurrency": concurrency},
                    concurrency,
                    metrics,
                    "VALID",
                    count,
                    0,
                    None,
                    unobservable,
                )
            )
    return group_runs(runs, 0.95)


def drawn(variations: list[VariationFigures], width: int = 100, repeated: bool = False) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    if repeated:
        draw_repeated(console, variations[0], 0.95)
    else:
        draw_sweep(console, variations)
    return text.getvalue()


@pytest.mark.parametrize("repeated", [False, True])
def test_percentiles_of_too_few_requests_are_marked(repeated: bool) -> None:
    assert MARK in (text := drawn(points((1, 367, ())), 200, repeated=repeated))
    assert "2,345.67?" in text
    assert MARK not in (text := drawn(points((1, 368, ())), 200, repeated=repeated))
    assert "?" not in text


def test_figure_that_a_run_cannot_observe_is_left_out_of_its_point() -> None:
    text = drawn(points((1, 400, ()), (2, 400, ("inter_token_latency",))))
    first, second = (line for line in text.splitlines() if line.strip().startswith(("1 ", "2 ")))
    assert "4.40" in first
    assert "4.40" not in second
    assert text.count("cannot be observed") == 1
    assert "cannot be observed" not in drawn(points((1, 400, ())))
    assert "Inter Token" not in drawn(points((1, 400, ("inter_token_latency",))), repeated=True)


def test_titles_of_a_sweep_are_whole_in_100_columns() -> None:
    runs = [each.runs[0] for each in points((1, 400, ()), (16, 400, ()))]
    text = drawn(group_runs(runs, 0.95))
    assert "…" not in text
    for title in TITLES:
        assert title in text
