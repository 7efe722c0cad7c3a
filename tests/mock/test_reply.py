"""The pure part: what a reply says, and the row of writes that it becomes."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mock import write_steps as on
from penstock.mock.behaviour import Behaviour
from penstock.mock.compiled_behaviour import CompiledBehaviour
from penstock.mock.dialect import STAMP, Ask, Say, Span, stamp
from penstock.mock.registry import DIALECTS, find
from penstock.mock.reply import Reply
from penstock.mock.vocabulary import WORDS, words
from penstock.mock.write_steps import CUT, HANG, RESET, SEND, Step

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = DIALECTS


def reply(behaviour: Behaviour, ask: Ask, *, dialect: Any = CHAT, number: int = 3, profile: Any = None) -> Reply:
    profile = profile or CompiledBehaviour(behaviour)
    say = Say(ask, behaviour, number % 16, kinds=dialect.kinds)
    delivery = profile.delivery(ask.stream, True, False)
    return Reply(profile, dialect, say, delivery, number=number, mark=stamp(77, 1_700_000_000))


def data_of(row: Any) -> bytes:
    return b"".join(step[1] for step in row)


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
asks = st.builds(
    Ask,
    st.just("m"),
    st.integers(0, 9),
    stream=st.booleans(),
    limit=st.none() | st.integers(1, 40),
    choices=st.integers(1, 3),
    include_usage=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(behaviours, asks, st.sampled_from([CHAT, COMPLETIONS]))
def test_one_block_and_a_row_of_steps_are_the_same_bytes(behaviour: Behaviour, ask: Ask, dialect: Any) -> None:
    made = reply(behaviour, ask, dialect=dialect)
    block = made.whole()
    row = list(made.steps())
    assert data_of(row) == block == made.whole()
    assert len(row) == 1
    assert row[0][2] == made.say.completion


@settings(max_examples=100, deadline=None)
@given(behaviours, asks, st.integers(0, 2))
def test_the_short_way_of_pacing_gives_the_same_steps(behaviour: Behaviour, ask: Ask, jitter: int) -> None:
    import msgspec

    behaviour = msgspec.structs.replace(behaviour, itl=2.0, ttft=7.0, jitter=float(jitter), input_cost=3.0)
    made = reply(behaviour, ask)
    short = list(made.steps())
    assert short == list(made._shaped(made._streamed() if ask.stream else made._at_once()))
    dues = [step[0] for step in short]
    assert dues == sorted(dues)
    assert dues[0] >= 7_000_000 or not ask.stream
    if ask.stream:
        pieces = sum(
            -(-count // behaviour.chunk) for count in (made.say.reasoning, made.say.tokens - made.say.reasoning)
        )
        assert len(short) == pieces
        gaps = [b - a for a, b in itertools.pairwise(dues)]
        assert all(2_000_000 * behaviour.chunk <= gap for gap in gaps)
        assert jitter or len(set(gaps)) <= 1


def test_pieces_beyond_the_cache_are_rendered_when_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.mock.reply.CACHED_PIECES", 5)
    profile = CompiledBehaviour(Behaviour(itl=1))
    full = data_of(reply(Behaviour(itl=1), Ask("m", 1, stream=True, limit=30)).steps())
    two = [reply(Behaviour(itl=1), Ask("m", 1, stream=True, limit=30), profile=profile).steps() for _ in range(2)]
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
def test_a_tool_call_is_json_however_it_is_cut(tokens: int, chunk: int) -> None:
    say = Say(Ask("m", 1, stream=True, limit=tokens), Behaviour(tools=True, chunk=chunk), 0, kinds=True)
    arguments = ""
    names = []
    for start in range(0, tokens, chunk):
        size = min(chunk, tokens - start)
        for event in CHAT.piece(say, Span("tools", start, size, start + size == tokens)):
            call = json.loads(event.data.replace(STAMP, stamp(1, 2)))["choices"][0]["delta"]["tool_calls"][0]
            arguments += call["function"]["arguments"]
            names += [call["function"]["name"]] if "name" in call["function"] else []
    assert names == ["look_up"]
    body = (CHAT.front(say) + CHAT.back(say)).replace(STAMP, stamp(1, 2))
    whole = json.loads(body)["choices"][0]["message"]["tool_calls"][0]["function"]
    assert whole["arguments"] == arguments
    assert arguments == "" if tokens == 1 else isinstance(json.loads(arguments), dict)


def test_paths_find_their_dialect() -> None:
    assert find("/v1/chat/completions") is CHAT
    assert find("/any/prefix/v1/completions") is COMPLETIONS
    assert find("/embeddings") is EMBEDDINGS
    assert find("/v1/chat") is None


# steps


def row(*tokens: int, gap: int = 10) -> list[Step]:
    return [(i * gap, bytes([65 + i]) * 4, count, SEND) for i, count in enumerate(tokens)]


def test_a_fault_strikes_the_same_requests_again_and_about_as_many_as_asked() -> None:
    hits = [on.strikes(5, k, 2, 0.3) for k in range(4000)]
    assert hits == [on.strikes(5, k, 2, 0.3) for k in range(4000)]
    assert 0.26 < sum(hits) / 4000 < 0.34
    assert hits != [on.strikes(6, k, 2, 0.3) for k in range(4000)]
    assert all(on.strikes(0, k, 0, 1.0) for k in range(100))
    assert not any(on.strikes(0, k, 0, 0.0) for k in range(100))


def test_cut_ends_after_its_tokens() -> None:
    assert list(on.cut(row(0, 1, 1, 1), 2, RESET)) == [*row(0, 1, 1), (30, b"", 0, RESET)]
    assert list(on.cut(row(0, 1), 0, CUT)) == [(0, b"", 0, CUT)]


def test_stall_delays_all_that_follows() -> None:
    assert [step[0] for step in on.stall(row(0, 1, 1, 1), 1, 500)] == [0, 10, 520, 530]
    assert list(on.stall(row(0, 1, 1), 1, None))[-1] == (20, b"", 0, HANG)


def test_coalesce_joins_what_is_due_together() -> None:
    joined = list(on.coalesce([*row(0, 1, gap=0), *row(1, 1, gap=5)]))
    assert joined == [(0, b"AAAABBBBAAAA", 2, SEND), (5, b"BBBB", 1, SEND)]
    assert list(on.coalesce([*row(1, gap=0), (0, b"", 0, CUT)])) == [*row(1), (0, b"", 0, CUT)]
    assert list(on.coalesce([])) == []


def test_a_slow_head_is_dribbled_before_anything_else() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"
    slow = list(on.slow_head([(50, head + b"body", 1, SEND), (60, b"more", 1, SEND)], 800))
    assert data_of(slow[:-2]) == head
    assert [step[0] for step in slow[:-2]] == [800 * (i + 1) // (len(slow) - 2) for i in range(len(slow) - 2)]
    assert slow[-2:] == [(850, b"body", 1, SEND), (860, b"more", 1, SEND)]


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6), st.integers(0, 30), st.integers())
def test_split_keeps_bytes_tokens_and_order(blocks: list[bytes], gap: int, seed: int) -> None:
    source = [(i * 10, block, 1, SEND) for i, block in enumerate(blocks)]
    pieces = list(on.split(source, gap, random.Random(seed)))
    assert data_of(pieces) == b"".join(blocks)
    assert sum(step[2] for step in pieces) == len(blocks)
    assert [step[0] for step in pieces] == sorted(step[0] for step in pieces)
    assert all(step[1] for step in pieces)
