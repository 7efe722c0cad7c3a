"""The Python API, inside pytest and inside a running event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.api.options import parse_options
from penstock.runs.read_experiment import read_experiment

TTFT_MS, ITL_MS = 20, 4


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with penstock.mock(ttft=TTFT_MS, itl=ITL_MS) as url:
        yield url


def options(folder: Path, url: str, **changes: Any) -> dict[str, Any]:
    fixed = {"model": "test", "url": url, "tokenizer": "builtin", "isl": 20, "osl": 5, "artifact_dir": folder}
    return fixed | {"concurrency": 4, "request_count": 12} | changes


@pytest.fixture(scope="module")
def result(url: str, tmp_path_factory: pytest.TempPathFactory) -> penstock.Result:
    return penstock.profile(**options(tmp_path_factory.mktemp("run"), url, streaming=True, random_seed=1))


def test_result_has_the_figures_of_the_server(result: penstock.Result) -> None:
    assert result.summary.succeeded == 12
    assert result.metrics["request_count"].avg == 12
    assert result.metrics["time_to_first_token"].min is not None
    assert result.metrics["time_to_first_token"].min >= TTFT_MS
    assert result.metrics["output_sequence_length"].avg == 5
    assert result.certificate.verdict in ("VALID", "DEGRADED", "INVALID")
    assert result.certificate.load.verdict in ("VALID", "DEGRADED", "INVALID")
    assert result.certificate.metrics["request_latency"].verdict in ("VALID", "DEGRADED", "INVALID")
    assert (result.folder / "profile_export_aiperf.json").exists()
    assert "Time to First Token" in str(result)


def test_requests_and_columns_agree_with_the_summary(result: penstock.Result) -> None:
    requests = list(result.requests())
    assert len(requests) == 12
    assert all(request.error is None for request in requests)
    columns = result.columns()
    assert columns["time_to_first_token"].tolist() == [request["time_to_first_token"] for request in requests]
    assert np.mean(columns["time_to_first_token"]) == pytest.approx(result.metrics["time_to_first_token"].avg)
    assert (columns["request_end_ns"] > columns["request_start_ns"]).all()


def test_caller_is_left_alone_and_nothing_is_printed(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def state() -> tuple[Any, ...]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (*map(signal.getsignal, numbers), gc.isenabled(), gc.get_freeze_count(), limits)

    async def run() -> penstock.Result:
        loop = asyncio.get_running_loop()
        made = penstock.profile(**options(tmp_path, url))
        assert asyncio.get_running_loop() is loop
        return made

    gc.unfreeze()  # objects that other tests have frozen may be freed meanwhile, which changes the count
    before = state()
    assert asyncio.run(run()).summary.succeeded == 12
    assert state() == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_nothing_is_forked(url: str, tmp_path: Path) -> None:
    """A fork of a process with threads can deadlock. Replays, too, index their files in this process."""
    file = tmp_path / "bodies.jsonl"
    file.write_text('{"model":"m","messages":[{"role":"user","content":"hi"}]}\n' * 8)
    script = f"""
import os, penstock
os.register_at_fork(before=lambda: print("forked"))
result = penstock.profile(
    model="m", url={url!r}, input_file={str(file)!r}, custom_dataset_type="raw_payload",
    use_server_token_count=True, artifact_dir={str(tmp_path / "run")!r},
)
print(result.summary.succeeded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert (done.stdout, done.stderr) == ("8\n", "")


@pytest.mark.slow
def test_runner_runs_phases_of_different_loads(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with penstock.Runner(**options(tmp_path / "run", url, request_count=40, results_url=f"file://{copy}")) as runner:
        one = runner.run(concurrency=1, request_count=5)
        four = runner.run(concurrency=4, request_count=16, name="four")
        stopped = runner.run(request_rate=100, benchmark_duration=60, until=lambda progress: progress.ended >= 24)
        with pytest.raises(penstock.UserError, match="--isl is not an option of the load"):
            runner.run(isl=100)
        runner.load(isl=60)
        longer = runner.run(concurrency=4, request_count=6)
    assert [made.summary.succeeded for made in (one, four)] == [5, 16]
    assert 3 <= stopped.summary.succeeded < 6000
    assert four.metrics["effective_concurrency"].avg > one.metrics["effective_concurrency"].avg
    prompts = [request.metadata["conversation_id"] for made in (one, four) for request in made.requests()]
    assert len(set(prompts)) == 21  # the second phase goes on in the dataset
    assert {request.metadata["phase_name"] for request in four.requests()} == {"four"}
    assert four.metrics["input_sequence_length"].avg == 20
    assert longer.metrics["input_sequence_length"].avg == 60
    comparison = penstock.compare(one, four)
    assert comparison.a.name.endswith("phase_0")
    assert (copy / "phase_0" / "profile_export_aiperf.json").exists()


@pytest.mark.slow
def test_phase_with_too_many_failures_ends_early(tmp_path: Path) -> None:
    with (
        penstock.mock(error=500, ttft=1) as failing,
        penstock.Runner(**options(tmp_path, failing, concurrency=1)) as runner,
    ):
        result = runner.run(concurrency=1, benchmark_duration=600, failed_request_threshold=0.5)
    assert result.summary.incomplete_reason is not None
    assert "--failed-request-threshold" in result.summary.incomplete_reason


@pytest.mark.slow
def test_sweep_returns_a_result_for_each_point(url: str, tmp_path: Path) -> None:
    ended: list[str] = []
    swept = penstock.sweep(
        **options(tmp_path, url, concurrency=[1, 4], request_count=8, random_seed=3, num_profile_runs=2),
        on_point=lambda point: ended.append(point.label),
    )
    assert ended == ["run_0001", "run_0001", "run_0002", "run_0002"]
    assert [point.parameters for point in swept] == [{"concurrency": 1}, {"concurrency": 4}] * 2
    assert [point.error for point in swept] == [None] * 4
    assert [point.result.summary.succeeded for point in swept if point.result is not None] == [8] * 4
    one, four = swept.variations
    assert four.figures["request_throughput_avg"].mean > one.figures["request_throughput_avg"].mean
    assert swept.best["best_throughput"] == {"concurrency": 4}
    assert {"concurrency": 4} in swept.pareto_optimal
    first, *_, last = [point.result for point in swept if point.result is not None]
    assert penstock.compare(first, last).a.name.endswith("trial_0001/concurrency_1")
    assert (tmp_path / "aggregate" / "sweep_aggregate" / "profile_export_aiperf_sweep.json").exists()


def test_list_of_one_value_is_a_sweep_with_one_point(tmp_path: Path) -> None:
    experiment = read_experiment(parse_options(options(tmp_path, "mock://", concurrency=[2]), sweep=True))
    assert next(experiment.points()).parameters == {"concurrency": 2}


def test_sweep_needs_something_to_sweep_over(tmp_path: Path) -> None:
    with pytest.raises(penstock.UserError, match=r"use penstock\.profile"):
        penstock.sweep(**options(tmp_path / "run", "http://127.0.0.1:9", concurrency=1))


@pytest.mark.slow
def test_search_returns_the_limit_and_the_results_of_its_levels(url: str, tmp_path: Path) -> None:
    limits = {"find_max": "concurrency", "slo": "p50 request_latency<60000", "search_max": 1}
    found = penstock.sweep(**options(tmp_path, url, concurrency=None, request_count=None, osl=1) | limits)
    assert found.search is not None
    assert found.search.result.limit is not None
    assert found.search.result.limit.low == 1
    assert found.points
    for point in found:
        assert point.result is not None
        assert point.result.summary.succeeded > 0


def test_profile_does_not_sweep(tmp_path: Path) -> None:
    with pytest.raises(penstock.UserError, match=r"use penstock\.sweep"):
        penstock.profile(**options(tmp_path / "run", "http://127.0.0.1:9", concurrency=[1, 2]))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"concurency": 3}, "There is no option --concurency; did you mean --concurrency?"),
        ({"concurrency": 0}, "--concurrency must be a whole number of at least 1, not '0'."),
        ({"streaming": "perhaps"}, "--streaming must be true or false, not 'perhaps'."),
        ({"input_file": "missing.jsonl", "isl": None, "osl": None}, "missing.jsonl"),
    ],
)
def test_mistakes_are_the_sentences_of_the_command_line(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(penstock.UserError) as error:
        penstock.profile(**options(tmp_path / "run", "http://127.0.0.1:9", **changes))
    assert sentence in str(error.value)


@pytest.mark.parametrize("option", [{"warmup_request_count": 2}, {"until": "p50 request_latency ±5%"}])
def test_runner_refuses_what_only_a_single_run_has(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(penstock.UserError, match="the phases that you give"):
        penstock.Runner(**options(tmp_path / "run", "http://127.0.0.1:9"), **option)


def test_unreachable_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(penstock.UserError, match="Nothing listens on"):
        penstock.profile(**options(tmp_path / "run", "http://127.0.0.1:9"))


def test_values_are_given_as_on_the_command_line(url: str, tmp_path: Path) -> None:
    made = penstock.profile(
        **options(tmp_path, url, request_count=2, concurrency=None),
        header={"X-One": "1"},
        extra_inputs={"temperature": 0.5},
        streaming=False,
        request_rate=50.0,
    )
    assert made.summary.succeeded == 2
    assert '"temperature":0.5' in (made.folder / "inputs.json").read_text().replace(" ", "")


@pytest.mark.slow
def test_large_run_leaves_the_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its report is one of those that the command line writes with several processes."""

    def refuse(*_: object) -> None:
        raise AssertionError("the process was forked, or its signals or its collector were changed")

    with penstock.mock() as url, monkeypatch.context() as patch:
        for module, name in ((os, "fork"), (signal, "signal"), (gc, "disable")):
            patch.setattr(module, name, refuse)
        result = penstock.profile(
            **options(tmp_path, url, streaming=True, osl=30, isl=10, concurrency=64, request_count=60_000)
        )
    assert result.summary.succeeded == 60_000
    assert sum(path.stat().st_size for path in (tmp_path / "log").glob("worker-*.log")) > 32 << 20
    assert result.certificate.verdict in ("VALID", "DEGRADED", "INVALID")
