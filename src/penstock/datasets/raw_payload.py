"""The `raw_payload` format: request bodies, one a line, sent byte for byte.

A file is a list of conversations of one turn. In a folder each `.jsonl` file is a conversation, its lines are the turns, and
the files come in the order of their names; other files are not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.datasets.format import Contents, Format
from penstock.datasets.json_text import replace_lone_surrogates
from penstock.datasets.jsonl import BOM, IN_UTF16, UTF16, Problems, explain
from penstock.datasets.recording import BodyLocation, Recorded, RecordingOptions, SourceFile, source_files
from penstock.errors import UserError
from penstock.settings.schema import InputSettings

__all__ = ["FORMAT", "Lines", "line_error", "payload_files"]

_NAME = "raw_payload"

REQUIRED = {
    "chat": "messages",
    "messages": "messages",
    "completions": "prompt",
    "responses": "input",
    "embeddings": "input",
}
"""The key without which the endpoint would have nothing to answer."""


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RawPayload:
    needs_whole = False

    def __init__(self, path: str) -> None:
        self._folder = path if os.path.isdir(path) else None
        self.files: list[SourceFile] = source_files([path] if self._folder is None else payload_files(path))
        self._lines = Lines(self.files)

    @property
    def scanned(self) -> int:
        return self._lines.scanned

    def notes(self) -> list[str]:
        return []

    def scan(self, wish: RecordingOptions, problems: Problems) -> Iterator[Recorded]:
        check = _checker(REQUIRED.get(wish.endpoint))
        if self._folder is None:
            for _, offset, line in self._lines.of(0, problems):
                if fault := check(line):
                    problems.add(self._lines.number, fault)
                else:
                    yield Recorded(None, [BodyLocation(0, offset, len(line))])
            if not self._lines.seen:
                problems.add(1, "the file is empty: each line should be a request body, a JSON object")
            return
        for number, file in enumerate(self.files):
            name = os.path.basename(file.path)
            before = problems.count
            places = []
            for _, offset, line in self._lines.of(number, problems):
                if fault := check(line):
                    problems.add(self._lines.number, fault, name)
                else:
                    places.append(BodyLocation(number, offset, len(line)))
            if places:
                yield Recorded(os.path.splitext(name)[0], places)
            elif problems.count == before:
                problems.add(1, "the file is empty: each line should be a request body, a JSON object", name)


class Lines:
    """The lines of files, with the place of each: what stands before the line end, without the file's BOM."""

    def __init__(self, files: list[SourceFile]) -> None:
        self._files = files
        self._several = len(files) > 1
        self.number = 0
        """Of the line at hand, from 1."""
        self.scanned = 0
        self.seen = False
        """There was a line that is not blank."""

    def of(self, file: int, problems: Problems) -> Iterator[tuple[int, int, bytes]]:
        """(number, offset, line) of each line that is not blank; one that is not UTF-8 becomes a problem instead."""
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
                        problems.add(1, IN_UTF16, name)
                        return
                    if line.startswith(BOM):
                        begin, line = len(BOM), line[len(BOM) :]
                if not line.isascii():
                    try:
                        line.decode()
                    except UnicodeDecodeError as error:
                        self.seen = True
                        problems.add(self.number, f"not valid UTF-8 (byte {error.start + 1} of the line)", name)
                        continue
                elif not line or line.isspace():
                    continue
                self.seen = True
                yield self.number, begin, line


def payload_files(folder: str) -> list[str]:
    """The conversations of a folder, in order."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"The folder '{folder}' cannot be read: {error.strerror}; check --input-file.") from None
    paths = [os.path.join(folder, name) for name in names if name.endswith(".jsonl")]
    paths = [path for path in paths if os.path.isfile(path)]
    if not paths:
        what = "is empty" if not names else "has no .jsonl file in it"
        raise UserError(
            f"The folder '{folder}' {what}; a replay of a folder reads one conversation from each .jsonl file."
        )
    return paths


def _checker(key: str | None) -> Callable[[bytes], str | None]:
    """Return a function that returns the error of a line, or None. The typed decoder accepts nearly all lines."""
    decode: Callable[[bytes], Any] = _decode_members
    if key is not None:
        decode = msgspec.json.Decoder(msgspec.defstruct("_Body", [(key, msgspec.Raw)])).decode

    def check(line: bytes) -> str | None:
        try:
            body = decode(line)
        except (msgspec.MsgspecError, RecursionError):
            return line_error(line, key)
        if key == "messages" and bytes(memoryview(body.messages)[:1]) != b"[":
            return line_error(line, key)
        return None

    return check


def line_error(line: bytes, key: str | None = None) -> str | None:
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
    return f"'messages' should be a list, not {_kind(first)}" if key == "messages" and first != b"[" else None


def _kind(first: bytes) -> str:
    named = {b"[": "a list", b"{": "an object", b'"': "a string", b"t": "true", b"f": "false", b"n": "null"}
    return named.get(first, "a number")


def _matches(first: dict[str, Any]) -> bool:
    """The keys of other formats win; a file of payloads that have them needs its type named."""
    if "conversation_id" in first or isinstance(first.get("data"), list):
        return False
    return isinstance(first.get("messages"), list)


def _read(path: str, _settings: InputSettings) -> Contents:
    return Contents([], recording=RawPayload(path))


FORMAT = Format(
    name=_NAME,
    needs="a request body a line, sent as it is: a JSON object with a list 'messages', or what the endpoint needs",
    matches=_matches,
    read=_read,
)
