"""Reads files with one JSON object per line, and collects the errors of a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import msgspec

from penstock.datasets.json_text import TOO_DEEP, syntax_error
from penstock.errors import UserError

_SHOWN = 20
BOM = b"\xef\xbb\xbf"
"""A byte-order mark, which is not part of the first line."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""The byte-order marks of UTF-16."""
IN_UTF16 = "the file is in UTF-16; save it as UTF-8"

_EXPECTED = re.compile(
    r"Expected `(?P<expected>[^`]+)`(?P<limit> [<>]=? [-\d.]+)?(?:, got `(?P<got>[^`]+)`)?(?: - at `\$\.?(?P<path>.*)`)?"
)
_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class FileErrors:
    """The errors of a file: the text of the first 20 and the number of all."""

    def __init__(self, path: str) -> None:
        self._file = os.path.basename(path.rstrip("/")) or path
        self._first: list[str] = []
        self._count = 0
        self.on_first: Callable[[str], None] | None = None
        """Called with the first error as soon as it is added."""

    @property
    def count(self) -> int:
        return self._count

    def add(self, line: int, reason: str, file: str | None = None) -> None:
        """Add an error. `file` is the name of the file if the input is a folder."""
        self._count += 1
        if self._count <= _SHOWN:
            self._first.append(f"{file or self._file}:{line}: {reason}")
        if self._count == 1 and self.on_first is not None:
            self.on_first(self._first[0])

    def text(self) -> str:
        if self._count == 1:
            return self._first[0]
        more = [f"and {self._count - _SHOWN:,} more"] if self._count > _SHOWN else []
        return "\n  ".join([f"{self._file} has {self._count:,} errors:", *self._first, *more])

    def raise_any(self) -> None:
        if self._count:
            raise UserError(self.text())


def read_lines(path: str, errors: FileErrors, name: str | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the offset and the bytes of each line that is not blank, without its line end and byte-order mark.

    Add an error for a line that is not UTF-8. `name` is the name of the file if the input is a folder.
    """
    try:
        with open(path, "rb", buffering=1 << 20) as file:
            offset = 0
            for number, raw in enumerate(file, 1):
                begin, offset = offset, offset + len(raw)
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
                        errors.add(number, f"not valid UTF-8 (byte {error.start + 1} of the line)", name)
                        continue
                elif not line or line.isspace():
                    continue
                yield number, begin, line
    except OSError as error:
        raise open_failure(path, error) from None


def jsonl_files(folder: str) -> list[str]:
    """Return the paths of the .jsonl files of a folder, sorted by name."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"The folder '{folder}' cannot be read: {error.strerror}.") from None
    paths = [os.path.join(folder, name) for name in names if name.endswith(".jsonl")]
    paths = [path for path in paths if os.path.isfile(path)]
    if not paths:
        reason = "is empty" if not names else "has no .jsonl file in it"
        raise UserError(f"The folder '{folder}' {reason}; give a folder with one .jsonl file for each conversation.")
    return paths


def open_failure(path: str, error: OSError) -> UserError:
    return UserError(f"The input file '{path}' cannot be read: {error.strerror}.")


def empty_file(path: str) -> UserError:
    return UserError(f"The input file '{path}' is empty; give a file with one JSON object per line.")


def explain(error: Exception, line: bytes) -> str:
    """Describe a decoding error in terms of the file."""
    if isinstance(error, msgspec.ValidationError):
        return _type_error(str(error))
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if (position := syntax_error(line)) is not None:
        offset, reason = position
        column = len(line[:offset].decode(errors="replace")) + 1
        return f"not valid JSON ({reason}, column {column})"
    if re.search(rb"\\u[dD][89a-fA-F]", line):
        return "not valid JSON (half of a \\u surrogate pair without its other half)"
    return f"not valid JSON ({error})"


def _type_error(message: str) -> str:
    parts = _EXPECTED.fullmatch(message)
    if not parts:
        return message.replace("`", "'")
    expected = " or ".join(_TYPES.get(name, name) for name in parts["expected"].split(" | ") if name != "null")
    subject = f"'{parts['path']}'" if parts["path"] else "the line"
    got = f", not {_TYPES.get(parts['got'], parts['got'])}" if parts["got"] else ""
    return f"{subject} should be {expected}{parts['limit'] or ''}{got}"
