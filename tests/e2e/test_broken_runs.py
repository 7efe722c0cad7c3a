"""Runs that cannot go on or cannot begin: one sentence, the right exit status, and what was measured is kept."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from support.programs import Program, Running, wait_for
from support.scripted_server import ScriptedServer

_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def begun(program: Program, *flags: object) -> Running:
    """A run that has written its first records; each of its requests has a body of its own."""
    running = program.begin("mock://?ttft=5", "--request-count", 3000, "--concurrency", 4, *flags, texts=3000)
    log = running.folder / "log" / "worker-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size > 0, what="the first records")
    return running


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_whose_bodies_are_gone_says_so_in_one_sentence(program: Program, workers: int) -> None:
    running = begun(program, "--workers-max", workers)
    os.truncate(running.folder / "log" / "payloads.bin", 100)
    done = running.wait()
    assert done.status == 1, done
    assert "Traceback" not in done.err
    log = running.folder / "log"
    assert done.err.endswith(
        f"profile: The file of request bodies in {log} was removed or truncated during the run. The records up to then "
        f"are in {log}; `penstock report {running.folder}` shows them.\n"
    )


def test_a_worker_that_was_killed_leaves_its_records_to_a_report(program: Program) -> None:
    running = begun(program, "--workers-max", 2)
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if b"penstock.mock" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], 9)
    done = running.wait()
    assert done.status == 1, done
    assert f"was killed by signal 9. The records up to then are in {running.folder}/log; " in done.err
    assert f"`penstock report {running.folder}` shows them." in done.err
    report = program.run("report", running.folder, command="penstock")
    assert report.status == 0, report
    assert "1 of 2 workers did not report (killed or crashed)." in report.out


def test_what_a_fault_ends_was_still_measured(program: Program) -> None:
    """The fault comes so early that no record was due to be written."""
    folder = program.folder / "faulty"

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
def test_a_run_without_its_index_is_told_in_one_sentence(program: Program, command: str) -> None:
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
def test_what_is_wrong_is_told_before_the_prompts_are_made(program: Program, flags: list[str], sentence: str) -> None:
    """Making this many would take hours."""
    done = program.run("profile", "-m", "m", "--isl", 10_000, "--num-prompts", 10_000_000, *flags)
    assert done.status == 2, done
    assert sentence in done.err
