"""Replace the upstream's model name by the alias in replies.

The name is the top-level member `model` of a whole reply, and a member of the events of a stream that the dialect names.
All other bytes, including any other `model`, stay as they are.
"""

from __future__ import annotations

import msgspec
import orjson

from penstock.gateway.dialects.sse_frames import Frame, Part, WholeReply
from penstock.gateway.json_edits import top_level_spans

_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""The common start of the escapes of all letters of the key. Without it the key can only be spelled literally."""
_HEAD_BYTES = 1 << 16
"""Leading bytes of an event that is split into parts, in which its name must be."""


class _Reply(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Reply).decode


def _top_level_spans(data: bytes) -> list[tuple[int, int]]:
    try:
        return _spans(data, bytes(_decode(data).model))
    except (msgspec.MsgspecError, RecursionError):  # half of a surrogate pair, split between two events
        return top_level_spans(data, "model")


def _nested_spans(data: bytes, path: tuple[str, ...]) -> list[tuple[int, int]]:
    spans = [(0, len(data))]
    for name in path:
        spans = [
            (begin + start, begin + end)
            for begin, stop in spans
            for start, end in top_level_spans(data[begin:stop], name)
        ]
    return spans


def _spans(data: bytes, raw: bytes) -> list[tuple[int, int]]:
    if not raw:
        return []
    if data.count(_KEY) == 1 and _ESCAPED not in data:  # the only occurrence is the key
        start = data.find(raw, data.index(_KEY) + len(_KEY))
        if start >= 0:
            return [(start, start + len(raw))]
    return top_level_spans(data, "model")


class ModelNames:
    """Replaces the name in a stream, event by event. Most events share their beginning up to the name, which saves
    parsing them."""

    def __init__(self, alias: str, path: tuple[str, ...] = ("model",)) -> None:
        """`path` leads to the name in an event."""
        self._alias = orjson.dumps(alias)
        self._path = path
        self._head = b"\0"
        """The beginning of the last event up to the name; `_restored_head` is its replacement."""
        self._restored_head = b""

    def restore(self, frame: Frame) -> None:
        data = frame.data
        if data is None:
            if isinstance(frame, Part) and frame.begins:
                self._restore_beginning(frame)
        elif isinstance(frame, WholeReply):
            frame.raw = frame.data = _replaced(data, _top_level_spans(data), self._alias)
        elif _KEY in data or _ESCAPED in data:
            frame.data = restored = self._restored(data)
            frame.raw = _with_data(frame.raw, data, restored)

    def _restored(self, data: bytes) -> bytes:
        head = self._head
        if data.startswith(head) and data.find(_KEY, len(head)) < 0 and _ESCAPED not in data:
            return self._restored_head + data[len(head) :]
        spans = _top_level_spans(data) if len(self._path) == 1 else _nested_spans(data, self._path)
        if spans:
            start, end = spans[0]
            self._head, self._restored_head = data[:end], data[:start] + self._alias
        return _replaced(data, spans, self._alias)

    def _restore_beginning(self, part: Part) -> None:
        lead = part.raw.find(b"data:", 0, _HEAD_BYTES) + len(b"data:")
        end = lead + _HEAD_BYTES
        head = part.raw[lead:end]
        part.raw = part.raw[:lead] + _replaced(head, _nested_spans(head, self._path), self._alias) + part.raw[end:]


def _replaced(data: bytes, spans: list[tuple[int, int]], alias: bytes) -> bytes:
    for start, end in reversed(spans):
        data = b"%b%b%b" % (data[:start], alias, data[end:])
    return data


def _with_data(raw: bytes, data: bytes, restored: bytes) -> bytes:
    """Return an event's bytes with `data`, which is usually a single line, replaced by `restored`."""
    start = raw.find(data)
    if start >= 0:
        return b"%b%b%b" % (raw[:start], restored, raw[start + len(data) :])
    old, new = data.split(b"\n"), restored.split(b"\n")
    for before, after in zip(old, new, strict=True):
        if before != after:
            raw = raw.replace(before, after, 1)
    return raw
