"""Inspection of large bodies in another process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from penstock.gateway.guardrails import DuplicateKeyError, Guards, Inspection, offload
from penstock.gateway.resources.config import GuardrailMode
from support.guardrail_streams import keyword, pii

GUARDS = Guards([keyword("FORBIDDEN"), pii("email")], GuardrailMode())
PADDING = "harmless " * 80_000


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[None]:
    yield
    offload._processes.close()


def inspect(body: bytes) -> Inspection:
    assert offload.is_large(body)
    return asyncio.run(GUARDS.request(body))


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
    assert asyncio.run(GUARDS.reply(body)).blocked_by == "words"


def test_process_that_has_ended_is_replaced() -> None:
    inspect(encoded("nothing"))
    for process in offload._processes._idle:
        process._process.kill()
        process._process.wait()
    assert inspect(encoded("so FORBIDDEN")).blocked_by == "words"


def test_body_with_many_values_is_large() -> None:
    assert offload.is_large(b"[%b1]" % (b"1234567," * 20_000))
    assert not offload.is_large(b'{"input":"%b"}' % (b"x" * 300_000))
