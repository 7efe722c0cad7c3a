"""The output on a terminal and on a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time

import pytest

from support.programs import BIN, LIMIT_S


def test_output_to_a_pipe_is_plain_lines(mock, program):
    outcome = program.profile(mock(ttft=5).url, "--request-count", 8)
    assert outcome.status == 0, outcome
    assert "\x1b" not in outcome.out
    assert "\r" not in outcome.out
    assert outcome.err == ""
    lines = outcome.out.splitlines()
    assert max(map(len, lines)) < 400
    order = [
        "Profiling: 8/8",
        "Results saved to:",
        "Certificate:",
        "LLM Metrics",
        "Benchmark Duration:",
        "JSON Export:",
    ]
    positions = [next(n for n, line in enumerate(lines) if mark in line) for mark in order]
    assert positions == sorted(positions)


@pytest.mark.slow
def test_long_run_prints_progress_lines_to_a_pipe(mock, program):
    outcome = program.profile(mock(ttft=90).url, "--request-count", 62, "--concurrency", 1)
    assert outcome.status == 0, outcome
    progress = [line for line in outcome.out.splitlines() if line.startswith("Profiling:")]
    assert len(progress) >= 2
    assert re.search(r"\d+/62 .*\d+% \[\d\d:\d\d<\d\d:\d\d\]", progress[0])
    assert "62/62" in progress[-1]
    assert "100%" in progress[-1]


def test_quiet_prints_nothing(mock, program):
    outcome = program.profile(mock().url, "--request-count", 4, "--quiet")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.summary["request_count"]["avg"] == 4
    assert outcome.err == "" or outcome.summary["certificate"]["verdict"] != "VALID"


def run_with_few_open_files(mock, program, *flags):
    """Run with a limit on open files that is too low: requests fail because of an error in the client."""
    arguments = ["profile", "--model", "m", "--url", mock(ttft=4000).url, "--input-file", program.prompts(3), *flags]
    arguments += ["--use-server-token-count", "--request-rate", 200, "--request-count", 120, "--artifact-dir", "few"]
    limited = ["bash", "-c", 'ulimit -n 100; exec "$@"', "-", BIN / "aiperf", *map(str, arguments)]
    done = subprocess.run(limited, cwd=program.folder, env=program.env, capture_output=True, text=True, timeout=LIMIT_S)
    return done, json.loads((program.folder / "few" / "profile_export_aiperf.json").read_text())


@pytest.mark.slow
def test_quiet_prints_an_invalid_certificate_to_standard_error(mock, program):
    done, summary = run_with_few_open_files(mock, program, "--quiet", "--max-error-rate", 1)
    client_failures = summary["failures"]["penstock"]
    assert client_failures > 6
    assert summary["certificate"]["verdict"] == "INVALID"
    assert (
        f"{client_failures} of 120 requests failed because of an error in the client"
        in summary["certificate"]["reasons"][0]
    )
    assert (done.returncode, done.stdout) == (0, "")
    line = f"Certificate: INVALID. {' '.join(summary['certificate']['reasons'])}"
    certificate, reason = done.stderr.splitlines()
    assert certificate == line
    assert f"requests failed ({summary['error_request_count']['avg'] / 120:.1%}). The " in reason


def test_screen_shows_that_the_rate_was_not_reached(mock, program):
    outcome = program.profile(mock(ttft=50).url, "--request-rate", 200, "--concurrency", 2, "--request-count", 20)
    queued = outcome.summary["certificate"]["figures"]["requests_queued_for_a_slot"]
    assert queued > 5
    assert re.search(
        rf"- {queued} requests waited up to \d+ ms for a free slot, so the rate was not reached\.", outcome.out
    )
    relaxed = program.profile(mock().url, "--request-rate", 50, "--request-count", 5)
    assert "free slot" not in relaxed.out


def test_note_counts_replies_without_usage(mock, program):
    outcome = program.profile(
        mock(usage="never").url, "--request-count", 4, "--isl", 5, "--use-server-token-count", texts=None
    )
    assert outcome.status == 0, outcome
    assert "4 of 4 replies had no usage and have no token metrics." in outcome.out
    assert "counting with" not in outcome.out
    assert "4 of 4 replies had no usage" in outcome.summary["tokenizer"]["note"]
    assert "usage" not in program.profile(mock().url, "--request-count", 4).summary["tokenizer"]["note"]


def test_no_line_on_a_pipe_ends_in_spaces(mock, program):
    outcome = program.profile(mock(usage="never", error=500, error_rate=0.5, seed=1).url, "--request-count", 8)
    assert "Notes:" in outcome.out
    assert "Requests Failed" in outcome.out
    assert [line for line in outcome.out.splitlines() if line != line.rstrip()] == []


def test_quiet_prints_the_reason_of_a_failure(mock, program):
    outcome = program.profile(mock(error=500).url, "--request-count", 4, "--quiet", command="penstock")
    assert outcome.status == 1
    assert outcome.out == ""
    assert outcome.err.startswith(
        "4 of 4 requests failed (100.0%), more than --max-error-rate 0 allows. The reason: 500 Internal Server Error: "
    )
    assert outcome.err.count("\n") == 1


def test_ui_none_shows_results_and_failures_without_progress(mock, program):
    server = mock(error=500, error_rate=0.5, seed=1)
    outcome = program.profile(server.url, "--request-count", 8, "--ui", "none", "--max-error-rate", 1)
    assert outcome.status == 0, outcome
    assert "Requests Failed" in outcome.out
    assert "Penstock | LLM Metrics" in outcome.out
    assert "Profiling:" not in outcome.out
    assert "requests failed" in outcome.err
    assert "The reason: 500 Internal Server Error: " in outcome.err


@pytest.mark.slow
def test_progress_bar_is_redrawn_in_place_on_a_terminal(mock, program):
    server = mock(ttft=40)
    master, slave = pty.openpty()
    arguments = ["profile", "--model", "m", "--url", server.url, "--request-count", "30", "--use-server-token-count"]
    arguments += ["--input-file", str(program.prompts(3)), "--artifact-dir", str(program.folder / "tty")]
    process = subprocess.Popen(
        [str(BIN / "aiperf"), *arguments], stdout=slave, stderr=slave, stdin=slave, env=program.env | {"TERM": "xterm"}
    )
    os.close(slave)
    output = b""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    assert process.wait(LIMIT_S) == 0
    os.close(master)
    assert output.count(b"\r\x1b[K") >= 3
    assert "█" in output.decode()
    assert b"30/30" in output


def test_warmup_has_its_own_progress_line(mock, program):
    outcome = program.profile(mock(ttft=5).url, "--request-count", 6, "--warmup-request-count", 4)
    lines = [line for line in outcome.out.splitlines() if line.startswith(("Warmup:", "Profiling:"))]
    assert lines[0].startswith("Warmup: 4/4")
    assert lines[-1].startswith("Profiling: 6/6")


def test_progress_lines_count_failures_per_phase(mock, program):
    server = mock(error=500, error_rate=0.5, seed=1)
    outcome = program.profile(
        server.url, "--request-count", 6, "--warmup-request-count", 6, "--max-error-rate", 1, "--streaming"
    )
    server_log = server.logged_requests()
    for name, part in (("Warmup:", server_log[:6]), ("Profiling:", server_log[6:])):
        failed = sum(1 for entry in part if entry["fault"])
        line = [line for line in outcome.out.splitlines() if line.startswith(name)][-1]
        assert failed
        assert line.endswith(f", {failed} failed")


def test_fallback_to_the_builtin_tokenizer_is_noted_once(mock, program):
    flags = ["--isl", 10, "--osl", 5, "--request-count", 2]
    outcome = program.profile(mock().url, *flags, model="no-such-user/no-such-model", texts=None)
    assert outcome.status == 0, outcome
    assert "builtin" in outcome.out
    assert "no-such-user/no-such-model" in outcome.out
    assert "builtin" in outcome.summary["tokenizer"]["name"]
    note = outcome.summary["tokenizer"]["note"]
    assert " ".join(outcome.out.split()).count(note) == 1
    assert note in " ".join((outcome.folder / "profile_export_console.txt").read_text().split())
    assert outcome.err == ""


@pytest.mark.parametrize("prompts", ["synthetic", "file"])
def test_named_tokenizer_that_cannot_be_loaded_stops_the_run(mock, program, prompts):
    server = mock()
    flags = ["--isl", 10] if prompts == "synthetic" else ["--input-file", program.prompts(2)]
    flags += ["--request-count", 2, "--tokenizer", "no-such-user/no-such-model"]
    outcome = program.profile(server.url, *flags, texts=None)
    assert outcome.status == 2
    assert "no-such-user/no-such-model" in outcome.err
    assert server.logged_requests() == []


def test_aiperf_and_penstock_print_the_same_version(program):
    versions = {program.run("--version", command=name).out for name in ("aiperf", "penstock")}
    assert len(versions) == 1


def test_aiperf_says_that_it_is_profiling_and_writes_a_log(mock, program):
    done = program.profile(mock().url, "--request-count", 2, "--ui", "none")
    assert done.out.splitlines().count("AIPerf System is PROFILING") == 1
    assert "AIPerf System is PROFILING" in done.text("logs/aiperf.log")


@pytest.mark.parametrize(("command", "flags"), [("penstock", ()), ("aiperf", ("--quiet",))])
def test_other_runs_neither_say_that_they_profile_nor_write_a_log(mock, program, command, flags):
    done = program.profile(mock().url, "--request-count", 2, "--ui", "none", *flags, command=command)
    assert "PROFILING" not in done.out
    assert not (done.folder / "logs").exists()


def test_flags_of_the_processes_of_aiperf_have_no_effect_and_a_note(mock, program):
    flags = (
        "--record-processors",
        4,
        "--stats-interval",
        2,
        "--zmq-host",
        "localhost",
        "--tokenizer-trust-remote-code",
    )
    done = program.profile(mock().url, "--request-count", 2, *flags)
    assert done.status == 0, done
    assert done.err.splitlines() == [
        f"Note: {flag} has no effect in Penstock." for flag in flags if str(flag).startswith("--")
    ]
    assert program.profile(mock().url, "--request-count", 2, *flags, "--quiet").err == ""
