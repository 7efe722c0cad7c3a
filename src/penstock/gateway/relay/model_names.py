"""The alias in the place of the upstream's own name for the model, in replies of the chat route.

It is the top-level member `model`, in whole replies and in every event of a stream. All other bytes stay as they are, a
`model` inside of something included.
"""

from __future__ import annotations

import msgspec
import orjson

from penstock.gateway.relay.json_members import top_level_spans
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["ModelNames", "restore_model"]

_KEY = b'"model"'
_ESCAPED = b"\\u006"
"""Begins every escape of a letter of the key: with none of them, the key is spelled as usual."""
_HEAD_BYTES = 1 << 16
"""Of an event that comes in parts: where the name must stand."""


class _Named(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Named).decode


def restore_model(body: bytes, raw: bytes, alias: bytes) -> bytes:
    """`raw` is the reply's model as it stands in it, `alias` a JSON string."""
    return _replaced(body, _spans(body, raw), alias)


def _spans(data: bytes, raw: bytes) -> list[tuple[int, int]]:
    if not raw:
        return []
    if data.count(_KEY) == 1 and _ESCAPED not in data:  # then this one is it
        at = data.index(raw, data.index(_KEY) + len(_KEY))
        return [(at, at + len(raw))]
    return top_level_spans(data, "model")


class ModelNames:
    """For a stream, event by event. They mostly begin alike, up to and with the name, and then need not be read."""

    __slots__ = ("_alias", "_head", "_named_head")

    def __init__(self, alias: str) -> None:
        self._alias = orjson.dumps(alias)
        self._head = b"\0"
        """The beginning of the last event, and what it was replaced by."""
        self._named_head = b""

    def restore(self, frame: Frame) -> None:
        data = frame.data
        if data is None:
            if isinstance(frame, Part) and frame.begins:
                self._restore_beginning(frame)
        elif _KEY in data or _ESCAPED in data:
            frame.data = named = self._named(data)
            frame.raw = _with_line(frame.raw, data, named)

    def _named(self, data: bytes) -> bytes:
        head = self._head
        if data.startswith(head) and data.find(_KEY, len(head)) < 0 and _ESCAPED not in data:
            return self._named_head + data[len(head) :]
        try:
            spans = _spans(data, bytes(_decode(data).model))
        except (
            msgspec.MsgspecError,
            RecursionError,
        ):  # half of a surrogate pair, whose other half is in the next event
            spans = top_level_spans(data, "model")
        if spans:
            start, end = spans[0]
            self._head, self._named_head = data[:end], data[:start] + self._alias
        return _replaced(data, spans, self._alias)

    def _restore_beginning(self, part: Part) -> None:
        lead = part.raw.find(b"data:", 0, _HEAD_BYTES) + len(b"data:")
        end = lead + _HEAD_BYTES
        head = part.raw[lead:end]
        part.raw = part.raw[:lead] + _replaced(head, top_level_spans(head, "model"), self._alias) + part.raw[end:]


def _replaced(data: bytes, spans: list[tuple[int, int]], by: bytes) -> bytes:
    for start, end in reversed(spans):
        data = b"%b%b%b" % (data[:start], by, data[end:])
    return data


def _with_line(raw: bytes, data: bytes, named: bytes) -> bytes:
    """An event's bytes with `named` for `data`, which mostly stands there in one line."""
    at = raw.find(data)
    if at >= 0:
        return b"%b%b%b" % (raw[:at], named, raw[at + len(data) :])
    old, new = data.split(b"\n"), named.split(b"\n")
    for before, after in zip(old, new, strict=True):
        if before != after:
            raw = raw.replace(before, after, 1)
    return raw
