"""The `inputs_json` format: `{"data": [{"session_id": …, "payloads": [{…}, …]}, …]}`, each payload sent byte for byte.

White space around a body is lost inside a JSON document. So `inputs.json` has a member `padding` next to the payloads:
the indexes of such payloads, with the white space to send before and after each.

The document may be larger than the memory. It is read through a window that holds at least one session.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator

import msgspec

from penstock.datasets.conversation import BodyLocation, Conversation, Turn
from penstock.datasets.dataset import Dataset
from penstock.datasets.format import Format
from penstock.datasets.json_text import TOO_DEEP, address
from penstock.datasets.json_window import LineNumbers, Malformed, Truncated, Window, skip_space
from penstock.datasets.jsonl import BOM, IN_UTF16, UTF16, FileErrors
from penstock.datasets.source_files import source_files
from penstock.plural import counted
from penstock.settings.schema import InputSettings

_NAME = "inputs_json"
_BODY_STARTS = (b"{", b"[")
_PAYLOADS = re.compile(rb'"payloads"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*')
_PREVIOUS_RESPONSE = re.compile(rb'"previous_response_id"[ \t\r\n]*:[ \t\r\n]*"')
_SHOWN_LINES = 5
_MASK = (1 << 64) - 1


_Padding = dict[str, tuple[str, str]]


class _Session(msgspec.Struct):
    session_id: str | int | float
    payloads: list[msgspec.Raw] = []
    padding: _Padding | None = None


_decode_session = msgspec.json.Decoder(_Session).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_EXPECTED_TYPES = {
    "session_id": "'session_id' should be a string",
    "payloads": "'payloads' should be a list of request bodies",
    "padding": "'padding' should be an object of pairs of strings",
}
_MEMBER = re.compile(rf" - at `\$\.({'|'.join(_EXPECTED_TYPES)})")


class InputsJson(Dataset):
    """The recorded bodies in an `inputs.json` file."""

    verbatim = reads_on = True

    def __init__(self, path: str, window_bytes: int = 1 << 22) -> None:
        self._window_bytes = window_bytes
        self.files = source_files([path])
        self._session_ids = _SessionIds()
        self._path = path
        self._chained = 0
        """The number of sessions with a `previous_response_id`."""

    def notes(self) -> list[str]:
        return [*self._note_repeated_ids(), *self._note_stored_replies()]

    def _note_stored_replies(self) -> list[str]:
        if not self._chained:
            return []
        sessions = f"{os.path.basename(self._path)}: {counted(self._chained, 'session')}"
        stored = "with a previous_response_id, the id of a reply that the recorded server has stored"
        return [f"{sessions} {stored}; another server will refuse these turns."]

    def _note_repeated_ids(self) -> list[str]:
        lines = LineNumbers(self.files[0].path)
        numbers = [lines.line(offset) for offset in self._session_ids.repeated()]
        if not numbers:
            return []
        shown = ", ".join(map(str, numbers[:_SHOWN_LINES])) + (", …" if len(numbers) > _SHOWN_LINES else "")
        sessions = f"{os.path.basename(self._path)}: {counted(len(numbers), 'session')}"
        return [f"{sessions} with the id of an earlier one (line {shown}), sent under the same id."]

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        path = self.files[0].path
        lines = LineNumbers(path)
        with open(path, "rb", buffering=0) as file:
            window = Window(file, self._window_bytes)
            try:
                yield from self._sessions(window, lines, errors)
            except Malformed as error:
                line, column = lines.line_and_column(error.offset)
                errors.add(line, f"not valid JSON ({error.reason}, column {column})")
            except Truncated:
                errors.add(lines.line(self.files[0].identity.size), "the file ends before its JSON does")

    def _sessions(self, window: Window, lines: LineNumbers, errors: FileErrors) -> Iterator[Conversation]:
        if window.peek(len(BOM)) == BOM:
            window.position += len(BOM)
        elif window.peek(2) in UTF16:
            errors.add(1, IN_UTF16)
            return
        window.skip_space()
        if not window.peek(1):
            errors.add(1, "the file is empty")
            return
        if window.peek(1) != b"{":
            errors.add(lines.line(window.offset), "the file should be one JSON object with a list 'data'")
            return
        has_data = False
        for name in window.member_names():
            if name == "data" and has_data:
                errors.add(lines.line(window.offset), "the file has a second 'data'; keep one")
            if name != "data" or window.peek(1) != b"[":
                if name == "data":
                    has_data = True
                    errors.add(lines.line(window.offset), "'data' should be a list of sessions")
                window.position = window.value_end()
                continue
            has_data = True
            for begin, end in window.items():
                recorded = self._session(window, begin, end, lines, errors)
                self.scanned = window.base + end
                if recorded is not None:
                    yield recorded
        self.scanned = self.files[0].identity.size
        if not has_data:
            errors.add(1, "the file has no 'data', the list of sessions")
        elif not self._session_ids.count and not errors.count:
            errors.add(1, "the list 'data' is empty: there is no session to replay")

    def _session(
        self, window: Window, begin: int, end: int, lines: LineNumbers, errors: FileErrors
    ) -> Conversation | None:
        """Read a session. Add an error and return None if it cannot be replayed."""
        offset = window.base + begin
        try:
            if not window.is_utf8(begin, end):
                raise _SessionError(offset, "not valid UTF-8")
            view = memoryview(window.data)[begin:end]
            try:
                session = _decode_session(view)
            except msgspec.ValidationError as error:
                raise _type_error(error, view, offset) from None
            except RecursionError:
                raise _SessionError(offset, TOO_DEEP) from None
            name, spans = str(session.session_id), _spans(window.data, begin, view, session.payloads)
            padding = session.padding or {}
            for start, _ in spans:
                if window.data[start : start + 1] not in _BODY_STARTS:
                    raise _SessionError(window.base + start, f"a payload of session {name!r} is not a JSON object")
            if not spans:
                raise _SessionError(offset, f"session {name!r} has no payloads")
        except _SessionError as error:
            errors.add(lines.line(error.offset), error.reason)
            return None
        self._session_ids.add(name, offset)
        self._chained += _PREVIOUS_RESPONSE.search(window.data, begin, end) is not None
        bodies = [
            BodyLocation(0, window.base + start, stop - start, _white_space(padding.get(str(turn))))
            for turn, (start, stop) in enumerate(spans)
        ]
        return Conversation(id=name, turns=tuple([Turn(body=body) for body in bodies]))


class _SessionError(Exception):
    """A session cannot be replayed."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def _spans(data: bytes, begin: int, view: memoryview, payloads: list[msgspec.Raw]) -> list[tuple[int, int]]:
    """Return the start and end of each payload.

    The first key `payloads` is assumed to be that of the session, and this is checked byte for byte. The check takes 1 µs per
    payload; computing the offset from a memory address takes 7 µs.
    """
    guess = _PAYLOADS.search(data, begin, begin + len(view))
    start = guess.end() if guess is not None else begin
    spans = []
    for payload in payloads:
        text = bytes(payload)
        if not data.startswith(text, start):  # an earlier text or object has the same key
            return _spans_by_address(begin - address(view), payloads)
        end = start + len(text)
        spans.append((start, end))
        start = skip_space(data, skip_space(data, end) + 1)
    return spans


def _spans_by_address(base: int, payloads: list[msgspec.Raw]) -> list[tuple[int, int]]:
    starts = [base + address(payload) for payload in payloads]
    return [(start, start + len(memoryview(payload))) for start, payload in zip(starts, payloads, strict=True)]


def _white_space(padding: tuple[str, str] | None) -> tuple[bytes, bytes] | None:
    if padding is None or "".join(padding).strip(" \t\r\n"):
        return None
    return padding[0].encode(), padding[1].encode()


def _type_error(error: msgspec.ValidationError, view: memoryview, offset: int) -> _SessionError:
    """Describe why the session at `offset` is refused. The position is that of the member with the wrong type."""
    if (found := _MEMBER.search(str(error))) is not None:
        member = _decode_members(view)[found[1]]
        return _SessionError(offset + address(member) - address(view), _EXPECTED_TYPES[found[1]])
    if "missing required field" in str(error):
        return _SessionError(offset, "a session has no 'session_id'")
    return _SessionError(offset, "a session should be an object with 'session_id' and 'payloads'")


class _SessionIds:
    """Finds repeated session ids. It keeps 16 bytes per session."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._offsets = array("Q")

    @property
    def count(self) -> int:
        return len(self._hashes)

    def add(self, session_id: str, offset: int) -> None:
        self._hashes.append(hash(session_id) & _MASK)
        self._offsets.append(offset)

    def repeated(self) -> list[int]:
        """Return the offsets of the sessions whose id an earlier session has."""
        import numpy as np

        hashes = np.frombuffer(self._hashes, np.uint64) if self._hashes else np.empty(0, np.uint64)
        order = np.argsort(hashes, kind="stable")
        repeated = order[1:][hashes[order[1:]] == hashes[order[:-1]]]
        return sorted(self._offsets[int(i)] for i in repeated)


def _matches_file(path: str) -> bool:
    """Detect the format of a file of any size and layout. Only the part up to the first session is read."""
    try:
        with open(path, "rb", buffering=0) as file:
            window = Window(file)
            if window.peek(len(BOM)) == BOM:
                window.position += len(BOM)
            window.skip_space()
            if window.peek(1) != b"{":
                return False
            for name in window.member_names():
                if name == "data" and window.peek(1) == b"[":
                    session = next((window.data[begin:end] for begin, end in window.items()), b"")
                    return session.startswith(b"{") and "payloads" in _decode_members(session)
                window.position = window.value_end()
    except (Malformed, Truncated, UnicodeError, RecursionError, OSError):
        pass
    return False


def _read(path: str, _settings: InputSettings) -> Dataset:
    return InputsJson(path)


FORMAT = Format(
    name=_NAME,
    needs="the sessions of an earlier run: an object with a list 'data' of 'session_id' and 'payloads'",
    matches=lambda _first: False,  # a file of any layout is detected by `matches_file`
    read=_read,
    matches_file=_matches_file,
)
