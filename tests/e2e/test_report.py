"""`penstock report`, `verify` and `compare` with runs that were cut off."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

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
    done = program.run("report", run.folder, "--overwrite", command="penstock")
    assert run.summary["request_count"]["avg"] == 4
    assert "of the log are incomplete: a worker's report is lost, but no request." in done.out
    report = len(data) - 1 - run.summary["torn_bytes"]
    log.write_bytes(data[: report - 1])
    done = program.run("report", run.folder, "--overwrite", command="penstock")
    assert "of the log are incomplete: the requests in them are lost." in done.out


@pytest.mark.slow
def test_report_of_a_damaged_log_keeps_better_artifacts(program: Program, mock: Callable[..., MockServer]) -> None:
    run = program.profile(mock().url, "--request-count", 10)
    log = run.folder / "log" / "worker-0.log"
    data = bytearray(log.read_bytes())
    data[9 + int.from_bytes(data[1:5], "little") + 30] ^= 0x10  # in the second record
    log.write_bytes(data)
    before = {path: path.read_bytes() for path in run.files()}
    verified = program.run("verify", run.folder, command="penstock")
    assert verified.status == 1
    assert "bytes of the log cannot be read, so the requests in them were not checked." in verified.out
    refused = program.run("report", run.folder, command="penstock")
    assert refused.status == 2
    assert "of the log cannot be read any more, and it has 9 of the 10 requests" in " ".join(refused.err.split())
    assert {path: path.read_bytes() for path in run.files()} == before
    elsewhere = program.run("report", run.folder, "--output-dir", program.folder / "again", command="penstock")
    assert elsewhere.status == 0, elsewhere
    assert "The log is damaged in 1 place: " in elsewhere.out
    assert (program.folder / "again" / "profile_export.jsonl").read_text().count("\n") == 9
    assert {path: path.read_bytes() for path in run.files()} == before
    replaced = program.run("report", run.folder, "--overwrite", command="penstock")
    assert replaced.status == 0, replaced
    assert len(run.records) == 9
    assert program.run("report", run.folder, command="penstock").status == 0, "the files contain no more than the log"


def test_report_does_not_write_into_the_folder_of_another_run(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    runs = [program.profile(mock().url, "--request-count", 2).folder for _ in range(2)]
    done = program.run("report", runs[0], "--output-dir", runs[1], command="penstock")
    assert (done.status, "contains another run; choose another folder." in done.err) == (2, True)


@pytest.mark.slow
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


@pytest.mark.slow
def test_report_rebuilds_the_files_of_slices_and_phases(program: Program, mock: Callable[..., MockServer]) -> None:
    flags = ["--streaming", "--warmup-request-count", 2, "--request-count", 12, "--slice-duration", 0.05]
    flags.append("--export-outputs-json")
    run = program.profile(mock(ttft=20, itl=1).url, *flags)
    assert run.status == 0, run
    assert "Time Slices" in run.out
    written = [
        *run.folder.glob("*_timeslices.*"),
        *run.folder.glob("phases/*/profile_export_aiperf.*"),
        run.folder / "phase_manifest.json",
        run.folder / "outputs.json",
    ]
    assert len(written) == 8
    before = {path: path.read_bytes() for path in written}
    slices = json.loads(before[run.folder / "profile_export_aiperf_timeslices.json"])["timeslices"]
    assert sum(part["request_count"]["avg"] for part in slices) == 12
    assert len(json.loads(before[run.folder / "outputs.json"])["data"]) == 12
    for path in written:
        path.unlink()
    assert program.run("report", run.folder, command="penstock").status == 0
    assert {path: path.read_bytes() for path in written} == before


def test_report_of_a_run_in_a_read_only_folder_needs_another_one(
    program: Program, mock: Callable[..., MockServer]
) -> None:
    """Not even root can create files in /sys."""
    run = program.profile(mock().url, "--request-count", 3)
    refused = program.run("report", run.folder, "--output-dir", "/sys/kernel", command="penstock")
    assert refused.status == 2
    assert refused.err.startswith("penstock report: /sys/kernel cannot be written (")
    assert refused.err.endswith(
        f"`penstock report {run.folder} --output-dir FOLDER` writes the report to another folder.\n"
    )


def test_report_writes_nothing_into_the_log(program: Program, mock: Callable[..., MockServer]) -> None:
    run = program.profile(mock().url, "--request-count", 3)
    before = {path: path.stat().st_mtime_ns for path in [run.folder, *run.folder.rglob("*")]}
    done = program.run("report", run.folder, "--output-dir", program.folder / "again", command="penstock")
    assert done.status == 0
    assert {path: path.stat().st_mtime_ns for path in [run.folder, *run.folder.rglob("*")]} == before
    assert (program.folder / "again" / "report.html").exists()


KILLED = """
import os, signal, sys
from penstock.cli.main import main
from penstock.metrics.summary import SummaryBuilder
SummaryBuilder.summary = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


def test_killed_report_leaves_only_drafts(program: Program, mock: Callable[..., MockServer]) -> None:
    """A draft is replaced by that of the next report."""
    run = program.profile(mock().url, "--request-count", 20)
    before = set(run.folder.rglob("*"))
    script = program.folder / "killed.py"
    script.write_text(KILLED)
    killed = program.start(script, "report", run.folder, command="python", folder=run.folder).wait(60)
    assert killed.status == -signal.SIGKILL
    left = set(run.folder.rglob("*")) - before
    assert {path.name for path in left} == {"profile_export.jsonl.new"}
    assert program.run("report", run.folder, command="penstock").status == 0
    assert set(run.folder.rglob("*")) == before


def test_full_disk_of_a_report_is_one_sentence(program: Program, mock: Callable[..., MockServer]) -> None:
    run = program.profile(mock().url, "--request-count", 3)
    (run.folder / "profile_export.jsonl.new").symlink_to("/dev/full")
    done = program.run("report", run.folder, command="penstock")
    assert done.status == 2
    assert done.err == (
        f"penstock report: The disk is full: there is no space for the report in {run.folder}. Free some space, and `penstock "
        f"report {run.folder}` writes it from the records in {run.folder / 'log'}.\n"
    )
