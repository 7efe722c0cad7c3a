"""Fast extraction of the texts of a stream whose chunks differ only in their text.

Most servers send chunks like these, in which nothing changes but the text:

    data: {"id":"1","choices":[{"index":0,"delta":{"content":"Hello"}}]}⏎⏎
    data: {"id":"1","choices":[{"index":0,"delta":{"content":" world"}}]}⏎⏎
    └──────────────────────── prefix ─────────────────────┘     └ suffix ┘

The prefix and the suffix are taken from the first chunk with a text. The body is split at the suffix, and the texts are
decoded with one call, as one JSON list of strings. This is three times faster than decoding each chunk.

The result is correct because every piece between two suffixes must begin with the prefix, and the decoded list must be as
long as the list of pieces: a piece that holds more than the inside of one JSON string makes the list longer. Only a piece
that ends with a backslash could make it shorter, so streams with such a piece are left to the general parser.
"""

from __future__ import annotations

from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import msgspec

from penstock.endpoints.json_replies import UNREADABLE
from penstock.endpoints.openai_types import Chunk, decode_chunk

_BACKSLASH = ord("\\")
_decode_strings = msgspec.json.Decoder(list[str]).decode


class RepeatedChunks(NamedTuple):
    """Consecutive chunks that differ only in their text."""

    texts: list[str]
    ends: list[int]
    """End offset of each chunk in the body; empty unless asked for."""
    start: int
    """Offset of the first of these chunks in the body."""
    length: int
    """Size of all these chunks in bytes."""
    model: str | None
    other_events: bytes
    """The body without these chunks."""


def find_repeated_chunks(body: bytes, field: bytes, *, timed: bool) -> RepeatedChunks | None:
    """Find the repeated chunks of a body; `field` is the JSON key before the text, with its colon.

    Return None unless all chunks with the prefix and suffix follow one another and have one plain text each."""
    field_at = body.find(field, body.find(b"\n\n") + 1)
    if field_at < 0:
        return None
    start = body.rfind(b"\n\n", 0, field_at) + 2
    opening_quote = body.find(b'"', field_at + len(field))
    closing_quote = _string_end(body, opening_quote)
    first_end = body.find(b"\n\n", closing_quote)
    if start < 2 or opening_quote < 0 or closing_quote < 0 or first_end < 0:
        return None
    prefix, suffix = body[start : opening_quote + 1], body[closing_quote : first_end + 2]
    if b"\r" in prefix or b"\r" in suffix:
        return None
    # Splitting at suffix + prefix would need no check of the prefix, but CPython's search is four times slower for
    # needles of 100 bytes and more.
    pieces = body[start:].split(suffix)
    count = len(pieces)
    while count and not pieces[count - 1].startswith(prefix):
        count -= 1
    repeated, others = pieces[:count], pieces[count:]
    # If the first and the last in lexical order begin with the prefix, so do all between them.
    if not others or not repeated or not min(repeated).startswith(prefix) or not max(repeated).startswith(prefix):
        return None  # the last chunk is incomplete, or another event is between the repeated ones
    raw_texts = list(map(itemgetter(slice(len(prefix), None)), repeated))
    json_list = b'["' + b'","'.join(raw_texts) + b'"]'
    if b'\\","' in json_list or json_list.endswith(b'\\"]'):
        return None
    try:
        texts = _decode_strings(json_list)
        first_chunk = decode_chunk(body[start + 6 : first_end])
    except UNREADABLE:
        return None
    if len(texts) != len(raw_texts) or "" in texts or _only_text(first_chunk) != texts[0]:
        return None
    ends: list[int] = []
    if timed:
        around = len(prefix) + len(suffix)
        offsets = accumulate([len(text) + around for text in raw_texts], initial=start)
        next(offsets)
        ends = list(offsets)
    tail = suffix.join(others)
    length = len(body) - len(tail) - start
    return RepeatedChunks(texts, ends, start, length, first_chunk.model, body[:start] + tail)


def _string_end(body: bytes, quote: int) -> int:
    """Return the offset of the quote that closes the JSON string opened at `quote`, or -1."""
    end = quote + 1
    while (end := body.find(b'"', end)) >= 0:
        backslashes = end
        while body[backslashes - 1] == _BACKSLASH:
            backslashes -= 1
        if (end - backslashes) % 2 == 0:
            return end
        end += 1
    return -1


def _only_text(chunk: Chunk) -> str | None:
    """Return the text of a chunk if it is the first choice's and the chunk has no other content; None otherwise."""
    if chunk.error or chunk.object == "error" or not chunk.choices or len(chunk.choices) > 1 or chunk.usage:
        return None
    choice = chunk.choices[0]
    delta = choice.delta
    if choice.index or choice.finish_reason:
        return None
    if delta is None:
        return choice.text
    others = delta.tool_calls or delta.function_call or delta.reasoning_content or delta.reasoning or delta.refusal
    return None if others else delta.content
