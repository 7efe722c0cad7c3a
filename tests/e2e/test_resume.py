"""`profile --resume`: a run goes on where its log ends."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.cli.resume import resume, with_destinations
from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.records.record import Record
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.redact import redacted
from support.programs import Program, wait_for
from support.runs import make_settings

CONVERSATIONS, TURNS = 120, 3


def conversations(folder: Path) -> Path:
    path = folder / "conversations.jsonl"
    turns = [[{"text": f"Turn {turn} of {number}."} for turn in range(TURNS)] for number in range(CONVERSATIONS)]
    lines = [{"session_id": f"c{number}", "turns": each} for number, each in enumerate(turns)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def records(folder: Path) -> list[Record]:
    log = RunLog(str(folder / "log"))
    return list(log.records())


def test_killed_run_goes_on_where_its_log_ends(mock, program: Program) -> None:
    server = mock(ttft=10, tokens=2)
    flags = ["--input-file", conversations(program.folder), "--custom-dataset-type", "multi_turn"]
    flags += ["--concurrency", 6, "--conversation-num", CONVERSATIONS, "--use-server-token-count", "--workers-max", 2]
    copy = program.folder / "copy"
    flags += ["--export-level", "raw"]
    running = program.begin(server.url, *flags, "--results-url", f"file://{copy}", texts=None)
    logs = [running.folder / "log" / f"worker-{worker}.log" for worker in range(2)]
    wait_for(lambda: all(log.exists() and log.stat().st_size for log in logs), what="records of both workers")
    os.killpg(os.getpgid(running.process.pid), signal.SIGKILL)
    running.process.wait()
    before = records(running.folder)
    assert 0 < len(before) < CONVERSATIONS * TURNS

    done = program.run("profile", "--resume", running.folder)
    done.folder = running.folder
    assert done.status == 0, done
    every = records(running.folder)
    complete = {record.number for record in before if record.turn == TURNS - 1}
    again = Counter(record.number for record in every if record.phase == 1)
    # Conversations that were complete are not sent again; all others are, from their first turn.
    assert again == dict.fromkeys(set(range(CONVERSATIONS)) - complete, TURNS)
    # Each turn has one record: those of the conversations that began again are left out.
    turns = [(number, turn) for number in range(CONVERSATIONS) for turn in range(TURNS)]
    assert sorted((record.number, record.turn) for record in every) == turns
    assert done.summary["request_count"]["avg"] == len(done.records) == len(turns)

    raw = [json.loads(line) for line in done.text("profile_export_raw.jsonl").splitlines()]
    assert len(raw) == len(turns)
    assert all(row["responses"] for row in raw)

    summary = done.summary
    assert json.loads((copy / "profile_export_aiperf.json").read_text()) == summary
    (gap,) = summary["gaps"]
    restarted = len(range(max(record.number for record in before) + 1)) - len(complete)
    assert gap["restarted_conversations"] == restarted
    assert summary["is_complete"] is True
    assert summary["certificate"]["verdict"] != "VALID"
    sentence = next(reason for reason in summary["certificate"]["reasons"] if "was resumed after a gap" in reason)
    assert "without a complete record began again" in sentence or not restarted
    # The gap is no part of the duration.
    span = max(record.end for record in every) - min(record.start for record in every)
    assert summary["benchmark_duration"]["avg"] == pytest.approx(span / 1e9 - gap["seconds"], abs=1e-6)
    with pytest.raises(UserError, match=r"is complete: there is nothing to resume\.$"):
        resume(ParsedArguments({"resume": str(running.folder)}, {}))


@pytest.mark.slow
def test_resumed_run_counts_with_the_chat_template(mock, program: Program) -> None:
    flags = ["--tokenizer", "builtin", "--apply-chat-template", "--request-count", 100]
    running = program.begin(mock(ttft=600).url, *flags)  # a run of a minute, which is killed after a second
    log = running.folder / "log" / "worker-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size, what="a record")
    os.killpg(os.getpgid(running.process.pid), signal.SIGKILL)
    running.process.wait()
    done = program.run("profile", "--resume", running.folder, "--url", mock().url)
    done.folder = running.folder
    assert done.status == 0, done
    assert done.summary["input_sequence_length"]["count"] == 100


def test_load_cannot_be_given_again(tmp_path: Path) -> None:
    parsed = ParsedArguments({"resume": str(tmp_path), "load.concurrency": 3}, {"load.concurrency": "--concurrency"})
    with pytest.raises(UserError, match=r"takes the load from the run in .*; leave out --concurrency"):
        resume(parsed)


def test_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no run"):
        resume(ParsedArguments({"resume": str(tmp_path)}, {}))
    with pytest.raises(UserError, match="There is no folder"):
        resume(ParsedArguments({"resume": str(tmp_path / "none")}, {}))
    assert not (tmp_path / "none").exists()
    with pytest.raises(
        UserError, match=r"^--resume s3://b/run is a URL; copy the run to a folder of this machine, and name"
    ):
        resume(ParsedArguments({"resume": "s3://b/run"}, {}))


@pytest.mark.parametrize(
    ("target", "flag", "url"),
    [
        ("output.remote", "--results-url", "s3://key:secret@bucket/run"),
        ("exports.otel_url", "--otel-url", "http://key:secret@host:4318/v1/metrics"),
        ("exports.mlflow_uri", "--mlflow-tracking-uri", "http://key:secret@host:5000"),
    ],
)
def test_secret_of_a_url_for_results_has_to_be_given_again(target: str, flag: str, url: str) -> None:
    section, field = target.split(".")
    settings = make_settings()
    settings = replace(settings, **{section: replace(getattr(settings, section), **{field: url})})
    logged = redacted(settings)
    with pytest.raises(UserError, match=rf"whose secret its log does not contain; give it again with {flag}\.$"):
        with_destinations(ParsedArguments({}, {}), logged, "run")
    assert with_destinations(ParsedArguments({target: url}, {}), logged, "run") == settings
