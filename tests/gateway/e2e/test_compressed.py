"""Streams that come compressed although nobody asked for it: unpacked as they come, inspected and counted as any (X-11)."""

from __future__ import annotations

import threading
import zlib
from functools import partial
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, resources
from support.scripted_upstream import CHAT_USAGE, Received, Upstream, Wire, chat_events, response_events

EVENTS = response_events(["Write to ", "bob@exam", "ple.com."])
MASKS = {"name": "mail", "kind": "pii", "hook_point": "output", "detectors": [{"type": "email", "action": "mask"}]}


def packed(data: bytes, coding: str) -> bytes:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_a_stream_in_any_portions(gateway: GatewayProcess, upstream: Upstream, coding: str, size: int) -> None:
    data = packed(b"".join(EVENTS), coding)
    upstream.streams([data[at : at + size] for at in range(0, len(data), size)], content_encoding=coding)
    stream = gateway.stream()
    assert stream.rest() == b"".join(EVENTS)
    assert (stream.status, "content-encoding" in stream.headers) == (200, False)
    entry = gateway.entry(stream)
    assert (entry["status"], entry["error"], entry["usage_source"]) == (200, None, "upstream")
    assert (entry["output_tokens"], entry["events"], entry["finish"]) == (23, len(EVENTS), "completed")


def test_a_stream_of_several_members(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.streams([b"".join(packed(piece, "gzip") for piece in EVENTS)], content_encoding="gzip")
    assert gateway.stream().rest() == b"".join(EVENTS)


def test_events_do_not_wait_for_the_end(gateway: GatewayProcess, upstream: Upstream) -> None:
    seen = threading.Event()

    def script(request: Received, wire: Wire) -> None:
        packer = zlib.compressobj(wbits=31)
        wire.start(content_encoding="gzip")
        wire.chunk(packer.compress(EVENTS[0]) + packer.flush(zlib.Z_SYNC_FLUSH))
        seen.wait(60)
        wire.chunk(packer.compress(b"".join(EVENTS[1:])) + packer.flush())
        wire.end()

    upstream.does(script)
    stream = gateway.stream()
    assert stream.event() == EVENTS[0]
    seen.set()
    assert stream.rest() == b"".join(EVENTS[1:])
    gateway.entry(stream)


@pytest.mark.parametrize("mode", ["buffer", "window"])
def test_it_is_inspected(start: Any, upstream: Upstream, mode: str) -> None:
    gateway: GatewayProcess = start(
        resources(upstream.url, guardrails=[MASKS]), guardrails={"stream_mode": mode, "max_buffer_bytes": 1 << 20}
    )
    upstream.streams([packed(b"".join(EVENTS), "gzip")], content_encoding="gzip")
    stream = gateway.stream()
    said = stream.rest()
    assert b"[EMAIL_REDACTED]" in said
    assert b"ple.com" not in said
    assert [hit["action"] for hit in gateway.entry(stream)["guardrails"]] == ["masked"]
    # far more than may be held in a few bytes
    upstream.streams([packed(b": " + b"x" * (64 << 20) + b"\n\n", "gzip")], content_encoding="gzip")
    assert gateway.respond(stream=True).status == 422


def test_the_model_s_name_of_a_chat(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.streams([packed(b"".join(chat_events(usage=CHAT_USAGE)), "gzip")], content_encoding="gzip")
    stream = gateway.stream("/v1/chat/completions")
    assert b"gpt-4o-mini-2024" not in stream.rest()
    assert gateway.entry(stream)["output_tokens"] == 23


def _stream_and_then(_request: Received, wire: Wire, *, head: bytes, passed: threading.Event, then: bytes) -> None:
    wire.start(content_encoding="gzip")
    wire.chunk(head)
    passed.wait(60)
    if then:
        wire.chunk(then)
    wire.end()


def test_one_that_breaks_off(gateway: GatewayProcess, upstream: Upstream) -> None:
    """However well its chunks end."""
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(b"".join(EVENTS[:5])) + packer.flush(zlib.Z_SYNC_FLUSH)
    for then in (b"", b"rubbish that is no block"):
        passed = threading.Event()
        upstream.does(partial(_stream_and_then, head=head, passed=passed, then=then))
        stream = gateway.stream()
        assert [stream.event() for _ in range(5)] == EVENTS[:5]
        passed.set()
        assert b'"stream_aborted"' in stream.rest()
        entry = gateway.entry(stream)
        assert (entry["status"], entry["error"], entry["finish"]) == (502, "stream_aborted", "cut")
        assert (entry["usage_source"], entry["attempts"][0]["error"]) == ("estimated", "aborted")
    upstream.streams([packed(b"".join(EVENTS), "gzip")[:20]], content_encoding="gzip")
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"]) == (502, "upstream_decode_error")
    assert gateway.entry(reply)["attempts"][0]["error"] == "decode"
