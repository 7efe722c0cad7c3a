"""Streams of chat completions and completions."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from penstock.endpoints.json_replies import DONE, excerpt
from penstock.endpoints.openai_common import add_tool_calls, message_texts
from penstock.endpoints.openai_types import chunk_failure, decode_events
from penstock.endpoints.repeated_chunks import find_repeated_chunks
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.usage import read_usage
from penstock.wire import sse


def read_choices_stream(body: bytes, field: bytes, *, timed: bool) -> Reply:
    """Read a stream of chat chunks (`delta`) or completions chunks (`text`); `field` is the JSON key before the text."""
    return _read_repeated_chunks(body, field, timed=timed) or _read_events(body)[0]


def _read_repeated_chunks(body: bytes, field: bytes, *, timed: bool) -> Reply | None:
    """Read a stream whose chunks differ only in their text; None for any other stream."""
    chunks = find_repeated_chunks(body, field, timed=timed)
    if chunks is None:
        return None
    reply, has_other_choices = _read_events(chunks.other_events)
    if reply.failure or reply.reasoning or reply.items or has_other_choices or reply.model not in (None, chunks.model):
        return None
    before = bisect_right(reply.ends, chunks.start)
    if timed:
        reply.ends = [*reply.ends[:before], *chunks.ends, *[end + chunks.length for end in reply.ends[before:]]]
    reply.texts[before:before] = chunks.texts
    reply.outputs = ["".join(reply.texts)]
    reply.model = chunks.model
    if reply.usage_by_piece:
        repeated = len(chunks.texts)
        reply.usage_by_piece = {
            (count if count <= before else count + repeated): tokens for count, tokens in reply.usage_by_piece.items()
        }
    return reply


def _read_events(body: bytes) -> tuple[Reply, bool]:
    """Read a stream event by event. Return the reply and whether it has other choices than the first."""
    reply = Reply()
    events = sse.split(body)
    data = events.data
    if events.names is not None and b"error" in events.names:
        index = events.names.index(b"error")
        reply.failure = Failure("ErrorEvent", f"The stream holds an error event: {excerpt(data[index])}", "server")
        data = data[:index]
    chunks, failure = decode_events(data)
    reply.failure = failure or reply.failure
    reply.done = bool(data) and (data[-1] == DONE or any(event.strip() == DONE for event in data))
    outputs: dict[int, list[str]] = {}
    reasonings: dict[int, list[str]] = {}
    finish: dict[int, str] = {}
    calls: dict[int, dict[str, Any]] = {}
    is_reasoning: list[bool] = []
    for chunk, end in zip(chunks, events.ends, strict=False):
        if chunk.error or chunk.object == "error":
            reply.failure = chunk_failure(chunk)
            break
        reply.model = reply.model or chunk.model
        for choice in chunk.choices or ():
            index = choice.index or 0
            text, reasoning = (choice.text or "", "") if choice.delta is None else message_texts(choice.delta)
            for piece, reasons, texts in ((reasoning, True, reasonings), (text, False, outputs)):
                if piece:
                    reply.texts.append(piece)
                    reply.ends.append(end)
                    is_reasoning.append(reasons)
                    texts.setdefault(index, []).append(piece)
            if choice.delta is not None and choice.delta.tool_calls and index == 0:
                add_tool_calls(choice.delta.tool_calls, calls)
            if choice.finish_reason:
                finish[index] = choice.finish_reason
        if chunk.usage and (usage := read_usage(chunk.usage)) is not None:
            reply.usage = usage
            has_content = bool(reply.ends) and reply.ends[-1] == end
            if usage.completion is not None and has_content:
                reply.usage_by_piece[len(reply.texts)] = usage.completion
    reply.items = [calls[index] for index in sorted(calls)]
    if calls:
        choices = [choice for chunk in chunks for choice in chunk.choices or () if not choice.index]
        reply.content = "".join([choice.delta.content or "" for choice in choices if choice.delta is not None])
    reply.reasoning = is_reasoning if any(is_reasoning) else None
    reply.outputs = ["".join(outputs[index]) for index in sorted(outputs)]
    reply.reasonings = ["".join(reasonings[index]) for index in sorted(reasonings)]
    reply.finish = [finish[index] for index in sorted(finish)]
    reply.done = reply.done or bool(finish)
    return reply, any(outputs) or any(reasonings) or any(finish)
