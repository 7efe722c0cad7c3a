"""Decoding of the escapes in a text that contains JSON: `{"a":"\\u0042"}` becomes `{"a":"B"}`.

Tool arguments and outputs are JSON inside a string, where characters may be escaped, and non-ASCII ones usually are. So a
text that starts like JSON is searched twice: as it is, and with its escapes decoded. Its structure is not parsed, because
the text may be truncated or still growing.
"""

from __future__ import annotations

import re
from bisect import bisect_right

import orjson

__all__ = ["MAX_LEVELS", "Unescaper", "escape", "starts_like_json"]

MAX_LEVELS = 2
"""JSON, and JSON inside a string of that JSON."""

_MANY_OFFSETS = 512
_JSON_START = re.compile(r'\s*+[{\["]')
_HIGH = r"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = rf'\\(?:({_HIGH}\\{_LOW})|u([0-9a-fA-F]{{4}})|(["\\/bfnrt]))'
_PARTIAL_ESCAPE = (
    r"\\(?:u[0-9a-fA-F]{0,3}"
    rf"|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?\Z"
)
"""A partial escape at the end of the text. Must precede `_ESCAPE`: a high surrogate at the end may still become a pair."""
_COMPLETE = re.compile(_ESCAPE)
_GROWING = re.compile(rf"{_PARTIAL_ESCAPE}|{_ESCAPE}")
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def starts_like_json(text: str) -> bool:
    return _JSON_START.match(text) is not None


def escape(text: str) -> str:
    """Return the text as it is written inside a JSON string."""
    return orjson.dumps(text)[1:-1].decode()


class Unescaper:
    """Decodes the escapes of a text piece by piece, and maps output positions to input positions."""

    __slots__ = ("_consumed", "_offsets", "_produced", "partial_escape")

    def __init__(self) -> None:
        self.partial_escape = ""
        """An escape at the end of the input that is not complete yet."""
        self._produced = 0
        self._consumed = 0
        self._offsets: list[tuple[int, int]] = [(0, 0)]
        """(output position, input position) after each escape; in between both advance together."""

    def feed(self, text: str) -> str:
        text = self.partial_escape + text
        self.partial_escape = ""
        return self._unescape(text, _GROWING) if "\\" in text else self._append_plain(text)

    def flush(self) -> str:
        """End the input. A partial escape is returned as it is."""
        text, self.partial_escape = self.partial_escape, ""
        return self._unescape(text, _COMPLETE)

    def origin(self, position: int) -> int:
        index = bisect_right(self._offsets, (position, 1 << 62)) - 1
        if index < 0:
            return 0  # forgotten position: it is safer to mask too much than too little
        output, source = self._offsets[index]
        return source + position - output

    @property
    def has_many_offsets(self) -> bool:
        """True if there are enough offsets to be worth forgetting some."""
        return len(self._offsets) > _MANY_OFFSETS

    def forget_before(self, before: int) -> None:
        """Forget the offsets of output positions below `before`."""
        unused = bisect_right(self._offsets, (before, 1 << 62)) - 1
        if unused > _MANY_OFFSETS // 2:  # amortise the deletion
            del self._offsets[:unused]

    def _append_plain(self, text: str) -> str:
        self._produced += len(text)
        self._consumed += len(text)
        return text

    def _unescape(self, text: str, pattern: re.Pattern[str]) -> str:
        out: list[str] = []
        done = 0
        for match in pattern.finditer(text):
            start, end = match.span()
            out.append(self._append_plain(text[done:start]))
            done = end
            pair, unit, sign = match.group(1, 2, 3)
            if pair:
                character = chr(0x10000 + ((int(pair[1:5], 16) & 0x3FF) << 10) + (int(pair[7:11], 16) & 0x3FF))
            elif unit:
                character = chr(int(unit, 16))
                if "\ud800" <= character <= "\udfff":
                    character = "\ufffd"
            elif sign:
                character = _SHORT_ESCAPES.get(sign, sign)
            else:
                self.partial_escape = match[0]
                break
            out.append(character)
            self._produced += 1
            self._consumed += end - start
            self._offsets.append((self._produced, self._consumed))
        out.append(self._append_plain(text[done:]))
        return "".join(out)
