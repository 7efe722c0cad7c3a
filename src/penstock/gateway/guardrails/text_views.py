"""Views of a text: the strings in which guardrails search for the matches in it, each with a mapping of its positions back to
the text.

A text is searched as it is, in its normalised form, and with its JSON escapes decoded, level by level: tool arguments and
outputs are JSON inside a string, where characters may be escaped, and non-ASCII ones usually are. The structure of such
JSON is not parsed, because the text may be truncated. The payload of a `data:text/…` URL and text in invisible tag
characters are views of their own. Plain ASCII without a backslash has a single view, the text itself.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import orjson

from penstock.gateway.dialects.media import decode_payload
from penstock.gateway.dialects.texts import InspectedText, TextRef
from penstock.gateway.guardrails.normalise import (
    TOO_MANY_IGNORABLES,
    is_plain,
    normalise,
    normalised_starts,
)

MAX_LEVELS = 8
"""JSON inside a string of JSON inside a string of JSON, and so on."""

DERIVED = " derived"
"""Appended to the source for each step of the derivation, so that a match found in several views counts once."""

_JSON_START = re.compile(r'\s*+[{\["]')
UNICODE_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}")
"""The escape that can spell a letter. A text with one is decoded even if it does not start like JSON."""
_ESCAPE = re.compile(
    r'\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(["\\/bfnrt]))'
)
_DEEPER_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["/bfnrt])')
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
DATA_URL = re.compile(r"data:text/[^,\s\"']{0,100}?(;base64)?,([A-Za-z0-9+/=_%.~!*();:@&$-]*)", re.IGNORECASE)
TAGS = re.compile("[\U000e0020-\U000e007e]+")
"""Invisible copies of the ASCII characters, which models read."""

_MatchFilter = Callable[[int, int], bool]
_Starts = Callable[[str], Sequence[int]]


def starts_like_json(text: str) -> bool:
    return _JSON_START.match(text) is not None


def escape(text: str) -> str:
    """Return the text as it is written inside a JSON string."""
    return orjson.dumps(text)[1:-1].decode()


class TextView:
    """A string to search, and the mapping of its positions to the inspected text that it comes from."""

    def __init__(
        self,
        text: str,
        source: str,
        index: int,
        base: TextView | int = 0,
        starts_of: _Starts | None = None,
        *,
        level: int = 0,
        span: tuple[int, int] | None = None,
        parts: list[str] | None = None,
    ) -> None:
        """`base` is the view that this one is derived from, or the offset in the inspected text. `starts_of` returns the
        position in the base for each character. `span`: matches anywhere stand for this part of the base."""
        self.text = text
        self.source = source
        self.index = index
        self._base = base
        self._starts_of = starts_of
        self._starts: Sequence[int] | None = None
        self.level = level
        self._span = span
        self._parts = parts
        self.accepts: _MatchFilter | None = None if parts is None else crossing_filter(map(len, parts))
        """Returns True if a match with this start and end counts; None if every match counts."""

    def accepts_folded(self, fold: Callable[[str], str]) -> _MatchFilter | None:
        """Return `accepts` for positions in the text folded by `fold`, which is called for one part after the other."""
        return None if self._parts is None else crossing_filter([len(fold(part)) for part in self._parts])

    def source_span(self, first: int, last: int) -> tuple[int, int]:
        base = self._base
        if not isinstance(base, TextView):
            return first + base, last + base
        if self._span is not None:
            return base.source_span(*self._span)
        if self._starts_of is not None:
            if self._starts is None:
                self._starts = self._starts_of(base.text)
            starts = self._starts
            begin = starts[first]
            # one character of the base may have become several
            while last < len(starts) and starts[last] == starts[last - 1]:
                last += 1
            return base.source_span(begin, starts[last] if last < len(starts) else len(base.text))
        return base.source_span(first, last)

    def escape_token(self, token: str) -> str:
        """Escape the token once per JSON level, so that it is valid where it is written."""
        root = self
        while isinstance(root._base, TextView):
            root = root._base
        for _ in range(self.level or starts_like_json(root.text)):
            token = escape(token)
        return token


def build_views(texts: Sequence[InspectedText]) -> tuple[list[TextView], bool]:
    """Return the views of the texts, and whether a text hides more than they show."""
    views: list[TextView] = []
    hidden = False
    # Most bodies have no text that needs another view, and one check of all of them is faster than one for each.
    is_single = _has_single_view("\n".join([text.text for text in texts if isinstance(text, TextRef)]))
    for index, inspected in enumerate(texts):
        if isinstance(inspected, TextRef):
            if is_single:
                views.append(TextView(inspected.text, inspected.source, index))
            else:
                hidden |= views_of(views, inspected.text, inspected.source, index)
            continue
        strings = ["".join([ref.text for ref in part]) for part in inspected.parts]
        source = inspected.parts[0][0].source
        offset = 0
        for text in strings:
            hidden |= views_of(views, text, source, index, offset)
            offset += len(text)
        if len(strings) > 1:
            _add_joined(views, strings, source, index)
    return views, hidden


def views_of(
    views: list[TextView], text: str, source: str, index: int, offset: int = 0, *, decode: bool = False
) -> bool:
    """Add the views of a text. Return whether it hides more than they show. `decode`: it is known to contain JSON."""
    root = TextView(text, source, index, offset)
    views.append(root)
    if _has_single_view(text):
        return False
    hidden = _add_normalised(views, root)
    if "\\" in text and (decode or starts_like_json(text) or UNICODE_ESCAPE.search(text) is not None):
        hidden |= _add_levels(views, root)
    if _may_have_url(text):
        _add_data_urls(views, root)
    return hidden


def _has_single_view(text: str) -> bool:
    return "\\" not in text and not _may_have_url(text) and is_plain(text)


def _may_have_url(text: str) -> bool:
    return ":" in text and "data:text/" in text.lower()


def _add_normalised(views: list[TextView], base: TextView) -> bool:
    text = base.text
    normal = normalise(text)
    if normal == text:
        return False
    views.append(TextView(normal, base.source + DERIVED, base.index, base, normalised_starts, level=base.level))
    _add_tags(views, base)
    return TOO_MANY_IGNORABLES.search(text) is not None


def _add_tags(views: list[TextView], base: TextView) -> None:
    for tags in TAGS.finditer(base.text):
        plain = "".join([chr(ord(character) - 0xE0000) for character in tags[0]])
        views.append(TextView(plain, base.source + DERIVED, base.index, base, level=base.level, span=tags.span()))


def _add_levels(views: list[TextView], root: TextView) -> bool:
    base = root
    hidden = False
    for level in range(1, MAX_LEVELS + 1):
        text = _ESCAPE.sub(_decode, base.text)
        if text == base.text:
            return hidden
        base = TextView(text, base.source + DERIVED, root.index, base, _unescaped_starts, level=level)
        views.append(base)
        if not is_plain(text):
            hidden |= _add_normalised(views, base)
        if _may_have_url(text):
            _add_data_urls(views, base)
    return hidden or _DEEPER_ESCAPE.search(base.text) is not None


def _add_data_urls(views: list[TextView], base: TextView) -> None:
    for url in DATA_URL.finditer(base.text):
        plain = decode_payload(url[2], encoded=url[1] is not None)
        if plain:
            view = TextView(plain, base.source + DERIVED, base.index, base, level=base.level, span=url.span())
            views.append(view)
            if not is_plain(plain):
                _add_normalised(views, view)


def _add_joined(views: list[TextView], strings: list[str], source: str, index: int) -> None:
    joined = TextView("".join(strings), source, index, parts=strings)
    views.append(joined)
    if not is_plain(joined.text):
        normal = [normalise(text) for text in strings]
        if normal != strings:
            views.append(TextView("".join(normal), source + DERIVED, index, joined, normalised_starts, parts=normal))


def _decode(match: re.Match[str]) -> str:
    pair, unit, sign = match.group(1, 2, 3)
    if pair:
        return chr(0x10000 + ((int(pair[1:5], 16) & 0x3FF) << 10) + (int(pair[7:11], 16) & 0x3FF))
    if unit:
        character = chr(int(unit, 16))
        return "\ufffd" if "\ud800" <= character <= "\udfff" else character
    return _SHORT_ESCAPES.get(sign, sign)


def _unescaped_starts(text: str) -> Sequence[int]:
    starts = array("I")
    done = 0
    for match in _ESCAPE.finditer(text):
        starts.extend(range(done, match.start() + 1))
        done = match.end()
    starts.extend(range(done, len(text)))
    return starts


def crossing_filter(lengths: Iterable[int]) -> _MatchFilter:
    """Return a filter for matches in joined texts of these lengths that extend over more than one of them."""
    borders = list(accumulate(lengths))[:-1]

    def crosses(start: int, end: int) -> bool:
        after = bisect_right(borders, start)
        return after < len(borders) and borders[after] < end

    return crosses
