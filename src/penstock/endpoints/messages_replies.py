"""Replies of the messages API (Anthropic): blocks of text, thinking and tool calls, whole or as deltas."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.endpoints.openai_types import Chunk, error_failure
from penstock.endpoints.reply import Reply, Usage
from penstock.endpoints.usage import read_usage, usage_of

__all__ = ["MESSAGE_EVENTS", "counted", "read_message", "read_message_stream"]

MESSAGE_EVENTS = frozenset(
    (
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "ping",
    )
)


def read_message(found: dict[str, Any]) -> Reply:
    """A whole message."""
    reply = Reply()
    reply.done = True
    texts: list[str] = []
    thoughts: list[str] = []
    for block in found["content"]:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_use":
            texts.append(str(block.get("name") or "") + msgspec.json.encode(block.get("input") or {}).decode())
            reply.items.append(block)
        else:
            texts.append(_string(block, "text"))
            thoughts.append(_string(block, "thinking"))
    reply.outputs = ["".join(texts)] if any(texts) else []
    reply.reasonings = ["".join(thoughts)] if any(thoughts) else []
    _conclude(reply, found)
    if isinstance(found.get("stop_reason"), str):
        reply.finish = [found["stop_reason"]]
    return reply


def read_message_stream(events: list[Any], ends: list[int]) -> Reply:
    """`events` are the data of the stream, parsed; what is no object is passed over."""
    reply = Reply()
    texts: list[str] = []
    thoughts: list[str] = []
    kinds: list[bool] = []
    usage: dict[str, Any] = {}
    for event, end in zip(events, ends, strict=True):
        if not isinstance(event, dict):
            continue
        kind = event.get("type")
        if kind == "error":
            reply.failure = error_failure(Chunk(error=event.get("error") or event))
            break
        text = thought = ""
        if kind == "message_start" and isinstance(event.get("message"), dict):
            usage |= _object(event["message"], "usage")
            _conclude(reply, event["message"])
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            block = event["content_block"]
            text, thought = _string(block, "text") or _string(block, "name"), _string(block, "thinking")
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            delta = event["delta"]
            text, thought = _string(delta, "text") or _string(delta, "partial_json"), _string(delta, "thinking")
        elif kind == "message_delta":
            usage |= _object(event, "usage")
            reason = _object(event, "delta").get("stop_reason")
            if isinstance(reason, str):
                reply.finish = [reason]
        reply.done = reply.done or kind == "message_stop"
        for piece, is_thought, into in ((thought, True, thoughts), (text, False, texts)):
            if piece:
                reply.texts.append(piece)
                reply.ends.append(end)
                kinds.append(is_thought)
                into.append(piece)
    reply.done = reply.done or bool(reply.finish)
    reply.outputs = ["".join(texts)] if texts else []
    reply.reasonings = ["".join(thoughts)] if thoughts else []
    reply.reasoning = kinds if any(kinds) else None
    reply.usage = counted(usage)
    return reply


def _conclude(reply: Reply, message: dict[str, Any]) -> None:
    reply.usage = counted(message.get("usage"))
    reply.model = _string(message, "model") or None
    reply.id = _string(message, "id") or None


def counted(found: Any) -> Usage | None:
    """What a usage object says, whatever it is."""
    usage = usage_of(found)
    return None if usage is None else read_usage(usage)


def _string(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}
