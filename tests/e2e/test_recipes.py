"""Recipes of `--search-recipe` against the mock: their files, the page and the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.reports.report_html import read_page
from support.programs import MockServer, Outcome, Program

SYNTHETIC = ("--tokenizer", "builtin", "--streaming", "--request-count", 4, "--search-recipe")


def document(done: Outcome, name: str) -> Any:
    return json.loads(done.text(f"sweep_aggregate/{name}"))


def test_curve_is_in_a_file_on_the_page_and_on_the_terminal(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=1, input_cost=500)
    flags = ("prefill-ttft-curve", "--isl-min", 10, "--isl-max", 160, "--isl-steps", 3, "--osl", 2)
    done = program.profile(server.url, *SYNTHETIC, *flags, texts=None)
    assert done.status == 0, done
    curve = document(done, "prefill_curve.json")
    x, y = ([point[name] for point in curve["raw_points"]] for name in ("isl", "ttft_ms"))
    assert x == [10, 40, 160]
    degree = {"linear": 1, "quadratic": 2}[curve["fit_form"]]
    assert curve["coefficients"] == pytest.approx(np.polyfit(x, y, degree).tolist())
    sentence = f"({curve['fit_form']} fit, R² {curve['r_squared']:.3f})."
    assert sentence in done.out
    assert sentence in read_page(str(done.folder / "report.html"))["conclusions"][0]

    again = program.run("report", done.folder, "--output-dir", done.folder / "again")
    assert again.status == 0, again
    assert json.loads((done.folder / "again/sweep_aggregate/prefill_curve.json").read_text()) == curve


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "file", "check"),
    [
        (
            ("concurrency-ramp", "--concurrency-max", 4, "--concurrency-steps", 3),
            "degradation_knee.json",
            lambda found: [point["concurrency"] for point in found["all_points"]] == [1, 2, 4],
        ),
        (
            (
                "decode-itl-curve",
                "--concurrency-max",
                2,
                "--concurrency-steps",
                2,
                "--osl-min",
                3,
                "--osl-max",
                6,
                "--osl-steps",
                2,
            ),
            "decode_itl_surface.json",
            lambda found: found["surface"]["concurrency_axis"] == [1, 2] and found["surface"]["osl_axis"] == [3, 6],
        ),
        (
            ("pareto-sweep", "--isl-osl-pairs", "10/3,20/6", "--concurrency", "1,2"),
            "pareto_sweep.json",
            lambda found: len(found["cells"]) == 4 and any(cell["pareto_optimal"] for cell in found["cells"]),
        ),
        (
            ("max-throughput-itl-sla", "--itl-sla-ms", 60000, "--concurrency-max", 2, "--osl", 3),
            "max_throughput.json",
            lambda found: found["found"] and [point["concurrency"] for point in found["points"]] == [1, 2],
        ),
        (
            ("max-goodput-under-slo", "--e2e-sla-ms", 60000, "--search-min", 50, "--search-max", 100, "--osl", 3),
            "max_goodput.json",
            lambda found: found["found"] and {50, 100} <= {point["request_rate"] for point in found["points"]},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_recipe_writes_its_file(
    program: Program, mock: Callable[..., MockServer], flags: Any, file: str, check: Callable[[Any], bool]
) -> None:
    done = program.profile(mock(ttft=5, itl=2).url, *SYNTHETIC, *flags, texts=None)
    assert done.status == 0, done
    found = document(done, file)
    assert check(found), found
    assert read_page(str(done.folder / "report.html"))["conclusions"][0] in " ".join(done.out.split())


def test_search_without_a_result_fails(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ("max-throughput-ttft-sla", "--ttft-sla-ms", 0.001, "--osl", 2)
    done = program.profile(mock(ttft=5).url, *SYNTHETIC, *flags, texts=None)
    assert done.status == 1, done
    assert not document(done, "max_throughput.json")["found"]
    assert "No concurrency met a p95 of time_to_first_token below 0.001 ms, not even 1." in done.out
