"""Compressed streams, which the gateway did not ask for, are decoded, inspected and counted."""

from __future__ import annotations

import threading
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, resources
from support.scripted_upstream import (
    CHAT_USAGE,
    ReceivedRequest,
    ScriptedConnection,
    Upstream,
    chat_events,
    normal_reply,
    response_events,
)

EVENTS = response_events(["Write to ", "bob@exam", "ple.com."])
MASKS = {"name": "mail", "kind": "pii", "hook_point": "output", "detectors": [{"type": "email", "action": "mask"}]}


def compressed(data: bytes, coding: str) -> bytes:
    compressor = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_compressed_stream_is_decoded_however_it_is_split(
    gateway: GatewayProcess, upstream: Upstream, coding: str, size: int
) -> None:
    data = compressed(b"".join(EVENTS), coding)
    upstream.stream_with([data[at : at + size] for at in range(0, len(data), size)], content_encoding=coding)
    stream = gateway.stream()
    assert stream.read_rest() == b"".join(EVENTS)
    assert (stream.status, "content-encoding" in stream.headers) == (200, False)
    entry = gateway.ledger_entry(stream)
    assert (entry["status"], entry["error"], entry["usage_source"]) == (200, None, "upstream")
    assert (entry["output_tokens"], entry["events"], entry["finish"]) == (23, len(EVENTS), "completed")


def test_stream_of_several_gzip_members_is_decoded(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with([b"".join(compressed(piece, "gzip") for piece in EVENTS)], content_encoding="gzip")
    assert gateway.stream().read_rest() == b"".join(EVENTS)


def test_compressed_events_are_relayed_as_they_arrive(gateway: GatewayProcess, upstream: Upstream) -> None:
    first_read = threading.Event()

    def script(request: ReceivedRequest, connection: ScriptedConnection) -> None:
        compressor = zlib.compressobj(wbits=31)
        connection.start(content_encoding="gzip")
        connection.chunk(compressor.compress(EVENTS[0]) + compressor.flush(zlib.Z_SYNC_FLUSH))
        first_read.wait(60)
        connection.chunk(compressor.compress(b"".join(EVENTS[1:])) + compressor.flush())
        connection.end()

    upstream.use_script(script)
    stream = gateway.stream()
    assert stream.next_event() == EVENTS[0]
    first_read.set()
    assert stream.read_rest() == b"".join(EVENTS[1:])
    gateway.ledger_entry(stream)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["buffer", "window"])
def test_compressed_stream_is_inspected_and_its_size_limited(start: Any, upstream: Upstream, mode: str) -> None:
    gateway: GatewayProcess = start(
        resources(upstream.url, guardrails=[MASKS]), guardrails={"stream_mode": mode, "max_buffer_bytes": 1 << 20}
    )
    upstream.stream_with([compressed(b"".join(EVENTS), "gzip")], content_encoding="gzip")
    stream = gateway.stream()
    body = stream.read_rest()
    assert b"[EMAIL_REDACTED]" in body
    assert b"ple.com" not in body
    assert [hit["action"] for hit in gateway.ledger_entry(stream)["guardrails"]] == ["masked"]
    # a few bytes that decompress to more than the buffer limit
    upstream.stream_with([compressed(b": " + b"x" * (64 << 20) + b"\n\n", "gzip")], content_encoding="gzip")
    assert gateway.respond(stream=True).status == 422


def test_alias_is_restored_in_a_compressed_chat_stream(gateway: GatewayProcess, upstream: Upstream) -> None:
    upstream.stream_with([compressed(b"".join(chat_events(usage=CHAT_USAGE)), "gzip")], content_encoding="gzip")
    stream = gateway.stream("/v1/chat/completions")
    assert b"gpt-4o-mini-2024" not in stream.read_rest()
    assert gateway.ledger_entry(stream)["output_tokens"] == 23


def _send_in_two_steps(
    _request: ReceivedRequest, connection: ScriptedConnection, *, head: bytes, first_read: threading.Event, then: bytes
) -> None:
    connection.start(content_encoding="gzip")
    connection.chunk(head)
    first_read.wait(60)
    if then:
        connection.chunk(then)
    connection.end()


def test_incomplete_compressed_stream_is_an_error(gateway: GatewayProcess, upstream: Upstream) -> None:
    """The HTTP chunks are complete, but the compressed data is not."""
    compressor = zlib.compressobj(wbits=31)
    head = compressor.compress(b"".join(EVENTS[:5])) + compressor.flush(zlib.Z_SYNC_FLUSH)
    for then in (b"", b"rubbish that is no block"):
        first_read = threading.Event()
        upstream.use_script(partial(_send_in_two_steps, head=head, first_read=first_read, then=then))
        stream = gateway.stream()
        assert [stream.next_event() for _ in range(5)] == EVENTS[:5]
        first_read.set()
        assert b'"stream_aborted"' in stream.read_rest()
        entry = gateway.ledger_entry(stream)
        assert (entry["status"], entry["error"], entry["finish"]) == (502, "stream_aborted", "cut")
        assert (entry["usage_source"], entry["attempts"][0]["error"]) == ("estimated", "aborted")
    upstream.stream_with([compressed(b"".join(EVENTS), "gzip")[:20]], content_encoding="gzip")
    reply = gateway.respond(stream=True)
    assert (reply.status, reply.error["type"]) == (502, "upstream_decode_error")
    assert gateway.ledger_entry(reply)["attempts"][0]["error"] == "decode"


@pytest.mark.slow
def test_stream_that_expands_a_thousandfold_waits_for_its_caller(gateway: GatewayProcess, upstream: Upstream) -> None:
    """Its 200 kB become 200 MB. The worker holds little of that, and serves other callers meanwhile."""
    comment = b": " + b"x" * 65_533 + b"\n"
    upstream.stream_with(
        [compressed(b"".join([*EVENTS[:-1], comment * 3000, b"\n", EVENTS[-1]]), "gzip")], content_encoding="gzip"
    )
    stream = gateway.stream()
    assert stream.next_event() == EVENTS[0]
    pid = gateway.config()["workers"][0]["pid"]
    upstream.script, before = normal_reply, upstream.script
    for _ in range(20):
        assert gateway.respond().status == 200
    upstream.script = before
    peak = int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])
    assert peak < 150_000
    assert stream.read_rest().endswith(EVENTS[-1])
    assert gateway.ledger_entry(stream)["status"] == 200
