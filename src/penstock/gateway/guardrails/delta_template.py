"""Recognises the next delta event of a stream by its bytes.

The delta events of a text differ in the text, the sequence number and the padding only. An event whose other bytes equal
those of an event that has been parsed and checked needs neither: that takes 2 µs instead of 15. Anything else, such as a text
with an escape, is not recognised.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.gateway.dialects.event_texts import EventTexts
from penstock.gateway.dialects.texts import TextRef

_Kind = Literal["text", "number", "padding"]


class DeltaTemplate:
    """The bytes that the delta events of one text have in common."""

    def __init__(self, parts: list[tuple[bytes, _Kind, bytes]], end: bytes) -> None:
        self._parts = parts
        """Constant bytes, the value that follows them, and the byte that ends the value."""
        self._end = end

    @classmethod
    def of(cls, raw: bytes, payload: dict[str, Any], event_texts: EventTexts, ref: TextRef) -> DeltaTemplate | None:
        """Return the template of an event, whose only text is `ref`; None if its values cannot be located."""
        text = b'"%b"' % ref.text.encode("utf-8", "replace")
        spans = [(_locate(raw, ref.key, text, quoted=True), "text")]
        for key in event_texts.varying_keys:
            value = payload.get(key)
            if type(value) is int:
                spans.append((_locate(raw, key, b"%d" % value, quoted=False), "number"))
            elif type(value) is str:
                spans.append((_locate(raw, key, b'"%b"' % value.encode(), quoted=True), "padding"))
        parts: list[tuple[bytes, _Kind, bytes]] = []
        position = 0
        for span, kind in sorted(spans, key=lambda entry: entry[0] or (0, 0)):
            if span is None:
                return None
            start, end = span
            parts.append((raw[position:start], kind, raw[end : end + 1]))  # type: ignore[arg-type]
            position = end
        return cls(parts, raw[position:])

    def match(self, raw: bytes) -> tuple[str, int] | None:
        """Return the text and the sequence number, or -1 for none; None if the event is another one."""
        text, number = "", -1
        position = 0
        for constant, kind, stop in self._parts:
            if not raw.startswith(constant, position):
                return None
            start = position + len(constant)
            position = raw.find(stop, start)
            if position < 0:
                return None
            value = raw[start:position]
            if kind == "text":
                if b"\\" in value:
                    return None
                try:
                    text = value.decode()
                except UnicodeDecodeError:
                    return None
                if not text.isprintable():
                    return None
            elif kind == "number":
                if not value.isdigit():
                    return None
                number = int(value)
            elif not value.isalnum():
                return None
        return (text, number) if text and raw[position:] == self._end else None


def _locate(raw: bytes, key: str, value: bytes, *, quoted: bool) -> tuple[int, int] | None:
    """Return where the only value of a key is, without its quotes."""
    name = b'"%b":' % key.encode()
    if raw.count(name) != 1:
        return None
    start = raw.index(name) + len(name)
    start += raw[start : start + 1] == b" "
    end = start + len(value)
    if raw[start:end] != value:
        return None
    return (start + 1, end - 1) if quoted else (start, end)
