"""Large bodies, which another process reads, inspects and edits."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.http_exceptions import TransferEncodingError

from penstock.gateway import body_process
from penstock.gateway.ending import CallerGoneError
from penstock.gateway.guardrails import DuplicateKeyError, Inspection, LocalPolicy, offload
from penstock.gateway.inbound import body, large_bodies
from penstock.gateway.inbound.body import ParsedBody, check_complexity, edit_body, read_body
from penstock.gateway.inbound.body_reader import BodyReader
from penstock.gateway.inbound.large_bodies import (
    LARGE_BYTES,
    join,
    large_message,
    needs_process,
    read_large_body,
)
from penstock.gateway.json_edits import count_values
from penstock.gateway.memory import Holding, MemoryBudget
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.routes import BY_NAME
from support.caller_requests import arriving_body, caller_request
from support.guardrail_streams import keyword, pii

GUARDS = LocalPolicy([keyword("FORBIDDEN"), pii("email")], GuardrailMode())
PADDING = "harmless " * 80_000


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[None]:
    yield
    offload._processes.close()


def inspect(body: bytes) -> Inspection:
    assert offload.is_large(body)
    return asyncio.run(GUARDS.request(BY_NAME["responses"], body))


def encoded(text: str) -> bytes:
    return json.dumps({"model": "m", "input": [PADDING, text]}).encode()


def test_large_bodies_are_inspected_like_small_ones() -> None:
    clean = encoded("nothing")
    inspection = inspect(clean)
    assert inspection.body is clean
    assert (inspection.blocked_by, inspection.hits) == (None, [])
    assert inspect(encoded("so FORBIDDEN")).blocked_by == "words"
    masked = inspect(encoded("to bob@example.com"))
    assert json.loads(masked.body)["input"][1] == "to [EMAIL_REDACTED]"
    assert [(hit.guardrail, hit.action, hit.count) for hit in masked.hits] == [("private", "masked", 1)]


def test_errors_of_an_inspection_are_raised() -> None:
    padding = PADDING.encode()
    with pytest.raises(DuplicateKeyError):
        inspect(b'{"a":"%b","b":{"c":1,"c":2}}' % padding)
    with pytest.raises(ValueError, match="invalid JSON"):
        inspect(b'{"a":"%b",}' % padding)


def test_reply_is_inspected_in_a_process() -> None:
    body = json.dumps({"output": [{"content": [{"text": PADDING + "FORBIDDEN"}]}]}).encode()
    assert asyncio.run(GUARDS.reply(BY_NAME["responses"], body)).blocked_by == "words"


def test_process_that_has_ended_is_replaced() -> None:
    inspect(encoded("nothing"))
    for process in offload._processes._idle:
        process._process.kill()
        process._process.wait()
    assert inspect(encoded("so FORBIDDEN")).blocked_by == "words"


class Contested(list[Any]):
    """A list whose last item another thread takes just after this one has seen it."""

    def __len__(self) -> int:
        return 1


def test_two_threads_may_want_the_same_idle_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = SimpleNamespace(run=lambda *_: (pickle.dumps(1), b"body"))
    monkeypatch.setattr(body_process, "_BodyProcess", lambda: process)
    processes = body_process.BodyProcesses()
    processes._idle = Contested()
    assert processes.run(print, (), b"") == (1, b"body")


def test_body_with_many_values_is_large() -> None:
    assert offload.is_large(b"[%b1]" % (b"1234567," * 20_000))
    assert not offload.is_large(b'{"input":"%b"}' % (b"x" * 300_000))


# -- reading and editing --------------------------------------------------------------------------------------------------


def large_request(**members: Any) -> bytes:
    padding = {"messages": [{"role": "user", "content": PADDING * 2}], "input": "x"}
    data = json.dumps({"stream": True, **padding, "model": "alias", **members}).encode()
    assert len(data) > LARGE_BYTES
    return data


def read_elsewhere(data: bytes, route: str, monkeypatch: pytest.MonkeyPatch) -> ParsedBody:
    monkeypatch.setattr(large_bodies, "read_body", None)  # this process must not read it
    assert needs_process(data)
    return asyncio.run(read_large_body(data, BY_NAME[route], 1000))


@pytest.mark.parametrize(
    ("route", "members"),
    [
        ("responses", {"previous_response_id": "resp_1", "max_output_tokens": 7}),
        ("chat", {"n": 3, "stream_options": {"x": 10**30}}),
        ("chat", {"stream": False}),
        ("completions", {"prompt": ["a", "b"], "max_tokens": 5}),
        ("completions", {"prompt": ["a"] * 2000, "max_tokens": 10**8, "n": 10**8}),
    ],
)
def test_large_request_is_read_like_a_small_one(
    route: str, members: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = large_request(**members)
    expected = read_body(data, BY_NAME[route], 1000)
    expected.values, expected.input_tokens = count_values(data), BY_NAME[route].input_tokens(data)
    assert read_elsewhere(data, route, monkeypatch) == expected


def test_request_with_many_values_is_read_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"model":"m","input":[%b1]}' % (b"1," * 50_000)
    assert len(data) < LARGE_BYTES
    assert read_elsewhere(data, "responses", monkeypatch).values == 50_001


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("1,2," * 55_000, False),
        ('"1","2\\\\"' * 55_000, False),
        ([1] * 110_000, True),
        ([{"a": "1,2"}] * 60_000, False),
        ([",", ","] * 60_000, True),
    ],
    ids=["a CSV file", "quotes and backslashes", "numbers", "objects with commas", "strings of commas"],
)
def test_only_values_count_and_not_the_commas_in_texts(
    text: Any, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.dumps({"model": "m", "input": text}).encode()
    request = read_elsewhere(data, "responses", monkeypatch)
    if refused:
        with pytest.raises(Refusal) as caught:
            check_complexity(request)
        assert caught.value.status == 413
    else:
        check_complexity(request)


@pytest.mark.parametrize("broken", [large_request()[:-1], large_request(model=1)])
def test_large_request_is_refused_like_a_small_one(broken: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refusal) as expected:
        read_body(broken, BY_NAME["chat"], 0)
    with pytest.raises(Refusal) as refused:
        read_elsewhere(broken, "chat", monkeypatch)
    assert refused.value.status == 400
    assert refused.value.body() == expected.value.body()


def message(data: bytes, renames: dict[bytes, bytes], usage_options: bytes | None) -> bytes:
    target: Any = SimpleNamespace(
        upstream_json=b'"real"',
        renames=renames,
        defaults={b"seed": b"1"} if renames else {},
        head=lambda length, request_id, _forwarded=b"": b"%d %b\r\n\r\n" % (length, request_id.encode()),
    )
    request = read_body(data, BY_NAME["chat"], 0)
    body = edit_body(request, target.upstream_json, usage_options, target.renames, target.defaults)
    sent = asyncio.run(large_message(request, target, usage_options, "id-1"))
    assert sent == target.head(len(body), "id-1") + body
    return sent


def test_large_request_is_edited_like_a_small_one() -> None:
    data = large_request(old=1)
    assert b'"model": "real"' in message(data, {}, None)
    edited = message(data, {b"old": b"new"}, b'{"include_usage": true}')
    sent = json.loads(edited.partition(b"\r\n\r\n")[2])
    assert (sent["new"], sent["seed"], sent["stream_options"]) == (1, 1, {"include_usage": True})


def test_large_request_that_takes_too_long_to_edit_is_refused() -> None:
    request = read_body(b'{"model":"m","messages":[%b1]}' % (b"[[1]]," * 110_000), BY_NAME["chat"], 0)
    target: Any = SimpleNamespace(upstream_json=b'"real"', renames={b"old": b"new"}, defaults={})
    with pytest.raises(Refusal, match="too many values"):
        asyncio.run(large_message(request, target, None, "id-1"))


def test_number_of_top_level_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one takes a step in Python: nine million of them took a minute."""
    monkeypatch.setattr(body, "MAX_BRACKETS", 1000)
    data = b'{"model":"a","input":"the \\"model\\" is \\u006d"%b}'
    read_body(data % (b',"b":1' * 90), BY_NAME["responses"], 0)
    with pytest.raises(Refusal) as refused:
        read_body(data % (b',"b":1' * 200), BY_NAME["responses"], 0)
    assert refused.value.status == 413


def read(length: int, *pieces: bytes, error: Exception | None = None) -> bytes:
    async def whole() -> bytes:
        headers = {"Content-Length": str(length)}
        request = caller_request(headers=headers, body=arriving_body(*pieces, error=error))
        reader = BodyReader(request, Holding(MemoryBudget(1 << 30)), 1 << 26)
        reader.check_length()
        return await reader.read()

    return asyncio.run(whole())


def test_large_body_is_read_in_pieces() -> None:
    piece = b"x" * LARGE_BYTES
    assert read(2 * LARGE_BYTES, piece, piece) == 2 * piece
    with pytest.raises(CallerGoneError):
        read(2 * LARGE_BYTES, piece, error=ConnectionResetError())
    with pytest.raises(Refusal) as refused:
        read(2 * LARGE_BYTES, piece, error=TransferEncodingError("bad chunk"))
    assert refused.value.status == 400


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
def test_pieces_are_joined(size: int) -> None:
    assert asyncio.run(join([b"a" * size, b"b"])) == b"a" * size + b"b"
