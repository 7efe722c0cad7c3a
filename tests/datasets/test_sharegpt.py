"""Files of the ShareGPT dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.datasets.conversation import Turn
from penstock.datasets.detect_format import detect
from penstock.datasets.load import load
from penstock.errors import UserError
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import conversations_of


def words(count: int, word: str = "w") -> str:
    return " ".join([word] * count)


def write(path: Path, pairs: list[tuple[int, int]]) -> str:
    """Write conversations whose first two messages have these numbers of words."""
    messages = [({"value": words(a, f"p{n}")}, {"value": words(b)}) for n, (a, b) in enumerate(pairs)]
    path.write_text(json.dumps([{"id": "x", "conversations": pair} for pair in messages]))
    return str(path)


def turns(spaces: Tokenizer, **fields: object) -> list[Turn]:
    settings = InputSettings(**fields)  # type: ignore[arg-type]
    return [each.turns[0] for each in conversations_of(load(settings, 1, lambda: spaces))]


def test_prompt_asks_for_the_length_of_the_recorded_reply(tmp_path: Path, spaces: Tokenizer) -> None:
    path = write(tmp_path / "s.json", [(5, 9), (6, 4)])
    made = turns(spaces, file=path)
    assert [(turn.texts, turn.output_tokens) for turn in made] == [((words(5, "p0"),), 9), ((words(6, "p1"),), 4)]
    assert [turn.output_tokens for turn in turns(spaces, file=path, output_tokens_mean=30)] == [30, 30]


def test_short_and_long_conversations_are_left_out(tmp_path: Path, spaces: Tokenizer) -> None:
    pairs = [(3, 9), (4, 3), (1025, 9), (1024, 1025), (1024, 1024), (4, 4), (4, 2045)]
    made = turns(spaces, file=write(tmp_path / "s.json", pairs))
    assert [turn.output_tokens for turn in made] == [1024, 4]


def test_number_of_prompts_is_limited_and_reported(tmp_path: Path, spaces: Tokenizer) -> None:
    path = write(tmp_path / "s.json", [(5, 9)] * 1200)
    dataset = load(InputSettings(file=path), 1, lambda: spaces)
    assert len(dataset.turns) == 1000
    assert dataset.note == f"{path}: 1,000 prompts are used; --num-dataset-entries sets the number."
    assert len(turns(spaces, file=path, format="sharegpt", entries=1100)) == 1100


def test_half_of_a_surrogate_pair_does_not_make_the_file_unreadable(tmp_path: Path, spaces: Tokenizer) -> None:
    path = tmp_path / "s.json"
    path.write_text(r'[{"conversations": [{"value": "a b c \ud83d"}, {"value": "d e f g"}]}]')
    assert [turn.texts for turn in turns(spaces, file=str(path))] == [("a b c ?",)]


def test_conversation_of_one_message_is_left_out(tmp_path: Path, spaces: Tokenizer) -> None:
    path = tmp_path / "s.json"
    path.write_text('[{"conversations": [{"value": "a b c d e"}]}, {"conversations": []}]')
    assert detect(str(path)).name == "sharegpt"
    with pytest.raises(UserError, match="has no conversation whose first message has 4 to 1,024 tokens"):
        turns(spaces, file=str(path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('[{"conversations": [{"value": 5}]}]', "should be a string"),
        ('[{"conversations": ', "not valid JSON"),
        ("", "is empty"),
    ],
)
def test_bad_file_is_refused_with_the_reason(tmp_path: Path, spaces: Tokenizer, content: str, reason: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        turns(spaces, file=str(path), format="sharegpt")
    assert reason in str(caught.value)
