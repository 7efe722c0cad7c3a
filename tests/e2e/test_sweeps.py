"""Sweeps: points equal to single runs, failed points, Ctrl-C, and the files over all points."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.profile import COMMAND_LINE
from penstock.reports.report_html import read_page
from penstock.runs.read_experiment import read_experiment
from penstock.runs.run_experiment import run_experiment
from penstock.runs.run_folder import RunFolder
from penstock.settings.parse import parse
from support.programs import Capture, MockServer, Outcome, Program, wait_for

SYNTHETIC = ("--tokenizer", "builtin", "--streaming")


def sweep_of(done: Outcome) -> Any:
    return json.loads(done.text("sweep_aggregate/profile_export_aiperf_sweep.json"))


@pytest.mark.slow
def test_points_of_a_sweep_are_equal_to_single_runs(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=2, hashes=True)
    flags = (*SYNTHETIC, "--osl", 3, "--request-count", 6, "--warmup-request-count", 2)
    lists = ("--concurrency", "1,3", "--isl", "10,30", "--sweep-type", "zip", "--random-seed", 5)
    swept = program.profile(server.url, *flags, *lists, texts=None)
    single = program.profile(server.url, *flags, "--concurrency", 3, "--isl", 30, "--random-seed", 6, texts=None)
    assert (swept.status, single.status) == (0, 0), swept
    point = swept.folder / "concurrency_3_isl_30"

    received = [entry["body_sha256"] for entry in server.logged_requests()]
    assert len(received) == 3 * 8
    assert sorted(received[8:16]) == sorted(received[16:])
    assert not set(received[:8]) & set(received[8:])
    assert (point / "inputs.json").read_bytes() == (single.folder / "inputs.json").read_bytes()
    summary = json.loads((point / "profile_export_aiperf.json").read_text())
    for tag in ("request_count", "input_sequence_length", "output_sequence_length"):
        assert summary[tag] == single.summary[tag]
    assert summary["proof"] == single.summary["proof"]
    assert summary["input_config"]["phases"] == single.summary["input_config"]["phases"]
    assert summary["warmup_metrics"]["request_count"] == single.summary["warmup_metrics"]["request_count"]
    assert summary["run_info"]["variation_values"] == {"concurrency": 3, "isl": 30}
    keys = ("session_num", "turn_index", "phase_index", "profiling_index", "benchmark_phase", "body_sha256")
    exported = [json.loads(line)["metadata"] for line in (point / "profile_export.jsonl").read_text().splitlines()]
    lines = [{key: line.get(key) for key in keys} for line in exported]
    assert sorted(map(str, lines)) == sorted(str({k: r["metadata"].get(k) for k in keys}) for r in single.records)

    verified = program.run("verify", point, command="penstock")
    assert (verified.status, "8 requests sent exactly" in verified.out) == (0, True), verified
    compared = program.run("compare", point, single.folder, "--json", command="penstock")
    assert json.loads(compared.out)["paired_by"] == "body"
    check_sweep(swept, summary)


def check_sweep(done: Outcome, last: Any) -> None:
    """Check the files and the table over both points. `last` is the summary of the second one."""
    page = read_page(str(done.folder / "report.html"))
    assert page["charts"][0]["id"] == "curve-request-throughput"
    assert all((done.folder / run["href"]).is_file() for run in page["runs"])
    sweep = sweep_of(done)
    assert [each["parameters"] for each in sweep["per_combination_metrics"]] == [
        {"concurrency": 1, "isl": 10},
        {"concurrency": 3, "isl": 30},
    ]
    second = sweep["per_combination_metrics"][1]["metrics"]
    assert second["request_latency_p99"]["mean"] == last["request_latency"]["p99"]
    assert second["request_latency_p99"]["ci_low"] is None
    throughputs = [each["metrics"]["request_throughput_avg"]["mean"] for each in sweep["per_combination_metrics"]]
    best = sweep["best_configurations"]["best_throughput"]
    assert best["metric"] == max(throughputs)
    assert best["parameters"] in sweep["pareto_optimal"]
    rows = list(csv.reader(done.text("sweep_aggregate/profile_export_aiperf_sweep.csv").splitlines()))
    assert rows[0][:2] == ["concurrency", "isl"]
    column = rows[0].index("request_count_mean")
    assert [row[:2] + row[column : column + 2] for row in rows[1:3]] == [
        ["1", "10", "6.00", ""],
        ["3", "30", "6.00", ""],
    ]
    assert ["Number of Successful Runs", "2"] in rows
    assert second["request_throughput"]["mean"] == last["request_throughput"]["avg"]
    assert "concurrency_3_isl_30: 6 requests, " in done.out
    assert "Penstock | Sweep" in done.out


@pytest.mark.slow
def test_failed_point_does_not_lose_the_others(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(itl=5)
    flags = ("--osl", "2,20000,3", "--request-timeout-seconds", 2, "--concurrency", 2, "--request-count", 2)
    done = program.profile(server.url, *SYNTHETIC, *flags, "--isl", 5, texts=None, command="penstock")
    assert done.status == 1, done
    first, failed, last = sweep_of(done)["per_combination_metrics"]
    assert [each["metrics"]["request_count_avg"]["mean"] for each in (first, last)] == [2, 2]
    assert failed["metrics"] == {}
    assert failed["failed_runs"] == [{"label": "osl_20000", "error": "All 2 requests failed: 200 Timeout."}]
    assert "osl_20000 is left out: All 2 requests failed: 200 Timeout." in done.out
    assert "osl_20000: 2 of 2 requests failed (100.0%), more than --max-error-rate 0 allows." in done.err


def test_interrupted_sweep_keeps_the_points_that_are_done(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=2)
    flags = ("--concurrency", "1,2,4", "--request-count", "4,1000000,4", "--sweep-type", "zip", "--isl", 5, "--osl", 2)
    running = program.begin(server.url, *SYNTHETIC, *flags, "--num-dataset-entries", 4, texts=None)
    first = running.folder / "concurrency_1_request_count_4" / "point.json"
    log = running.folder / "log" / "worker-0.log"
    wait_for(first.exists, what="the end of the first point")
    size = log.stat().st_size
    wait_for(lambda: log.stat().st_size > size, what="records of the second point")
    running.interrupt()
    done = running.wait()
    assert done.status == 130, done
    assert "Benchmark interrupted." in done.out
    points = sweep_of(done)["per_combination_metrics"]
    assert [each["parameters"]["concurrency"] for each in points] == [1, 2]
    assert points[0]["metrics"]["request_count_avg"]["mean"] == 4
    assert points[1]["failed_runs"][0]["error"] == "The run was interrupted before its end."
    partial = json.loads(done.text("concurrency_2_request_count_1000000/profile_export_aiperf.json"))
    assert partial["was_cancelled"]
    assert partial["request_count"]["avg"] > 0


def test_auto_sweep_ends_at_saturation(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=5, slots=1)  # a second stream does not raise its throughput
    done = program.profile(server.url, "--sweep", "auto", "--concurrency", 4, "--request-count", 20)
    assert done.status == 0, done
    sweep = sweep_of(done)
    measured = [each["parameters"] for each in sweep["per_combination_metrics"]]
    assert measured[0] == {"concurrency": 1}
    assert measured == sorted(measured, key=lambda parameters: parameters["concurrency"])
    assert sweep["saturation"] in measured
    assert f"saturated from concurrency {sweep['saturation']['concurrency']} on" in done.out


def test_repeated_sweep_has_an_aggregate_for_each_point(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(ttft=1, hashes=True)
    prompts = program.prompts(3)
    flags = ("--concurrency", "1,2", "--num-profile-runs", 2, "--input-file", prompts, "--use-server-token-count")
    done = program.profile(server.url, *flags, "--request-count", 3, texts=None)
    assert done.status == 0, done
    names = [f"concurrency_{value} run_000{run}" for run in (1, 2) for value in (1, 2)]
    assert [line.split(":")[0] for line in done.out.splitlines() if ": 3 requests" in line] == names
    for value in (1, 2):
        assert (done.folder / "profile_runs" / "trial_0002" / f"concurrency_{value}" / "inputs.json").exists()
        aggregate = json.loads(done.text(f"aggregate/concurrency_{value}/profile_export_aiperf_aggregate.json"))
        assert aggregate["metadata"]["num_successful_runs"] == 2
        assert aggregate["metadata"]["variation_values"] == {"concurrency": value}
        assert aggregate["metrics"]["request_count_avg"]["mean"] == 3
    sweep = json.loads(done.text("aggregate/sweep_aggregate/profile_export_aiperf_sweep.json"))
    (point, _) = sweep["per_combination_metrics"]
    assert point["metrics"]["request_latency_avg"]["ci_low"] is not None
    assert " ± " in done.out
    assert len([path for path in Path(done.folder / "log").iterdir() if path.is_dir()]) == 0  # one dataset for all

    # Another run in the same folder removes the files of the points, which refer to the log.
    again = program.profile(server.url, "--request-count", 1, into=done.folder)
    assert again.status == 0, again
    assert not list(done.folder.glob("concurrency_*/**/*.json"))
    assert not list(done.folder.glob("*aggregate/**/*.json"))


def test_points_of_a_sweep_end_at_their_target_precision(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ("--request-count", 3000, "--concurrency", "2,4", "--until", "avg request_latency +-60000")
    done = program.profile(mock(ttft=1).url, *flags)
    assert done.status == 0, done
    for name in ("concurrency_2", "concurrency_4"):
        summary = json.loads((done.folder / name / "profile_export_aiperf.json").read_text())
        assert summary["is_complete"]
        assert summary["until"]["ended_run"]
        assert 100 <= summary["until"]["requests"] <= summary["request_count"]["avg"] < 3000


def test_all_points_have_the_api_key_of_standard_input(
    tmp_path: Path, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-stdin\n"))
    words = ["--model", "m", "--url", capture.url, "--api-key", "-", "--concurrency", "1,2", "--request-count", "2"]
    words += ["--tokenizer", "builtin", "--artifact-dir", str(tmp_path / "run")]
    experiment = read_experiment(parse(COMMAND_LINE, words, "aiperf"))
    with RunFolder(str(tmp_path / "run")) as folder:
        run_experiment(experiment, folder)
    keys = [headers["authorization"] for _, headers, _ in capture.requests]
    assert keys == [["Bearer sk-stdin"]] * 4


@pytest.mark.slow
def test_rates_above_an_overloaded_one_are_left_out_also_after_a_resume(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    server = mock(ttft=20, slots=1)  # 50 requests/s
    flags = ("--request-rate", "200,20,300", "--benchmark-duration", 15, "--stop-on-overload")
    running = program.begin(server.url, *flags, "--isl", 5, "--osl", 2, *SYNTHETIC[:2], texts=None)
    overloaded = running.folder / "request_rate_200" / "point.json"
    wait_for(overloaded.exists, what="the end of the overloaded point")
    log = running.folder / "log" / "worker-0.log"
    size = log.stat().st_size
    wait_for(lambda: log.stat().st_size > size, what="records of the next point")
    running.interrupt()
    assert running.wait().status == 130
    done = program.run("profile", "--resume", running.folder)
    assert done.status == 0, done
    assert "left out, because the server fell behind at a lower rate: request_rate_300." in " ".join(done.out.split())
    notes = read_page(str(running.folder / "report.html"))["notes"]
    assert any("request_rate_300" in note for note in notes)
    points = json.loads((running.folder / "sweep_aggregate/profile_export_aiperf_sweep.json").read_text())
    assert [each["parameters"] for each in points["per_combination_metrics"]] == [
        {"request_rate": 200},
        {"request_rate": 20},
    ]
    first = json.loads((running.folder / "request_rate_200/profile_export_aiperf.json").read_text())
    assert first["overload"]["ended_run"]
    assert first["overload"]["completed"] == pytest.approx(50, rel=0.2)
    assert first["request_count"]["avg"] < 0.9 * 15 * 200
