"""The `inputs_json` format: `{"data": [{"session_id": …, "payloads": [{…}, …]}, …]}`, each payload sent byte for byte.

A body that had white space around it cannot show that within JSON: `inputs.json` then has a member `padding` beside the
payloads, with the places of such payloads and what stood before and behind each, and it is sent again.

The document may be far larger than the memory. It is read through a window that holds one session at a time.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import TOO_DEEP, address
from penstock.datasets.json_window import LineNumbers, Malformed, Truncated, Window, skip_space
from penstock.datasets.jsonl import BOM, IN_UTF16, UTF16, Problems
from penstock.datasets.recording import BodyLocation, Recorded, RecordingOptions, SourceFile, source_files
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "InputsJson", "is_inputs_json"]

_NAME = "inputs_json"
_BODIES = (b"{", b"[")
_LIST = re.compile(rb'"payloads"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_STORED_REPLY = re.compile(rb'"previous_response_id"[ \t\r\n]*:[ \t\r\n]*"')
_SHOWN = 5
_MASK = (1 << 64) - 1


_Padding = dict[str, tuple[str, str]]


class _Session(msgspec.Struct):
    session_id: str | int | float
    payloads: list[msgspec.Raw] = []
    padding: _Padding | None = None


_decode_session = msgspec.json.Decoder(_Session).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_TYPES = {
    "session_id": "'session_id' should be a string",
    "payloads": "'payloads' should be a list of request bodies",
    "padding": "'padding' should be an object of pairs of texts",
}
_MEMBER = re.compile(rf" - at `\$\.({'|'.join(_TYPES)})")


class InputsJson:
    needs_whole = False

    def __init__(self, path: str) -> None:
        self.files: list[SourceFile] = source_files([path])
        self._names = _Names()
        self._path = path
        self._chained = 0
        """Sessions that refer to replies which a server has stored."""
        self.scanned = 0

    def notes(self) -> list[str]:
        return [*self._repeated(), *self._stored()]

    def _stored(self) -> list[str]:
        if not self._chained:
            return []
        which = f"{os.path.basename(self._path)}: {self._chained:,} session(s) refer to replies that the recorded server has"
        return [f"{which} stored (previous_response_id); no other server knows them, so it will refuse these turns."]

    def _repeated(self) -> list[str]:
        lines = LineNumbers(self.files[0].path)
        places = [lines.at(offset) for offset in self._names.repeated()]
        if not places:
            return []
        shown = ", ".join(map(str, places[:_SHOWN])) + (", …" if len(places) > _SHOWN else "")
        which = (
            f"{os.path.basename(self._path)}: {len(places):,} session(s) have the id of an earlier one (line {shown})"
        )
        return [f"{which}; they are sent all the same, and share its name in the records."]

    def scan(self, wish: RecordingOptions, problems: Problems) -> Iterator[Recorded]:
        del wish  # payloads are not inspected, and have no times
        path = self.files[0].path
        lines = LineNumbers(path)
        with open(path, "rb", buffering=0) as file:
            window = Window(file)
            try:
                yield from self._sessions(window, lines, problems)
            except Malformed as error:
                line, column = lines.place(error.offset)
                problems.add(line, f"not valid JSON ({error.reason}, column {column})")
            except Truncated:
                problems.add(lines.at(self.files[0].identity.size), "the file ends before its JSON does")

    def _sessions(self, window: Window, lines: LineNumbers, problems: Problems) -> Iterator[Recorded]:
        if window.peek(len(BOM)) == BOM:
            window.at += len(BOM)
        elif window.peek(2) in UTF16:
            problems.add(1, IN_UTF16)
            return
        window.skip_space()
        if not window.peek(1):
            problems.add(1, "the file is empty")
            return
        if window.peek(1) != b"{":
            problems.add(lines.at(window.offset), "the file should be one JSON object with a list 'data'")
            return
        found = False
        for name in window.member_names():
            if name == "data" and found:
                problems.add(lines.at(window.offset), "'data' stands here for the second time; keep one of them")
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

    def _session(self, window: Window, begin: int, end: int, lines: LineNumbers, problems: Problems) -> Recorded | None:
        """One session, or None and a problem."""
        offset = window.base + begin
        try:
            if not window.is_utf8(begin, end):
                raise _Fault(offset, "not valid UTF-8")
            view = memoryview(window.data)[begin:end]
            try:
                session = _decode_session(view)
            except msgspec.ValidationError as error:
                raise _type_error(error, view, offset) from None
            except RecursionError:
                raise _Fault(offset, TOO_DEEP) from None
            name, spans = str(session.session_id), _spans(window.data, begin, view, session.payloads)
            padding = session.padding or {}
            for at, _ in spans:
                if window.data[at : at + 1] not in _BODIES:
                    raise _Fault(window.base + at, f"a payload of session {name!r} is not a JSON object")
            if not spans:
                raise _Fault(offset, f"session {name!r} has no payloads")
        except _Fault as fault:
            problems.add(lines.at(fault.offset), fault.reason)
            return None
        self._names.add(name, offset)
        self._chained += _STORED_REPLY.search(window.data, begin, end) is not None
        return Recorded(
            name,
            [
                BodyLocation(0, window.base + at, stop - at, padding=_white(padding.get(str(turn))))
                for turn, (at, stop) in enumerate(spans)
            ],
        )


class _Fault(Exception):
    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def _spans(data: bytes, begin: int, view: memoryview, payloads: list[msgspec.Raw]) -> list[tuple[int, int]]:
    """Begin and end of each payload. Where the list begins is guessed, and commas part the rest: that takes 1 µs a payload,
    and asking for an address 7 µs. A guess counts only if every payload stands, byte for byte, where it puts it."""
    guess = _LIST.search(data, begin, begin + len(view))
    at = guess.end() if guess is not None else begin
    spans = []
    for payload in payloads:
        text = bytes(payload)
        if not data.startswith(text, at):  # the key stands in some text or object before it, or twice
            return _spans_by_address(begin - address(view), payloads)
        end = at + len(text)
        spans.append((at, end))
        at = skip_space(data, skip_space(data, end) + 1)
    return spans


def _spans_by_address(base: int, payloads: list[msgspec.Raw]) -> list[tuple[int, int]]:
    begins = [base + address(each) for each in payloads]
    return [(at, at + len(memoryview(each))) for at, each in zip(begins, payloads, strict=True)]


def _white(padding: tuple[str, str] | None) -> tuple[bytes, bytes] | None:
    if padding is None or "".join(padding).strip(" \t\r\n"):
        return None
    return padding[0].encode(), padding[1].encode()


def _type_error(error: msgspec.ValidationError, view: memoryview, offset: int) -> _Fault:
    """Describe why the session at `offset` is refused. The position is that of the member with the wrong type."""
    if (found := _MEMBER.search(str(error))) is not None:
        member = _decode_members(view)[found[1]]
        return _Fault(offset + address(member) - address(view), _TYPES[found[1]])
    if "missing required field" in str(error):
        return _Fault(offset, "a session has no 'session_id'")
    return _Fault(offset, "a session should be an object with 'session_id' and 'payloads'")


class _Names:
    """Finds session ids that come twice, in 16 bytes a session."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._offsets = array("Q")

    @property
    def count(self) -> int:
        return len(self._hashes)

    def add(self, name: str, offset: int) -> None:
        self._hashes.append(hash(name) & _MASK)
        self._offsets.append(offset)

    def repeated(self) -> list[int]:
        """Offsets of the sessions whose name came before."""
        import numpy as np

        hashes = np.frombuffer(self._hashes, np.uint64) if self._hashes else np.empty(0, np.uint64)
        order = np.argsort(hashes, kind="stable")
        again = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        return sorted(self._offsets[int(i)] for i in again)


def _looks_like_it(first: dict[str, Any]) -> bool:
    data = first.get("data")
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "payloads" in data[0]


def is_inputs_json(path: str) -> bool:
    """The same for a file of any size and layout, of which no more is read than the first session."""
    try:
        with open(path, "rb", buffering=0) as file:
            window = Window(file)
            if window.peek(len(BOM)) == BOM:
                window.at += len(BOM)
            window.skip_space()
            if window.peek(1) != b"{":
                return False
            for name in window.member_names():
                if name == "data" and window.peek(1) == b"[":
                    session = next((window.data[begin:end] for begin, end in window.items()), b"")
                    return session.startswith(b"{") and "payloads" in _decode_members(session)
                window.at = window.value_end()
    except (Malformed, Truncated, UnicodeError, RecursionError, OSError):
        pass
    return False


def _read(path: str, _settings: InputSettings) -> Contents:
    return Contents([], recording=InputsJson(path))


FORMAT = Format(
    name=_NAME,
    needs="the sessions of an earlier run: an object with a list 'data' of 'session_id' and 'payloads'",
    matches=_looks_like_it,
    read=_read,
)
