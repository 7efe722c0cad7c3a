"""Incremental parser of server-sent events: bytes in, complete frames out, each with its original bytes.

`penstock.wire.sse` parses complete bodies; this module parses a stream as it arrives. A frame ends at a blank line; lines
end in LF, CRLF or CR. A frame larger than the limit is returned in parts. The bytes of all frames and parts and of
`rest()`, in order, are the input. Each byte is examined once, however the input is split.
"""

from __future__ import annotations

import re
from typing import cast

FRAME_BYTES = 1 << 20
"""Default limit of a frame. Guardrails that must see a whole event use a larger one."""

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
"""A CR at the end of the input may be the first half of a CRLF; its LF then becomes an empty line before the next frame."""
_BLANK_BYTES = 3
"""The longest incomplete blank line."""


_USUAL = re.compile(rb"(?:\A|(?<=\n\n))((?:(event: (.*+))\n)?data: (.*+)\n\n)")
"""An event without CR as common servers send it, after another one: a search that could begin anywhere in a line would take
quadratic time. The groups are the event, its other line, its name and its data."""
_Groups = tuple[bytes, bytes, bytes, bytes]


class Frame:
    """One event with its original bytes. `data` is None for a frame without data: a comment, a blank line."""

    def __init__(self, raw: bytes, usual: _Groups | None = None) -> None:
        """`usual` are the groups of a match of `_USUAL`, if they are known."""
        self.raw = raw
        self.data: bytes | None
        if usual is None and b"\r" not in raw and (match := _USUAL.fullmatch(raw)) is not None:
            usual = cast(_Groups, match.groups(b""))
        if usual is not None:
            _, self.others, self.name, self.data = usual
            return
        self.others = self.name = b""
        """Its lines other than data: comments, the event name, ids and unknown fields."""
        self._parse_lines()

    def _parse_lines(self) -> None:
        data_lines: list[bytes] = []
        others: list[bytes] = []
        for line in self.raw.removeprefix(_BOM).splitlines():
            field, _, value = line.partition(b":")
            if field == b"data":
                data_lines.append(value.removeprefix(b" "))
                continue
            if field == b"event":
                self.name = value.removeprefix(b" ")
            if line:
                others.append(line)
        self.data = b"\n".join(data_lines) if data_lines else None
        self.others = b"\n".join(others)

    def with_data(self, data: bytes) -> bytes:
        """Return the frame's bytes with its data replaced."""
        bom = _BOM if self.raw.startswith(_BOM) else b""
        lines: list[bytes] = []
        written = False
        for line in self.raw[len(bom) :].splitlines(keepends=True):
            text = line.rstrip(b"\r\n")
            if text.partition(b":")[0] != b"data":
                lines.append(line)
            elif not written:
                end = line[len(text) :] or b"\n"
                lines.extend(b"data: " + part + end for part in data.split(b"\n"))
                written = True
        return bom + b"".join(lines)

    def with_others(self, others: bytes) -> bytes:
        """Return the frame's bytes with its other lines replaced; they come before the data."""
        bom = _BOM if self.raw.startswith(_BOM) else b""
        lines = [(line, line.rstrip(b"\r\n")) for line in self.raw[len(bom) :].splitlines(keepends=True)]
        end = lines[0][0][len(lines[0][1]) :] or b"\n"
        written = [line + end for line in others.split(b"\n") if line]
        kept = [line for line, text in lines if not text or text.partition(b":")[0] == b"data"]
        return bom + b"".join([*written, *kept])


class Part(Frame):
    """A part of a frame that exceeds the limit. It is not parsed, so `data` is None."""

    def __init__(self, raw: bytes, *, begins: bool, ends: bool) -> None:
        self.raw = raw
        self.name = self.others = b""
        self.data = None
        self.begins = begins
        self.ends = ends


class RawBytes(Frame):
    """Bytes that are sent as they are, such as events that a guardrail has released."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.name = self.others = b""
        self.data = None


class WholeReply(RawBytes):
    """A whole reply, as the only frame of a stream."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.data = body


def joined(frames: list[Frame]) -> bytes:
    return frames[0].raw if len(frames) == 1 else b"".join([frame.raw for frame in frames])


class Frames:
    """The parser. A frame larger than `limit` bytes is returned in parts."""

    def __init__(self, limit: int = FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._in_parts = False
        """True if parts of the current frame have been returned."""
        self._has_cr = False
        self._searched = 0
        self.ended = False
        """True after `last`."""

    def __len__(self) -> int:
        """Return the number of buffered bytes of the incomplete frame."""
        return len(self._buffer)

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        if not self._has_cr and b"\r" in data:
            self._has_cr = True
        buffer = self._buffer
        if not buffer and not self._has_cr:
            usual: list[_Groups] = _USUAL.findall(data)
            if sum([len(groups[0]) for groups in usual]) == len(data):
                return [Frame(groups[0], groups) for groups in usual]
        buffer += data
        frames: list[Frame] = []
        start, searched = 0, self._searched
        while True:
            if self._has_cr:
                blank = _BLANK.search(buffer, searched)
                end = blank.end() if blank is not None else -1
            else:
                end = buffer.find(b"\n\n", searched) + 2
                if end == 1:
                    end = -1
            if end < 0:
                break
            frames.append(self._finish_frame(bytes(buffer[start:end])))
            start = searched = end
        if start:
            del buffer[:start]
        if self._in_parts or len(buffer) > self.limit:
            # keep the possible beginning of a blank line
            frames.append(Part(bytes(buffer[:-_BLANK_BYTES]), begins=not self._in_parts, ends=False))
            del buffer[:-_BLANK_BYTES]
            self._in_parts = True
        self._searched = max(0, len(buffer) - _BLANK_BYTES)
        return frames

    def _finish_frame(self, raw: bytes) -> Frame:
        if not self._in_parts:
            return Frame(raw)
        self._in_parts = False
        return Part(raw, begins=False, ends=True)

    def rest(self) -> Frame | None:
        """End the stream: return the last frame if it lacks its blank line, else None."""
        last = self._finish_frame(bytes(self._buffer)) if self._buffer or self._in_parts else None
        self._buffer.clear()
        self._searched = 0
        return last

    async def last(self) -> Frame | None:
        """Do what `rest` does."""
        self.ended = True
        return self.rest()
