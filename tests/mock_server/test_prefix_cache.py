"""The simulated prefix cache: blocks of prompt tokens, and the cached tokens in the usage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.compiled_behaviour import CompiledBehaviour
from penstock.mock_server.dialect import ParsedRequest, PlannedReply
from penstock.mock_server.dialect_table import DIALECTS
from penstock.mock_server.prefix_cache import PrefixCache, PromptBlocks
from penstock.mock_server.prompt_tokens import estimate_tokens, token_ends
from penstock.mock_server.reply import Reply

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, *_ = DIALECTS
IMAGE = "data:image/png;base64,iVBORw0KGgoA"
PROSE = "The quick brown fox, so they say, jumps over the lazy dog. "


def blocks_of(*texts: str, role: str = "user", block_size: int = 4) -> PromptBlocks:
    prompt = PromptBlocks(block_size, "m")
    for text in texts:
        prompt.add_text(role, text)
    return prompt


def token_ids(*ids: int, block_size: int = 4) -> PromptBlocks:
    prompt = PromptBlocks(block_size, "m")
    prompt.add_token_ids(ids)
    return prompt


@given(st.text(alphabet="ab .,é漢", min_size=1))
def test_tokens_of_a_text_end_in_order_and_cover_it(text: str) -> None:
    tokens = estimate_tokens(text)
    ends = [token_ends(text)(k) for k in range(1, tokens + 1)]
    assert ends == sorted(ends)
    assert text[: ends[-1]] == text
    assert tokens == 1 or ends[-2] < len(text)


@pytest.mark.parametrize(("text", "other"), [(PROSE * 5, PROSE[4:] * 3), ("x" * 300, "y" * 50)])
def test_texts_that_begin_alike_share_their_first_blocks(text: str, other: str) -> None:
    short, long, different = blocks_of(text), blocks_of(text + other), blocks_of(other + text)
    full = len(short.hashes) - 1  # the last token of the short text may continue in the long one
    assert full > 10
    assert long.hashes[:full] == short.hashes[:full]
    assert len(long.hashes) == long.tokens // 4
    assert not set(different.hashes) & set(short.hashes)


def test_block_depends_on_everything_before_it() -> None:
    base = blocks_of("a b c d e", PROSE)
    assert blocks_of("a b c d e", PROSE).hashes == base.hashes
    assert not set(blocks_of("f b c d e", PROSE).hashes) & set(base.hashes)
    assert not set(blocks_of("a b c d e", PROSE, role="system").hashes) & set(base.hashes)
    pictures = [PromptBlocks(4, "m") for _ in range(2)]
    for prompt, picture in zip(pictures, ("cat", "dog"), strict=True):
        prompt.add_opaque(picture, 8)
        prompt.add_text("user", PROSE)
    assert not set(pictures[0].hashes) & set(pictures[1].hashes)


def test_only_full_blocks_are_cached_and_the_last_token_never_is() -> None:
    cache = PrefixCache(100, 4)
    assert cache.use([token_ids(*range(10))]) == 0
    assert cache.use([token_ids(*range(10))]) == 8
    assert cache.use([token_ids(*range(8))]) == 4
    assert cache.use([token_ids(*range(9))]) == 8
    assert cache.use([token_ids(*range(3))]) == 0
    assert cache.use([token_ids(*range(6), 77, 78, 79)]) == 4
    assert cache.use([token_ids(1, *range(10))]) == 0
    assert (cache.queried_tokens, cache.hit_tokens) == (10 + 10 + 8 + 9 + 3 + 9 + 11, 24)


def test_least_recently_used_blocks_are_dropped_from_the_end_of_a_prompt() -> None:
    cache = PrefixCache(4, 4)
    old, recent = token_ids(*range(13)), token_ids(*range(50, 59))
    cache.use([old])
    cache.use([recent])  # 3 + 2 blocks: the last block of the old prompt is dropped
    assert cache.use([old]) == 8
    assert cache.use([recent]) == 4
    assert cache.use([token_ids(*range(100, 141))]) == 0
    assert cache.use([token_ids(*range(100, 141))]) == 16


@pytest.mark.parametrize(
    ("dialect", "fields", "prompts"),
    [
        (CHAT, {"messages": [{"role": "system", "content": PROSE}, {"role": "user", "content": "x" * 99}]}, 1),
        (
            CHAT,
            {
                "messages": [
                    {"content": [{"type": "text", "text": PROSE}, {"type": "image_url", "image_url": {"url": IMAGE}}]}
                ]
            },
            1,
        ),
        (COMPLETIONS, {"prompt": PROSE}, 1),
        (COMPLETIONS, {"prompt": [PROSE, "two", [1, 2, 3]]}, 3),
        (COMPLETIONS, {"prompt": list(range(40))}, 1),
        (RESPONSES, {"input": PROSE, "instructions": "Be brief."}, 1),
        (
            RESPONSES,
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]},
                    {"type": "function_call_output", "output": PROSE},
                ]
            },
            1,
        ),
        (EMBEDDINGS, {"input": PROSE}, 0),
    ],
)
def test_prompts_have_the_tokens_of_the_usage(dialect: Any, fields: dict[str, Any], prompts: int) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    found = dialect.prompts(body, 16)
    assert len(found) == prompts
    assert not prompts or sum(prompt.tokens for prompt in found) == dialect.parse(body).prompt_tokens
    assert [prompt.hashes for prompt in dialect.prompts(body, 16)] == [prompt.hashes for prompt in found]


def test_input_cost_applies_to_tokens_that_are_not_cached() -> None:
    behaviour = Behaviour(ttft=5.0, input_cost=1000.0)
    planned = PlannedReply(ParsedRequest("m", 70), behaviour, 0, has_output_kinds=True)
    compiled = CompiledBehaviour(behaviour)
    for cached, due_ms in ((None, 75), (0, 75), (64, 11)):
        planned.cached_tokens = cached
        reply = Reply(compiled, CHAT, planned, compiled.delivery(False, True), number=0, reply_id=b"")
        assert next(reply.steps())[0] == due_ms * 1_000_000


def test_usage_and_log_report_the_cached_tokens(start: Any) -> None:
    server = start(prefix_cache=1000, block_size=8)
    chat = {"model": "m", "messages": [{"role": "user", "content": PROSE * 4}], "max_tokens": 5}
    usages = [server.exchange(chat).json["usage"]]
    usages.append(server.exchange({**chat, "stream": True}, mock="usage=always").chunks[-1]["usage"])
    usages.append(server.exchange({**chat, "messages": [*chat["messages"], {"content": "x" * 99}]}).json["usage"])
    usages.append(server.exchange({**chat, "model": "n"}).json["usage"])
    completions = {"model": "m", "prompt": [[*range(25)], [*range(17)]], "max_tokens": 1}
    usages.append(server.exchange(completions, path="/v1/completions").json["usage"])
    prompt_tokens = [usage["prompt_tokens"] for usage in usages]
    full = (prompt_tokens[0] - 1) // 8 * 8
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, full, full, 0, 16]

    first = server.exchange({"model": "m", "input": PROSE * 4}, path="/v1/responses").json
    second = {"model": "m", "input": "Go on.", "previous_response_id": first["id"], "stream": True}
    for expected in (full, (first["usage"]["total_tokens"] + 3 - 1) // 8 * 8):
        usage = server.exchange(second, path="/v1/responses").chunks[-1]["response"]["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == expected
        cached.append(expected)
    logged = [entry["cached_tokens"] for entry in server.logged_requests()]
    assert logged == [*cached[:5], 0, *cached[5:]]
