"""Distributions of the lengths of synthetic prompts."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.datasets.lengths import draw_lengths
from penstock.settings.schema import InputSettings, LengthPair
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import synthesize


def test_pairs_have_their_shares_and_stay_together() -> None:
    pairs = (LengthPair(75, 20, 0, 5, 0), LengthPair(25, 40, 0, 9, 0))
    inputs, outputs = draw_lengths(InputSettings(length_pairs=pairs), 3, 4000)
    counts = Counter(zip(inputs, outputs, strict=True))
    assert counts.keys() == {(20, 5), (40, 9)}
    assert 2900 < counts[20, 5] < 3100


def test_pair_without_share_is_never_drawn() -> None:
    pairs = (LengthPair(0, 1, 0, 1, 0), LengthPair(100, 2, 0, 2, 0), LengthPair(0, 3, 0, 3, 0))
    assert set(draw_lengths(InputSettings(length_pairs=pairs), 3, 200).inputs) == {2}


@pytest.mark.parametrize(
    ("style", "ratio", "inputs", "outputs"),
    [
        ("vllm", (0.1, 0.5), (90, 110), (5, 15)),
        ("sglang", (0.9, 0.0), (90, 100), (1, 10)),
        ("vllm", (0, 0), (100,), (10,)),
    ],
)
def test_range_is_that_of_vllm_or_sglang(
    style: str, ratio: tuple[float, float], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    settings = InputSettings(
        input_tokens_mean=100,
        output_tokens_mean=10,
        range_ratio=ratio,
        range_style=style,  # type: ignore[arg-type]
    )
    drawn = draw_lengths(settings, 5, 2000)
    assert set(drawn.inputs) == set(range(inputs[0], inputs[-1] + 1))
    assert set(drawn.outputs) == set(range(outputs[0], outputs[-1] + 1))


def test_prompts_have_the_drawn_lengths(builtin_tokenizer: Tokenizer) -> None:
    pairs = (LengthPair(50, 30, 4, 5, 0), LengthPair(50, 90, 0, 9, 0))
    settings = InputSettings(seed=1, length_pairs=pairs)
    turns = [each.turns[0] for each in synthesize(settings, 40, builtin_tokenizer)]
    assert [builtin_tokenizer.count(turn.texts[0]) for turn in turns] == draw_lengths(settings, 1, 40).inputs
    assert {turn.output_tokens for turn in turns} == {5, 9}
