"""Files of one JSON object a line: reading them, and saying what is wrong with them, all at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import msgspec

from penstock.datasets.json_text import TOO_DEEP, syntax_error
from penstock.errors import UserError

__all__ = ["BOM", "IN_UTF16", "UTF16", "Problems", "empty_file", "explain", "numbered_lines", "open_failure"]

_SHOWN = 20
BOM = b"\xef\xbb\xbf"
"""A mark before the first line, which is none of it."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How a file in that coding begins."""
IN_UTF16 = "the file is in UTF-16; save it as UTF-8"

_EXPECTED = re.compile(
    r"Expected `(?P<wanted>[^`]+)`(?P<limit> [<>]=? [-\d.]+)?(?:, got `(?P<got>[^`]+)`)?(?: - at `\$\.?(?P<where>.*)`)?"
)
_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


class Problems:
    """Collects what is wrong with a file; keeps the first few and counts the rest."""

    def __init__(self, path: str) -> None:
        self._file = os.path.basename(path.rstrip("/")) or path
        self._first: list[str] = []
        self._count = 0
        self.on_first: Callable[[str], None] | None = None
        """Told of the first problem when it is found."""

    @property
    def count(self) -> int:
        return self._count

    def add(self, line: int, reason: str, file: str | None = None) -> None:
        """`file` is the one in question when the input is a folder."""
        self._count += 1
        if self._count <= _SHOWN:
            self._first.append(f"{file or self._file}:{line}: {reason}")
        if self._count == 1 and self.on_first is not None:
            self.on_first(self._first[0])

    def text(self) -> str:
        if self._count == 1:
            return self._first[0]
        more = [f"and {self._count - _SHOWN:,} more"] if self._count > _SHOWN else []
        return "\n  ".join([f"{self._file} has {self._count:,} problems:", *self._first, *more])

    def raise_any(self) -> None:
        if self._count:
            raise UserError(self.text())


def numbered_lines(path: str, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; a line that is not UTF-8 becomes a problem instead."""
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                line = raw.removeprefix(BOM) if number == 1 else raw
                if not line.isascii():
                    if number == 1 and line.startswith(UTF16):
                        problems.add(1, IN_UTF16)
                        return
                    try:
                        line.decode()
                    except UnicodeDecodeError as error:
                        problems.add(number, f"not valid UTF-8 (byte {error.start + 1} of the line)")
                        continue
                if not line.isspace() and line:
                    yield number, line
    except OSError as error:
        raise open_failure(path, error) from None


def open_failure(path: str, error: OSError) -> UserError:
    return UserError(f"The input file '{path}' cannot be read: {error.strerror}; check --input-file.")


def empty_file(path: str) -> UserError:
    return UserError(f"The input file '{path}' is empty; give --input-file a file with a JSON object a line.")


def explain(error: Exception, line: bytes) -> str:
    """What a msgspec error means, in the words of someone who wrote the file by hand."""
    if isinstance(error, msgspec.ValidationError):
        return _mismatch(str(error))
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if (found := syntax_error(line)) is not None:
        column, reason = len(line[: found[0]].decode(errors="replace")) + 1, found[1]
        return f"not valid JSON ({reason}, column {column})"
    if re.search(rb"\\u[dD][89a-fA-F]", line):
        return "not valid JSON (half of a \\u surrogate pair without its other half)"
    return f"not valid JSON ({error})"


def _mismatch(message: str) -> str:
    found = _EXPECTED.fullmatch(message)
    if not found:
        return message.replace("`", "'")
    wanted = [kind for kind in found["wanted"].split(" | ") if kind != "null"]
    what = f"'{found['where']}'" if found["where"] else "the line"
    not_this = f", not {_KINDS.get(found['got'], found['got'])}" if found["got"] else ""
    return f"{what} should be {' or '.join(_KINDS.get(kind, kind) for kind in wanted)}{found['limit'] or ''}{not_this}"
