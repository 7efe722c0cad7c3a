"""The multi_turn format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.dataset import ReadOptions
from penstock.datasets.detect_format import detect
from penstock.datasets.load import load
from penstock.datasets.multi_turn import MultiTurn
from penstock.errors import UserError
from penstock.settings.schema import ConversationSettings, InputSettings, ScheduleSettings
from support.prompts import conversations_of, read_whole

SETTINGS = InputSettings(seed=1)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: Any) -> str:
        path = tmp_path / "chats.jsonl"
        path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
        return str(path)

    return write


def error_of(path: str) -> str:
    with pytest.raises(UserError) as caught:
        read_whole(MultiTurn(path, SETTINGS))
    return str(caught.value)


def test_turns_are_read_in_order_with_their_fields(write: Callable[..., str]) -> None:
    path = write(
        {
            "session_id": "a",
            "turns": [
                {"text": "One", "output_length": 5},
                {"texts": ["Two", "parts"], "delay": 250, "extra": {"temperature": 0}},
            ],
        },
        {"turns": [{"text": "Alone"}]},
    )
    first, second = read_whole(MultiTurn(path, SETTINGS))
    assert first == Conversation(
        id="a",
        turns=(
            Turn(texts=("One",), output_tokens=5),
            Turn(texts=("Two", "parts"), delay_ms=250, extra={"temperature": 0}),
        ),
        accumulate=True,
    )
    assert second.id == "session_000000"
    assert detect(path).name == "multi_turn"


def test_lines_of_one_session_are_one_conversation(write: Callable[..., str]) -> None:
    path = write(
        {"session_id": 7, "turns": [{"text": "a"}]},
        {"session_id": "x", "turns": [{"text": "b"}]},
        {"session_id": 7, "turns": [{"text": "c"}]},
    )
    texts = {each.id: [turn.texts[0] for turn in each.turns] for each in read_whole(MultiTurn(path, SETTINGS))}
    assert texts == {"7": ["a", "c"], "x": ["b"]}


def test_leading_system_turn_becomes_the_system_prompt(write: Callable[..., str]) -> None:
    path = write({"turns": [{"role": "system", "texts": ["Be brief.", "Be kind."]}, {"text": "a"}, {"text": "b"}]})
    (only,) = read_whole(MultiTurn(path, SETTINGS))
    assert only.system == "Be brief.\n\nBe kind."
    assert [turn.texts for turn in only.turns] == [("a",), ("b",)]


def test_system_prompt_is_neither_a_turn_nor_scheduled(write: Callable[..., str]) -> None:
    system = {"role": "system", "text": "Be brief."}
    path = write(
        {"turns": [system, {"text": "a", "timestamp": 9}]},
        {"turns": [system, {"text": "b", "timestamp": 5}, system], "session_id": "x"},
        {"turns": [system, {"text": "c", "timestamp": 7}], "session_id": "x"},
    )
    dataset = MultiTurn(path, SETTINGS)
    first, second = read_whole(dataset, schedule=ScheduleSettings(on=True))
    assert dataset.turns == [4, 1]
    assert (first.id, first.system, second.system) == ("x", "Be brief.", "Be brief.")
    assert [turn.texts[0] for turn in first.turns] == ["b", "Be brief.", "Be brief.", "c"]


def test_system_turn_with_a_delay_or_in_the_middle_stays_a_turn(write: Callable[..., str]) -> None:
    path = write(
        {"turns": [{"role": "system", "text": "x", "delay": 5}, {"text": "a"}]},
        {"turns": [{"text": "a"}, {"role": "system", "text": "x"}]},
    )
    for each in read_whole(MultiTurn(path, SETTINGS)):
        assert each.system is None
        assert len(each.turns) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"turns": []}, "'turns' is empty"),
        ({"turns": [{"text": "a"}, {}]}, "turn 2: it has no content: give it 'text', 'image' or 'audio'"),
        ({"turns": [{"text": "a"}, {"text": 5}]}, "'turns[1].text' should be a string, not a whole number"),
        (
            {"turns": [{"text": "a", "image": "none.png"}]},
            "turn 1: 'none.png' cannot be read: No such file or directory",
        ),
        ({"turns": [{"role": "system", "text": "a"}]}, "it has a system turn and no other"),
        ({"turns": "a"}, "'turns' should be a list, not a string"),
        ({"session_id": "a"}, "Object missing required field 'turns'"),
        ("{", "not valid JSON (expecting property name enclosed in double quotes, column 2)"),
    ],
)
def test_error_names_its_line(write: Callable[..., str], line: Any, reason: str) -> None:
    assert error_of(write({"turns": [{"text": "fine"}]}, line)) == f"chats.jsonl:2: {reason}"


def test_empty_file_is_refused(write: Callable[..., str]) -> None:
    assert "is empty" in error_of(write())


def test_unused_fields_are_named(write: Callable[..., str]) -> None:
    dataset = MultiTurn(write({"turns": [{"text": "a", "mood": "good"}], "category": 1}), SETTINGS)
    dataset.prepare(ReadOptions())
    note = dataset.note
    assert note is not None
    assert note.endswith("the format multi_turn does not use 'category', 'mood'.")


def test_reply_length_and_delay_ratio_of_the_run_apply_to_every_turn(write: Callable[..., str]) -> None:
    path = write({"turns": [{"role": "system", "text": "s"}, {"text": "a"}, {"text": "b", "delay": 100}]})
    settings = InputSettings(
        file=path, output_tokens_mean=9, conversation=ConversationSettings(delay_ratio=2.5), seed=1
    )
    (only,) = conversations_of(load(settings, 1, lambda: pytest.fail("no tokenizer is needed")))
    assert (only.system, only.accumulate) == ("s", True)
    assert [(turn.output_tokens, turn.delay_ms) for turn in only.turns] == [(9, 0), (9, 250)]
