"""The `raw_payload` format: one request body per line, sent byte for byte.

Each line of a file is a conversation of one turn. In a folder each `.jsonl` file is a conversation and its lines are
the turns; files are sorted by name, and other files are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.datasets.conversation import BodyLocation, Conversation, Turn
from penstock.datasets.dataset import Dataset, ReadOptions
from penstock.datasets.format import Format
from penstock.datasets.json_text import replace_lone_surrogates
from penstock.datasets.jsonl import FileErrors, explain, jsonl_files, read_lines
from penstock.datasets.source_files import source_files
from penstock.settings.schema import InputSettings

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RawPayload(Dataset):
    """The recorded bodies in a file or folder."""

    verbatim = reads_on = True

    def __init__(self, path: str) -> None:
        self._folder = path if os.path.isdir(path) else None
        self.files = source_files([path] if self._folder is None else jsonl_files(path))
        self._body_key: str | None = None

    def prepare(self, options: ReadOptions) -> None:
        self._body_key = options.body_key

    def read(self, errors: FileErrors) -> Iterator[Conversation]:
        if self._folder is None:
            for turn in self._turns(0, errors, None):
                yield Conversation(id="", turns=(turn,))
            return
        for number, file in enumerate(self.files):
            name = os.path.basename(file.path)
            if turns := tuple(self._turns(number, errors, name)):
                yield Conversation(id=os.path.splitext(name)[0], turns=turns)

    def _turns(self, number: int, errors: FileErrors, name: str | None) -> Iterator[Turn]:
        """Yield the bodies of a file. `name` is that of the file if the input is a folder."""
        file = self.files[number]
        before, scanned, empty = errors.count, self.scanned, True
        for line_number, offset, line in read_lines(file.path, errors, name):
            self.scanned = scanned + offset + len(line)
            if error := _error(line, self._body_key):
                errors.add(line_number, error, name)
            else:
                empty = False
                yield Turn(body=BodyLocation(number, offset, len(line)))
        self.scanned = scanned + file.identity.size
        if empty and errors.count == before:
            errors.add(1, "the file is empty: each line should be a request body, a JSON object", name)


def _error(line: bytes, key: str | None) -> str | None:
    """Return why the line is not a JSON object with that key, or None if it is one."""
    try:
        members = _decode_members(line)
    except (msgspec.MsgspecError, RecursionError):
        try:
            members = _decode_members(replace_lone_surrogates(line))
        except (msgspec.MsgspecError, RecursionError) as error:
            return explain(error, line)
    if key is None:
        return None
    if key not in members:
        return f"it has no '{key}', which this endpoint needs (--endpoint-type raw takes any object)"
    first = bytes(memoryview(members[key])[:1])
    return f"'messages' should be a list, not {_type_name(first)}" if key == "messages" and first != b"[" else None


def _type_name(first: bytes) -> str:
    types = {b"{": "an object", b'"': "a string", b"t": "true", b"f": "false", b"n": "null"}
    return types.get(first, "a number")


def _matches(first: dict[str, Any]) -> bool:
    """Keys of other formats take precedence: for payloads with such keys the user must name the format."""
    if "conversation_id" in first or isinstance(first.get("data"), list):
        return False
    return isinstance(first.get("messages"), list)


def _read(path: str, _settings: InputSettings) -> Dataset:
    return RawPayload(path)


FORMAT = Format(
    name="raw_payload",
    needs="one request body per line, sent as it is: a JSON object with a list 'messages', or what the endpoint needs",
    matches=_matches,
    read=_read,
    reads_folders=True,
)
