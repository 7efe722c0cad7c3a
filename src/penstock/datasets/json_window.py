"""A JSON document that is read through a window: only a part of the file is in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from penstock.datasets.json_text import TOO_DEEP, replace_lone_surrogates, syntax_error

_BLANKS = b" \t\r\n"
_SPACE = re.compile(rb"[ \t\r\n]*")
_NEXT_ITEM = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_ERROR_BYTE = re.compile(r"\(byte (\d+)\)")

_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_decode_string = msgspec.json.Decoder(str).decode


class Malformed(Exception):
    """The text is not JSON. The offset is that in the file."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


class Truncated(Exception):
    """The text ends before the value does."""


def skip_space(data: bytes, begin: int) -> int:
    """Return the offset of the first byte at or after `begin` that is not white space."""
    return _SPACE.match(data, begin).end()  # type: ignore[union-attr]


class Window:
    """The part of a file that is in memory. `data` begins at the file offset `base` and is read up to `position`.

    Lone surrogate escapes in `data` may be replaced by other escapes of the same length, because msgspec refuses them.
    """

    def __init__(self, file: BinaryIO, size: int = 1 << 22) -> None:
        self._file = file
        self._size = size
        self._ended = False
        self.data = b""
        self.base = 0
        self.position = 0

    @property
    def offset(self) -> int:
        return self.base + self.position

    def more(self) -> bool:
        """Drop the data before the reading position and read as much again as is left, at least one window."""
        if self._ended:
            return False
        left = self.data[self.position :]
        read = self._file.read(max(self._size, len(left)))
        self._ended = not read
        self.base += self.position
        self.position = 0
        self.data = left + read
        return bool(read)

    def peek(self, count: int) -> bytes:
        while len(self.data) - self.position < count and self.more():
            pass
        return self.data[self.position : self.position + count]

    def skip_space(self) -> None:
        self.position = skip_space(self.data, self.position)
        while self.position == len(self.data) and self.more():
            self.position = skip_space(self.data, self.position)

    def take(self, mark: bytes, reason: str) -> None:
        byte = self.peek(1)
        if not byte:
            raise Truncated
        if byte != mark:
            raise Malformed(self.offset, reason)
        self.position += 1

    def value_end(self) -> int:
        """Read until the value at the reading position is in memory, and return the offset of its end in `data`."""
        while True:
            view = memoryview(self.data)[self.position :]
            try:
                _decode_any(view)
            except RecursionError:
                raise Malformed(self.offset, TOO_DEEP) from None
            except msgspec.DecodeError as error:
                message = str(error)
                byte = _ERROR_BYTE.search(message)
                if byte is not None and "trailing characters" in message:
                    # msgspec gives the position after the byte at which it stopped, and has skipped white space.
                    return self.position + len(
                        self.data[self.position : self.position + int(byte[1]) - 1].rstrip(_BLANKS)
                    )
                truncated = byte is None or int(byte[1]) >= len(view)
                if (truncated and self.more()) or self._replace_lone_surrogates():
                    continue
                if truncated:
                    raise Truncated from None
                offset, reason = syntax_error(self.data, self.position) or (self.position, message)
                raise Malformed(self.base + offset, reason) from None
            # The value fills the rest of the window. Only objects, lists and strings show their end.
            if self.data[self.position : self.position + 1] in (b"{", b"[", b'"') or not self.more():
                return len(self.data.rstrip(_BLANKS))

    def _replace_lone_surrogates(self) -> bool:
        """Return whether there were any."""
        data = self.data[: self.position] + replace_lone_surrogates(self.data[self.position :])
        changed = data != self.data
        self.data = data
        return changed

    def member_names(self) -> Iterator[str]:
        """Yield the keys of the object at the reading position. The caller must move the position past each value."""
        self.take(b"{", "expecting an object")
        self.skip_space()
        if self.peek(1) == b"}":
            self.position += 1
        else:
            while True:
                if self.peek(1) != b'"':
                    raise (
                        Malformed(self.offset, "expecting property name enclosed in double quotes")
                        if self.peek(1)
                        else Truncated
                    )
                end = self.value_end()
                name = self._name(end)
                self.position = end
                self.skip_space()
                self.take(b":", "expecting ':' delimiter")
                self.skip_space()
                yield name
                self.skip_space()
                if self.peek(1) == b"}":
                    self.position += 1
                    break
                self.take(b",", "expecting ',' delimiter")
                self.skip_space()
        self.skip_space()
        if self.peek(1):
            raise Malformed(self.offset, "extra data after the end of the object")

    def _name(self, end: int) -> str:
        try:
            return _decode_string(self.data[self.position : end])
        except UnicodeDecodeError:
            raise Malformed(self.offset, "a key is not valid UTF-8") from None

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each item of the list at the reading position."""
        self.take(b"[", "expecting a list")
        self.skip_space()
        if self.peek(1) == b"]":
            self.position += 1
            return
        while True:
            end = self.value_end()
            yield self.position, end
            # Usually the comma and the start of the next item are in the window.
            if (comma := _NEXT_ITEM.match(self.data, end)) is not None and comma.end() < len(self.data):
                self.position = comma.end()
                continue
            self.position = end
            self.skip_space()
            if self.peek(1) == b"]":
                self.position += 1
                return
            self.take(b",", "expecting ',' delimiter")
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
    """Converts offsets in a file to line numbers. It counts from the previous offset if that is smaller."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = (0, 1)

    def line(self, offset: int) -> int:
        begin, line = self._last if self._last[0] <= offset else (0, 1)
        with open(self._path, "rb") as file:
            file.seek(begin)
            while begin < offset and (data := file.read(min(1 << 22, offset - begin))):
                line += data.count(b"\n")
                begin += len(data)
        self._last = (offset, line)
        return line

    def line_and_column(self, offset: int) -> tuple[int, int]:
        line = self.line(offset)
        with open(self._path, "rb") as file:
            file.seek(max(0, offset - (1 << 20)))
            before = file.read(min(offset, 1 << 20))
        return line, len(before) - (before.rfind(b"\n") + 1) + 1
