"""`penstock report`, `verify` and `compare` with runs that were cut off."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from support.programs import MockServer, Program, wait_for


def killed(program: Program, server: MockServer, into: Path | None = None) -> Path:
    """Kill a run before its report, and return its folder."""
    running = program.begin(server.url, "--request-count", 100_000, "--concurrency", 4, "--workers-max", 1, into=into)
    log = running.folder / "log" / "worker-0.log"
    before = log.stat().st_ino if log.exists() else 0
    wait_for(lambda: log.exists() and log.stat().st_ino != before and log.stat().st_size > 0, what="the first records")
    os.killpg(os.getpgid(running.process.pid), signal.SIGKILL)
    running.process.wait()
    return running.folder


def test_killed_run_is_not_reported_as_complete(program: Program, mock: Callable[..., MockServer]) -> None:
    done = program.run("report", killed(program, mock(ttft=5)), command="penstock")
    assert done.out.startswith("Benchmark was cut off before its end. Results saved to:")
    assert "complete" not in done.out
    assert "The run was cut off: its worker's report is missing, as after a crash or kill -9." in done.out


def test_report_says_what_a_truncated_log_lost(program: Program, mock: Callable[..., MockServer]) -> None:
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


def test_killed_run_does_not_use_the_summary_of_the_previous_run(
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
