"""Rendering without I/O: planned replies, and the steps that write them."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mock_server import write_steps
from penstock.mock_server.behaviour import Behaviour
from penstock.mock_server.compiled_behaviour import CompiledBehaviour
from penstock.mock_server.dialect import ID_PLACEHOLDER, ParsedRequest, PlannedReply, TokenRange, id_and_time
from penstock.mock_server.dialect_table import DIALECTS, find_dialect
from penstock.mock_server.reply import Reply
from penstock.mock_server.vocabulary import WORDS, words
from penstock.mock_server.write_steps import CUT, HANG, RESET, SEND, Step

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, *_ = DIALECTS


def make_reply(
    behaviour: Behaviour, request: ParsedRequest, *, dialect: Any = CHAT, number: int = 3, compiled: Any = None
) -> Reply:
    compiled = compiled or CompiledBehaviour(behaviour)
    planned = PlannedReply(request, behaviour, number % 16, has_output_kinds=dialect.has_output_kinds)
    delivery = compiled.delivery(request.stream, True)
    return Reply(compiled, dialect, planned, delivery, number=number, reply_id=id_and_time(77, 1_700_000_000))


def data_of(steps: Any) -> bytes:
    return b"".join(step[1] for step in steps)


behaviours = st.builds(
    Behaviour,
    chunk=st.integers(1, 4),
    reasoning=st.integers(0, 8),
    tools=st.booleans(),
    usage=st.sampled_from(["asked", "always", "never"]),
    role=st.sampled_from(["on", "off"]),
    finish=st.booleans(),
    done=st.booleans(),
    event_lines=st.booleans(),
    crlf=st.booleans(),
    framing=st.sampled_from(["auto", "chunked", "length", "eof"]),
    close=st.booleans(),
    seed=st.integers(0, 3),
    tokens=st.integers(1, 40),
)
requests = st.builds(
    ParsedRequest,
    st.just("m"),
    st.integers(0, 9),
    stream=st.booleans(),
    token_limit=st.none() | st.integers(1, 40),
    choices=st.integers(1, 3),
    include_usage=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(behaviours, requests, st.sampled_from([CHAT, COMPLETIONS]))
def test_whole_reply_and_its_steps_have_the_same_bytes(
    behaviour: Behaviour, request: ParsedRequest, dialect: Any
) -> None:
    reply = make_reply(behaviour, request, dialect=dialect)
    whole = reply.whole()
    steps = list(reply.steps())
    assert data_of(steps) == whole == reply.whole()
    assert len(steps) == 1
    assert steps[0][2] == reply.planned.completion_tokens


@settings(max_examples=100, deadline=None)
@given(behaviours, requests, st.integers(0, 2))
def test_steps_of_a_paced_reply_are_due_at_ttft_and_itl(
    behaviour: Behaviour, request: ParsedRequest, jitter: int
) -> None:
    import msgspec

    behaviour = msgspec.structs.replace(behaviour, itl=2.0, ttft=7.0, jitter=float(jitter), input_cost=3.0)
    reply = make_reply(behaviour, request)
    steps = list(reply.steps())
    dues = [step[0] for step in steps]
    assert dues == sorted(dues)
    assert dues[0] >= 7_000_000 or not request.stream
    if request.stream:
        event_count = sum(
            -(-count // behaviour.chunk)
            for count in (reply.planned.reasoning, reply.planned.tokens - reply.planned.reasoning)
        )
        assert len(steps) == event_count
        gaps = [b - a for a, b in itertools.pairwise(dues)]
        assert all(2_000_000 * behaviour.chunk <= gap for gap in gaps)
        assert jitter or len(set(gaps)) <= 1


def test_events_beyond_the_cache_are_rendered_when_due() -> None:
    compiled = CompiledBehaviour(Behaviour(itl=1), cached_events=5)
    full = data_of(make_reply(Behaviour(itl=1), ParsedRequest("m", 1, stream=True, token_limit=30)).steps())
    two = [
        make_reply(Behaviour(itl=1), ParsedRequest("m", 1, stream=True, token_limit=30), compiled=compiled).steps()
        for _ in range(2)
    ]
    interleaved = [list(pair) for pair in zip(*two, strict=True)]
    assert data_of(step[0] for step in interleaved) == data_of(step[1] for step in interleaved) == full


def test_words_are_one_token_each_and_the_seed_decides_them() -> None:
    assert len(set(WORDS)) == len(WORDS) > 256
    assert all(word.isalpha() and word.islower() for word in WORDS)
    assert words(1, 2, 0, 50) == words(1, 2, 0, 50) != words(2, 2, 0, 50)
    assert words(1, 2, 1020, 10) == words(1, 2, 1020, 4) + words(1, 2, 0, 6)
    assert words(0, 0, 0, 3000)[2048:2058] == words(0, 0, 0, 10)


@pytest.mark.parametrize("tokens", [1, 2, 3, 9])
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_tool_call_arguments_are_json_for_any_chunk_size(tokens: int, chunk: int) -> None:
    planned = PlannedReply(
        ParsedRequest("m", 1, stream=True, token_limit=tokens),
        Behaviour(tools=True, chunk=chunk),
        0,
        has_output_kinds=True,
    )
    arguments = ""
    names = []
    for start in range(0, tokens, chunk):
        size = min(chunk, tokens - start)
        for event in CHAT.token_events(planned, TokenRange("tools", start, size, start + size == tokens)):
            call = json.loads(event.data.replace(ID_PLACEHOLDER, id_and_time(1, 2)))["choices"][0]["delta"][
                "tool_calls"
            ][0]
            arguments += call["function"]["arguments"]
            names += [call["function"]["name"]] if "name" in call["function"] else []
    assert names == ["look_up"]
    body = (CHAT.body_prefix(planned) + CHAT.body_suffix(planned)).replace(ID_PLACEHOLDER, id_and_time(1, 2))
    whole = json.loads(body)["choices"][0]["message"]["tool_calls"][0]["function"]
    assert whole["arguments"] == arguments
    assert arguments == "" if tokens == 1 else isinstance(json.loads(arguments), dict)


def test_path_selects_the_dialect() -> None:
    assert find_dialect("/v1/chat/completions") is CHAT
    assert find_dialect("/any/prefix/v1/completions") is COMPLETIONS
    assert find_dialect("/embeddings") is EMBEDDINGS
    assert find_dialect("/v1/chat") is None


# functions that change steps


def make_steps(*tokens: int, gap: int = 10) -> list[Step]:
    return [(i * gap, bytes([65 + i]) * 4, count, SEND) for i, count in enumerate(tokens)]


def test_fault_applies_to_the_same_requests_at_about_its_rate() -> None:
    hits = [write_steps.fault_applies(5, k, 2, 0.3) for k in range(4000)]
    assert hits == [write_steps.fault_applies(5, k, 2, 0.3) for k in range(4000)]
    assert 0.26 < sum(hits) / 4000 < 0.34
    assert hits != [write_steps.fault_applies(6, k, 2, 0.3) for k in range(4000)]
    assert all(write_steps.fault_applies(0, k, 0, 1.0) for k in range(100))
    assert not any(write_steps.fault_applies(0, k, 0, 0.0) for k in range(100))


def test_cut_ends_after_its_tokens() -> None:
    assert list(write_steps.cut(make_steps(0, 1, 1, 1), 2, RESET)) == [*make_steps(0, 1, 1), (30, b"", 0, RESET)]
    assert list(write_steps.cut(make_steps(0, 1), 0, CUT)) == [(0, b"", 0, CUT)]


def test_stall_delays_all_later_steps() -> None:
    assert [step[0] for step in write_steps.stall(make_steps(0, 1, 1, 1), 1, 500)] == [0, 10, 520, 530]
    assert list(write_steps.stall(make_steps(0, 1, 1), 1, None))[-1] == (20, b"", 0, HANG)


def test_coalesce_merges_steps_due_at_the_same_time() -> None:
    joined = list(write_steps.coalesce([*make_steps(0, 1, gap=0), *make_steps(1, 1, gap=5)]))
    assert joined == [(0, b"AAAABBBBAAAA", 2, SEND), (5, b"BBBB", 1, SEND)]
    assert list(write_steps.coalesce([*make_steps(1, gap=0), (0, b"", 0, CUT)])) == [*make_steps(1), (0, b"", 0, CUT)]
    assert list(write_steps.coalesce([])) == []


def test_slow_head_is_written_in_parts_before_the_body() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"
    slow = list(write_steps.slow_head([(50, head + b"body", 1, SEND), (60, b"more", 1, SEND)], 800))
    assert data_of(slow[:-2]) == head
    assert [step[0] for step in slow[:-2]] == [800 * (i + 1) // (len(slow) - 2) for i in range(len(slow) - 2)]
    assert slow[-2:] == [(850, b"body", 1, SEND), (860, b"more", 1, SEND)]


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6), st.integers(0, 30), st.integers())
def test_split_keeps_bytes_tokens_and_order(blocks: list[bytes], gap: int, seed: int) -> None:
    source = [(i * 10, block, 1, SEND) for i, block in enumerate(blocks)]
    pieces = list(write_steps.split(source, gap, random.Random(seed)))
    assert data_of(pieces) == b"".join(blocks)
    assert sum(step[2] for step in pieces) == len(blocks)
    assert [step[0] for step in pieces] == sorted(step[0] for step in pieces)
    assert all(step[1] for step in pieces)
