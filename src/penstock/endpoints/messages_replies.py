"""Replies of the messages API (Anthropic): blocks of text, thinking and tool calls, streamed or not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson

from penstock.endpoints.json_replies import error_failure
from penstock.endpoints.reply import Reply, Usage
from penstock.endpoints.usage import parse_usage, read_usage

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


def read_message(message: dict[str, Any]) -> Reply:
    """Read an unstreamed message."""
    reply = Reply()
    reply.done = True
    texts: list[str] = []
    thoughts: list[str] = []
    for block in message["content"]:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False, separators=(",", ":"))
            texts.append(str(block.get("name") or "") + arguments)
            reply.items.append(_tool_use(block, arguments))
        else:
            texts.append(_string(block, "text"))
            reply.content += _string(block, "text")
            thoughts.append(_string(block, "thinking"))
    reply.outputs = ["".join(texts)] if any(texts) else []
    reply.reasonings = ["".join(thoughts)] if any(thoughts) else []
    if not reply.items:
        reply.content = ""
    _read_metadata(reply, message)
    if isinstance(message.get("stop_reason"), str):
        reply.finish = [message["stop_reason"]]
    return reply


def read_message_stream(events: list[Any], ends: list[int]) -> Reply:
    """Read a stream. `events` are the parsed data of its events; values that are not objects are ignored."""
    reply = Reply()
    texts: list[str] = []
    thoughts: list[str] = []
    is_reasoning: list[bool] = []
    usage: dict[str, Any] = {}
    calls: dict[str, dict[str, Any]] = {}
    arguments: dict[str, list[str]] = {}
    for event, end in zip(events, ends, strict=True):
        if not isinstance(event, dict):
            continue
        kind, index = event.get("type"), str(event.get("index"))
        if kind == "error":
            reply.failure = error_failure(event.get("error") or event)
            break
        text = thought = ""
        if kind == "message_start" and isinstance(event.get("message"), dict):
            usage |= _counts(event["message"])
            _read_metadata(reply, event["message"])
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            block = event["content_block"]
            text, thought = _string(block, "text") or _string(block, "name"), _string(block, "thinking")
            if block.get("type") == "tool_use":
                calls[index] = block
            else:
                reply.content += text
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            delta = event["delta"]
            text, thought = _string(delta, "text") or _string(delta, "partial_json"), _string(delta, "thinking")
            if index in calls:
                arguments.setdefault(index, []).append(_string(delta, "partial_json"))
            else:
                reply.content += _string(delta, "text")
        elif kind == "message_delta":
            usage |= _counts(event)
            reason = _object(event, "delta").get("stop_reason")
            if isinstance(reason, str):
                reply.finish = [reason]
        reply.done = reply.done or kind == "message_stop"
        for piece, reasons, pieces in ((thought, True, thoughts), (text, False, texts)):
            if piece:
                reply.texts.append(piece)
                reply.ends.append(end)
                is_reasoning.append(reasons)
                pieces.append(piece)
    reply.done = reply.done or bool(reply.finish)
    reply.outputs = ["".join(texts)] if texts else []
    reply.reasonings = ["".join(thoughts)] if thoughts else []
    reply.reasoning = is_reasoning if any(is_reasoning) else None
    reply.usage = _message_usage(usage)
    reply.items = [_tool_use(block, "".join(arguments.get(index, ()))) for index, block in calls.items()]
    if not reply.items:
        reply.content = ""
    return reply


def _tool_use(block: dict[str, Any], arguments: str) -> dict[str, Any]:
    """Return the block of a tool call with its arguments, which a stream sends in pieces. Integers of more than 64 bits become
    floats, because orjson cannot send them."""
    try:
        return block | {"input": orjson.loads(arguments)} if arguments else block
    except orjson.JSONDecodeError:  # the length limit has cut the arguments off
        return block


def _message_usage(value: Any) -> Usage | None:
    """Return the token counts of a message. Its `input_tokens` leave out the tokens that were read from or written to the
    cache, so they are added."""
    usage = read_any_usage(value)
    if usage is None or usage.prompt is None:
        return usage
    prompt = usage.prompt + (usage.cache_read or 0) + (usage.cache_write or 0)
    return msgspec.structs.replace(usage, prompt=prompt)


def _read_metadata(reply: Reply, message: dict[str, Any]) -> None:
    reply.usage = _message_usage(message.get("usage"))
    reply.model = _string(message, "model") or None
    reply.id = _string(message, "id") or None


def read_any_usage(value: Any) -> Usage | None:
    """Return the token counts of a JSON value; None if it is not a usage object."""
    usage = parse_usage(value)
    return None if usage is None else read_usage(usage)


def _string(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _counts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the usage of an event. A count may be null in a later event, which does not change it."""
    return {name: count for name, count in _object(fields, "usage").items() if count is not None}


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}
