"""What chat completions and completions have in common: choices, usage, error objects, `[DONE]`.

Replies are read in two ways. The typed way decodes all events of a stream in one call (0.3 µs an event) and serves every
server that keeps to the types. Whatever it refuses is read again event by event, untyped and forgiving.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import Annotated, Any

import msgspec

from penstock.endpoints.base import Reply
from penstock.records.record import Failure, Usage
from penstock.wire import sse

__all__ = [
    "error_failure",
    "read_choices",
    "read_untyped",
    "read_usage",
    "read_whole",
    "usage_of",
    "with_stream_options",
]

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


_LARGEST = 1 << 62
Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class Details(msgspec.Struct):
    reasoning_tokens: Count | None = None
    cached_tokens: Count | None = None
    audio_tokens: Count | None = None
    accepted_prediction_tokens: Count | None = None
    rejected_prediction_tokens: Count | None = None


_NO_DETAILS = Details()
_NO_USAGE = Usage()


class WireUsage(msgspec.Struct):
    """A usage object as it is sent, under any of the names in use."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None
    cached_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    prompt_cache_hit_tokens: Count | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    object: str | None = None
    model: str | None = None
    message: Any = None
    type: Any = None
    code: Any = None


_NOTHING = Chunk()
_decode_one = msgspec.json.Decoder(Chunk).decode
_decode_all = msgspec.json.Decoder(list[Chunk]).decode
_decode_strings = msgspec.json.Decoder(list[str]).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_events(data: list[bytes]) -> tuple[list[Chunk], Failure | None]:
    """A chunk for each event before the first that is not JSON, and what is wrong with that one."""
    if data and data[-1] == DONE:
        data = data[:-1]
    try:
        chunks = _decode_all(b"[" + b",".join(data) + b"]")
        if len(chunks) == len(data):  # an event can hold two objects with a comma between them
            return chunks, None
    except _UNREADABLE:
        pass
    chunks = []
    for event in data:
        try:
            chunks.append(_decode_event(event))
        except (ValueError, RecursionError):
            return chunks, malformed(event)
    return chunks, None


def _decode_event(event: bytes) -> Chunk:
    try:
        return _decode_one(event)
    except _UNREADABLE:
        bare = event.strip()
        return _NOTHING if bare in (b"", DONE) else read_untyped(json.loads(bare))


def decode_body(body: bytes) -> tuple[Chunk | None, Failure | None]:
    try:
        return _decode_one(body), None
    except _UNREADABLE:
        pass
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        if not body.strip():
            return None, Failure("EmptyReply", "The reply has no body.", "server")
        return None, Failure("MalformedJSON", f"The reply is not JSON: {_excerpt(body)}", "server")
    if isinstance(found, dict):
        return read_untyped(found), None
    return None, Failure("InvalidReply", f"The reply is JSON, but not an object: {_excerpt(body)}", "server")


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
    for item in _list(found.get("choices")):
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
        message=found.get("message"),
        type=found.get("type"),
        code=found.get("code"),
    )


def _untyped_message(found: Any) -> Message | None:
    if not isinstance(found, dict):
        return None
    calls = []
    for call in _list(found.get("tool_calls")):
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


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _text(found: Any) -> str | None:
    """A string, the text of content parts, or the JSON of anything else that holds something."""
    if isinstance(found, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in found]
        found = "".join(part for part in parts if isinstance(part, str))
    elif isinstance(found, dict) and found:
        found = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return _whole(found) if isinstance(found, str) else None


def _whole(text: str) -> str:
    """Halves of characters, which some servers escape one by one, are replaced: nothing can store them."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def error_failure(chunk: Chunk) -> Failure | None:
    """The failure that an error object stands for, in the shapes that servers use."""
    error = chunk.error
    if not error:
        if chunk.object != "error":
            return None
        error = {"message": chunk.message, "type": chunk.type, "code": chunk.code}
    code = None
    message = error
    if isinstance(error, dict):
        message = error.get("message") or error
        code = error.get("code")
        kind = _text(error.get("type")) or code
        message = f"{_text(message)} ({kind})" if kind else message
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    known = code if isinstance(code, int) and abs(code) < 1 << 31 else None
    return Failure("ErrorObject", f"The server replied with an error object: {_whole(message)}", "server", known)


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
        sample = _decode_one(body[begin + 6 : after])
    except _UNREADABLE:
        return None
    if len(texts) != len(parts) or "" in texts or _plain_text(sample) != texts[0]:
        return None
    reply, several = _read_events(body[:begin] + tail)  # what stands around the run
    if reply.failure or reply.reasoning or several or reply.model not in (None, sample.model):
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
    return None if delta.tool_calls or delta.reasoning_content or delta.reasoning or delta.refusal else delta.content


def _by_event(body: bytes) -> Reply:
    return _read_events(body)[0]


def _read_events(body: bytes) -> tuple[Reply, bool]:
    """The reply, and whether it has other choices than the first."""
    reply = Reply()
    events = sse.split(body)
    data = events.data
    if events.names is not None and b"error" in events.names:
        at = events.names.index(b"error")
        reply.failure = Failure("ErrorEvent", f"The stream holds an error event: {_excerpt(data[at])}", "server")
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
    reply.reasoning = kinds if any(kinds) else None
    reply.outputs = ["".join(outputs[index]) for index in sorted(outputs)]
    reply.reasonings = ["".join(reasonings[index]) for index in sorted(reasonings)]
    reply.finish = [finish[index] for index in sorted(finish)]
    reply.done = reply.done or bool(finish)
    return reply, any(outputs) or any(reasonings) or any(finish)


def read_whole(body: bytes) -> Reply:
    """A reply that is not streamed."""
    reply = Reply()
    chunk, reply.failure = decode_body(body)
    if chunk is None:
        return reply
    if chunk.error or chunk.object == "error":
        reply.failure = error_failure(chunk)
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


def read_usage(usage: WireUsage) -> Usage | None:
    """Token counts under any of the names that servers give them; None when there are none."""
    given = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    made = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    cached = given.cached_tokens
    if cached is None:
        cached = usage.cache_read_input_tokens
    if cached is None:
        cached = usage.prompt_cache_hit_tokens
    if cached is None:
        cached = usage.cached_tokens
    found = Usage(
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
    return None if found == _NO_USAGE else found


def usage_of(found: Any) -> WireUsage | None:
    """The forgiving reading of a usage object: counts that are whole numbers, and nothing else."""
    if not isinstance(found, dict) or not found:
        return None
    counts: dict[str, Any] = {}
    for name in WireUsage.__struct_fields__:
        value = found.get(name)
        if not name.endswith("_details"):
            counts[name] = value if _is_count(value) else None
        elif isinstance(value, dict):
            counts[name] = {key: value[key] for key in Details.__struct_fields__ if _is_count(value.get(key))}
    return msgspec.convert(counts, WireUsage)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def with_stream_options(body: dict[str, Any]) -> None:
    """Ask for usage at the end of a stream; what the user set stays."""
    if body.get("stream") is True:
        options = body.get("stream_options")
        body["stream_options"] = {"include_usage": True, **(options if isinstance(options, dict) else {})}
