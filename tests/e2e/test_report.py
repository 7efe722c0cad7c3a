"""`penstock report` and what else is told of runs that did not come to their end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from support.programs import MockServer, Program, wait_for


def killed(program: Program, server: MockServer, into: Path | None = None) -> Path:
    """The folder of a run that was killed before its report."""
    running = program.begin(server.url, "--request-count", 100_000, "--concurrency", 4, "--workers-max", 1, into=into)
    log = running.folder / "log" / "worker-0.log"
    before = log.stat().st_ino if log.exists() else 0
    wait_for(lambda: log.exists() and log.stat().st_ino != before and log.stat().st_size > 0, what="the first records")
    os.killpg(os.getpgid(running.process.pid), signal.SIGKILL)
    running.process.wait()
    return running.folder


def test_a_run_that_was_killed_is_not_called_complete(program: Program, mock: Callable[..., MockServer]) -> None:
    done = program.run("report", killed(program, mock(ttft=5)), command="penstock")
    assert done.out.startswith("Benchmark was cut off before its end. Results saved to:")
    assert "complete" not in done.out
    assert "The run was cut off: its worker's report is missing, as after a crash or kill -9." in done.out


def test_what_was_lost_of_a_torn_log_is_told(program: Program, mock: Callable[..., MockServer]) -> None:
    run = program.profile(mock().url, "--request-count", 4)
    log = run.folder / "log" / "worker-0.log"
    data = log.read_bytes()
    log.write_bytes(data[:-1])
    done = program.run("report", run.folder, command="penstock")
    assert run.summary["request_count"]["avg"] == 4
    assert "of the log are incomplete: a worker's report is lost, but no request." in done.out
    report = len(data) - 1 - run.summary["torn_bytes"]
    log.write_bytes(data[: report - 1])
    done = program.run("report", run.folder, command="penstock")
    assert "of the log are incomplete: the requests in them are lost." in done.out


def test_the_summary_of_the_run_before_is_not_taken_for_that_of_one_that_was_killed(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    server = mock(ttft=5)
    first = program.profile(server.url, "--request-count", 4)
    other = program.profile(server.url, "--request-count", 4)
    killed(program, server, into=first.folder)
    verified = program.run("verify", first.folder, command="penstock")
    assert verified.status == 0, verified
    assert "this run has no summary with a root" in verified.out
    compared = program.run("compare", first.folder, other.folder, command="penstock")
    assert compared.status == 2
    assert "`penstock report` writes it for a run that was cut off" in " ".join(compared.err.split())
    assert program.run("report", first.folder, command="penstock").status == 0
    verified = program.run("verify", first.folder, command="penstock")
    assert (verified.status, verified.err) == (0, ""), verified
    assert "as in the run's summary" in verified.out
