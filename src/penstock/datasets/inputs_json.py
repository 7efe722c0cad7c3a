"""The `inputs_json` format: `{"data": [{"session_id": …, "payloads": [{…}, …]}, …]}`, each payload sent byte for byte.

The document may be far larger than the memory. It is read through a window that holds one session at a time; where a session
ends msgspec finds out (1 GB/s), and the slower reader of `json_text` when msgspec gives up.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, BinaryIO

import msgspec
import numpy as np

from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import Cut, Malformed, end_of_value, items, members, skip_space, text_of
from penstock.datasets.jsonl import Problems
from penstock.datasets.recording import BOM, Place, Recorded, SourceFile, source_files
from penstock.settings.model import InputSettings

__all__ = ["FORMAT", "InputsJson", "address", "looks_like_it"]

_NAME = "inputs_json"
_WINDOW = 1 << 22
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_BODIES = (b"{", b"[")
_SHOWN = 5


class _Session(msgspec.Struct):
    session_id: str | int
    payloads: list[msgspec.Raw]


_decode_session = msgspec.json.Decoder(_Session).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode


def address(data: Any) -> int:
    """Where in memory a buffer begins. msgspec.Raw does not copy: its address minus that of the text is an offset."""
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


class InputsJson:
    needs_whole = False

    def __init__(self, path: str) -> None:
        self.files: list[SourceFile] = source_files([path])
        self._names = _Names()
        self._path = path
        self.scanned = 0

    def notes(self) -> list[str]:
        lines = _LineNumbers(self.files[0].path)
        places = [lines.at(offset) for offset in self._names.repeated()]
        if not places:
            return []
        shown = ", ".join(map(str, places[:_SHOWN])) + (", …" if len(places) > _SHOWN else "")
        return [
            f"{os.path.basename(self._path)}: {len(places):,} session(s) have the id of an earlier one (line {shown}); "
            "they are sent all the same, and share its name in the records."
        ]

    def scan(self, _endpoint: str, problems: Problems) -> Iterator[Recorded]:
        path = self.files[0].path
        lines = _LineNumbers(path)
        with open(path, "rb", buffering=0) as file:
            window = _Window(file)
            try:
                yield from self._sessions(window, lines, problems)
            except Malformed as wrong:
                line, column = lines.place(wrong.at)
                problems.add(line, f"not valid JSON ({wrong.reason}, at column {column})")
            except Cut:
                problems.add(lines.at(self.files[0].identity.size), "the file ends before its JSON does")

    def _sessions(self, window: _Window, lines: _LineNumbers, problems: Problems) -> Iterator[Recorded]:
        if window.peek(len(BOM)) == BOM:
            window.at += len(BOM)
        elif window.peek(2) in (b"\xff\xfe", b"\xfe\xff"):
            problems.add(1, "the file is in UTF-16; save it as UTF-8")
            return
        window.skip_space()
        if not window.peek(1):
            problems.add(1, "the file is empty")
            return
        if window.peek(1) != b"{":
            problems.add(lines.at(window.offset), "the file should be one JSON object with a list 'data'")
            return
        found = False
        for name in window.keys():
            if name != "data" or window.peek(1) != b"[":
                if name == "data":
                    found = True
                    problems.add(lines.at(window.offset), "'data' should be a list of sessions")
                window.at = window.value_end()
                continue
            found = True
            for begin, end in window.items():
                recorded = self._session(window, begin, end, lines, problems)
                self.scanned = window.base + end
                if recorded is not None:
                    yield recorded
        self.scanned = self.files[0].identity.size
        if not found:
            problems.add(1, "the file has no 'data', the list of sessions")
        elif not self._names.count and not problems.count:
            problems.add(1, "the list 'data' is empty: there is no session to replay")

    def _session(
        self, window: _Window, begin: int, end: int, lines: _LineNumbers, problems: Problems
    ) -> Recorded | None:
        """One session, or None and a problem."""
        offset = window.base + begin
        try:
            with memoryview(window.data) as whole, whole[begin:end] as view:
                if not window.is_utf8(begin, end):
                    raise _Fault(offset, "not valid UTF-8")
                try:
                    session = _decode_session(view)
                    spans = _spans(window.data, begin, view, session.payloads)
                    name = str(session.session_id)
                except (msgspec.MsgspecError, RecursionError):
                    name, spans = _read_slowly(window.data, begin, end, window.base)
            for at, _ in spans:
                if window.data[at : at + 1] not in _BODIES:
                    raise _Fault(window.base + at, f"a payload of session {name!r} is not a JSON object")
            if not spans:
                raise _Fault(offset, f"session {name!r} has no payloads")
        except _Fault as fault:
            problems.add(lines.at(fault.offset), fault.reason)
            return None
        self._names.add(name, offset)
        return Recorded(name, [Place(0, window.base + at, stop - at) for at, stop in spans])


class _Fault(Exception):  # noqa: N818
    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def _spans(data: bytes, begin: int, view: memoryview, payloads: list[msgspec.Raw]) -> list[tuple[int, int]]:
    """Begin and end of each payload. Only the first one's address is asked for (7 µs): commas part the rest."""
    if not payloads:
        return []
    at = begin + address(payloads[0]) - address(view)
    spans = []
    for payload in payloads:
        end = at + len(memoryview(payload))
        spans.append((at, end))
        at = skip_space(data, skip_space(data, end) + 1)
    return spans


def _read_slowly(data: bytes, begin: int, end: int, base: int) -> tuple[str, list[tuple[int, int]]]:
    """A session that msgspec refuses: it is right all the same, or this says what is wrong with it."""
    if data[begin : begin + 1] != b"{":
        raise _Fault(base + begin, "a session should be an object with 'session_id' and 'payloads'")
    name: str | None = None
    spans: list[tuple[int, int]] | None = None
    for member in members(data[:end], begin):
        first = data[member.begin : member.begin + 1]
        if member.name == "session_id":
            if first == b'"':
                name = text_of(data, member.begin, member.end).encode("utf-8", "replace").decode()
            elif first not in (b"{", b"[", b"t", b"f", b"n"):
                name = data[member.begin : member.end].decode()
            else:
                raise _Fault(base + member.begin, "'session_id' should be a string")
        elif member.name == "payloads":
            if first != b"[":
                raise _Fault(base + member.begin, "'payloads' should be a list of request bodies")
            spans = list(items(data, member.begin))
    if name is None:
        raise _Fault(base + begin, "a session has no 'session_id'")
    if spans is None:
        raise _Fault(base + begin, f"session {name!r} has no payloads")
    return name, spans


class _Window:
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
        read = self._file.read(max(_WINDOW, len(left)))
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
            try:
                with memoryview(self.data) as whole, whole[self.at :] as view:
                    _decode_any(view)
            except (msgspec.MsgspecError, RecursionError) as error:
                if found := _TRAILING.search(str(error)):
                    # msgspec has passed the white space behind the value, too.
                    return self.at + len(self.data[self.at : self.at + int(found[1]) - 1].rstrip(b" \t\r\n"))
                try:
                    if not (self._ended or "truncated" in str(error)):
                        return end_of_value(self.data, self.at)
                    if self._ended:
                        return end_of_value(self.data, self.at)
                except Cut:
                    pass
                except Malformed as wrong:
                    raise Malformed(self.base + wrong.at, wrong.reason) from None
            # It fits the window to its very end, or goes on behind it.
            if not self.more():
                return self._last_end()

    def _last_end(self) -> int:
        try:
            return end_of_value(self.data, self.at)
        except Malformed as wrong:
            raise Malformed(self.base + wrong.at, wrong.reason) from None

    def keys(self) -> Iterator[str]:
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


class _LineNumbers:
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


class _Names:
    """Finds session ids that come twice, in 16 bytes a session."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._offsets = array("Q")

    @property
    def count(self) -> int:
        return len(self._hashes)

    def add(self, name: str, offset: int) -> None:
        self._hashes.append(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))
        self._offsets.append(offset)

    def repeated(self) -> list[int]:
        """Offsets of the sessions whose name came before."""
        hashes = np.frombuffer(self._hashes, np.uint64) if self._hashes else np.empty(0, np.uint64)
        order = np.argsort(hashes, kind="stable")
        again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        return sorted(self._offsets[int(i)] for i in again)


def looks_like_it(first: dict[str, Any]) -> bool:
    data = first.get("data")
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "payloads" in data[0]


def _read(path: str, _settings: InputSettings) -> Contents:
    return Contents([], recording=InputsJson(path))


FORMAT = Format(
    name=_NAME,
    needs="the sessions of an earlier run: an object with a list 'data' of 'session_id' and 'payloads'",
    matches=looks_like_it,
    read=_read,
)
