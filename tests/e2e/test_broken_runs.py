"""Runs that cannot start or continue: one sentence, the right exit status, and no lost records."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from support.programs import Program, Running, wait_for
from support.scripted_server import ScriptedServer

_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def begin_and_wait_for_records(program: Program, *flags: object) -> Running:
    """Start a run with a different body for each request, and wait for its first records."""
    running = program.begin("mock://?ttft=5", "--request-count", 3000, "--concurrency", 4, *flags, texts=3000)
    log = running.folder / "log" / "worker-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size > 0, what="the first records")
    return running


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_truncated_request_bodies_end_the_run_with_one_sentence(program: Program, workers: int) -> None:
    running = begin_and_wait_for_records(program, "--workers-max", workers)
    os.truncate(running.folder / "log" / "payloads.bin", 100)
    done = running.wait()
    assert done.status == 1, done
    assert "Traceback" not in done.err
    log = running.folder / "log"
    assert done.err.endswith(
        f"profile: The file of request bodies in {log} was removed or truncated during the run. The records up to then "
        f"are in {log}; `penstock report {running.folder}` shows them.\n"
    )


@pytest.mark.slow
def test_report_covers_the_records_of_a_killed_worker(program: Program) -> None:
    running = begin_and_wait_for_records(program, "--workers-max", 2)
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if b"penstock.mock_server" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], 9)
    done = running.wait()
    assert done.status == 1, done
    assert re.search(r"Worker 0 of 2 was killed by signal 9 .* its share is 1,500 of the 3,000 requests", done.err)
    assert "Certificate: INVALID" in done.out
    assert len(done.records) >= 1500  # the other worker has finished
    report = program.run("report", running.folder, command="penstock")
    assert report.status == 0, report
    assert "Worker 0 of 2 was killed by signal 9" in report.out


def test_error_in_the_client_keeps_the_records_before_it(program: Program) -> None:
    """The error occurs before the first records are flushed."""
    folder = program.folder / "failed"

    def answer(_: dict[str, Any], number: int) -> dict[str, Any]:
        if number == 8:
            os.truncate(folder / "log" / "payloads.bin", 100)
        return {"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}]}

    with ScriptedServer(answer) as server:
        done = program.profile(server.url, "--request-count", 50, texts=50, into=folder)
    assert done.status == 1, done
    report = program.run("report", folder, command="penstock")
    assert report.status == 0, report
    assert done.summary["request_count"]["avg"] >= 8


@pytest.mark.parametrize("command", ["report", "verify"])
def test_missing_index_is_reported_in_one_sentence(program: Program, command: str) -> None:
    run = program.profile("mock://", "--request-count", 2)
    (run.folder / "log" / "conversations.idx").unlink()
    done = program.run(command, run.folder, command="penstock")
    assert done.status == 2, done
    assert done.err == f"penstock {command}: {run.folder}/log is incomplete: conversations.idx is missing.\n"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--url", "http://no-such-host.invalid:1"], "The host 'no-such-host.invalid' of http"),
        (["--concurrency", "99999999999999999999"], "--concurrency must be at most 1,000,000,000, not '9999"),
        pytest.param(
            ["--concurrency", "999999999", "--workers-max", "1"],
            "999999999 connections need 1000000063 open files",
            marks=pytest.mark.skipif(not 0 < _FILES < 1_000_000_000, reason="the system allows any number of files"),
        ),
    ],
)
def test_user_errors_are_reported_before_prompts_are_generated(
    program: Program, flags: list[str], sentence: str
) -> None:
    """Generating this many prompts would take hours."""
    done = program.run("profile", "-m", "m", "--isl", 10_000, "--num-prompts", 10_000_000, *flags)
    assert done.status == 2, done
    assert sentence in done.err
