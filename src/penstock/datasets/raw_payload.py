"""The `raw_payload` format: one request body per line, sent byte for byte.

Each line of a file is a conversation of one turn. In a folder each `.jsonl` file is a conversation and its lines are
the turns; files are sorted by name, and other files are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import replace_lone_surrogates
from penstock.datasets.jsonl import BOM, IN_UTF16, UTF16, FileErrors, explain, jsonl_files
from penstock.datasets.recording import BodyLocation, RecordedConversation, RecordingOptions, SourceFile, source_files
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "Lines", "RawPayload"]

_NAME = "raw_payload"

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RawPayload:
    """The recording in a file or folder of request bodies."""

    def __init__(self, path: str) -> None:
        self._folder = path if os.path.isdir(path) else None
        self.files: list[SourceFile] = source_files([path] if self._folder is None else jsonl_files(path))
        self._lines = Lines(self.files)

    @property
    def scanned(self) -> int:
        return self._lines.scanned

    def notes(self) -> list[str]:
        return []

    def scan(self, options: RecordingOptions, errors: FileErrors) -> Iterator[RecordedConversation]:
        check = _checker(options.body_key)
        if self._folder is None:
            for _, offset, line in self._lines.read(0, errors):
                if error := check(line):
                    errors.add(self._lines.number, error)
                else:
                    yield RecordedConversation(None, [BodyLocation(0, offset, len(line))])
            if not self._lines.seen:
                errors.add(1, "the file is empty: each line should be a request body, a JSON object")
            return
        for number, file in enumerate(self.files):
            name = os.path.basename(file.path)
            before = errors.count
            bodies = []
            for _, offset, line in self._lines.read(number, errors):
                if error := check(line):
                    errors.add(self._lines.number, error, name)
                else:
                    bodies.append(BodyLocation(number, offset, len(line)))
            if bodies:
                yield RecordedConversation(os.path.splitext(name)[0], bodies)
            elif errors.count == before:
                errors.add(1, "the file is empty: each line should be a request body, a JSON object", name)


class Lines:
    """The lines of files with their offsets, without line ends and byte-order marks."""

    def __init__(self, files: list[SourceFile]) -> None:
        self._files = files
        self._several = len(files) > 1
        self.number = 0
        """The number of the current line, from 1."""
        self.scanned = 0
        self.seen = False
        """True once a line is not blank."""

    def read(self, file: int, errors: FileErrors) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number, offset, line) for each line that is not blank. Add an error for a line that is not UTF-8."""
        path = self._files[file].path
        name = os.path.basename(path) if self._several else None
        before = self.scanned
        with open(path, "rb", buffering=1 << 20) as opened:
            offset = 0
            self.number = 0
            for raw in opened:
                self.number += 1
                begin, offset = offset, offset + len(raw)
                self.scanned = before + offset
                line = raw[:-1] if raw.endswith(b"\n") else raw
                if line.endswith(b"\r") and len(line) < len(raw):
                    line = line[:-1]
                if begin == 0:
                    if line.startswith(UTF16):
                        errors.add(1, IN_UTF16, name)
                        return
                    if line.startswith(BOM):
                        begin, line = len(BOM), line[len(BOM) :]
                if not line.isascii():
                    try:
                        line.decode()
                    except UnicodeDecodeError as error:
                        self.seen = True
                        errors.add(self.number, f"not valid UTF-8 (byte {error.start + 1} of the line)", name)
                        continue
                elif not line or line.isspace():
                    continue
                self.seen = True
                yield self.number, begin, line


def _checker(key: str | None) -> Callable[[bytes], str | None]:
    """Return a function that returns the error of a line, or None. The typed decoder accepts nearly all lines."""
    decode: Callable[[bytes], Any] = _decode_members
    if key is not None:
        decode = msgspec.json.Decoder(msgspec.defstruct("_Body", [(key, msgspec.Raw)])).decode

    def check(line: bytes) -> str | None:
        try:
            body = decode(line)
        except (msgspec.MsgspecError, RecursionError):
            return _line_error(line, key)
        if key == "messages" and bytes(memoryview(body.messages)[:1]) != b"[":
            return _line_error(line, key)
        return None

    return check


def _line_error(line: bytes, key: str | None = None) -> str | None:
    """Return why the line is not a JSON object with that key, or None if it is one."""
    try:
        members = _decode_members(replace_lone_surrogates(line))
    except (msgspec.MsgspecError, RecursionError) as error:
        return explain(error, line)
    if key is None:
        return None
    if key not in members:
        return f"it has no '{key}', which this endpoint needs (--endpoint-type raw takes any object)"
    first = bytes(members[key])[:1]
    return f"'messages' should be a list, not {_type_name(first)}" if key == "messages" and first != b"[" else None


def _type_name(first: bytes) -> str:
    types = {b"{": "an object", b'"': "a string", b"t": "true", b"f": "false", b"n": "null"}
    return types.get(first, "a number")


def _matches(first: dict[str, Any]) -> bool:
    """Keys of other formats take precedence: for payloads with such keys the user must name the format."""
    if "conversation_id" in first or isinstance(first.get("data"), list):
        return False
    return isinstance(first.get("messages"), list)


def _read(path: str, _settings: InputSettings) -> Contents:
    return Contents([], recording=RawPayload(path))


FORMAT = Format(
    name=_NAME,
    needs="one request body per line, sent as it is: a JSON object with a list 'messages', or what the endpoint needs",
    matches=_matches,
    read=_read,
    reads_folders=True,
)
