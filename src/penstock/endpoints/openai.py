"""What chat completions and completions have in common: choices, usage, error objects, `[DONE]`.

Replies are read in two ways. The typed way decodes all events of a stream in one call (0.3 µs an event) and serves every
server that keeps to the types. Whatever it refuses is read again event by event, untyped and forgiving.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import msgspec

from penstock.endpoints.base import Reply
from penstock.records.record import Failure, Usage
from penstock.wire import sse

__all__ = ["error_failure", "read_choices", "read_untyped", "read_usage", "read_whole", "usage_of", "with_stream_options"]

DONE = b"[DONE]"


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    function: Function | None = None
    index: int | None = None
    id: str | None = None


class Message(msgspec.Struct):
    """A whole message or the delta of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class Details(msgspec.Struct):
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


_NO_DETAILS = Details()


class WireUsage(msgspec.Struct):
    """A usage object as it is sent, under any of the names in use."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None
    cached_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    object: str | None = None
    model: str | None = None


_decode_one = msgspec.json.Decoder(Chunk).decode
_decode_all = msgspec.json.Decoder(list[Chunk]).decode
_decode_strings = msgspec.json.Decoder(list[str]).decode
_decode_any = msgspec.json.decode


def decode_events(data: list[bytes]) -> tuple[list[Chunk], Failure | None]:
    """The chunks before the first thing that is no chunk, and what is wrong with that."""
    if data and data[-1] == DONE:
        data = data[:-1]
    try:
        return _decode_all(b"[" + b",".join(data) + b"]"), None
    except msgspec.MsgspecError:
        pass
    chunks: list[Chunk] = []
    for event in data:
        if event == DONE:
            continue
        try:
            chunks.append(_decode_one(event))
        except msgspec.ValidationError:
            chunks.append(read_untyped(_decode_any(event)))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return chunks, malformed(event)
    return chunks, None


def decode_body(body: bytes) -> tuple[Chunk | None, Failure | None]:
    try:
        return _decode_one(body), None
    except msgspec.ValidationError:
        found = _decode_any(body)
        if isinstance(found, dict):
            return read_untyped(found), None
        return None, Failure("InvalidReply", f"The reply is JSON, but not an object: {_excerpt(body)}", "server")
    except (msgspec.DecodeError, UnicodeDecodeError):
        if not body.strip():
            return None, Failure("EmptyReply", "The reply has no body.", "server")
        return None, Failure("MalformedJSON", f"The reply is not JSON: {_excerpt(body)}", "server")


def malformed(event: bytes) -> Failure:
    return Failure("MalformedEvent", f"An event of the stream is not JSON: {_excerpt(event)}", "server")


def _excerpt(data: bytes) -> str:
    text = data[:120].decode("utf-8", "replace")
    return repr(text) + ("…" if len(data) > 120 else "")


def read_untyped(found: Any) -> Chunk:
    """The forgiving reading: whatever has another type than the API says is taken as far as it makes sense."""
    if not isinstance(found, dict):
        return Chunk()
    choices = []
    for item in found.get("choices") or []:
        if not isinstance(item, dict):
            continue
        index = item.get("index")
        choices.append(
            Choice(
                index=index if isinstance(index, int) else None,
                delta=_untyped_message(item.get("delta")),
                message=_untyped_message(item.get("message")),
                text=_text(item.get("text")),
                finish_reason=_text(item.get("finish_reason")),
            )
        )
    return Chunk(
        choices=choices,
        usage=usage_of(found.get("usage")),
        error=found.get("error"),
        object=_text(found.get("object")),
        model=_text(found.get("model")),
    )


def _untyped_message(found: Any) -> Message | None:
    if not isinstance(found, dict):
        return None
    calls = []
    for call in found.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            index = call.get("index")
            calls.append(
                ToolCall(
                    Function(_text(function.get("name")), _text(function.get("arguments"))),
                    index if isinstance(index, int) else None,
                    _text(call.get("id")),
                )
            )
    return Message(
        content=_text(found.get("content")),
        reasoning_content=_text(found.get("reasoning_content")),
        reasoning=_text(found.get("reasoning")),
        refusal=_text(found.get("refusal")),
        tool_calls=calls or None,
    )


def _text(found: Any) -> str | None:
    """A string, the text of content parts, or the JSON of anything else that holds something."""
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in found]
        return "".join(part for part in parts if isinstance(part, str))
    if isinstance(found, dict) and found:
        return msgspec.json.encode(found).decode()
    return None


def error_failure(chunk: Chunk) -> Failure | None:
    """The failure that an error object stands for, in the shapes that servers use."""
    error = chunk.error
    if not error:
        return None
    code = None
    if isinstance(error, dict):
        message = error.get("message") or msgspec.json.encode(error).decode()
        code = error.get("code") if isinstance(error.get("code"), int) else None
        kind = error.get("type") or error.get("code")
        message = f"{message} ({kind})" if kind else message
    else:
        message = error if isinstance(error, str) else msgspec.json.encode(error).decode()
    return Failure("ErrorObject", f"The server replied with an error object: {message}", "server", code)


def message_pieces(message: Message) -> tuple[str, str]:
    """(visible text, reasoning) of a message or delta."""
    calls = message.tool_calls
    if calls is None and message.refusal is None:
        text = message.content or ""
    else:
        parts = [message.content or "", message.refusal or ""]
        for call in calls or []:
            if call.function is not None:
                parts += [call.function.name or "", call.function.arguments or ""]
        text = "".join(parts)
    return text, message.reasoning_content or message.reasoning or ""


def add_tool_calls(calls: list[ToolCall], into: dict[int, dict[str, Any]]) -> None:
    """Put the fragments of tool calls together, as a history wants them."""
    for place, call in enumerate(calls):
        key = place if call.index is None else call.index
        whole = into.setdefault(key, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        whole["id"] = call.id or whole["id"]
        if call.function is not None:
            whole["function"]["name"] += call.function.name or ""
            whole["function"]["arguments"] += call.function.arguments or ""


def read_choices(body: bytes, field: bytes, *, timed: bool) -> Reply:
    """A stream of chunks, of chat (`delta`) or completions (`text`); `field` is the key before the text."""
    return _repetitive(body, field, timed) or _by_event(body)


def _repetitive(body: bytes, field: bytes, timed: bool) -> Reply | None:
    """The common stream, three times faster than by decoding each event.

    The events of one reply differ in nothing but their text. So the bytes around the first text are found once, the rest
    of the body is split by them, and only the texts are decoded, as one list. Proof that nothing else was between them:
    had a part held more than the inside of one string, the decoded list would be longer than the list of parts.
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
    cut = len(prefix)
    parts = [piece[cut:] for piece in pieces if piece.startswith(prefix)]
    others = pieces[len(parts) :]
    if not others or any(piece.startswith(prefix) for piece in others):
        return None  # the last one is not complete, or the alike ones are not in one run
    tail = suffix.join(others)
    try:
        texts = _decode_strings(b'["' + b'","'.join(parts) + b'"]')
        sample = _decode_one(body[begin + 6 : after])
    except msgspec.MsgspecError:
        return None
    if len(texts) != len(parts) or not _is_plain(sample) or "" in texts:
        return None
    head = _by_event(body[:begin])
    rest = _by_event(tail)
    if head.failure or rest.failure or head.reasoning or head.finish or rest.reasoning or len(rest.outputs) > 1:
        return None
    reply = rest
    if timed:
        around = cut + len(suffix)
        offsets = accumulate([len(part) + around for part in parts], initial=begin)
        next(offsets)
        tail_at = len(body) - len(tail)
        reply.ends = [*head.ends, *offsets, *[tail_at + end for end in rest.ends]]
    reply.texts = [*head.texts, *texts, *rest.texts]
    reply.outputs = ["".join(reply.texts)]
    reply.usage = rest.usage or head.usage
    reply.model = head.model or rest.model or sample.model
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


def _is_plain(chunk: Chunk) -> bool:
    """One choice with text, and nothing else that would count."""
    if chunk.error or not chunk.choices or len(chunk.choices) > 1 or chunk.usage:
        return False
    choice = chunk.choices[0]
    delta = choice.delta
    if choice.index or choice.finish_reason:
        return False
    if delta is None:
        return bool(choice.text)
    return bool(delta.content) and not (delta.tool_calls or delta.reasoning_content or delta.reasoning or delta.refusal)


def _by_event(body: bytes) -> Reply:
    reply = Reply()
    events = sse.split(body)
    data = events.data
    if events.names is not None and b"error" in events.names:
        at = events.names.index(b"error")
        reply.failure = Failure("ErrorEvent", f"The stream holds an error event: {_excerpt(data[at])}", "server")
        data = data[:at]
    chunks, failure = decode_events(data)
    reply.failure = failure or reply.failure
    reply.done = bool(data) and data[-1] == DONE
    outputs: dict[int, list[str]] = {}
    reasonings: dict[int, list[str]] = {}
    finish: dict[int, str] = {}
    calls: dict[int, dict[str, Any]] = {}
    kinds: list[bool] = []
    for chunk, end in zip(chunks, events.ends, strict=False):
        if chunk.error or chunk.object == "error":
            reply.failure = error_failure(chunk) or Failure(
                "ErrorObject", "The stream ended in an error object.", "server"
            )
            break
        reply.model = reply.model or chunk.model
        if chunk.usage:
            reply.usage = read_usage(chunk.usage)
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
    reply.reasoning = kinds if any(kinds) else None
    reply.outputs = ["".join(outputs[index]) for index in sorted(outputs)]
    reply.reasonings = ["".join(reasonings[index]) for index in sorted(reasonings)]
    reply.finish = [finish[index] for index in sorted(finish)]
    reply.done = reply.done or bool(finish)
    return reply


def read_whole(body: bytes) -> Reply:
    """A reply that is not streamed."""
    reply = Reply()
    chunk, reply.failure = decode_body(body)
    if chunk is None:
        return reply
    if chunk.error or chunk.object == "error":
        reply.failure = error_failure(chunk) or Failure(
            "ErrorObject", f"The reply is an error: {_excerpt(body)}", "server"
        )
        return reply
    for choice in chunk.choices or []:
        text, thought = (choice.text or "", "") if choice.message is None else message_pieces(choice.message)
        if text:
            reply.outputs.append(text)
        if thought:
            reply.reasonings.append(thought)
        if choice.finish_reason:
            reply.finish.append(choice.finish_reason)
        if choice.message is not None and choice.message.tool_calls and not reply.items:
            calls: dict[int, dict[str, Any]] = {}
            add_tool_calls(choice.message.tool_calls, calls)
            reply.items = list(calls.values())
    if not chunk.choices:
        reply.failure = Failure("InvalidReply", f"The reply has no choices: {_excerpt(body)}", "server")
    if chunk.usage:
        reply.usage = read_usage(chunk.usage)
    reply.model = chunk.model
    reply.done = True
    return reply


def read_usage(usage: WireUsage) -> Usage:
    """Token counts under any of the names that servers give them."""
    given = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    made = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    cached = given.cached_tokens
    if cached is None:
        cached = _first(usage.cache_read_input_tokens, usage.prompt_cache_hit_tokens, usage.cached_tokens)
    return Usage(
        usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens,
        usage.total_tokens,
        made.reasoning_tokens,
        cached,
        usage.cache_creation_input_tokens,
        given.audio_tokens,
        made.audio_tokens,
        made.accepted_prediction_tokens,
        made.rejected_prediction_tokens,
    )


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def usage_of(found: Any) -> WireUsage | None:
    """The forgiving reading of a usage object: counts that are whole numbers, and nothing else."""
    if not isinstance(found, dict) or not found:
        return None
    counts: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            counts[name] = {key: count for key, count in value.items() if _is_count(count)}
        elif _is_count(value):
            counts[name] = value
    return msgspec.convert(counts, WireUsage)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def with_stream_options(body: dict[str, Any]) -> None:
    """Ask for usage at the end of a stream; what the user set stays."""
    if body.get("stream") is True:
        options = body.get("stream_options")
        body["stream_options"] = {"include_usage": True, **(options if isinstance(options, dict) else {})}
