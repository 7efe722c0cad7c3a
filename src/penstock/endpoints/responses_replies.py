"""Replies of the Responses API: texts, status, usage, and contradictions between the events of a stream.

A stream consists mostly of runs of deltas of one type. A run is split at the bytes between its events, joined to one JSON
list and decoded in one call, although the events differ in more than their text (sequence numbers, random padding). This
takes 35 µs for 100 deltas of 200 bytes, a quarter of the time for reading event by event. The events between the runs
are decoded together. A stream of another form is read event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import Any

import msgspec

from penstock.endpoints.json_replies import DONE, UNREADABLE, error_failure, excerpt, malformed, not_json
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.responses_events import EVENTS, REASONING_KINDS
from penstock.endpoints.responses_types import (
    Event,
    Response,
    decode,
    decode_events,
    decode_item,
    decode_part,
    item_texts,
)
from penstock.endpoints.usage import read_usage
from penstock.wire import sse

_LENGTH_LIMIT = "max_output_tokens"
_UNFINISHED = (None, "in_progress", "queued")

_TEXT_INDEX_FIELDS = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.shell_call_command.delta": "command_index",
}
"""The index field that distinguishes several texts of one item, where it is not `content_index`."""

_Key = tuple[str, int | None, int | None]
"""Identifies a text: kind, index of the output item, index within the item."""


@cache
def _delta_decoder(name: str) -> Callable[[bytes], list[Any]]:
    """Return a decoder for a list of deltas of one event type; it refuses a list with anything else."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("delta", str)]
    fields += [("output_index", int | None, None), ("text_index", int | None, None)]
    json_names = {"text_index": _TEXT_INDEX_FIELDS.get(name, "content_index")}
    delta = msgspec.defstruct("Delta", fields, tag_field="type", tag=name, rename=json_names, gc=False)
    return msgspec.json.Decoder(list[delta]).decode  # type: ignore[valid-type]


def read_response_stream(body: bytes, *, timed: bool) -> Reply:
    reader = _read_runs(body, timed)
    if reader is None:
        reader = _StreamReader()
        reader.add_body(body)
    return reader.finish(is_blank=not body.strip())


def read_response(body: bytes) -> Reply:
    """Read an unstreamed reply."""
    try:
        response = decode(body, Response)
    except UNREADABLE:
        return Reply(not_json(body))
    return _read_response_object(response, body)


def _read_response_object(response: Response, body: bytes) -> Reply:
    if response.object == "error" or (response.error and response.object != "response"):
        return Reply(error_failure(response.error or {"message": response.message, "type": None, "code": None}))
    if response.output is None and not response.output_text:
        return Reply(Failure("InvalidReply", f"The reply has no output: {excerpt(body)}", "server"))
    reply = Reply()
    visible: list[str] = []
    reasoning: list[str] = []
    for raw in response.output or ():
        item = decode_item(raw)
        visible.append(item.name or "")
        for kind, _, text in item_texts(item):
            (reasoning if kind in REASONING_KINDS else visible).append(text)
    text = "".join(visible) or response.output_text or ""
    reply.outputs = [text] if text else []
    reply.reasonings = ["".join(reasoning)] if any(reasoning) else []
    reply.items = list(response.output or ())
    _set_outcome(reply, response, response.status or "completed")
    return reply


def _set_outcome(reply: Reply, response: Response, status: str) -> None:
    """Set id, model, usage, and the finish reason or failure from the response object."""
    reply.done = True
    reply.id = response.id or reply.id
    reply.model = response.model or reply.model
    reply.usage = read_usage(response.usage) if response.usage is not None else None
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    if status == "completed" or (status == "incomplete" and reason == _LENGTH_LIMIT):
        reply.finish = ["completed" if status == "completed" else _LENGTH_LIMIT]
    elif reply.failure is None:
        reply.failure = _status_failure(status, reason, response.error)


def _status_failure(status: str, reason: Any, error: Any) -> Failure:
    if status == "failed":
        return Failure("ResponseFailed", f"The response failed: {_error_message(error)}", "server")
    if status == "incomplete":
        return Failure("ResponseIncomplete", f"The response is incomplete: {reason or 'no reason is given'}.", "server")
    return Failure("ResponseNotCompleted", f"The response ended with the status '{status}'.", "server")


def _error_message(error: Any) -> str:
    """Return the message and code of an error object."""
    if not isinstance(error, dict):
        return str(error) if error else "no error is given."
    code = error.get("code") or error.get("type")
    return f"{error.get('message') or 'without a message'}" + (f" ({code})" if code else "")


def _read_runs(body: bytes, timed: bool) -> _StreamReader | None:
    """Read a stream in which every event is one `event:` line and one `data:` line.

    Return None for any other stream, and if events with the same `event:` line are not deltas of one text."""
    reader = _StreamReader()
    data: list[bytes] = []
    ends: list[int] = []
    names: list[bytes] = []
    start, size = 0, len(body)
    while start < size:
        line_end = body.find(b"\n", start)
        end = body.find(b"\n\n", line_end)
        if (
            line_end < 0
            or end < 0
            or not body.startswith(b"event: ", start)
            or not body.startswith(b"data: ", line_end + 1)
        ):
            return None
        name = body[start + 7 : line_end]
        type_name = name.decode("latin-1")
        event_type = EVENTS.get(type_name)
        prefix = body[start : line_end + 7] if event_type is not None and event_type.role == "delta" else b""
        if prefix and body.startswith(prefix, end + 2):
            end = body.find(b"\n\n", body.rfind(prefix))
            reader.add_events(data, ends, names)
            data, ends, names = [], [], []
            if end < 0 or not reader.add_run(type_name, body[line_end + 7 : end], prefix, start, timed):
                return None
        else:
            data.append(body[line_end + 7 : end])
            ends.append(end + 2)
            names.append(name)
        start = end + 2
    reader.add_events(data, ends, names)
    return reader


class _StreamReader:
    """Builds a reply from the events of a stream."""

    def __init__(self) -> None:
        self.reply = Reply()
        self._texts: dict[_Key, list[str]] = {}
        self._confirmed: set[_Key] = set()
        """Texts that a done event has repeated."""
        self._reasoning: list[bool] = []
        self._items: dict[int | None, msgspec.Raw] = {}
        self._names: dict[int | None, str] = {}
        self._terminal: tuple[str, str, Response, int] | None = None
        """Type, status, response and end offset of the terminal event."""
        self._known_events = 0

    def add_run(self, name: str, data: bytes, prefix: bytes, start: int, timed: bool) -> bool:
        """Add consecutive deltas of one type, with `prefix` before each. Return False if they are not all of one text."""
        parts = data.split(b"\n\n" + prefix)
        try:
            deltas = _delta_decoder(name)(b"[" + b",".join(parts) + b"]")
        except UNREADABLE:
            return False
        size = len(deltas)
        texts = [delta.delta for delta in deltas]
        items = [delta.output_index for delta in deltas]
        indexes = [delta.text_index for delta in deltas]
        if size != len(parts) or "" in texts or items.count(items[0]) != size or indexes.count(indexes[0]) != size:
            return False  # for example, the deltas of two texts alternate
        kind = EVENTS[name].kind
        self._texts.setdefault((kind, items[0], indexes[0]), []).append("".join(texts))
        self._known_events += size
        self._reasoning += [kind in REASONING_KINDS] * size
        self.reply.texts += texts
        if timed:
            around = len(prefix) + 2
            ends = accumulate([len(part) + around for part in parts], initial=start)
            next(ends)
            self.reply.ends += ends
        else:
            self.reply.ends += [start] * size
        return True

    def add_body(self, body: bytes) -> None:
        """Add a complete stream, event by event."""
        events = sse.split(body)
        self.add_events(events.data, events.ends, events.names)

    def add_events(self, data: list[bytes], ends: list[int], names: list[bytes] | None) -> None:
        """Add events; `names` are used as the types of events without a `type`."""
        while data and data[-1].strip() == DONE:
            data.pop()
        events = decode_events(data)
        if events is None:
            events = []
            for event_data in data:
                try:
                    events.append(Event() if event_data.strip() in (b"", DONE) else decode(event_data, Event))
                except UNREADABLE:
                    self._fail(malformed(event_data))
                    break
        for index, event in enumerate(events):
            if not event.type and names is not None:
                event.type = names[index].decode("utf-8", "replace")
            try:
                self._add_event(event, ends[index], data[index])
            except UNREADABLE:  # raised by a nested object, which is decoded only here
                self._fail(malformed(data[index]))

    def _add_event(self, event: Event, end: int, data: bytes) -> None:
        event_type = EVENTS.get(event.type)
        if event_type is None:
            self._add_unknown_event(event, data)
            return
        self._known_events += 1
        role, kind, field = event_type
        if role == "delta":
            if event.delta:
                self._add_piece(_key(kind, event), event.delta, end)
        elif role == "done_text":
            self._add_done_text(_key(kind, event), getattr(event, field), event.type, end)
        elif role == "done_part" and event.part:
            kind, text = decode_part(event.part)
            self._add_done_text(_key(kind, event), text, event.type, end)
        elif role == "done_item" and event.item:
            self._add_done_item(event, end)
        elif role == "terminal":
            response = decode(event.response, Response) if event.response else Response()
            if self._terminal is None:
                self._terminal = event.type, self._status(kind, response.status, event.type), response, end
        elif role == "error":
            self._fail(Failure("ErrorEvent", f"The stream holds an error event: {_event_error(event)}", "server"))
        elif event.response and self.reply.id is None:
            response = decode(event.response, Response)
            self.reply.id, self.reply.model = response.id, response.model

    def _add_unknown_event(self, event: Event, data: bytes) -> None:
        if event.error:
            self._fail(error_failure(event.error))
        elif data.strip() not in (b"", DONE):
            self._warn(f"Events of an unknown type, {event.type or 'without a name'}")

    def _status(self, implied: str, stated: str | None, event_type: str) -> str:
        """Return the status of the response object, or that of the event type if the object is still unfinished."""
        if stated not in _UNFINISHED:
            return stated or implied
        self._warn(f"{event_type} with the status {stated}")
        return implied

    def _add_piece(self, key: _Key, text: str, end: int) -> None:
        self._texts.setdefault(key, []).append(text)
        self.reply.texts.append(text)
        self.reply.ends.append(end)
        self._reasoning.append(key[0] in REASONING_KINDS)

    def _add_done_text(self, key: _Key, text: str | None, event_type: str, end: int) -> None:
        """Compare a done text with its deltas; without deltas, add it as content."""
        if not text:
            return
        streamed = self._texts.get(key)
        if streamed is None:
            # Some servers use different indexes in deltas and in done events.
            same_kind = [other for other in self._texts if other[0] == key[0]]
            if any("".join(self._texts[other]) == text for other in same_kind):
                return
            if all(other in self._confirmed for other in same_kind):
                self._add_piece(key, text, end)
                self._confirmed.add(key)
                self._warn(f"Texts that came in {event_type} and not in deltas")
                return
        elif "".join(streamed) == text:
            self._confirmed.add(key)
            return
        self._confirmed.add(key)
        self._warn(f"{event_type} with another text than the deltas before it")

    def _add_done_item(self, event: Event, end: int) -> None:
        item = decode_item(event.item)
        self._items[event.output_index] = event.item
        if item.name:
            self._names[event.output_index] = item.name
        for kind, index, text in item_texts(item):
            key = kind, event.output_index, None if kind in ("arguments", "code") else index
            self._add_done_text(key, text, event.type, end)

    def _fail(self, failure: Failure | None) -> None:
        self.reply.failure = self.reply.failure or failure

    def _warn(self, warning: str) -> None:
        warnings = self.reply.warnings
        warnings[warning] = warnings.get(warning, 0) + 1

    def finish(self, *, is_blank: bool) -> Reply:
        """Return the reply. `is_blank` means that the body has no bytes but white space."""
        reply = self.reply
        if self._terminal is not None:
            event_type, status, response, end = self._terminal
            self._compare_output(response, event_type, end)
            _set_outcome(reply, response, status)
        elif reply.failure is None and not is_blank:
            self._fail(_unterminated(self._known_events))
        reply.items = reply.items or [self._items[index] for index in sorted(self._items, key=lambda index: index or 0)]
        visible = []
        for (kind, output_index, _), texts in self._texts.items():
            if kind not in REASONING_KINDS:
                visible.append(self._names.pop(output_index, "") if kind == "arguments" else "")
                visible += texts
        reasoning = [text for key, texts in self._texts.items() if key[0] in REASONING_KINDS for text in texts]
        visible += self._names.values()
        reply.outputs = ["".join(visible)] if any(visible) else []
        reply.reasonings = ["".join(reasoning)] if reasoning else []
        reply.reasoning = self._reasoning if True in self._reasoning else None
        return reply

    def _compare_output(self, response: Response, event_type: str, end: int) -> None:
        """Compare the complete output in the terminal event with the streamed texts, kind by kind."""
        output_texts: dict[str, str] = {}
        ids = set()
        for index, raw in enumerate(response.output or ()):
            item = decode_item(raw)
            ids.add(item.id)
            if item.name:
                self._names.setdefault(index, item.name)
            for kind, _, text in item_texts(item):
                output_texts[kind] = output_texts.get(kind, "") + text
        for kind, text in output_texts.items():
            streamed = "".join(["".join(texts) for key, texts in self._texts.items() if key[0] == kind])
            if text and not streamed:
                self._add_done_text((kind, None, None), text, event_type, end)
            elif text and streamed != text:
                self._warn(f"{event_type} with another text than the deltas")
        missing = [raw for raw in self._items.values() if decode_item(raw).id not in ids]
        self.reply.items = [*(response.output or ()), *missing]


def _key(kind: str, event: Event) -> _Key:
    if kind == "summary":
        return kind, event.output_index, event.summary_index
    return kind, event.output_index, event.command_index if kind == "command" else event.content_index


def _event_error(event: Event) -> str:
    if event.error:
        return _error_message(event.error)
    return _error_message({"message": event.message, "code": event.code})


def _unterminated(known_events: int) -> Failure:
    if not known_events:
        return Failure("NotResponses", "The stream holds no event of the Responses API; check the path.", "server")
    return Failure(
        "TruncatedStream",
        "The stream ended without response.completed or another terminal event: it was cut short.",
        "server",
    )
