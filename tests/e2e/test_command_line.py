"""Unusual values on the command line, and their error messages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.programs import Capture, Program


@pytest.mark.parametrize(
    ("path", "flags"),
    [("/caf\u00e9", []), ("/?q=\u4e2d", []), ("", ["--custom-endpoint", "/v1/\u4e2d"])],
    ids=["latin", "query", "endpoint"],
)
def test_non_ascii_url_is_an_error_that_suggests_percent_encoding(
    program: Program, capture: Capture, path: str, flags: list[str]
) -> None:
    done = program.profile(capture.url + path, *flags)
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "which a request cannot carry; write it as %" in done.err


def test_tilde_in_a_flag_value_is_expanded(program: Program, capture: Capture) -> None:
    """`Program` sets HOME to its folder."""
    prompts = program.prompts(2)
    done = program.profile(capture.url, f"--input-file=~/{prompts.name}", "--use-server-token-count", texts=None)
    assert done.status == 0, done
    assert len(capture.requests) == 2


def test_mock_scheme_is_case_insensitive(program: Program) -> None:
    done = program.profile("MOCK://?ttft=1")
    assert done.status == 0, done
    assert len(done.records) == 3


def test_run_announces_which_run_it_replaces(program: Program, capture: Capture) -> None:
    first = program.profile(capture.url)
    assert "replaces" not in first.out
    again = program.profile(capture.url, into=first.folder)
    assert re.search(
        rf"^This run replaces that of [0-9: -]+ in {first.folder}/ when it sends its first request$",
        again.out,
        re.MULTILINE,
    )


@pytest.mark.parametrize("flags", [[], ["--session-turns-mean", 2, "--isl", 5, "--osl", 5, "--tokenizer", "builtin"]])
def test_load_line_names_prompts_or_conversations(program: Program, capture: Capture, flags: list[Any]) -> None:
    several = bool(flags)
    out = program.profile(capture.url, *flags, "--request-count", 4, texts=None if several else 1).out
    assert ("synthetic conversations\n" if several else "; 1 prompt of prompts-1.jsonl\n") in out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "report"])
def test_folder_without_a_run_is_an_error_that_lists_the_runs_inside(
    program: Program, capture: Capture, command: str
) -> None:
    assert program.run(command, "nope").err == f"aiperf {command}: There is no folder nope.\n"
    assert program.run(command, program.prompts(1)).err.endswith("is not a folder.\n")
    inside = [program.profile(capture.url).folder for _ in range(2)]
    done = program.run(command, program.folder)
    assert done.status == 2
    assert done.err.splitlines()[1:] == [f"  {folder}" for folder in inside]
    assert "contains no run" in program.run(command, inside[0] / "log").err


def test_unwritable_artifact_folder_is_an_error(program: Program, capture: Capture) -> None:
    folder = program.prompts(1) / "x"
    done = program.profile(capture.url, into=folder)
    assert done.status == 2
    assert f"The artifact folder {folder} cannot be written" in done.err


def test_unused_field_of_a_file_is_named_with_a_suggestion(program: Program, capture: Capture) -> None:
    path = program.folder / "in.jsonl"
    path.write_text('{"text": "a", "output_lenght": 3}\n')
    done = program.profile(capture.url, "--input-file", path, "--use-server-token-count", texts=None)
    assert done.status == 0, done
    assert "does not use 'output_lenght' (did you mean 'output_length'?)" in done.out


def test_assertion_that_does_not_hold_gives_exit_status_1(program: Program, capture: Capture) -> None:
    conditions = ("--assert", "p99 request_latency<0", "--assert", "error_request_count<1")
    done = program.profile(capture.url, *conditions, "--quiet")
    assert done.status == 1
    failed = [line for line in done.err.splitlines() if line.startswith("--assert")]
    assert len(failed) == 1
    assert failed[0].startswith("--assert 'p99 request_latency<0' does not hold: p99 request_latency is ")
    assert program.profile(capture.url, "--assert", "p99 request_latency<1e9, request_count>=3").status == 0


def test_assertion_on_an_unknown_metric_is_refused_before_the_run(program: Program, capture: Capture) -> None:
    done = program.profile(capture.url, "--assert", "p99 ttft<300")
    assert done.status == 2
    assert "there is no metric ttft; did you mean time_to_first_token?" in done.err
    assert not capture.requests
