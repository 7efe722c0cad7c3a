"""Streams of chat completions and completions: the common one by what repeats in it, any other event by event."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import Any

import msgspec

from penstock.endpoints.openai_common import add_tool_calls, message_pieces
from penstock.endpoints.openai_types import DONE, UNREADABLE, Chunk, decode_chunk, decode_events, error_failure
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.reply_errors import excerpt
from penstock.endpoints.usage import read_usage
from penstock.wire import sse

__all__ = ["read_choices"]

_decode_strings = msgspec.json.Decoder(list[str]).decode


def read_choices(body: bytes, field: bytes, *, timed: bool) -> Reply:
    """A stream of chunks, of chat (`delta`) or completions (`text`); `field` is the key before the text."""
    return _repetitive(body, field, timed) or _by_event(body)


def _repetitive(body: bytes, field: bytes, timed: bool) -> Reply | None:
    """The common stream, three times faster than by decoding each event.

    The events of one reply differ in nothing but their text. So the bytes around the first text are found once, the rest
    of the body is split by them, and only the texts are decoded, as one list. Proof that nothing else was between them:
    had a part held more than the inside of one string, the decoded list would be longer than the list of parts. (One that
    ends in a backslash could make it shorter.)
    (Split by the short suffix, not by suffix and prefix: CPython's search is four times slower for needles of 100 bytes
    and more.) Returns None for any other stream.
    """
    first = body.find(field, body.find(b"\n\n") + 1)
    if first < 0:
        return None
    begin = body.rfind(b"\n\n", 0, first) + 2
    quote = body.find(b'"', first + len(field))
    close = _string_end(body, quote)
    after = body.find(b"\n\n", close)
    if begin < 2 or quote < 0 or close < 0 or after < 0:
        return None
    prefix, suffix = body[begin : quote + 1], body[close : after + 2]
    if b"\r" in prefix or b"\r" in suffix:
        return None
    pieces = body[begin:].split(suffix)
    alike = len(pieces)
    while alike and not pieces[alike - 1].startswith(prefix):
        alike -= 1
    run, others = pieces[:alike], pieces[alike:]
    # In lexical order whatever lies between two that begin with the prefix does so too.
    if not others or not run or not min(run).startswith(prefix) or not max(run).startswith(prefix):
        return None  # the last one is not complete, or the alike ones are not in one run
    cut = len(prefix)
    parts = list(map(itemgetter(slice(cut, None)), run))
    tail = suffix.join(others)
    strings = b'["' + b'","'.join(parts) + b'"]'
    if b'\\","' in strings or strings.endswith(b'\\"]'):
        return None
    try:
        texts = _decode_strings(strings)
        sample = decode_chunk(body[begin + 6 : after])
    except UNREADABLE:
        return None
    if len(texts) != len(parts) or "" in texts or _plain_text(sample) != texts[0]:
        return None
    reply, several = _read_events(body[:begin] + tail)  # what stands around the run
    if reply.failure or reply.reasoning or reply.items or several or reply.model not in (None, sample.model):
        return None
    before = bisect_right(reply.ends, begin)
    if timed:
        around = cut + len(suffix)
        offsets = accumulate([len(part) + around for part in parts], initial=begin)
        next(offsets)
        run_length = len(body) - len(tail) - begin
        reply.ends = [*reply.ends[:before], *offsets, *[end + run_length for end in reply.ends[before:]]]
    reply.texts[before:before] = texts
    reply.outputs = ["".join(reply.texts)]
    reply.model = sample.model
    return reply


def _string_end(body: bytes, quote: int) -> int:
    """Where the JSON string that opens at `quote` closes, or -1."""
    at = quote + 1
    while (at := body.find(b'"', at)) >= 0:
        slashes = at
        while body[slashes - 1] == 92:
            slashes -= 1
        if (at - slashes) % 2 == 0:
            return at
        at += 1
    return -1


def _plain_text(chunk: Chunk) -> str | None:
    """The text of a chunk with one choice, the first, and nothing else that would count."""
    if chunk.error or chunk.object == "error" or not chunk.choices or len(chunk.choices) > 1 or chunk.usage:
        return None
    choice = chunk.choices[0]
    delta = choice.delta
    if choice.index or choice.finish_reason:
        return None
    if delta is None:
        return choice.text
    others = delta.tool_calls or delta.function_call or delta.reasoning_content or delta.reasoning or delta.refusal
    return None if others else delta.content


def _by_event(body: bytes) -> Reply:
    return _read_events(body)[0]


def _read_events(body: bytes) -> tuple[Reply, bool]:
    """The reply, and whether it has other choices than the first."""
    reply = Reply()
    events = sse.split(body)
    data = events.data
    if events.names is not None and b"error" in events.names:
        at = events.names.index(b"error")
        reply.failure = Failure("ErrorEvent", f"The stream holds an error event: {excerpt(data[at])}", "server")
        data = data[:at]
    chunks, failure = decode_events(data)
    reply.failure = failure or reply.failure
    reply.done = bool(data) and (data[-1] == DONE or any(event.strip() == DONE for event in data))
    outputs: dict[int, list[str]] = {}
    reasonings: dict[int, list[str]] = {}
    finish: dict[int, str] = {}
    calls: dict[int, dict[str, Any]] = {}
    kinds: list[bool] = []
    for chunk, end in zip(chunks, events.ends, strict=False):
        if chunk.error or chunk.object == "error":
            reply.failure = error_failure(chunk)
            break
        reply.model = reply.model or chunk.model
        if chunk.usage:
            reply.usage = read_usage(chunk.usage) or reply.usage
        for choice in chunk.choices or ():
            index = choice.index or 0
            text, thought = (choice.text or "", "") if choice.delta is None else message_pieces(choice.delta)
            for piece, kind, into in ((thought, True, reasonings), (text, False, outputs)):
                if piece:
                    reply.texts.append(piece)
                    reply.ends.append(end)
                    kinds.append(kind)
                    into.setdefault(index, []).append(piece)
            if choice.delta is not None and choice.delta.tool_calls and index == 0:
                add_tool_calls(choice.delta.tool_calls, calls)
            if choice.finish_reason:
                finish[index] = choice.finish_reason
    reply.items = [calls[key] for key in sorted(calls)]
    if calls:
        choices = [choice for chunk in chunks for choice in chunk.choices or () if not choice.index]
        reply.content = "".join([choice.delta.content or "" for choice in choices if choice.delta is not None])
    reply.reasoning = kinds if any(kinds) else None
    reply.outputs = ["".join(outputs[index]) for index in sorted(outputs)]
    reply.reasonings = ["".join(reasonings[index]) for index in sorted(reasonings)]
    reply.finish = [finish[index] for index in sorted(finish)]
    reply.done = reply.done or bool(finish)
    return reply, any(outputs) or any(reasonings) or any(finish)
