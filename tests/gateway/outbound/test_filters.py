"""The filters of a reply, each fed with frames, split at every byte where bytes matter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.gateway.dialects.base import WholeReplyReader
from penstock.gateway.dialects.sse_frames import Frame, Frames, Part, RawBytes, WholeReply, joined
from penstock.gateway.guardrails import Blocked, LocalPolicy
from penstock.gateway.memory import Holding, MemoryBudget
from penstock.gateway.outbound.chain import Filter, ReplyChain, WholeBody
from penstock.gateway.outbound.filters import BindId, Inspect, ReadUsage, Redact, RestoreModel, Send
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.routes import BY_NAME
from support.guardrail_streams import keyword

USAGE = {"prompt_tokens": 11, "completion_tokens": 7}


def event(payload: Any) -> bytes:
    return b"data: " + (payload if isinstance(payload, bytes) else json.dumps(payload).encode()) + b"\n\n"


CHUNKS = [
    {"id": "c1", "model": "upstream-name", "choices": [{"index": 0, "delta": {"content": "Hello"}}]},
    {"id": "c1", "model": "upstream-name", "choices": [], "usage": USAGE},
]
CHAT = b"".join(map(event, CHUNKS)) + event(b"[DONE]")
MESSAGES = b"".join(
    map(
        event,
        [
            {"type": "message_start", "message": {"id": "m1", "model": "claude-x", "usage": {"input_tokens": 3}}},
            {"type": "content_block_delta", "delta": {"text": 'the "model": "claude-x"'}},
            {"type": "message_stop"},
        ],
    )
)


def splits(data: bytes) -> list[list[bytes]]:
    """Return the data in two pieces, split at every byte, and byte by byte."""
    return [[data[:at], data[at:]] for at in range(1, len(data))] + [[bytes([byte]) for byte in data]]


def through(step: Any, pieces: list[bytes]) -> bytes:
    """Feed a filter that does not wait with the frames of a stream, and return what it passes on."""
    splitter, passed = Frames(), b""
    for piece in pieces:
        frames = splitter.feed(piece)
        if frames:
            passed += joined(step.feed(frames))
    last = splitter.rest()
    if last is not None:
        passed += joined(step.feed([last]))
    return passed


def test_usage_is_read_and_bytes_pass_unchanged_however_the_stream_is_split() -> None:
    for pieces in splits(CHAT):
        reader = BY_NAME["chat"].stream_reader()
        assert through(ReadUsage(reader, strips_usage=False), pieces) == CHAT
        assert reader.usage is not None
        assert (reader.usage.input, reader.usage.output, reader.id, reader.terminal) == (11, 7, "c1", True)


def test_event_with_only_usage_is_dropped_if_the_caller_did_not_ask_for_it() -> None:
    for pieces in splits(CHAT):
        reader = BY_NAME["chat"].stream_reader()
        assert through(ReadUsage(reader, strips_usage=True), pieces) == event(CHUNKS[0]) + event(b"[DONE]")
        assert reader.usage is not None


def test_whole_reply_is_read_as_one_frame() -> None:
    body = json.dumps({"id": "c1", "usage": USAGE, "choices": [{"finish_reason": "stop"}]}).encode()
    reader = WholeReplyReader(BY_NAME["chat"])
    frame = WholeReply(body)
    assert ReadUsage(reader, strips_usage=True).feed([frame]) == [frame]
    assert reader.usage is not None
    assert (reader.id, reader.finish, reader.terminal, reader.events) == ("c1", "stop", True, 0)
    with pytest.raises(ValueError, match="not JSON"):
        ReadUsage(reader, strips_usage=False).feed([WholeReply(b"<html>")])


def test_id_is_bound_once_before_its_event_passes() -> None:
    for pieces in splits(CHAT):
        bound: list[str] = []
        reader = BY_NAME["chat"].stream_reader()
        read, bind = ReadUsage(reader, strips_usage=False), BindId(reader, bound.append)

        class Both:
            def feed(self, frames: list[Frame]) -> Any:
                passed = bind.feed(read.feed(frames))  # noqa: B023
                assert bound  # noqa: B023
                return passed

        assert through(Both(), pieces) == CHAT
        assert bound == ["c1"]


def test_alias_is_restored_in_chat_streams_however_they_are_split() -> None:
    for pieces in splits(CHAT):
        restored = through(RestoreModel(BY_NAME["chat"], "alias"), pieces)
        assert restored == CHAT.replace(b"upstream-name", b"alias")


def test_alias_is_restored_in_the_first_event_of_messages_only() -> None:
    expected = MESSAGES.replace(b'"claude-x", "usage"', b'"alias", "usage"')
    assert expected != MESSAGES
    for pieces in splits(MESSAGES):
        assert through(RestoreModel(BY_NAME["messages"], "alias"), pieces) == expected


@pytest.mark.parametrize("route", ["chat", "completions", "embeddings", "messages"])
@pytest.mark.parametrize(
    ("body", "restored"),
    [
        (b'{"model":"x","data":[{"model":"x"}]}', b'{"model":"a b","data":[{"model":"x"}]}'),
        (b'{ "mod\\u0065l" : "x" }', b'{ "mod\\u0065l" : "a b" }'),
        (b'{"data":[]}', b'{"data":[]}'),
    ],
)
def test_alias_is_restored_in_whole_replies(route: str, body: bytes, restored: bytes) -> None:
    dialect = BY_NAME[route]
    assert dialect.restores_model
    [frame] = RestoreModel(dialect, "a b").feed([WholeReply(body)])  # type: ignore[misc]
    assert (frame.raw, frame.data) == (restored, restored)


def test_responses_keep_the_bytes_of_the_upstream() -> None:
    assert not BY_NAME["responses"].restores_model


@pytest.mark.parametrize("frame", [WholeReply(b'{"echo":"sk-secret-1"}'), Frame(event({"echo": "sk-secret-1"}))])
def test_provider_key_is_removed_from_a_reply_that_repeats_it(frame: Frame) -> None:
    [clean] = Redact(b"sk-secret-1").feed([frame])  # type: ignore[misc]
    assert b"sk-secret" not in clean.raw
    assert clean.data is not None
    assert "echo" in json.loads(clean.data)


KEY = b"sk-proj-0123456789-ABCDEFGHIJ/+"


def delta(text: bytes) -> bytes:
    return event(b'{"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}' % text)


def longest_part(text: bytes, data: bytes) -> int:
    """Return the length of the longest part of a text that occurs in the data."""
    return max(
        length
        for length in range(len(text) + 1)
        if any(text[at : at + length] in data for at in range(len(text) - length + 1))
    )


@pytest.mark.parametrize("between", [b"", b": ping\n\n"])
@pytest.mark.parametrize("around", [(b"", b""), (b"The key is ", b", said the proxy")])
def test_provider_key_split_over_two_events_is_redacted(between: bytes, around: tuple[bytes, bytes]) -> None:
    for at in range(1, len(KEY)):
        events = [delta(b"Hi"), delta(around[0] + KEY[:at]), between, delta(KEY[at:] + around[1]), delta(b"end")]
        step = Redact(b"another-secret-value", KEY)
        passed = through(step, [b"".join(events)])
        assert passed == through(Redact(KEY), [data for data in events if data])
        assert longest_part(KEY, passed) < len(KEY) // 4 + 3, (at, passed)
        assert [len(passed.split(b"\n\n")), step.held_bytes] == [5 + (between != b""), 0]
        for frame in Frames().feed(passed):
            assert frame.data is None or json.loads(frame.data)


def test_provider_key_split_between_the_parts_of_a_large_event_is_redacted() -> None:
    for at in range(1, len(KEY)):
        begin = Part(b'data: {"text":"' + KEY[:at], begins=True, ends=False)
        end = Part(KEY[at:] + b'"}\n\n', begins=False, ends=True)
        step = Redact(KEY)
        passed = joined([*step.feed([begin]), *step.feed([end])])  # type: ignore[misc]
        assert longest_part(KEY, passed) < len(KEY) // 4 + 3, (at, passed)
        assert passed.endswith(b'"}\n\n')


@pytest.mark.parametrize("word", [b"", KEY[3:], KEY[-9:], b"0123", KEY[:8] + b"x"])
def test_event_that_ends_like_the_beginning_of_a_provider_key_is_passed_on_unchanged(word: bytes) -> None:
    for at in range(1, len(KEY) * 3 // 4):
        stream = delta(KEY[:at]) + (delta(word) if word else b"")
        step = Redact(KEY)
        passed = through(step, [stream]) + joined(step.finish() or [RawBytes(b"")])  # type: ignore[arg-type]
        assert passed == stream or KEY in KEY[:at] + word


class Upstream:
    """Records pauses of the chain's source."""

    def __init__(self) -> None:
        self.paused = False
        self.errors: list[Exception] = []

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


class Delay:
    """A filter whose verdicts come later."""

    reads_only = False
    held_bytes = 0

    def __init__(self) -> None:
        self.verdicts: list[asyncio.Future[list[Frame]]] = []
        self.fed: list[list[Frame]] = []

    def feed(self, frames: list[Frame]) -> Any:
        self.fed.append(frames)
        self.verdicts.append(asyncio.get_running_loop().create_future())
        return self.verdicts[-1]

    def finish(self) -> list[Frame]:
        return []


class Collect:
    """The last filter: keeps what it gets."""

    reads_only = False
    held_bytes = 0

    def __init__(self) -> None:
        self.data = b""

    def feed(self, frames: list[Frame]) -> list[Frame]:
        self.data += joined(frames)
        return []

    def finish(self) -> list[Frame]:
        return []


def chain_of(*steps: Filter, budget: MemoryBudget | None = None, splitter: Any = None) -> Any:
    reader = BY_NAME["chat"].stream_reader()
    source, blocks = Upstream(), []
    holding = Holding(budget or MemoryBudget(1 << 30))
    filters: list[Filter] = [ReadUsage(reader, strips_usage=False), *steps]
    chain = ReplyChain(filters, splitter or Frames(), reader, source, holding, blocks.append)
    return chain, source, reader, blocks, holding


def test_upstream_is_paused_until_a_verdict_is_there_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        delay, collect = Delay(), Collect()
        chain, source, _, _, _ = chain_of(delay, collect)
        first, second, third = event(CHUNKS[0]), event(CHUNKS[1]), event(b"[DONE]")
        chain.feed(first)
        assert (source.paused, chain.is_waiting, collect.data) == (True, True, b"")
        chain.feed(second)
        chain.feed(third)
        assert len(delay.fed) == 1
        for number, expected in enumerate((first, first + second, first + second + third)):
            delay.verdicts[number].set_result(delay.fed[number])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert collect.data == expected
        assert not source.paused
        assert chain.complete

    asyncio.run(scenario())


def test_block_is_reported_once_and_the_rest_is_only_read() -> None:
    async def scenario() -> None:
        delay, collect = Delay(), Collect()
        chain, source, reader, blocks, _ = chain_of(delay, collect)
        chain.feed(event(CHUNKS[0]))
        delay.verdicts[0].set_exception(Blocked("words"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [blocked.guardrail for blocked in blocks] == ["words"]
        chain.read_only()
        chain.feed(event(CHUNKS[1]) + event(b"[DONE]"))
        assert (collect.data, reader.usage.output, reader.terminal, source.paused) == (b"", 7, True, False)

    asyncio.run(scenario())


def test_reply_beyond_the_memory_budget_is_paused_until_an_older_one_has_ended() -> None:
    async def scenario() -> None:
        budget = MemoryBudget(1000)
        first, first_source, _, _, first_holding = chain_of(Collect(), budget=budget, splitter=WholeBody())
        second, second_source, _, _, _ = chain_of(Collect(), budget=budget, splitter=WholeBody())
        first.feed(b"x" * 400)
        second.feed(b"y" * 400)
        assert (first_source.paused, second_source.paused) == (False, True)
        first.feed(b"x" * 4000)
        assert not first_source.paused
        first_holding.release()
        assert not second_source.paused

    asyncio.run(scenario())


class CallerStream:
    """The stream to a caller that reads on request."""

    def __init__(self) -> None:
        self.data = b""
        self.writes = 0
        self.full = self.closed = False
        self.on_writable: Callable[[], None] | None = None

    def send(self, data: bytes, *, is_last: bool = False) -> None:
        self.data += data
        self.writes += 1

    def wait_until_writable(self, on_writable: Callable[[], None]) -> None:
        self.on_writable = on_writable


def test_frames_of_one_read_are_written_at_once_and_a_slow_caller_pauses_the_upstream() -> None:
    async def scenario() -> None:
        stream = CallerStream()
        send = Send(BY_NAME["chat"].stream_reader(), lambda: stream, None, lambda: None)  # type: ignore[arg-type,return-value]
        chain, source, _, _, _ = chain_of(send)
        chain.feed(event(CHUNKS[0]) + event(CHUNKS[1]))
        assert (stream.writes, source.paused) == (1, False)
        stream.full = True
        chain.feed(event(b"[DONE]"))
        assert source.paused
        assert send.full_since is not None
        assert not chain.complete
        stream.full = False
        assert stream.on_writable is not None
        stream.on_writable()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (source.paused, send.full_since, stream.data) == (False, None, CHAT)
        assert chain.complete

    asyncio.run(scenario())


@pytest.mark.parametrize("word", ["Hello", "absent"])
def test_stream_is_inspected_however_it_is_split(word: str) -> None:
    policy = LocalPolicy([keyword(word)], GuardrailMode())

    async def scenario(pieces: list[bytes]) -> None:
        splitter, collect = Frames(), Collect()
        inspect = Inspect(policy, BY_NAME["chat"], splitter, lambda _: None, lambda _: None)
        chain, _, _, blocks, _ = chain_of(inspect, collect, splitter=splitter)
        for piece in pieces:
            chain.feed(piece)
        blocked = list(blocks)
        try:
            await chain.read_last()
            await chain.finish()
        except Blocked as cause:
            blocked.append(cause)
        assert [cause.guardrail for cause in blocked] == (["words"] if word == "Hello" else [])
        assert (b"Hello" in collect.data) == (word == "absent")
        assert collect.data == (CHAT if word == "absent" else b"")

    for pieces in splits(CHAT)[::7]:
        asyncio.run(scenario(pieces))
