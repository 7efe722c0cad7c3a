"""A JSON document that is read piece by piece: at hand is only a window of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from penstock.datasets.json_text import Cut, Malformed, end_of_value, skip_space, text_of

__all__ = ["LineNumbers", "Window"]

_SIZE = 1 << 22
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_BLANKS = b" \t\r\n"
_NEXT = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_GOES_ON, _CANNOT_SAY = -1, -2

_decode_any = msgspec.json.Decoder(msgspec.Raw).decode


class Window:
    """The part of the file that is at hand. Offsets into `data`; `base` is where it begins in the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ended = False
        self.data = b""
        self.base = 0
        self.at = 0

    @property
    def offset(self) -> int:
        return self.base + self.at

    def more(self) -> bool:
        """Let go of what is behind and take in more: as much again as is left, at least a window."""
        if self._ended:
            return False
        left = self.data[self.at :]
        read = self._file.read(max(_SIZE, len(left)))
        self._ended = not read
        self.base += self.at
        self.at = 0
        self.data = left + read
        return bool(read)

    def peek(self, count: int) -> bytes:
        while len(self.data) - self.at < count and self.more():
            pass
        return self.data[self.at : self.at + count]

    def skip_space(self) -> None:
        self.at = skip_space(self.data, self.at)
        while self.at == len(self.data) and self.more():
            self.at = skip_space(self.data, self.at)

    def take(self, mark: bytes, what: str) -> None:
        found = self.peek(1)
        if not found:
            raise Cut
        if found != mark:
            raise Malformed(self.offset, what)
        self.at += 1

    def value_end(self) -> int:
        """Where the value ends that begins here, after taking in all of it."""
        while True:
            end = self._fast_end()
            if end >= 0:
                return end
            if end == _CANNOT_SAY or self._ended:
                try:
                    return end_of_value(self.data, self.at)
                except Malformed as wrong:
                    raise Malformed(self.base + wrong.at, wrong.reason) from None
                except Cut:
                    if self._ended:
                        raise
            self.more()

    def _fast_end(self) -> int:
        try:
            _decode_any(memoryview(self.data)[self.at :])
        except (msgspec.MsgspecError, RecursionError) as error:
            if found := _TRAILING.search(str(error)):
                # The byte behind the one at which it stopped, and it has passed the white space behind the value.
                return self.at + len(self.data[self.at : self.at + int(found[1]) - 1].rstrip(_BLANKS))
            return _GOES_ON if "truncated" in str(error) else _CANNOT_SAY
        # It fills the window to its end: only of these is it sure that they do not go on behind it.
        if self._ended or self.data[self.at : self.at + 1] in (b"{", b"[", b'"'):
            return len(self.data.rstrip(_BLANKS))
        return _GOES_ON

    def member_names(self) -> Iterator[str]:
        """The keys of the object that begins here; at each the window stands at its value, and must be moved past it."""
        self.take(b"{", "an object should be here")
        self.skip_space()
        if self.peek(1) == b"}":
            self.at += 1
        else:
            while True:
                if self.peek(1) != b'"':
                    raise Malformed(self.offset, "a key in quotes should be here") if self.peek(1) else Cut
                end = self.value_end()
                name = text_of(self.data, self.at, end)
                self.at = end
                self.skip_space()
                self.take(b":", "a colon should be here")
                self.skip_space()
                yield name
                self.skip_space()
                if self.peek(1) == b"}":
                    self.at += 1
                    break
                self.take(b",", "a comma or } should be here")
                self.skip_space()
        self.skip_space()
        if self.peek(1):
            raise Malformed(self.offset, "more follows behind the end of the object")

    def items(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each item of the list that begins here."""
        self.take(b"[", "a list should be here")
        self.skip_space()
        if self.peek(1) == b"]":
            self.at += 1
            return
        while True:
            end = self.value_end()
            yield self.at, end
            # The usual case in one match: a comma and the next item, both at hand.
            if (found := _NEXT.match(self.data, end)) is not None and found.end() < len(self.data):
                self.at = found.end()
                continue
            self.at = end
            self.skip_space()
            if self.peek(1) == b"]":
                self.at += 1
                return
            self.take(b",", "a comma or ] should be here")
            self.skip_space()

    def is_utf8(self, begin: int, end: int) -> bool:
        part = self.data[begin:end]
        if part.isascii():
            return True
        try:
            part.decode()
        except UnicodeDecodeError:
            return False
        return True


class LineNumbers:
    """Which line an offset is in, counted on from the last one that was asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known = (0, 1)

    def at(self, offset: int) -> int:
        begin, line = self._known if self._known[0] <= offset else (0, 1)
        with open(self._path, "rb") as file:
            file.seek(begin)
            while begin < offset and (data := file.read(min(1 << 22, offset - begin))):
                line += data.count(b"\n")
                begin += len(data)
        self._known = (offset, line)
        return line

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column."""
        line = self.at(offset)
        with open(self._path, "rb") as file:
            file.seek(max(0, offset - (1 << 20)))
            before = file.read(min(offset, 1 << 20))
        return line, len(before) - (before.rfind(b"\n") + 1) + 1
