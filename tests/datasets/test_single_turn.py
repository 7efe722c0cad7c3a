"""The single_turn format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.conversation import Turn
from penstock.datasets.dataset import ReadOptions
from penstock.datasets.single_turn import SingleTurn
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from support.prompts import read_whole

SETTINGS = InputSettings(seed=1)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def write(*lines: dict[str, Any] | str | bytes) -> str:
        path = tmp_path / "prompts.jsonl"
        rows = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
        path.write_bytes(b"".join((row if isinstance(row, bytes) else row.encode()) + b"\n" for row in rows))
        return str(path)

    return write


def turns(path: str) -> list[Turn]:
    return [turn for each in read_whole(SingleTurn(path, SETTINGS)) for turn in each.turns]


def note_of(path: str) -> str | None:
    dataset = SingleTurn(path, SETTINGS)
    dataset.prepare(ReadOptions())
    return dataset.note


def error_of(path: str) -> str:
    with pytest.raises(UserError) as caught:
        read_whole(SingleTurn(path, SETTINGS))
    return str(caught.value)


def test_every_field_is_read(write: Callable[..., str]) -> None:
    path = write(
        {"text": "Hello", "role": "system", "session_id": "a", "output_length": 7, "extra": {"top_k": 3}, "delay": 250},
        {"texts": ["one", {"name": "more", "contents": ["two", "three"]}], "timestamp": 12.5, "type": "single_turn"},
    )
    first, second = read_whole(SingleTurn(path, SETTINGS))
    assert (first.id, second.id) == ("a", "session_000000")
    assert first.turns == (
        Turn(texts=("Hello",), role="system", output_tokens=7, extra={"top_k": 3}, delay_ms=250, timestamp_ms=None),
    )
    assert second.turns == (Turn(texts=("one", "two", "three"), text_names=("", "more", "more"), timestamp_ms=12.5),)


def test_lines_of_one_session_are_one_conversation_in_order(write: Callable[..., str]) -> None:
    path = write(
        {"text": "a1", "session_id": "a"},
        {"text": "b1", "session_id": 5},
        {"text": "free"},
        {"text": "a2", "session_id": "a"},
    )
    texts = {each.id: [turn.texts[0] for turn in each.turns] for each in read_whole(SingleTurn(path, SETTINGS))}
    assert texts == {"a": ["a1", "a2"], "5": ["b1"], "session_000000": ["free"]}


def test_generated_ids_differ_from_given_ids(write: Callable[..., str]) -> None:
    path = write({"text": "x"}, {"text": "y", "session_id": "session_000000"}, {"text": "z", "session_id": ""})
    ids = [each.id for each in read_whole(SingleTurn(path, SETTINGS))]
    assert ids == ["session_000001", "session_000000", "session_000002"]
    fresh = [each.id for each in read_whole(SingleTurn(path, InputSettings()))]
    assert len(set(fresh)) == 3
    assert len(fresh[0]) == 36


def test_blank_lines_byte_order_mark_and_crlf_are_ignored(write: Callable[..., str]) -> None:
    path = write(b'\xef\xbb\xbf{"text": "one"}\r', "", "   \r", '{"text": "zwölf"}\r')
    assert [turn.texts[0] for turn in turns(path)] == ["one", "zwölf"]


def test_null_field_counts_as_absent(write: Callable[..., str]) -> None:
    path = write({"text": "x", "texts": None, "image": None, "delay": None, "timestamp": 3, "role": None})
    assert turns(path) == [Turn(texts=("x",), timestamp_ms=3)]


def test_unused_fields_are_named(write: Callable[..., str]) -> None:
    note = note_of(write({"text": "x", "category": 1}, {"text": "y", "max_tokens": 5}))
    assert note is not None
    assert note.endswith("prompts.jsonl: the format single_turn does not use 'category', 'max_tokens'.")
    note = note_of(write({"text": "x", "output_lenght": 5}))
    assert note is not None
    assert note.endswith("does not use 'output_lenght' (did you mean 'output_length'?).")
    assert note_of(write({"text": "x"})) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"text": "x", "texts": ["y"]}, "it has both 'text' and 'texts'; keep one"),
        ({"text": "x", "timestamp": 1, "delay": 2}, "it has both 'timestamp' and 'delay'; keep one"),
        ({}, "it has no content: give it 'text', 'image' or 'audio'"),
        ({"text": ""}, "it has no content: give it 'text', 'image' or 'audio'"),
        ({"texts": []}, "it has no content: give it 'text', 'image' or 'audio'"),
        ({"texts": [{"contents": []}]}, "it has no content: give it 'text', 'image' or 'audio'"),
        ({"text": "x", "image": "a.png"}, "'a.png' cannot be read: No such file or directory"),
        ({"videos": ["a.mp4"]}, "it has 'videos', and this version sends text, images and audio only"),
        ({"text": "x", "role": ""}, "'role' is empty"),
        ({"text": 5}, "'text' should be a string, not a whole number"),
        ({"texts": "x"}, "'texts' should be a list, not a string"),
        ({"texts": [1]}, "'texts[0]' should be a string or an object, not a whole number"),
        ({"text": "x", "output_length": 0}, "'output_length' should be a whole number >= 1"),
        ({"text": "x", "output_length": "9"}, "'output_length' should be a whole number, not a string"),
        ({"text": "x", "delay": -1}, "'delay' should be a number >= 0.0"),
        ({"text": "x", "extra": [1]}, "'extra' should be an object, not a list"),
        ("[1]", "the line should be an object, not a list"),
        ('{"text": "x"', "not valid JSON (expecting ',' delimiter, column 13)"),
        ("{'text': 'x'}", "not valid JSON (expecting property name enclosed in double quotes, column 2)"),
        ('{"text": "\\ud83d and so on"}', "not valid JSON (half of a \\u surrogate pair without its other half)"),
        (b'{"text": "caf\xe9"}', "not valid UTF-8 (byte 14 of the line)"),
        (b'{"text": "x", "note": "caf\xe9"}', "not valid UTF-8 (byte 27 of the line)"),
    ],
)
def test_error_names_its_line(write: Callable[..., str], line: dict[str, Any] | str | bytes, reason: str) -> None:
    assert error_of(write({"text": "fine"}, "", line)) == f"prompts.jsonl:3: {reason}"


def test_all_errors_are_listed(write: Callable[..., str]) -> None:
    assert error_of(write({"text": "fine"}, {}, {"text": 1})) == (
        "prompts.jsonl has 2 errors:\n"
        "  prompts.jsonl:2: it has no content: give it 'text', 'image' or 'audio'\n"
        "  prompts.jsonl:3: 'text' should be a string, not a whole number"
    )
    many = error_of(write(*[{}] * 1500)).splitlines()
    assert many[0] == "prompts.jsonl has 1,500 errors:"
    assert len(many) == 22
    assert many[-1] == "  and 1,480 more"


def test_empty_file_is_refused(write: Callable[..., str]) -> None:
    for lines in ((), ("", " ")):
        assert error_of(write(*lines)).endswith("is empty; give a file with one JSON object per line.")


def test_utf_16_file_is_refused(write: Callable[..., str]) -> None:
    path = write('{"text": "x"}'.encode("utf-16"))
    assert error_of(path) == "prompts.jsonl:1: the file is in UTF-16; save it as UTF-8"


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    message = error_of(str(tmp_path / "none.jsonl"))
    assert message.endswith("none.jsonl' cannot be read: No such file or directory.")
    assert "cannot be read: Is a directory" in error_of(str(tmp_path))


def test_file_of_100_000_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    path.write_text('{"text": "%s", "output_length": 20}\n' % ("How are you today? " * 20) * 100_000)
    assert len(read_whole(SingleTurn(str(path), SETTINGS))) == 100_000
