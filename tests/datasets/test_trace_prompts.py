"""Prompts of traces: exact lengths, and the prefixes that the trace shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.datasets.conversation import Conversation, PromptShape, Turn
from penstock.datasets.dataset import Dataset
from penstock.datasets.load import load
from penstock.datasets.trace_prompts import TracePrompts
from penstock.errors import UserError
from penstock.mock_server.prefix_cache import PrefixCache, PromptBlocks
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer
from support.prompts import conversations_of


def write_texts(tokenizer: Tokenizer, shapes: Sequence[PromptShape], block_size: int = 64) -> list[str]:
    prompts = TracePrompts(tokenizer, 7, block_size)
    return [prompts.write(Turn(prompt=shape)).texts[0] for shape in shapes]


SHAPES = [
    PromptShape(200, (1, 2, 3, 4)),
    PromptShape(256, (1, 2, 5, 6)),
    PromptShape(130, (1, 2)),
    PromptShape(150, (1, 2)),
    PromptShape(200, (1, 2, 3, 4)),
    PromptShape(64, (9,)),
    PromptShape(3),
]


def test_prompts_have_the_lengths_of_the_trace(builtin_tokenizer: Tokenizer) -> None:
    texts = write_texts(builtin_tokenizer, SHAPES)
    assert builtin_tokenizer.count_many(texts) == [shape.length for shape in SHAPES]


def test_prefix_cache_counts_exactly_the_shared_blocks(builtin_tokenizer: Tokenizer) -> None:
    cache = PrefixCache(10_000, 16)
    cached = []
    for text in write_texts(builtin_tokenizer, SHAPES):
        prompt = PromptBlocks(16, "m")
        prompt.add_token_ids(builtin_tokenizer.encode(text))
        cached.append(cache.use([prompt]))
    # The fifth prompt repeats the first: all of its full blocks of 16 are cached.
    assert cached == [0, 128, 128, 128, 192, 0, 0]


def test_equal_ids_give_equal_texts_for_every_tokenizer(tokenizer: Tokenizer) -> None:
    texts = write_texts(tokenizer, [PromptShape(40, (1, 2)), PromptShape(60, (1, 2, 3)), PromptShape(40, (1, 2))], 20)
    assert texts[0] == texts[2] == texts[1][: len(texts[0])]
    assert not any(mark in text for text in texts for mark in ("<|", "|>", "<s>", "[UNK]", "<unk>"))


def test_count_is_that_of_the_text_for_every_tokenizer(tokenizer: Tokenizer) -> None:
    prompts = TracePrompts(tokenizer, 7, 16)
    for length in (1, 5, 16, 40, 33):
        turn = prompts.write(Turn(prompt=PromptShape(length, (1,))))
        assert turn.input_tokens == tokenizer.count(turn.texts[0])


def test_beginning_of_a_block_has_any_length_of_the_trace(builtin_tokenizer: Tokenizer) -> None:
    shapes = [PromptShape(64, (n,)) for n in range(70)]  # after which texts are no longer counted
    *_, block = texts = write_texts(builtin_tokenizer, shapes + [PromptShape(n, (69,)) for n in range(1, 65)])
    begins = texts[70:]
    assert all(block.startswith(begin) for begin in begins)
    assert builtin_tokenizer.count_many(begins) == list(range(1, 65))


def test_blocks_of_different_ids_differ_in_their_first_words(builtin_tokenizer: Tokenizer) -> None:
    texts = sorted(write_texts(builtin_tokenizer, [PromptShape(16, (n,)) for n in range(500)], 16))
    assert all(one.split()[:4] != other.split()[:4] for one, other in pairwise(texts))


def write_rows(tmp_path: Path, *rows: dict[str, Any] | str) -> str:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def load_trace(path: str, tokenizer: Tokenizer, **fields: Any) -> tuple[Dataset, list[Conversation]]:
    dataset = load(InputSettings(file=path, seed=3, **fields), 1, lambda: tokenizer)
    return dataset, conversations_of(dataset)


def test_rows_of_a_session_are_turns(tmp_path: Path, builtin_tokenizer: Tokenizer) -> None:
    path = write_rows(
        tmp_path,
        {"timestamp": 5, "input_length": 30, "session_id": "a", "output_length": 9},
        {"timestamp": 7, "text_input": "Hi", "extra": {"top_p": 1}},
        {"delay": 250, "input_length": 10, "session_id": "a"},
        {"timestamp": 9, "input_length": 30, "hash_ids": [1], "session_id": 4},
        {"delay": 3, "input_length": 600, "hash_ids": [1, 2], "session_id": 4},
    )
    dataset, (first, single, hashed) = load_trace(path, builtin_tokenizer)
    assert dataset.format == "mooncake_trace"
    assert (first.id, first.accumulate, [turn.delay_ms for turn in first.turns]) == ("a", True, [0, 250])
    assert (first.turns[0].timestamp_ms, first.turns[0].output_tokens) == (5, 9)
    assert (single.turns[0].texts, single.turns[0].extra) == (("Hi",), {"top_p": 1})
    # Rows with hash_ids describe whole prompts: a reply between them would end the shared prefix.
    assert (hashed.id, hashed.accumulate) == ("4", False)
    assert dataset.writes_prompts
    small, large = [turn.texts[0] for turn in hashed.turns]
    assert large.startswith(small)


def test_messages_of_a_row_replace_those_of_the_request(tmp_path: Path, builtin_tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    path = write_rows(tmp_path, {"timestamp": 5, "messages": messages, "tools": [{}], "session_id": "a"})
    dataset, (conversation,) = load_trace(path, builtin_tokenizer, format="mooncake_trace")
    assert conversation.turns[0].extra == {"messages": messages, "tools": [{}]}
    assert (conversation.accumulate, dataset.writes_prompts) == (False, False)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"timestamp": 1}, "it has no prompt: give it 'input_length', 'text_input', 'messages' or 'payload'"),
        ({"payload": {}}, "it has a 'payload', but the first row has none"),
        ({"input_length": 0}, "'input_length' should be a whole number >= 1"),
        ({"input_length": 5, "text_input": "x"}, "it has both 'text_input' and 'input_length'; keep one"),
        ({"text_input": "x", "message_mode": "delta"}, "it has 'message_mode', which this version"),
        ({"text_input": "x", "endpoint_type": "chat"}, "it has 'endpoint_type', which this version"),
        ({"text_input": "x", "hash_ids": [1]}, "it has both 'text_input' and 'hash_ids'"),
        ({"text_input": "x", "tools": []}, "it has 'tools' without 'messages'"),
        ({"input_length": 5, "delay": -1}, "'delay' should be a number of milliseconds, 0 or more"),
        (
            {"text_input": "x", "session_id": "a"},
            "it has 'text_input', but earlier rows of its session have 'input_length'",
        ),
        (
            {"input_length": 600, "hash_ids": [1, 2, 3]},
            "'hash_ids' has 3 blocks, but an 'input_length' of 600 fills 2 of 512 tokens; check --isl-block-size",
        ),
        ('{"input_length": 5', "not valid JSON"),
    ],
)
def test_error_of_a_row_names_file_line_and_reason(
    tmp_path: Path, builtin_tokenizer: Tokenizer, row: dict[str, Any] | str, message: str
) -> None:
    path = write_rows(tmp_path, {"input_length": 5, "session_id": "a"}, row)
    with pytest.raises(UserError) as caught:
        load_trace(path, builtin_tokenizer)
    assert str(caught.value).startswith(f"t.jsonl:2: {message}")
