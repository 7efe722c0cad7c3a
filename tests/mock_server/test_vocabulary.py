"""The words of the mock's replies, and the mock's own estimate of prompt tokens, against real vocabularies."""

from __future__ import annotations

import pytest

from penstock.mock_server.prompt_tokens import estimate_tokens
from penstock.mock_server.vocabulary import VARIANTS, WORDS, words
from penstock.settings.schema import InputSettings
from penstock.tokens.tiktoken_vocabulary import (
    TiktokenTokenizer,
    open_builtin,
    open_nearest,
    open_packaged_tekken,
)
from support.prompts import synthesize


@pytest.fixture(scope="module")
def builtin() -> TiktokenTokenizer:
    return open_builtin()


def count_single_tokens(tokenizer: TiktokenTokenizer) -> int:
    return sum(tokenizer.count(" " + word) == 1 for word in WORDS)


def test_each_word_is_one_token_of_qwen_2_to_3(builtin: TiktokenTokenizer) -> None:
    assert count_single_tokens(builtin) == len(WORDS)


def test_each_word_is_one_token_of_qwen_3_6() -> None:
    assert count_single_tokens(open_nearest("Qwen/Qwen3.6-27B")) == len(WORDS)


def test_each_word_is_one_token_of_tekken() -> None:
    pytest.importorskip("mistral_common")
    assert count_single_tokens(open_packaged_tekken("tekken")) == len(WORDS)


def test_whole_reply_counts_as_its_words(builtin: TiktokenTokenizer) -> None:
    for variant in range(VARIANTS):
        assert builtin.count("".join(words(0, variant, 0, 500))) == 500


def test_estimated_prompt_tokens_agree_with_the_builtin_vocabulary(builtin: TiktokenTokenizer) -> None:
    """The report mentions differences of more than 10 %."""
    prompts = synthesize(InputSettings(seed=1, input_tokens_mean=100), 500, builtin)
    estimates = [estimate_tokens(conversation.turns[0].texts[0]) for conversation in prompts]
    assert all(90 <= estimate <= 110 for estimate in estimates)
