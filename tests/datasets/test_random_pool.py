"""Requests put together from pools."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.datasets.conversation import Turn
from penstock.datasets.detect_format import detect
from penstock.datasets.load import load
from penstock.errors import UserError
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import conversations_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)


def no_tokenizer() -> Tokenizer:
    raise AssertionError("a pool needs no tokenizer")


def turns_of(path: Path, **fields: int) -> list[Turn]:
    settings = InputSettings(file=str(path), format="random_pool", seed=3, **fields)  # type: ignore[arg-type]
    conversations = conversations_of(load(settings, 1, no_tokenizer))
    assert len({each.id for each in conversations}) == len(conversations)
    return [turn for each in conversations for turn in each.turns]


def test_lines_of_a_file_are_drawn_with_equal_shares(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"text": "a", "output_length": 7}\n{"text": "b", "delay": 5}\n')
    assert len(turns_of(path)) == 100
    turns = turns_of(path, entries=2000)
    counts = Counter(turn.texts for turn in turns)
    assert counts.keys() == {("a",), ("b",)}
    assert 900 < counts["a",] < 1100
    assert {(turn.texts, turn.output_tokens) for turn in turns} == {(("a",), 7), (("b",), None)}
    assert turns == turns_of(path, entries=2000)


def test_request_has_one_line_of_each_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(PNG)
    (tmp_path / "y.wav").write_bytes(WAV)
    (tmp_path / "1.jsonl").write_text('{"text": "a", "extra": {"k": 1}}\n{"text": "b", "extra": {"k": 2}}\n')
    (tmp_path / "2.jsonl").write_text('{"text": "c", "image": "x.png", "extra": {"k": 3, "l": 4}}\n')
    (tmp_path / "3.jsonl").write_text('{"audio": "y.wav"}\n')
    turns = turns_of(tmp_path, entries=50)
    assert {turn.texts for turn in turns} == {("a", "c"), ("b", "c")}
    assert {(len(turn.images), len(turn.audios)) for turn in turns} == {(1, 1)}
    assert {tuple(turn.extra.items()) for turn in turns} == {(("k", 1), ("l", 4)), (("k", 2), ("l", 4))}


def test_pools_of_a_folder_give_their_names_to_texts_without_one(tmp_path: Path) -> None:
    (tmp_path / "passages.jsonl").write_text('{"texts": ["a", "b"]}\n')
    (tmp_path / "queries.jsonl").write_text('{"text": "q"}\n')
    (tmp_path / "rest.jsonl").write_text('{"texts": [{"name": "passage", "contents": ["c"]}]}\n')
    (turn,) = turns_of(tmp_path, entries=1)
    assert (turn.texts, turn.text_names) == (("a", "b", "q", "c"), ("passages", "passages", "queries", "passage"))


def test_pool_is_detected_by_the_type_in_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"type": "random_pool", "text": "a"}\n')
    assert detect(str(path)).name == "random_pool"


def test_error_of_a_pool_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "2.jsonl").write_text('{"text": "a"}\n{"texts": []}\n')
    with pytest.raises(UserError, match=r"2\.jsonl:2: it has no content"):
        turns_of(tmp_path)


def test_number_of_entries_applies_to_pools_only(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text('{"text": "a"}\n')
    line = ["-m", "m", "--input-file", str(path), "--num-dataset-entries", "3"]
    assert resolve(parse(PROFILE, [*line, "--custom-dataset-type", "Random-Pool"])).input.entries == 3
    with pytest.raises(UserError, match="--num-dataset-entries applies to synthetic prompts"):
        resolve(parse(PROFILE, line))


def test_requests_keep_the_names_of_texts_for_rankings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"texts": [{"name": "query", "contents": ["q"]}]}\n')
    (tmp_path / "b.jsonl").write_text('{"texts": [{"name": "passages", "contents": ["p1", "p2"]}]}\n')
    (turn,) = turns_of(tmp_path, entries=1)
    assert (turn.texts, turn.text_names) == (("q", "p1", "p2"), ("query", "passages", "passages"))
