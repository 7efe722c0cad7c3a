"""`--num-profile-runs`: the runs, their folders, and the aggregate over them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.programs import MockServer, Outcome, Program

T_TWO_DEGREES = 4.302652729749464


@pytest.fixture
def repeated(program: Program, mock: Callable[..., MockServer]) -> tuple[Outcome, list[dict[str, Any]]]:
    """Three repeated runs, and the server's log of them."""
    server = mock(ttft=3, hashes=True)
    flags = ("--tokenizer", "builtin", "--isl", 10, "--osl", 3, "--streaming")
    done = program.profile(
        server.url,
        *flags,
        *("--concurrency", 4, "--request-count", 8, "--warmup-request-count", 4, "--num-profile-runs", 3),
        texts=None,
    )
    assert done.status == 0, done
    return done, server.logged_requests()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def check_aggregate(folder: Path, runs: list[Any]) -> None:
    """Compare the aggregate with arithmetic on the summaries of the runs."""
    aggregate = read(folder / "aggregate" / "profile_export_aiperf_aggregate.json")
    labels = ["run_0001", "run_0002", "run_0003"]
    assert aggregate["schema_version"] == "1.0"
    assert aggregate["metadata"] == {
        "aggregation_type": "confidence",
        "num_profile_runs": 3,
        "num_successful_runs": 3,
        "failed_runs": [],
        "confidence_level": 0.95,
        "run_labels": labels,
        "cooldown_seconds": 0.0,
    }
    values = [run["time_to_first_token"]["p90"] for run in runs]
    figure = aggregate["metrics"]["time_to_first_token_p90"]
    mean = sum(values) / 3
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / 2 / 3)
    expected = {
        "mean": mean,
        "std": error * math.sqrt(3),
        "min": min(values),
        "max": max(values),
        "cv": error * math.sqrt(3) / mean,
        "se": error,
        "ci_low": mean - T_TWO_DEGREES * error,
        "ci_high": mean + T_TWO_DEGREES * error,
        "t_critical": T_TWO_DEGREES,
        "unit": "ms",
    }
    assert list(figure) == list(expected)
    assert figure == {name: value if name == "unit" else pytest.approx(value) for name, value in expected.items()}
    rows = list(csv.reader((folder / "aggregate" / "profile_export_aiperf_aggregate.csv").open()))
    assert rows[0] == ["metric", *expected]
    assert ["Run Labels", str(labels)] in rows
    assert {row[0] for row in rows[1 : rows.index([])]} == set(aggregate["metrics"])


@pytest.mark.slow
def test_repeated_runs_send_the_same_prompts_and_are_aggregated(
    program: Program, repeated: tuple[Outcome, list[dict[str, Any]]]
) -> None:
    done, received = repeated
    folders = [done.folder / "profile_runs" / f"run_{n:04d}" for n in (1, 2, 3)]
    runs = [read(folder / "profile_export_aiperf.json") for folder in folders]
    bodies = [entry["body_sha256"] for entry in received]
    assert len(bodies) == 4 + 3 * 8
    warmup, profiled = bodies[:4], [sorted(bodies[4 + 8 * n : 12 + 8 * n]) for n in range(3)]
    assert profiled[0] == profiled[1] == profiled[2]
    assert not set(warmup) & set(profiled[0])
    assert [run["request_count"]["avg"] for run in runs] == [8, 8, 8]
    assert ["warmup_metrics" in run for run in runs] == [True, False, False]
    assert len({run["benchmark_id"] for run in runs}) == 3
    assert [(run["run_info"]["run_label"], run["run_info"]["trial"]) for run in runs] == [
        ("run_0001", 0),
        ("run_0002", 1),
        ("run_0003", 2),
    ]
    check_aggregate(done.folder, runs)
    assert " ± " in done.out
    assert done.out.count("8 requests, ") == 3

    # A run is accepted where a single run is.
    exported = [json.loads(line) for line in (folders[1] / "profile_export.jsonl").read_text().splitlines()]
    assert {line["metadata"]["phase_index"] for line in exported} == {0}
    verified = program.run("verify", folders[1], command="penstock")
    assert (verified.status, "8 requests sent exactly" in verified.out) == (0, True), verified
    for words in (("verify", done.folder), ("compare", done.folder, done.folder)):
        refused = program.run(*words, command="penstock")
        assert "holds several runs; name one of them" in refused.err
        assert refused.status == 2
    before = {path: path.read_bytes() for path in done.files() if path.suffix == ".json"}
    for path in before:
        if "log" not in path.parts and path.name != "point.json":
            path.unlink()
    again = program.run("report", folders[2], command="penstock")
    assert again.status == 0, again
    assert read(folders[2] / "profile_export_aiperf.json")["request_latency"] == runs[2]["request_latency"]
    whole = program.run("report", done.folder, "--verbose", command="penstock")
    assert whole.status == 0, whole
    assert "LLM Metrics: Effective" in (folders[2] / "profile_export_console.txt").read_text()
    assert {path: path.read_bytes() for path in done.files() if path.suffix == ".json"} == before


def test_runs_that_fail_are_named_and_leave_no_aggregate(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(error=500)
    done = program.profile(server.url, "--request-count", 4, "--num-profile-runs", 2, command="penstock")
    assert done.status == 1
    assert not (done.folder / "aggregate").exists()
    assert "run_0002: 4 of 4 requests failed (100.0%), more than --max-error-rate 0 allows." in done.err


def test_repeating_until_a_figure_is_stable_collates_the_requests_of_all_runs(program: Program, mock: Any) -> None:
    flags = "--request-count 5 --num-profile-runs 3 --convergence-metric request_latency --convergence-threshold 1"
    done = program.profile(mock(ttft=1).url, *flags.split())
    assert done.status == 0, done
    collated = read(done.folder / "aggregate" / "profile_export_aiperf_collated.json")
    values = [
        json.loads(line)["metrics"]["request_latency"]["value"]
        for number in (1, 2, 3)
        for line in done.text(f"profile_runs/run_000{number}/profile_export.jsonl").splitlines()
    ]
    figure = collated["metrics"]["request_latency"]
    assert figure["combined"]["count"] == len(values) == 15
    assert figure["combined"]["mean"] == pytest.approx(sum(values) / 15)
    assert figure["combined"]["p50"] == pytest.approx(sorted(values)[7])
    assert [run["count"] for run in figure["per_run"]] == [5, 5, 5]
    assert figure["per_run"][1]["mean"] == pytest.approx(sum(values[5:10]) / 5)
