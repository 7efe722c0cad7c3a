"""Replies of the Responses API: what was said, when, how it ended, and whether it contradicts itself.

Most of a stream is runs of deltas of one type. A run is split by the bytes between its events, joined to one JSON list
and decoded in one call, whatever else differs in them (sequence numbers, padding against eavesdroppers): 35 µs for 100
deltas of 200 bytes. What lies between the runs is decoded together, and any stream in another form event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec

from penstock.endpoints.openai_types import DONE, UNREADABLE, Chunk, error_failure
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.reply_errors import excerpt, malformed, not_json
from penstock.endpoints.responses_events import EVENTS, REASONING_KINDS
from penstock.endpoints.responses_types import (
    Event,
    Response,
    decode_event,
    decode_events,
    item_of,
    part_of,
    response_of,
    texts_of,
)
from penstock.endpoints.usage import read_usage
from penstock.wire import sse

__all__ = ["read_response", "read_response_stream"]

_FULL_LENGTH = "max_output_tokens"
_UNFINISHED = (None, "in_progress", "queued")

_WITHIN = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.shell_call_command.delta": "command_index",
}
"""The field that tells several texts of one item apart, where it is not `content_index`."""

_Key = tuple[str, int | None, int | None]
"""Kind, output index and index within the item: where a text belongs."""


@cache
def _delta_decoder(name: str) -> Callable[[bytes], list[Any]]:
    """Reads a list of deltas, and refuses a list that holds anything else."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("delta", str)]
    fields += [("output_index", int | None, None), ("within", int | None, None)]
    renamed = {"within": _WITHIN.get(name, "content_index")}
    kind = msgspec.defstruct("Delta", fields, tag_field="type", tag=name, rename=renamed, gc=False)
    return msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]


def read_response_stream(body: bytes, *, timed: bool) -> Reply:
    reading = _in_runs(body, timed)
    if reading is None:
        reading = _Reading()
        reading.body(body)
    return reading.finish(is_blank=not body.strip())


def read_response(body: bytes) -> Reply:
    """A reply that is not streamed."""
    try:
        response = response_of(body)
    except (ValueError, RecursionError):
        reply = Reply()
        reply.failure = not_json(body)
        return reply
    return _whole_body(response, body)


def _whole_body(response: Response, body: bytes) -> Reply:
    reply = Reply()
    if response.object == "error" or (response.error and response.object != "response"):
        reply.failure = error_failure(Chunk(error=response.error, object=response.object, message=response.message))
        return reply
    if response.output is None and not response.output_text:
        reply.failure = Failure("InvalidReply", f"The reply has no output: {excerpt(body)}", "server")
        return reply
    visible: list[str] = []
    thought: list[str] = []
    for raw in response.output or ():
        item = item_of(raw)
        visible.append(item.name or "")
        for kind, _, text in texts_of(item):
            (thought if kind in REASONING_KINDS else visible).append(text)
    text = "".join(visible) or response.output_text or ""
    reply.outputs = [text] if text else []
    reply.reasonings = ["".join(thought)] if any(thought) else []
    reply.items = list(response.output or ())
    _conclude(reply, response, response.status or "completed")
    return reply


def _conclude(reply: Reply, response: Response, status: str) -> None:
    """What the response object says about the whole."""
    reply.done = True
    reply.id = response.id or reply.id
    reply.model = response.model or reply.model
    reply.usage = read_usage(response.usage) if response.usage is not None else None
    cause = response.incomplete_details
    reason = cause.get("reason") if isinstance(cause, dict) else None
    if status == "completed" or (status == "incomplete" and reason == _FULL_LENGTH):
        reply.finish = ["completed" if status == "completed" else _FULL_LENGTH]
    elif reply.failure is None:
        reply.failure = _not_completed(status, reason, response.error)


def _not_completed(status: str, reason: Any, error: Any) -> Failure:
    if status == "failed":
        return Failure("ResponseFailed", f"The response failed: {_told(error)}", "server")
    if status == "incomplete":
        return Failure("ResponseIncomplete", f"The response is incomplete: {reason or 'no reason is given'}.", "server")
    return Failure("ResponseNotCompleted", f"The response ended with the status '{status}'.", "server")


def _told(error: Any) -> str:
    """Message and code of an error object."""
    if not isinstance(error, dict):
        return str(error) if error else "no error is given."
    code = error.get("code") or error.get("type")
    return f"{error.get('message') or 'without a message'}" + (f" ({code})" if code else "")


def _in_runs(body: bytes, timed: bool) -> _Reading | None:
    """None for a stream in which not every event is one `event:` and one `data:` line, or a run is not what it seems."""
    reading = _Reading()
    data: list[bytes] = []
    ends: list[int] = []
    names: list[bytes] = []
    here, size = 0, len(body)
    while here < size:
        line = body.find(b"\n", here)
        stop = body.find(b"\n\n", line)
        if line < 0 or stop < 0 or not body.startswith(b"event: ", here) or not body.startswith(b"data: ", line + 1):
            return None
        name = body[here + 7 : line]
        known = name.decode("latin-1")
        meaning = EVENTS.get(known)
        mark = body[here : line + 7] if meaning is not None and meaning.role == "delta" else b""
        if mark and body.startswith(mark, stop + 2):
            stop = body.find(b"\n\n", body.rfind(mark))
            reading.events(data, ends, names)
            data, ends, names = [], [], []
            if stop < 0 or not reading.run(known, body[line + 7 : stop], mark, here, timed):
                return None
        else:
            data.append(body[line + 7 : stop])
            ends.append(stop + 2)
            names.append(name)
        here = stop + 2
    reading.events(data, ends, names)
    return reading


class _Reading:
    """A stream while it is read."""

    def __init__(self) -> None:
        self.reply = Reply()
        self._texts: dict[_Key, list[str]] = {}
        self._confirmed: set[_Key] = set()
        self._reasoning: list[bool] = []
        self._items: dict[int | None, msgspec.Raw] = {}
        self._names: dict[int | None, str] = {}
        self._end: tuple[str, str, Response, int] | None = None
        """Type and status of the terminal event, what it holds, and where it ends."""
        self._known = 0

    def run(self, name: str, data: bytes, mark: bytes, begin: int, timed: bool) -> bool:
        """Deltas of one type in a row, `mark` before each of them. False when it is something else."""
        parts = data.split(b"\n\n" + mark)
        try:
            deltas = _delta_decoder(name)(b"[" + b",".join(parts) + b"]")
        except UNREADABLE:
            return False
        size = len(deltas)
        texts = [delta.delta for delta in deltas]
        items = [delta.output_index for delta in deltas]
        places = [delta.within for delta in deltas]
        if size != len(parts) or "" in texts or items.count(items[0]) != size or places.count(places[0]) != size:
            return False  # several texts can take turns, for example
        kind = EVENTS[name].kind
        self._texts.setdefault((kind, items[0], places[0]), []).append("".join(texts))
        self._known += size
        self._reasoning += [kind in REASONING_KINDS] * size
        self.reply.texts += texts
        if timed:
            around = len(mark) + 2
            ends = accumulate([len(part) + around for part in parts], initial=begin)
            next(ends)
            self.reply.ends += ends
        else:
            self.reply.ends += [begin] * size
        return True

    def body(self, body: bytes) -> None:
        """A whole stream, event by event."""
        found = sse.split(body)
        self.events(found.data, found.ends, found.names)

    def events(self, data: list[bytes], ends: list[int], names: list[bytes] | None) -> None:
        """`names` are for events whose data does not say of which type they are."""
        while data and data[-1].strip() == DONE:
            data.pop()
        events = decode_events(data)
        if events is None:
            events = []
            for each in data:
                try:
                    events.append(Event() if each.strip() in (b"", DONE) else decode_event(each))
                except (ValueError, RecursionError):
                    self._fail(malformed(each))
                    break
        for at, event in enumerate(events):
            if not event.type and names is not None:
                event.type = names[at].decode("utf-8", "replace")
            try:
                self._event(event, ends[at], data[at])
            except (ValueError, RecursionError):  # a part of it that only now was looked into
                self._fail(malformed(data[at]))

    def _event(self, event: Event, end: int, data: bytes) -> None:
        meaning = EVENTS.get(event.type)
        if meaning is None:
            self._unknown(event, data)
            return
        self._known += 1
        role, kind, field = meaning
        if role == "delta":
            if event.delta:
                self._piece(_key(kind, event), event.delta, end)
        elif role == "whole":
            self._whole(_key(kind, event), getattr(event, field), event.type, end)
        elif role == "part" and event.part:
            kind, text = part_of(event.part)
            self._whole(_key(kind, event), text, event.type, end)
        elif role == "item" and event.item:
            self._item(event, end)
        elif role == "terminal":
            response = response_of(event.response) if event.response else Response()
            if self._end is None:
                self._end = event.type, self._status(kind, response.status, event.type), response, end
        elif role == "error":
            self._fail(Failure("ErrorEvent", f"The stream holds an error event: {_error_of(event)}", "server"))
        elif event.response and self.reply.id is None:
            begun = response_of(event.response)
            self.reply.id, self.reply.model = begun.id, begun.model

    def _unknown(self, event: Event, data: bytes) -> None:
        if event.error:
            self._fail(error_failure(Chunk(error=event.error)))
        elif data.strip() not in (b"", DONE):
            self._warn(f"Events of an unknown type, {event.type or 'without a name'}")

    def _status(self, stands_for: str, said: str | None, name: str) -> str:
        """The response's own status, unless it was left at one that is no end."""
        if said not in _UNFINISHED:
            return said or stands_for
        self._warn(f"{name} with the status {said}")
        return stands_for

    def _piece(self, key: _Key, text: str, end: int) -> None:
        self._texts.setdefault(key, []).append(text)
        self.reply.texts.append(text)
        self.reply.ends.append(end)
        self._reasoning.append(key[0] in REASONING_KINDS)

    def _whole(self, key: _Key, text: str | None, name: str, end: int) -> None:
        """A text that should be that of the deltas before; without any, it is the content itself."""
        if not text:
            return
        streamed = self._texts.get(key)
        if streamed is None:
            # Some servers count indexes differently in deltas and in what ends them.
            alike = [each for each in self._texts if each[0] == key[0]]
            if any("".join(self._texts[each]) == text for each in alike):
                return
            if all(each in self._confirmed for each in alike):
                self._piece(key, text, end)
                self._confirmed.add(key)
                self._warn(f"Texts that came in {name} and not in deltas")
                return
        elif "".join(streamed) == text:
            self._confirmed.add(key)
            return
        self._confirmed.add(key)
        self._warn(f"{name} with another text than the deltas before it")

    def _item(self, event: Event, end: int) -> None:
        item = item_of(event.item)
        self._items[event.output_index] = event.item
        if item.name:
            self._names[event.output_index] = item.name
        for kind, index, text in texts_of(item):
            key = kind, event.output_index, None if kind in ("arguments", "code") else index
            self._whole(key, text, event.type, end)

    def _fail(self, failure: Failure | None) -> None:
        self.reply.failure = self.reply.failure or failure

    def _warn(self, what: str) -> None:
        warnings = self.reply.warnings
        warnings[what] = warnings.get(what, 0) + 1

    def finish(self, *, is_blank: bool) -> Reply:
        reply = self.reply
        if self._end is not None:
            name, status, response, end = self._end
            self._compare(response, name, end)
            _conclude(reply, response, status)
        elif reply.failure is None and not is_blank:
            self._fail(_cut_short(self._known))
        reply.items = reply.items or [self._items[at] for at in sorted(self._items, key=lambda at: at or 0)]
        visible = []
        for kind, output, _ in self._texts:
            if kind not in REASONING_KINDS:
                visible.append(self._names.pop(output, "") if kind == "arguments" else "")
                visible += self._texts[kind, output, _]
        thought = [text for key, texts in self._texts.items() if key[0] in REASONING_KINDS for text in texts]
        visible += self._names.values()
        reply.outputs = ["".join(visible)] if any(visible) else []
        reply.reasonings = ["".join(thought)] if thought else []
        reply.reasoning = self._reasoning if True in self._reasoning else None
        return reply

    def _compare(self, response: Response, name: str, end: int) -> None:
        """The terminal event holds the whole output once more, item by item: kind by kind it must be what was streamed."""
        told: dict[str, str] = {}
        ids = set()
        for at, raw in enumerate(response.output or ()):
            item = item_of(raw)
            ids.add(item.id)
            if item.name:
                self._names.setdefault(at, item.name)
            for kind, _, text in texts_of(item):
                told[kind] = told.get(kind, "") + text
        for kind, text in told.items():
            streamed = "".join(["".join(texts) for key, texts in self._texts.items() if key[0] == kind])
            if text and not streamed:
                self._whole((kind, None, None), text, name, end)
            elif text and streamed != text:
                self._warn(f"{name} with another text than the deltas")
        missing = [raw for raw in self._items.values() if item_of(raw).id not in ids]
        self.reply.items = [*(response.output or ()), *missing]


def _key(kind: str, event: Event) -> _Key:
    if kind == "summary":
        return kind, event.output_index, event.summary_index
    return kind, event.output_index, event.command_index if kind == "command" else event.content_index


def _error_of(event: Event) -> str:
    if event.error:
        return _told(event.error)
    return _told({"message": event.message, "code": event.code})


def _cut_short(known: int) -> Failure:
    if not known:
        return Failure("NotResponses", "The stream holds no event of the Responses API; check the path.", "server")
    return Failure(
        "TruncatedStream",
        "The stream ended without response.completed or another terminal event: it was cut short.",
        "server",
    )
