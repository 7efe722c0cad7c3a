"""Synthetic conversations: turns, delays, system prompts, contexts and media."""

from __future__ import annotations

import statistics

import pytest

from penstock.settings.schema import AudioSettings, ConversationSettings, ImageSettings, InputSettings
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import synthesize


def shaped(**fields: object) -> InputSettings:
    return InputSettings(seed=3, input_tokens_mean=20, conversation=ConversationSettings(**fields))  # type: ignore[arg-type]


def test_number_of_turns_has_the_requested_mean(spaces: Tokenizer) -> None:
    made = synthesize(shaped(turns_mean=5, turns_stddev=2), 400, spaces)
    counts = [len(each.turns) for each in made]
    assert 4.7 < statistics.mean(counts) < 5.4
    assert min(counts) >= 1
    assert all(each.accumulate for each in made)
    texts = [turn.texts[0] for each in made for turn in each.turns]
    assert len(set(texts)) == len(texts)
    assert {spaces.count(text) for text in texts} == {20}
    assert made == synthesize(shaped(turns_mean=5, turns_stddev=2), 400, spaces)


def test_every_turn_but_the_first_has_a_delay(spaces: Tokenizer) -> None:
    made = synthesize(shaped(turns_mean=3, delay_mean_ms=100, delay_stddev_ms=10, delay_ratio=0.5), 200, spaces)
    assert {each.turns[0].delay_ms for each in made} == {0.0}
    delays = [turn.delay_ms for each in made for turn in each.turns[1:]]
    assert 49 < statistics.mean(delays) < 51
    assert 4 < statistics.stdev(delays) < 6


def test_system_prompt_is_shared_and_contexts_differ(tokenizer: Tokenizer) -> None:
    made = synthesize(shaped(system_tokens=37, context_tokens=23), 60, tokenizer)
    (system,) = {each.system for each in made}
    assert system is not None
    assert tokenizer.count(system) == 37
    contexts = [each.context for each in made]
    assert len(set(contexts)) == 60
    assert [tokenizer.count(text or "") for text in contexts] == [23] * 60


def test_input_tokens_include_system_prompt_and_context(tokenizer: Tokenizer) -> None:
    for shape in (shaped(system_tokens=37), shaped(context_tokens=23), shaped(system_tokens=37, context_tokens=23)):
        made = synthesize(shape, 40, tokenizer)
        for each in made:
            joined = " ".join([text for text in (each.system, each.context, *each.turns[0].texts) if text])
            assert each.turns[0].input_tokens == tokenizer.count(joined)


def test_system_prompt_and_context_do_not_change_the_prompts(spaces: Tokenizer) -> None:
    plain, shaped_ = synthesize(shaped(), 30, spaces), synthesize(shaped(system_tokens=9, context_tokens=9), 30, spaces)
    assert [each.turns[0].texts for each in plain] == [each.turns[0].texts for each in shaped_]


@pytest.mark.parametrize("batch", [1, 2])
def test_first_prompts_begin_with_a_prefix_that_adds_exactly_its_length(tokenizer: Tokenizer, batch: int) -> None:
    shape = ConversationSettings(turns_mean=2, prefixes=3, prefix_tokens=30)
    made = synthesize(InputSettings(seed=3, input_tokens_mean=20, batch=batch, conversation=shape), 60, tokenizer)
    firsts = [each.turns[0].texts[0] for each in made]
    assert [tokenizer.count(text) for text in firsts] == [50] * 60
    assert [tokenizer.count(text) for each in made for text in each.turns[1].texts] == [20] * 60 * batch
    # 30 tokens have at least 30 characters with each of these tokenizers.
    assert len({text[:30] for text in firsts}) == 3
    for each in made:
        assert each.turns[0].input_tokens == tokenizer.count(" ".join(each.turns[0].texts))


def test_prefixes_do_not_change_the_prompts(spaces: Tokenizer) -> None:
    plain, prefixed = synthesize(shaped(), 30, spaces), synthesize(shaped(prefixes=2, prefix_tokens=9), 30, spaces)
    for one, other in zip(plain, prefixed, strict=True):
        assert other.turns[0].texts[0].endswith(f" {one.turns[0].texts[0]}")


def test_system_prompt_of_the_user_is_counted(tokenizer: Tokenizer) -> None:
    (made,) = synthesize(InputSettings(seed=3, input_tokens_mean=20, system="Answer in one word."), 1, tokenizer)
    assert made.system == "Answer in one word."
    assert made.turns[0].input_tokens == tokenizer.count(f"{made.system} {made.turns[0].texts[0]}")


def test_each_turn_has_its_images_and_audio(spaces: Tokenizer) -> None:
    settings = InputSettings(
        seed=3,
        input_tokens_mean=5,
        conversation=ConversationSettings(turns_mean=2),
        images=ImageSettings(width_mean=8, height_mean=8, batch=2),
        audio=AudioSettings(seconds_mean=0.1, rates=(8000,)),
    )
    made = synthesize(settings, 10, spaces)
    turns = [turn for each in made for turn in each.turns]
    assert {(len(turn.texts), len(turn.images), len(turn.audios)) for turn in turns} == {(1, 2, 1)}
    assert len({image.data for turn in turns for image in turn.images}) == 40
    assert made == synthesize(settings, 10, spaces)


def test_images_repeat_if_there_are_fewer_than_turns(spaces: Tokenizer) -> None:
    settings = InputSettings(seed=3, input_tokens_mean=2, images=ImageSettings(width_mean=1, height_mean=1))
    made = synthesize(settings, 1100, spaces)
    assert made[0].turns[0].images == made[1024].turns[0].images
    assert made[0].turns[0].texts != made[1024].turns[0].texts
