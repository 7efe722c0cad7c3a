"""The worker in this process, against a real server: when it looks at the machine, and when it is short of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.workers import local_processes, worker
from penstock.workers.conversation_picker import ConversationPicker
from penstock.workers.machine_counters import MachineCounters
from penstock.workers.shared_state import SharedState
from support.programs import MockServer


def profile(url: str, folder: Path, *flags: str) -> dict[str, float]:
    """The figures of the certificate of a run."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"text": "Hello."}\n')
    words = ["--model", "m", "--url", url, "--input-file", str(prompts), "--use-server-token-count", "--ui", "none"]
    assert main(["profile", *words, "--artifact-dir", str(folder / "run"), *flags]) == 0
    summary = json.loads((folder / "run" / "profile_export_aiperf.json").read_text())
    figures: dict[str, float] = summary["certificate"]["figures"]
    return figures


def test_the_time_that_connections_take_to_open_is_no_part_of_the_run(
    mock: Callable[..., MockServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards: list[SharedState] = []
    starts: list[int | None] = []

    class Watched(MachineCounters):
        def __init__(self) -> None:
            starts.append(boards[0].phase_start(0))
            super().__init__()

    def board(workers: int) -> SharedState:
        boards.append(SharedState(workers))
        return boards[-1]

    monkeypatch.setattr(local_processes, "SharedState", board)
    monkeypatch.setattr(worker, "MachineCounters", Watched)
    profile(mock().url, tmp_path, "--request-count", "4", "--warmup-request-count", "2")
    assert len(starts) == 1
    assert starts[0] is not None


@pytest.mark.parametrize("load", [("--concurrency", "2"), ("--request-rate", "0.5", "--arrival-pattern", "constant")])
def test_who_could_not_send_anyway_did_not_wait_for_the_file(
    load: tuple[str, ...], mock: Callable[..., MockServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All slots are taken, or nothing is due, when the next conversation is not indexed yet."""
    asked: list[int] = []

    class Late(ConversationPicker):
        def pick(self, number: int) -> int | None:
            asked.append(number)
            return super().pick(number) if asked.count(asked[-1]) > (number == 2) else None

    monkeypatch.setattr(worker, "ConversationPicker", Late)
    figures = profile(mock(ttft=50).url, tmp_path, *load, "--request-count", "3")
    assert asked.count(2) > 1
    assert figures["waits_for_the_input_file"] == 0


def test_who_could_have_sent_waited_for_the_file(
    mock: Callable[..., MockServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Late(ConversationPicker):
        def pick(self, number: int) -> int | None:
            asked.append(number)
            return super().pick(number) if len(asked) > 1 else None

    monkeypatch.setattr(worker, "ConversationPicker", Late)
    assert profile(mock().url, tmp_path, "--request-count", "3")["waits_for_the_input_file"] == 1
