"""The dataset of a run for its settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.datasets.load import load
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import conversations_of


def no_tokenizer() -> Tokenizer:
    raise AssertionError("a file needs no tokenizer")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "output_length": 5}\n{"text": "c"}\n{"text": "d", "id": 4}\n')
    return str(path)


def test_corpus_is_refused_for_a_file_with_texts(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "a"}')
    with pytest.raises(UserError, match="--prompt-corpus applies to synthetic prompts"):
        load(InputSettings(file=str(path), corpus="sonnet"), 1, lambda: None)  # type: ignore[arg-type, return-value]


def test_dataset_without_a_file_is_synthetic(spaces: Tokenizer) -> None:
    made = load(InputSettings(seed=1, input_tokens_mean=4), 7, lambda: spaces)
    assert (made.name, made.synthetic, len(conversations_of(made)), made.turns) == ("synthetic", True, 7, [1] * 7)
    assert len(load(InputSettings(seed=1, input_tokens_mean=4, entries=3), 7, lambda: spaces).turns) == 3


@pytest.mark.parametrize("name", [None, "single_turn", "Single-Turn"])
def test_file_is_read_without_a_tokenizer(file: str, name: str | None) -> None:
    dataset = load(InputSettings(file=file, format=name), 7, no_tokenizer)
    assert (dataset.name, dataset.synthetic, dataset.format) == ("prompts.jsonl", False, "single_turn")
    assert [each.turns[0].texts for each in conversations_of(dataset)] == [("a",), ("b",), ("c",), ("d",)]
    assert [each.turns[0].output_tokens for each in conversations_of(dataset)] == [None, 5, None, None]
    assert dataset.note is not None
    assert "does not use 'id'" in dataset.note


def test_reply_length_of_a_line_overrides_that_of_the_run(file: str) -> None:
    settings = InputSettings(file=file, seed=3, output_tokens_mean=1000, output_tokens_stddev=50)
    lengths = [each.turns[0].output_tokens or 0 for each in conversations_of(load(settings, 7, no_tokenizer))]
    assert lengths[1] == 5
    assert all(700 < length < 1300 for length in (lengths[0], *lengths[2:]))
    assert len(set(lengths)) == 4
    assert lengths == [each.turns[0].output_tokens for each in conversations_of(load(settings, 7, no_tokenizer))]


def test_reply_length_of_a_line_does_not_change_other_lines(file: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"text": "a"}\n' * 4)
    settings = {"seed": 3, "output_tokens_mean": 1000, "output_tokens_stddev": 50}
    with_own, without = (
        [
            each.turns[0].output_tokens
            for each in conversations_of(load(InputSettings(file=path, **settings), 7, no_tokenizer))
        ]
        for path in (file, str(plain))
    )
    assert (with_own[0], with_own[2:]) == (without[0], without[2:])


def test_pipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UserError, match="is a pipe or a device"):
        load(InputSettings(file=str(path)), 10, no_tokenizer)


def test_format_without_a_file_is_refused() -> None:
    with pytest.raises(UserError, match="needs a file: add --input-file"):
        load(InputSettings(format="single_turn"), 7, no_tokenizer)


def test_system_prompt_is_added_to_the_conversations_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    dataset = load(InputSettings(file=str(path), system="Be brief."), 1, no_tokenizer)
    assert [each.system for each in conversations_of(dataset)] == ["Be brief.", "Be brief."]
    path.write_text('{"turns": [{"role": "system", "text": "x"}, {"text": "one"}], "session_id": "s"}\n')
    with pytest.raises(UserError, match="The conversation 's' of the file has a system prompt of its own"):
        conversations_of(load(InputSettings(file=str(path), system="Be brief."), 1, no_tokenizer))
    path.write_text('{"messages": [{"role": "system", "content": "x"}], "session_id": "s"}\n')
    with pytest.raises(UserError, match="The conversation 's' of the file has a system prompt of its own"):
        conversations_of(
            load(InputSettings(file=str(path), format="mooncake_trace", system="Be brief."), 1, no_tokenizer)
        )
