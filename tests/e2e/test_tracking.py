"""`--mlflow-tracking-uri` and `--wandb-project`: what the tracking servers get, compared with the files of the run."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from support.mlflow_server import MlflowServer
from support.ports import unused_port
from support.programs import MockServer, Outcome, Program

pytestmark = pytest.mark.slow  # the clients take seconds to import
SECRETS = ("--api-key", "sk-topsecret1", "--header", "X-Secret: topsecret2")


@pytest.fixture
def server() -> Iterator[MlflowServer]:
    with MlflowServer() as server:
        yield server


def flat(summary: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a JSON summary as MLflow has them."""
    found = {}
    for tag, value in summary.items():
        if isinstance(value, dict) and "unit" in value:
            figures = {name: number for name, number in value.items() if name != "unit"}
            found |= {tag if len(figures) == 1 else f"{tag}.{name}": number for name, number in figures.items()}
    return found


def assert_no_secret(done: Outcome, *others: bytes) -> None:
    texts = [done.out.encode(), done.err.encode(), *others, *(path.read_bytes() for path in done.files())]
    assert not any(b"topsecret" in text for text in texts)


def test_mlflow_gets_parameters_metrics_and_files(
    mock: Callable[..., MockServer], program: Program, server: MlflowServer
) -> None:
    flags = ["--mlflow-tracking-uri", f"http://user:topsecret@127.0.0.1:{server.port}", "--mlflow-experiment", "e1"]
    flags += [
        "--mlflow-run-name",
        "baseline",
        "--mlflow-tag",
        "team:perf",
        "version:1.10",
        "--mlflow-parent-run-id",
        "p1",
    ]
    flags += ["--mlflow-artifact-glob", "*.json,*.jsonl", *SECRETS]
    done = program.profile(mock().url, "--concurrency", 2, "--request-count", 6, *flags)
    assert done.status == 0, done
    assert server.experiments == ["e1"]
    (run,) = server.runs
    expected = {"team": "perf", "version": "1.10", "mlflow.parentRunId": "p1"}
    assert (run.name, run.status, run.tags.items() >= expected.items()) == ("baseline", "FINISHED", True)
    assert run.params["models"] == "mock-model"
    assert run.params["load.concurrency"] == "2"
    assert run.metrics == pytest.approx(flat(done.summary))
    assert run.files["profile_export.jsonl"].decode() == done.text("profile_export.jsonl")
    assert {Path(name).suffix for name in run.files} == {".json", ".jsonl"}
    exported = json.loads(done.text("mlflow_export.json"))
    assert (exported["run_id"], exported["experiment_name"]) == (run.id, "e1")
    received = [request.path.encode() + request.body for request in server.received]
    assert_no_secret(done, *received)
    assert all(request.header_values["authorization"].startswith("Basic ") for request in server.received)


def test_points_of_a_sweep_are_children_of_a_run_of_mlflow(
    mock: Callable[..., MockServer], program: Program, server: MlflowServer
) -> None:
    flags = ["--concurrency", "1,2", "--request-count", 4, "--mlflow-tracking-uri", f"127.0.0.1:{server.port}"]
    done = program.profile(mock().url, *flags)
    assert done.status == 0, done
    top, *children = server.runs
    assert top.name == done.folder.name
    assert "report.html" in top.files
    assert not any(name.startswith("log/") for name in top.files)
    assert [child.params["concurrency"] for child in children] == ["1", "2"]
    for child in children:
        assert (child.tags["mlflow.parentRunId"], child.status) == (top.id, "FINISHED")
        assert child.metrics["request_count"] == 4


@pytest.mark.parametrize("silent", [False, True], ids=["absent", "silent"])
def test_mlflow_that_does_not_answer_is_a_note(mock: Callable[..., MockServer], program: Program, silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if silent else unused_port()
        uri = f"http://user:topsecret@127.0.0.1:{port}"
        done = program.profile(mock().url, "--request-count", 3, "--mlflow-tracking-uri", uri)
    assert done.status == 0, done
    note = f"Note: The results were not logged to MLflow at http://<redacted>@127.0.0.1:{port}: "
    assert any(line.startswith(note) for line in done.err.splitlines()), done
    assert "Traceback" not in done.err
    assert_no_secret(done)


def test_offline_run_of_wandb_has_the_table_and_the_files(mock: Callable[..., MockServer], program: Program) -> None:
    flags = ["--request-count", 6, "--concurrency", "1,2", "--wandb-project", "p", "--wandb-tag", "a,b", *SECRETS]
    done = program.profile(mock().url, *flags, WANDB_MODE="offline")
    assert done.status == 0, done
    (folder,) = (done.folder / "wandb").glob("offline-run-*")
    assert f"`wandb sync {folder.relative_to(program.folder)}` uploads it" in done.out
    (table,) = folder.rglob("summary_metrics*.table.json")
    content = json.loads(table.read_text())
    rows = {(row[0], row[1]): dict(zip(content["columns"], row, strict=True)) for row in content["data"]}
    for path in done.folder.rglob("profile_export_aiperf.json"):
        latency = json.loads(path.read_text())["request_latency"]
        row = rows[str(path.parent.relative_to(done.folder)), "Request Latency (ms)"]
        assert {name: row[name] for name in ("avg", "p50", "p99")} == {n: latency[n] for n in ("avg", "p50", "p99")}
    assert len([key for key in rows if key[1] == "Request Latency (ms)"]) == 2
    logged = (next(folder.glob("*.wandb"))).read_bytes()
    assert b"sweep_aggregate/profile_export_aiperf_sweep.json" in logged
    assert_no_secret(done)


def test_wandb_without_an_api_key_is_a_note(mock: Callable[..., MockServer], program: Program) -> None:
    done = program.profile(mock().url, "--request-count", 3, "--wandb-project", "p")
    assert done.status == 0, done
    assert "Note: The results were not logged to W&B: " in done.err
    assert "No API key" in done.err
    assert "Traceback" not in done.err


def test_result_that_is_not_logged_is_a_warning_in_python(mock: Callable[..., MockServer], tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{unused_port()}"
    with pytest.warns(UserWarning, match=f"The results were not logged to MLflow at {uri}: "):
        result = penstock.profile(
            model="m",
            url=mock().url,
            tokenizer="builtin",
            isl=5,
            request_count=3,
            artifact_dir=str(tmp_path / "run"),
            mlflow_tracking_uri=uri,
        )
    assert result.summary.succeeded == 3
