"""Changes of a trace before it is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.conversation import Conversation, PromptShape, Turn
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.load import load
from penstock.datasets.trace_synthesis import synthesize
from penstock.errors import UserError
from penstock.settings.schema import InputSettings, SynthesisSettings
from penstock.tokens.tokenizer import Tokenizer

ROWS = [
    PromptShape(35, (1, 2, 3, 4)),  # two shared blocks and 15 tokens of its own
    PromptShape(25, (1, 2, 5)),
    PromptShape(8),
]
TRACE = [
    Conversation(id=str(n), turns=(Turn(prompt=shape, output_tokens=10, timestamp_ms=100.0 * n, delay_ms=4),))
    for n, shape in enumerate(ROWS)
]


def change(**fields: Any) -> list[Turn]:
    return [each.turns[0] for each in synthesize(TRACE, SynthesisSettings(**fields), 10, 1)[0]]


def shapes(turns: list[Turn]) -> list[PromptShape]:
    return [turn.prompt for turn in turns if turn.prompt is not None]


def shared_blocks(one: PromptShape, other: PromptShape) -> int:
    pairs = zip(one.hash_ids, other.hash_ids, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.hash_ids), len(other.hash_ids)))


@pytest.mark.parametrize(
    ("prefix", "prompt", "lengths", "shared"),
    [(1.0, 1.0, [35, 25, 8], 2), (1.5, 1.0, [45, 35, 8], 3), (2.0, 2.0, [70, 50, 16], 4), (0.0, 1.0, [15, 5, 8], 0),
     (0.5, 0.0, [10, 10, 1], 1)],
)  # fmt: skip
def test_shared_and_unique_parts_are_scaled(prefix: float, prompt: float, lengths: list[int], shared: int) -> None:
    found = shapes(change(prefix_length=prefix, prompt_length=prompt))
    assert [shape.length for shape in found] == lengths
    assert shared_blocks(found[0], found[1]) == shared


def test_times_and_delays_are_divided_by_the_speedup() -> None:
    assert [(turn.timestamp_ms, turn.delay_ms) for turn in change(speedup=2)] == [(0, 2), (50, 2), (100, 2)]


def test_reply_lengths_are_scaled_then_limited() -> None:
    assert [turn.output_tokens for turn in change(output_length=3, max_output=25)] == [25, 25, 25]
    assert [turn.output_tokens for turn in change(output_length=0)] == [1, 1, 1]


def test_conversations_of_different_roots_share_nothing() -> None:
    trace = [Conversation(id=str(n), turns=(Turn(prompt=PromptShape(20, (1, 2))),)) for n in range(60)]
    found = shapes([each.turns[0] for each in synthesize(trace, SynthesisSettings(roots=3), 10, 1)[0]])
    assert len({shape.hash_ids for shape in found}) == 3
    assert len({block for shape in found for block in shape.hash_ids}) == 6


def test_longer_requests_are_left_out_with_a_note() -> None:
    found, note = synthesize(TRACE, SynthesisSettings(max_input=25), 10, 1)
    assert [each.id for each in found] == ["1", "2"]
    assert note == "Left out: 1 request longer than --synthesis-max-isl."


@pytest.mark.parametrize(
    ("row", "message"),
    [({"text": "x"}, "change a trace with 'input_length', but"), ({"input_length": 9}, "All requests of")],
)
def test_flags_without_effect_are_refused(
    tmp_path: Path, builtin_tokenizer: Tokenizer, row: dict[str, Any], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row))
    settings = InputSettings(file=str(path), synthesis=SynthesisSettings(max_input=3))
    with pytest.raises(UserError, match=message):
        load(settings, 1, lambda: builtin_tokenizer)


def test_speed_of_a_trace_with_texts_can_change(tmp_path: Path, builtin_tokenizer: Tokenizer) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"timestamp": at, "text_input": "x"}) + "\n" for at in (0, 200)))
    settings = InputSettings(file=str(path), format="mooncake_trace", synthesis=SynthesisSettings(speedup=2.0))
    dataset = load(settings, 1, lambda: builtin_tokenizer)
    turns = [turn for each in dataset.read(FileErrors("t")) for turn in each.turns]
    assert [turn.timestamp_ms for turn in turns] == [0, 100]
