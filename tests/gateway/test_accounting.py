"""The ledger entry of a request."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway.accounting import Accounting
from penstock.gateway.dialects.sse_frames import Frame
from penstock.gateway.inbound.body import read_body
from penstock.gateway.routes import BY_PATH
from penstock.wire.exchange import Exchange

TARGET: Any = SimpleNamespace(
    model=SimpleNamespace(name="fast", upstream="fast-upstream"), key=SimpleNamespace(name="up")
)


def test_request_that_was_sent_twice_is_two_attempts() -> None:
    accounting = Accounting("req_1", BY_PATH["/v1/responses"], 0)
    attempt = accounting.begin_attempt(TARGET, "initial")
    exchange = Exchange(b"", lambda _: None)
    exchange.retries, exchange.lost_ns = 1, 3_000_000
    exchange.status, exchange.connect_ns = 200, 1_000_000
    exchange.start, exchange.first_byte = 0, 2_000_000
    accounting.end_attempt(attempt, exchange, 0.0)
    lost, resent = accounting.entry.attempts
    assert (lost.kind, lost.error, lost.status, lost.first_byte_ms) == ("initial", "transport", None, None)
    assert (resent.kind, resent.error, resent.status) == ("resend", None, 200)
    assert resent.started_ms == lost.ended_ms == pytest.approx(lost.started_ms + 3)
    assert resent.first_byte_ms == pytest.approx(resent.started_ms + 3)


def test_input_of_a_stream_of_messages_that_is_cut_is_the_reported_one() -> None:
    dialect = BY_PATH["/v1/messages"]
    usage = {"input_tokens": 7, "cache_read_input_tokens": 48_000, "output_tokens": 1}
    reader = dialect.stream_reader()
    reader.read(frame({"type": "message_start", "message": {"id": "msg_1", "usage": usage}}))
    for _ in range(3):
        reader.read(frame({"type": "content_block_delta", "index": 0, "delta": {"text": "12345678"}}))
    accounting = Accounting("req_1", dialect, 0)
    target: Any = SimpleNamespace(redact=str)
    accounting.record_reply(target, reader, read_body(b'{"model":"m","max_tokens":9}', dialect, 0), cut=False)
    entry = accounting.entry
    assert (entry.input_tokens, entry.cached_tokens, entry.output_tokens) == (48_007, 48_000, 6)
    assert entry.usage_source == "estimated"


def frame(payload: dict[str, Any]) -> Frame:
    return Frame(b"data: " + json.dumps(payload).encode() + b"\n\n")
