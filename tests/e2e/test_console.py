"""What a person or a pipe sees."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time

import pytest

from support.programs import BIN, LIMIT_S


def test_on_a_pipe_there_are_plain_lines(mock, program):
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
        "LLM Metrics",
        "Certificate:",
        "Benchmark Duration:",
        "JSON Export:",
    ]
    places = [next(n for n, line in enumerate(lines) if mark in line) for mark in order]
    assert places == sorted(places)


def test_a_long_run_on_a_pipe_says_now_and_then_how_far_it_is(mock, program):
    outcome = program.profile(mock(ttft=90).url, "--request-count", 62, "--concurrency", 1)
    assert outcome.status == 0, outcome
    progress = [line for line in outcome.out.splitlines() if line.startswith("Profiling:")]
    assert len(progress) >= 2
    assert re.search(r"\d+/62 .*\d+% \[\d\d:\d\d<\d\d:\d\d\]", progress[0])
    assert "62/62" in progress[-1]
    assert "100%" in progress[-1]


def test_quiet_is_quiet(mock, program):
    outcome = program.profile(mock().url, "--request-count", 4, "--quiet")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.summary["request_count"]["avg"] == 4
    assert outcome.err == "" or outcome.summary["certificate"]["verdict"] != "VALID"


def too_few_files(mock, program, *flags):
    """A run that is allowed fewer open files than it comes to need: a fault of the client, and no server's."""
    words = ["profile", "--model", "m", "--url", mock(ttft=4000).url, "--input-file", program.prompts(3), *flags]
    words += ["--use-server-token-count", "--request-rate", 200, "--request-count", 120, "--artifact-dir", "few"]
    limited = ["bash", "-c", 'ulimit -n 100; exec "$@"', "-", BIN / "aiperf", *map(str, words)]
    done = subprocess.run(limited, cwd=program.folder, env=program.env, capture_output=True, text=True, timeout=LIMIT_S)
    return done, json.loads((program.folder / "few" / "profile_export_aiperf.json").read_text())


def test_quiet_still_says_what_it_cannot_vouch_for(mock, program):
    done, summary = too_few_files(mock, program, "--quiet", "--max-error-rate", 1)
    ours = summary["failures"]["penstock"]
    assert ours > 6
    assert summary["certificate"]["verdict"] == "INVALID"
    assert f"{ours} of 120 requests failed because of an error in the client" in summary["certificate"]["reasons"][0]
    assert (done.returncode, done.stdout) == (0, "")
    line = f"Certificate: INVALID. {' '.join(summary['certificate']['reasons'])}"
    certificate, reason = done.stderr.splitlines()
    assert certificate == line
    assert f"requests failed ({summary['error_request_count']['avg'] / 120:.1%}). The " in reason


def test_a_rate_that_was_not_reached_is_on_the_screen(mock, program):
    outcome = program.profile(mock(ttft=50).url, "--request-rate", 200, "--concurrency", 2, "--request-count", 20)
    queued = outcome.summary["certificate"]["figures"]["requests_queued_for_a_slot"]
    assert queued > 5
    assert re.search(
        rf"- {queued} requests waited up to \d+ ms for a free slot, so the rate was not reached\.", outcome.out
    )
    relaxed = program.profile(mock().url, "--request-rate", 50, "--request-count", 5)
    assert "free slot" not in relaxed.out


def test_replies_without_usage_are_said_to_have_no_token_metrics(mock, program):
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


def test_quiet_still_says_why_it_failed(mock, program):
    outcome = program.profile(mock(error=500).url, "--request-count", 4, "--quiet")
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


def test_a_terminal_has_a_bar_that_is_drawn_over(mock, program):
    server = mock(ttft=40)
    master, slave = pty.openpty()
    words = ["profile", "--model", "m", "--url", server.url, "--request-count", "30", "--use-server-token-count"]
    words += ["--input-file", str(program.prompts(3)), "--artifact-dir", str(program.folder / "tty")]
    process = subprocess.Popen(
        [str(BIN / "aiperf"), *words], stdout=slave, stderr=slave, stdin=slave, env=program.env | {"TERM": "xterm"}
    )
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait(LIMIT_S) == 0
    os.close(master)
    assert shown.count(b"\r\x1b[K") >= 3
    assert "█" in shown.decode()
    assert b"30/30" in shown


def test_the_warmup_is_shown_as_such(mock, program):
    outcome = program.profile(mock(ttft=5).url, "--request-count", 6, "--warmup-request-count", 4)
    lines = [line for line in outcome.out.splitlines() if line.startswith(("Warmup:", "Profiling:"))]
    assert lines[0].startswith("Warmup: 4/4")
    assert lines[-1].startswith("Profiling: 6/6")


def test_failures_of_the_warmup_are_not_shown_for_the_run(mock, program):
    server = mock(error=500, error_rate=0.5, seed=1)
    outcome = program.profile(
        server.url, "--request-count", 6, "--warmup-request-count", 6, "--max-error-rate", 1, "--streaming"
    )
    truth = server.logged_requests()
    for name, part in (("Warmup:", truth[:6]), ("Profiling:", truth[6:])):
        failed = sum(1 for each in part if each["fault"])
        line = [line for line in outcome.out.splitlines() if line.startswith(name)][-1]
        assert failed
        assert line.endswith(f", {failed} failed")


def test_a_tokenizer_that_nobody_named_and_nobody_has_is_said(mock, program):
    flags = ["--isl", 10, "--osl", 5, "--request-count", 2]
    outcome = program.profile(mock().url, *flags, model="nobody/has-this", texts=None)
    assert outcome.status == 0, outcome
    assert "builtin" in outcome.out
    assert "nobody/has-this" in outcome.out
    assert "builtin" in outcome.summary["tokenizer"]["name"]
    note = outcome.summary["tokenizer"]["note"]
    assert " ".join(outcome.out.split()).count(note) == 1
    assert note in " ".join((outcome.folder / "profile_export_console.txt").read_text().split())
    assert outcome.err == ""


@pytest.mark.parametrize("prompts", ["synthetic", "file"])
def test_a_tokenizer_that_was_named_and_fails_stops_the_run(mock, program, prompts):
    server = mock()
    flags = ["--isl", 10] if prompts == "synthetic" else ["--input-file", program.prompts(2)]
    flags += ["--request-count", 2, "--tokenizer", "nobody/has-this"]
    outcome = program.profile(server.url, *flags, texts=None)
    assert outcome.status == 2
    assert "nobody/has-this" in outcome.err
    assert server.logged_requests() == []


def test_both_names_are_the_same_program(program):
    said = {program.run("--version", command=name).out for name in ("aiperf", "penstock")}
    assert len(said) == 1
