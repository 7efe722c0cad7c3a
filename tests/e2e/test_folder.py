"""The folder of a run: what is in it when the run begins, fails to begin, or is killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.programs import Program, wait_for


@pytest.mark.parametrize("name", ["log", "log.old", "log.gone"])
def test_a_folder_of_the_users_own_is_left_alone(mock, program: Program, name: str) -> None:
    precious = program.folder / "mine" / name / "mine.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("precious")
    outcome = program.profile(mock().url, into=program.folder / "mine")
    assert outcome.status == 2
    assert f"mine/{name} exists and is not the log of a run" in outcome.err
    assert precious.read_text() == "precious"
    assert [path.name for path in (program.folder / "mine").iterdir()] == [name]


def test_a_link_is_no_log(mock, program: Program) -> None:
    elsewhere = program.folder / "elsewhere"
    elsewhere.mkdir()
    (program.folder / "run").mkdir()
    (program.folder / "run" / "log").symlink_to(elsewhere)
    outcome = program.profile(mock().url, into=program.folder / "run")
    assert outcome.status == 2
    assert (program.folder / "run" / "log").is_symlink()


@pytest.mark.parametrize("was_there", [True, False])
def test_a_run_that_does_not_begin_leaves_what_it_found(program: Program, was_there: bool) -> None:
    folder = program.folder / "run"
    if was_there:
        folder.mkdir()
    outcome = program.profile("no-such-host.invalid", into=folder)
    assert outcome.status == 2
    assert folder.exists() == was_there
    assert not was_there or list(folder.iterdir()) == []


def test_files_of_the_run_before_do_not_pass_for_those_of_one_that_was_killed(mock, program: Program) -> None:
    server = mock(ttft=20)
    first = program.profile(server.url, "--profile-export-prefix", "first")
    names = {path.name for path in first.folder.iterdir()}
    assert {"first.json", "first.csv", "first.jsonl", "inputs.json", "log"} <= names
    second = program.begin(server.url, "--request-count", 10_000, into=first.folder)
    wait_for(lambda: sum(1 for _ in server.log.open()) > 20, what="the second run's load")
    second.process.kill()
    second.process.wait()
    assert {path.name for path in first.folder.iterdir()} == {"log", "log.gone"}
    third = program.profile(server.url, into=first.folder)
    assert third.status == 0, third
    assert not (third.folder / "log.gone").exists()
    assert third.summary["request_count"]["avg"] == 3


@pytest.mark.parametrize("log", [True, False])
def test_a_summary_alone_does_not_stand_beside_the_requests_of_another_run(mock, program: Program, log: bool) -> None:
    server = mock()
    first = program.profile(server.url)
    if not log:
        shutil.rmtree(first.folder / "log")
    second = program.profile(server.url, "--export-level", "summary", into=first.folder)
    assert second.status == 0, second
    assert (second.folder / "profile_export_aiperf.json").exists()
    assert not (second.folder / "profile_export.jsonl").exists()


@pytest.mark.parametrize("name", ["profile_export.jsonl", "inputs.json"])
def test_an_input_file_is_not_written_over(mock, program: Program, name: str) -> None:
    folder = program.folder / "run"
    folder.mkdir()
    path: Path = folder / name
    path.write_text('{"text": "mine"}\n')
    kind = ("--custom-dataset-type", "single_turn")
    outcome = program.profile(mock().url, "--input-file", path, *kind, texts=None, into=folder)
    assert outcome.status == 2
    assert f"would overwrite its own input file, {path}" in outcome.err
    assert path.read_text() == '{"text": "mine"}\n'


def test_a_replayed_file_stays_where_it_is(mock, program: Program) -> None:
    server = mock()
    first = program.profile(server.url)
    inputs = first.folder / "inputs.json"
    before = inputs.read_bytes()
    flags = ("--input-file", inputs, "--use-server-token-count")
    again = program.profile(server.url, *flags, texts=None, into=first.folder)
    assert again.status == 0, again
    assert inputs.read_bytes() == before
    assert again.summary["request_count"]["avg"] == 3


def test_the_prompts_of_the_warmup_are_others(mock, program: Program) -> None:
    flags = ("--tokenizer", "builtin", "--isl", 10, "--warmup-request-count", 4, "--request-count", 6)
    outcome = program.profile(mock().url, *flags, texts=None)
    assert outcome.status == 0, outcome
    hashes = {"warmup": set(), "profiling": set()}
    for line in outcome.text("profile_export.jsonl").splitlines():
        found = json.loads(line)["metadata"]
        hashes[found["benchmark_phase"]].add(found["body_sha256"])
    assert [len(hashes["warmup"]), len(hashes["profiling"])] == [4, 6]
    assert not hashes["warmup"] & hashes["profiling"]


def test_more_slots_than_requests_need_no_more_files(mock, program: Program) -> None:
    outcome = program.profile(mock().url, "--concurrency", 10_000_000, "--request-count", 5)
    assert outcome.status == 0, outcome
    assert outcome.summary["request_count"]["avg"] == 5
