"""JSON inside a text, read as its receiver will read it: `{"a":"\\u0042"}` says B.

The arguments and outputs of tools are JSON that is written into a string. A word can stand in them in the spelling of an
escape, and one that is not ASCII mostly does. So a text that begins like JSON is searched twice, as it is and without its
escapes. No structure is read: the text may be cut off, or still grow.
"""

from __future__ import annotations

import re
from bisect import bisect_right

import orjson

__all__ = ["LEVELS", "Escapes", "begins_json", "escaped"]

LEVELS = 2
"""JSON, and JSON in a string of it."""

_MANY = 512
_BEGINS = re.compile(r'\s*+[{\["]')
_HIGH = r"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = rf'\\(?:({_HIGH}\\{_LOW})|u([0-9a-fA-F]{{4}})|(["\\/bfnrt]))'
_OPEN = (
    r"\\(?:u[0-9a-fA-F]{0,3}"
    rf"|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?\Z"
)
"""Half a pair is an escape, but at the end it may become a whole one: so this comes before `_ESCAPE`."""
_WHOLE = re.compile(_ESCAPE)
_GROWING = re.compile(rf"{_OPEN}|{_ESCAPE}")
_SIGNS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def begins_json(text: str) -> bool:
    return _BEGINS.match(text) is not None


def escaped(text: str) -> str:
    """As it stands inside a string."""
    return orjson.dumps(text)[1:-1].decode()


class Escapes:
    """A text in pieces in, the same without its escapes out; and where each character of that stood."""

    __slots__ = ("_length", "_places", "_read", "tail")

    def __init__(self) -> None:
        self.tail = ""
        """The beginning of an escape whose end has not come."""
        self._length = 0
        self._read = 0
        self._places: list[tuple[int, int]] = [(0, 0)]
        """Position in what went out -> position in what came in; between two of them both grow alike."""

    def feed(self, text: str) -> str:
        text = self.tail + text
        self.tail = ""
        return self._take(text, _GROWING) if "\\" in text else self._plain(text)

    def flush(self) -> str:
        """No more comes: half an escape is none."""
        text, self.tail = self.tail, ""
        return self._take(text, _WHOLE)

    def origin(self, position: int) -> int:
        place = bisect_right(self._places, (position, 1 << 62)) - 1
        if place < 0:
            return 0  # forgotten: a mask that begins too early hides too much, one that begins too late too little
        at, source = self._places[place]
        return source + position - at

    @property
    def many(self) -> bool:
        """Enough of them to be worth forgetting."""
        return len(self._places) > _MANY

    def forget(self, before: int) -> None:
        """Positions below this one are not asked for any more."""
        spare = bisect_right(self._places, (before, 1 << 62)) - 1
        if spare > _MANY // 2:  # not for each piece
            del self._places[:spare]

    def _plain(self, text: str) -> str:
        self._length += len(text)
        self._read += len(text)
        return text

    def _take(self, text: str, pattern: re.Pattern[str]) -> str:
        out: list[str] = []
        done = 0
        for match in pattern.finditer(text):
            start, end = match.span()
            out.append(self._plain(text[done:start]))
            done = end
            pair, unit, sign = match.group(1, 2, 3)
            if pair:
                character = chr(0x10000 + ((int(pair[1:5], 16) & 0x3FF) << 10) + (int(pair[7:11], 16) & 0x3FF))
            elif unit:
                character = chr(int(unit, 16))
                if "\ud800" <= character <= "\udfff":
                    character = "\ufffd"
            elif sign:
                character = _SIGNS.get(sign, sign)
            else:
                self.tail = match[0]
                break
            out.append(character)
            self._length += 1
            self._read += end - start
            self._places.append((self._length, self._read))
        out.append(self._plain(text[done:]))
        return "".join(out)
