"""The contents of the artifact folder when a run starts, fails to start, or is killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.programs import Program, wait_for


@pytest.mark.parametrize("name", ["log", "log.old", "log.gone"])
def test_log_folder_of_another_program_is_left_alone(mock, program: Program, name: str) -> None:
    precious = program.folder / "mine" / name / "mine.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    outcome = program.profile(mock().url, into=program.folder / "mine")
    assert outcome.status == 2
    assert f"mine/{name} exists and is not the log of a run" in outcome.err
    assert precious.read_text() == "precious"
    assert [path.name for path in (program.folder / "mine").iterdir()] == [name]


def test_symbolic_link_named_log_is_left_alone(mock, program: Program) -> None:
    elsewhere = program.folder / "elsewhere"
    elsewhere.mkdir()
    (program.folder / "run").mkdir()
    (program.folder / "run" / "log").symlink_to(elsewhere)
    outcome = program.profile(mock().url, into=program.folder / "run")
    assert outcome.status == 2
    assert (program.folder / "run" / "log").is_symlink()


@pytest.mark.parametrize("existed", [True, False])
def test_failed_start_leaves_the_folder_as_it_was(program: Program, existed: bool) -> None:
    folder = program.folder / "run"
    if existed:
        folder.mkdir()
    outcome = program.profile("no-such-host.invalid", into=folder)
    assert outcome.status == 2
    assert folder.exists() == existed
    assert not existed or list(folder.iterdir()) == []


def test_killed_run_has_removed_the_files_of_the_previous_run(mock, program: Program) -> None:
    server = mock(ttft=20)
    first = program.profile(server.url, "--profile-export-prefix", "first")
    names = {path.name for path in first.folder.iterdir()}
    assert {"first.json", "first.csv", "first.jsonl", "inputs.json", "log"} <= names
    second = program.begin(server.url, "--request-count", 10_000, into=first.folder, command="penstock")
    wait_for(lambda: sum(1 for _ in server.log.open()) > 20, what="the second run's load")
    second.process.kill()
    second.process.wait()
    assert {path.name for path in first.folder.iterdir()} == {"log", "log.gone"}
    third = program.profile(server.url, into=first.folder)
    assert third.status == 0, third
    assert not (third.folder / "log.gone").exists()
    assert third.summary["request_count"]["avg"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("log", [True, False])
def test_summary_only_run_removes_the_per_request_file_of_the_previous_run(mock, program: Program, log: bool) -> None:
    server = mock()
    first = program.profile(server.url)
    if not log:
        shutil.rmtree(first.folder / "log")
    second = program.profile(server.url, "--export-level", "summary", into=first.folder)
    assert second.status == 0, second
    assert (second.folder / "profile_export_aiperf.json").exists()
    assert not (second.folder / "profile_export.jsonl").exists()


@pytest.mark.parametrize("name", ["profile_export.jsonl", "inputs.json"])
def test_run_that_would_overwrite_its_input_file_is_refused(mock, program: Program, name: str) -> None:
    folder = program.folder / "run"
    folder.mkdir()
    path: Path = folder / name
    path.write_text('{"text": "mine"}\n')
    kind = ("--custom-dataset-type", "single_turn")
    outcome = program.profile(mock().url, "--input-file", path, *kind, texts=None, into=folder)
    assert outcome.status == 2
    assert f"would overwrite its own input file, {path}" in outcome.err
    assert path.read_text() == '{"text": "mine"}\n'


def test_replay_into_the_original_folder_keeps_inputs_json(mock, program: Program) -> None:
    server = mock()
    first = program.profile(server.url)
    inputs = first.folder / "inputs.json"
    before = inputs.read_bytes()
    flags = ("--input-file", inputs, "--use-server-token-count")
    again = program.profile(server.url, *flags, texts=None, into=first.folder)
    assert again.status == 0, again
    assert inputs.read_bytes() == before
    assert again.summary["request_count"]["avg"] == 3


def test_warmup_and_profiling_have_different_prompts(mock, program: Program) -> None:
    flags = ("--tokenizer", "builtin", "--isl", 10, "--warmup-request-count", 4, "--request-count", 6)
    outcome = program.profile(mock().url, *flags, texts=None)
    assert outcome.status == 0, outcome
    hashes = {"warmup": set(), "profiling": set()}
    for line in outcome.text("profile_export.jsonl").splitlines():
        metadata = json.loads(line)["metadata"]
        hashes[metadata["benchmark_phase"]].add(metadata["body_sha256"])
    assert [len(hashes["warmup"]), len(hashes["profiling"])] == [4, 6]
    assert not hashes["warmup"] & hashes["profiling"]


def test_open_files_are_limited_by_the_number_of_requests(mock, program: Program) -> None:
    outcome = program.profile(mock().url, "--concurrency", 10_000_000, "--request-count", 5)
    assert outcome.status == 0, outcome
    assert outcome.summary["request_count"]["avg"] == 5
