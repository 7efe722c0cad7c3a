"""`--otel-url`: what an OTLP receiver gets, compared with the records of the run."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.records.log import LogWriter, RunLog, RunnerLog
from penstock.runs import otel
from penstock.runs.otel import GenAiMetrics, OtelExport
from support.otlp_receiver import Export, OtlpReceiver
from support.ports import unused_port
from support.programs import MockServer, Program, wait_for
from support.records import make_record
from support.runs import PROFILING, make_header

DURATION, USAGE = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
PER_CHUNK = "gen_ai.client.operation.time_per_output_chunk"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def profiled_lines(folder: Path) -> list[dict[str, Any]]:
    lines = [
        json.loads(line) for path in folder.rglob("profile_export.jsonl") for line in path.read_text().splitlines()
    ]
    return [line for line in lines if line["metadata"]["benchmark_phase"] == "profiling"]


def values(lines: list[dict[str, Any]], tag: str) -> list[Any]:
    return [line["metrics"][tag]["value"] for line in lines if tag in line["metrics"]]


def assert_equal(export: Export, lines: list[dict[str, Any]]) -> None:
    """Compare an export with the profiled lines of all records files."""
    assert export.count(DURATION) == len(lines)
    spans = [line["metadata"]["request_end_ns"] - line["metadata"]["request_start_ns"] for line in lines]
    assert export.sum(DURATION) == pytest.approx(sum(spans) / 1e9)
    first, gaps = values(lines, "time_to_first_token"), values(lines, "inter_chunk_latency")
    assert export.count(FIRST_CHUNK) == len(first)
    assert export.sum(FIRST_CHUNK) == pytest.approx(sum(first) / 1e3)
    assert export.count(PER_CHUNK) == sum(map(len, gaps))
    assert export.sum(PER_CHUNK) == pytest.approx(sum(map(sum, gaps)) / 1e3)
    for kind, tag in (("input", "usage_prompt_tokens"), ("output", "usage_completion_tokens")):
        tokens = values(lines, tag)
        assert export.count(USAGE, gen_ai__token__type=kind) == len(tokens) > 0
        assert export.sum(USAGE, gen_ai__token__type=kind) == sum(tokens)
    errors = Counter(line["error"]["code"] for line in lines if "error" in line)
    for code, count in errors.items():
        assert export.count(DURATION, error__type=str(code)) == count


def test_last_export_has_every_profiled_request_once(
    mock: Callable[..., MockServer], program: Program, receiver: OtlpReceiver
) -> None:
    server = mock(ttft=2, itl=1, tokens=8, error=500, error_rate=0.2)
    flags = [
        "--streaming",
        "--concurrency",
        8,
        "--request-count",
        120,
        "--warmup-request-count",
        10,
        "--workers-max",
        2,
    ]
    flags += ["--otel-url", f"127.0.0.1:{receiver.port}", "--stream", "default", "--gen-ai-provider", "vllm"]
    flags += ["--otel-resource-attributes", "deployment.environment=test", "team=perf", "--max-error-rate", 1]
    done = program.profile(server.url, *flags)
    assert done.status == 0, done
    lines = profiled_lines(done.folder)
    assert len(lines) == 120
    assert any("error" in line for line in lines)
    last = receiver.exports[-1]
    assert last.path == "/v1/metrics"
    assert_equal(last, lines)
    shared = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "mock-model",
        "server.address": "127.0.0.1",
        "server.port": server.port,
    }
    for points in last.metrics.values():
        assert all(point.attributes.items() >= shared.items() for point in points)
    assert (last.resource["deployment.environment"], last.resource["team"]) == ("test", "perf")
    assert last.resource["service.instance.id"] == done.summary["benchmark_id"]


def test_exports_of_a_sweep_cover_all_points(
    mock: Callable[..., MockServer], program: Program, receiver: OtlpReceiver
) -> None:
    server = mock(ttft=1, tokens=4)
    flags = ["--streaming", "--concurrency", "1,3", "--request-count", 12, "--otel-url", receiver.url]
    done = program.profile(server.url, *flags)
    assert done.status == 0, done
    lines = profiled_lines(done.folder)
    assert len(lines) == 24
    assert_equal(receiver.exports[-1], lines)


def test_resumed_run_continues_the_histograms_of_its_first_part(
    mock: Callable[..., MockServer], program: Program, receiver: OtlpReceiver
) -> None:
    turns = [{"session_id": f"c{n}", "turns": [{"text": f"{n} {turn}"} for turn in range(3)]} for n in range(80)]
    path = program.folder / "turns.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in turns))
    flags = ["--input-file", path, "--custom-dataset-type", "multi_turn", "--use-server-token-count", "--streaming"]
    flags += ["--concurrency", 6, "--conversation-num", 80, "--otel-url", receiver.url]
    running = program.begin(mock(ttft=10, tokens=2).url, *flags, texts=None)
    log = running.folder / "log" / "worker-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size, what="a record")
    os.killpg(os.getpgid(running.process.pid), signal.SIGKILL)
    running.process.wait()
    before = len(list(RunLog(str(running.folder / "log")).records()))
    done = program.run("profile", "--resume", running.folder, "--url", mock(ttft=1, tokens=2).url)
    assert done.status == 0, done
    lines = profiled_lines(running.folder)
    assert len(lines) == 240
    last = receiver.exports[-1]
    assert 0 < before < last.count(DURATION) == 240
    assert_equal(last, lines)
    epoch = RunLog.read_header(str(running.folder / "log")).epoch_wall_ns
    assert all(export.start_ns == {epoch} for export in receiver.exports)
    assert len({export.resource["service.instance.id"] for export in receiver.exports}) == 1


def test_requests_are_exported_while_the_run_goes_on(
    tmp_path: Path, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "_INTERVAL_S", 0.01)
    folder = str(tmp_path)
    header = make_header()
    RunLog.write_header(folder, header)
    runner, worker, notes = RunnerLog(folder), LogWriter(folder, 0), []
    export = OtelExport(GenAiMetrics(header.settings, folder), receiver.url, notes)
    control: Any = SimpleNamespace(progress=SimpleNamespace(began=0))
    export.start(control)
    export.poll()
    runner.phase(PROFILING)
    control.progress.began = 1
    export.poll()
    worker.record(make_record())
    worker.flush()
    wait_for(lambda: any(each.count(DURATION) == 1 for each in receiver.exports), what="an export of the first request")
    worker.record(make_record(number=1, at=200))
    worker.record(make_record(number=2, at=400, cancelled=True, end=450 * 1_000_000))
    worker.close()
    assert export.finish() is None
    runner.close()
    last = receiver.exports[-1]
    assert (last.count(DURATION), last.count(DURATION, error__type="cancelled"), last.count(PER_CHUNK)) == (3, 1, 8)
    assert last.metrics[FIRST_CHUNK][0].buckets[:4] == [0, 0, 0, 2]  # 50 ms is between 40 and 80 ms
    assert notes == [f"{USAGE} lacks 2 requests for which the server sent no token counts."]


def test_reading_stops_after_its_time_and_continues_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "_BATCH", 2)
    header = make_header()
    RunLog.write_header(str(tmp_path), header)
    runner, worker = RunnerLog(str(tmp_path)), LogWriter(str(tmp_path), 0)
    runner.phase(PROFILING)
    metrics = GenAiMetrics(header.settings, str(tmp_path))
    for number in range(5):
        worker.record(make_record(number=number))
        worker.flush()
        metrics.read(1e-9)  # one batch at most
    worker.record(make_record(number=5))
    worker.close()
    runner.close()
    metrics.read()
    data = metrics.data()
    assert data is not None
    (duration,) = [metric for metric in data.resource_metrics[0].scope_metrics[0].metrics if metric.name == DURATION]
    assert [point.count for point in duration.data.data_points] == [6]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(None, "connection refused"), (401, "it answered with status 401")],
    ids=["absent", "refuses"],
)
def test_unusable_receiver_is_a_note_that_shows_no_credentials(
    mock: Callable[..., MockServer], program: Program, status: int | None, reason: str
) -> None:
    with OtlpReceiver(status or 200) as refusing:
        port = unused_port() if status is None else refusing.port
        flags = ["--request-count", 5, "--otel-url", f"http://user:topsecret@127.0.0.1:{port}"]
        done = program.profile(mock().url, *flags)
    assert done.status == 0, done
    expected = f"Note: The metrics of the run were not sent to the OTLP receiver at http://<redacted>@127.0.0.1:{port}"
    assert f"{expected}/v1/metrics: {reason}." in done.err
    assert "Traceback" not in done.err
    assert "topsecret" not in done.out + done.err
    assert not any(b"topsecret" in path.read_bytes() for path in done.files())


def test_unusable_receiver_is_a_warning_in_python(mock: Callable[..., MockServer], tmp_path: Path) -> None:
    options = {"model": "m", "url": mock().url, "tokenizer": "builtin", "isl": 5, "request_count": 3}
    with pytest.warns(UserWarning, match="were not sent to the OTLP receiver at .*: connection refused"):
        penstock.profile(**options, artifact_dir=str(tmp_path / "run"), otel_url=f"127.0.0.1:{unused_port()}")


def test_receiver_that_does_not_answer_ends_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "_TIMEOUT_S", 0.1)
    header = make_header()
    RunLog.write_header(str(tmp_path), header)
    runner, worker, notes = RunnerLog(str(tmp_path)), LogWriter(str(tmp_path), 0), []
    runner.phase(PROFILING)
    worker.record(make_record())
    worker.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        export = OtelExport(GenAiMetrics(header.settings, str(tmp_path)), url, notes)
        export.start(SimpleNamespace(progress=SimpleNamespace(began=time.monotonic_ns())))  # type: ignore[arg-type]
        export.poll()
        export.finish()
    runner.close()
    assert notes == [f"The metrics of the run were not sent to the OTLP receiver at {url}: it did not answer in time."]
