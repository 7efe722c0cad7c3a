"""Server-sent events as they arrive: bytes in any portions in, whole frames out, each with its original bytes.

`penstock.wire.sse` takes apart a body that is complete; this one never has it. A frame ends at a blank line; lines end in
LF, CRLF or CR. A frame that is larger than may be kept comes in parts. The bytes of all frames, parts and of `rest()`, in
order, are the bytes that were fed; each of them is looked at once, whatever the portions.
"""

from __future__ import annotations

import re

__all__ = ["FRAME_BYTES", "Frame", "Frames", "Part", "joined"]

FRAME_BYTES = 1 << 20
"""What is kept of an event that is not complete, where nobody must see all of it."""

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
"""A CR that ends what is known may be half of a CRLF; its LF is then an empty line before the next frame."""
_BLANK_BYTES = 3
"""As much of a blank line as can be there without its last byte."""


class Frame:
    """`data` is None for a frame that has none: a comment, a blank line."""

    __slots__ = ("data", "name", "others", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.others = b""
        """Its lines that are not data: comments, the name, whatever else an upstream writes there."""
        self.data: bytes | None
        # `data: …` alone or behind `event: …` is all that the common servers send
        last = len(raw) - 2
        first = raw.find(b"\n")
        if first == last:
            if raw[:6] == b"data: " and raw[-1:] == b"\n" and b"\r" not in raw:
                self.name = b""
                self.data = raw[6:last]
                return
        elif (
            raw.find(b"\n", first + 1) == last
            and raw[:7] == b"event: "
            and raw[first + 1 : first + 7] == b"data: "
            and raw[-1:] == b"\n"
            and b"\r" not in raw
        ):
            self.others = raw[:first]
            self.name = raw[7:first]
            self.data = raw[first + 7 : last]
            return
        self.name = b""
        self._by_line()

    def _by_line(self) -> None:
        found: list[bytes] = []
        others: list[bytes] = []
        for line in self.raw.removeprefix(_BOM).splitlines():
            field, _, value = line.partition(b":")
            if field == b"data":
                found.append(value.removeprefix(b" "))
                continue
            if field == b"event":
                self.name = value.removeprefix(b" ")
            if line:
                others.append(line)
        self.data = b"\n".join(found) if found else None
        self.others = b"\n".join(others)

    def with_data(self, data: bytes) -> bytes:
        """The frame's bytes with other data and everything else as it was."""
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
        """The frame's bytes with other lines beside its data, in front of it."""
        bom = _BOM if self.raw.startswith(_BOM) else b""
        lines = [(line, line.rstrip(b"\r\n")) for line in self.raw[len(bom) :].splitlines(keepends=True)]
        end = lines[0][0][len(lines[0][1]) :] or b"\n"
        written = [line + end for line in others.split(b"\n")]
        kept = [line for line, text in lines if not text or text.partition(b":")[0] == b"data"]
        return bom + b"".join([*written, *kept])


class Part(Frame):
    """A piece of a frame that is larger than may be kept. Its data is not looked for: it is not complete."""

    __slots__ = ("begins", "ends")

    def __init__(self, raw: bytes, *, begins: bool, ends: bool) -> None:
        self.raw = raw
        self.name = self.others = b""
        self.data = None
        self.begins = begins
        self.ends = ends


def joined(frames: list[Frame]) -> bytes:
    return frames[0].raw if len(frames) == 1 else b"".join([frame.raw for frame in frames])


class Frames:
    """`limit` is in bytes: a frame that is not complete by then is handed out in parts."""

    __slots__ = ("_buffer", "_cut", "_returns", "_searched", "limit")

    def __init__(self, limit: int = FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._cut = False
        """Parts of the frame in the buffer have been handed out."""
        self._returns = False
        self._searched = 0

    def __len__(self) -> int:
        """Bytes of the frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        if not self._returns and b"\r" in data:
            self._returns = True
        buffer = self._buffer
        if not buffer and not self._returns and data.endswith(b"\n\n"):
            if data.find(b"\n\n") == len(data) - 2:
                return [Frame(data)]
            if b"\n\n\n" not in data:
                return [Frame(text + b"\n\n") for text in data[:-2].split(b"\n\n")]
        buffer += data
        frames: list[Frame] = []
        start, searched = 0, self._searched
        while True:
            if self._returns:
                blank = _BLANK.search(buffer, searched)
                end = blank.end() if blank is not None else -1
            else:
                end = buffer.find(b"\n\n", searched) + 2
                if end == 1:
                    end = -1
            if end < 0:
                break
            frames.append(self._ended(bytes(buffer[start:end])))
            start = searched = end
        if start:
            del buffer[:start]
        if self._cut or len(buffer) > self.limit:
            # what may be the beginning of a blank line stays
            frames.append(Part(bytes(buffer[:-_BLANK_BYTES]), begins=not self._cut, ends=False))
            del buffer[:-_BLANK_BYTES]
            self._cut = True
        self._searched = max(0, len(buffer) - _BLANK_BYTES)
        return frames

    def _ended(self, raw: bytes) -> Frame:
        if not self._cut:
            return Frame(raw)
        self._cut = False
        return Part(raw, begins=False, ends=True)

    def rest(self) -> Frame | None:
        """The stream is over: its last frame, if that lacks its blank line."""
        left = self._ended(bytes(self._buffer)) if self._buffer or self._cut else None
        self._buffer.clear()
        self._searched = 0
        return left
