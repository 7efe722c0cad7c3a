"""Pieces of text with known token counts, from which prompts of a given token count are assembled.

Counting the tokens of a prompt takes far longer than joining strings. So each piece is counted once, and prompts are
joined from pieces. A piece begins with a space and is counted after other text, because many tokenizers count a text
differently at the beginning. That counts add up is an assumption, which the caller checks.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import lru_cache
from random import Random

from penstock.datasets.corpora import Corpus, count_after_text
from penstock.datasets.sentences import first_words, pick, words
from penstock.tokens.tokenizer import Tokenizer

_SHORT_PARTS = 256
_MIN_SINGLES = 16
"""If fewer words than this have one token, single characters are used as well."""
CHARACTERS = tuple(string.ascii_lowercase + string.ascii_uppercase + string.digits + ".,;:!?-")


class TextPieces:
    """Texts with their token counts, and the ways to add them up."""

    def __init__(self, pieces: Sequence[tuple[str, int]], sentences: int, starts: Sequence[tuple[str, int]]) -> None:
        """`pieces` are texts with their counts; only the first `sentences` of them are used before the end of a text.

        `starts` are words that can begin a text, with their counts.
        """
        self._texts = [text for text, _ in pieces[:sentences]]
        self._counts = [count for _, count in pieces[:sentences]]
        self._longest = max(self._counts, default=0)
        self.count_of = dict(pieces)
        """The token count of each piece."""
        self._by_count: dict[int, list[str]] = {}
        for text, count in pieces:
            if count > 0:
                self._by_count.setdefault(count, []).append(text)
        self._sums = _sums(sorted(self._by_count), self._longest)
        self._starts = starts
        self._usable_starts: dict[int, list[tuple[str, int]]] = {}

    @property
    def complete(self) -> bool:
        """True if pieces exist for every count."""
        return bool(self._texts) and None not in self._sums

    def can_add(self, count: int) -> bool:
        """Return whether pieces can add exactly `count` tokens."""
        return count > self._longest or (count >= 0 and self._sums[count] is not None)

    def continuation(self, count: int, rng: Random) -> str:
        """Return text that should add `count` tokens, or the largest smaller number for which there are pieces."""
        return "".join(self.parts(count, rng))

    def parts(self, count: int, rng: Random) -> list[str]:
        """Return the pieces of such a text."""
        if not self._texts:
            return []
        parts: list[str] = []
        draw, texts, counts, size = rng.random, self._texts, self._counts, len(self._texts)
        while count > self._longest:
            index = int(draw() * size)
            parts.append(texts[index])
            count -= counts[index]
        sizes = self._sums[count]
        while sizes is None:
            count -= 1
            sizes = self._sums[count]
        parts.extend([pick(rng, self._by_count[size]) for size in sizes])
        return parts

    def short_text(self, count: int, rng: Random) -> str:
        """Return a text that should have `count` tokens, where `count` is too small for an opening sentence."""
        starts = self._usable_starts.get(count)
        if starts is None:
            starts = [(text, n) for text, n in self._starts if n <= count and self.can_add(count - n)]
            starts = starts or list(self._starts)
            self._usable_starts[count] = starts
        text, n = pick(rng, starts)
        return text + self.continuation(count - n, rng) if count > n else text


def build_text_pieces(tokenizer: Tokenizer, rng: Random, corpus: Corpus) -> TextPieces:
    body = [corpus.part(rng) for _ in range(corpus.parts)]
    ends = [corpus.short_part(rng) for _ in range(_SHORT_PARTS)]
    pieces = count_after_text(tokenizer, list(dict.fromkeys(body)))
    # Drop pieces of 0 tokens, which a tokenizer without Latin letters gives: they would never add up.
    pieces = [(text, count) for text, count in pieces if count > 0]
    sentences = len(pieces)
    pieces += count_after_text(tokenizer, list(dict.fromkeys(ends)))

    singles = _single_tokens(tokenizer)
    return TextPieces([*pieces, *singles], sentences, _starts(tokenizer))


# The points of a sweep build pieces for many seeds, and these do not depend on the seed.
@lru_cache(maxsize=2)
def _single_tokens(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Return texts of one token that continue a text."""
    counted_words = count_after_text(tokenizer, [f" {word}" for word in words()])
    singles = [(text, count) for text, count in counted_words if count == 1]
    if len(singles) < _MIN_SINGLES:
        # Use a character only if eight of it have eight tokens: "..." may be a single token.
        eights = count_after_text(tokenizer, [character * 8 for character in CHARACTERS])
        singles += [(text[0], 1) for text, count in eights if count == 8]
    return singles


@lru_cache(maxsize=2)
def _starts(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Return words that can begin a text, with their counts."""
    beginnings = first_words()
    starts = list(zip(beginnings, tokenizer.count_many(beginnings), strict=True))
    if sum(count == 1 for _, count in starts) < _MIN_SINGLES:
        starts += zip(CHARACTERS, tokenizer.count_many(CHARACTERS), strict=True)
    return [(text, count) for text, count in starts if count > 0] or [("A", 1)]


def _sums(sizes: Sequence[int], longest: int) -> list[tuple[int, ...] | None]:
    """Return for each total up to `longest` the fewest sizes that add up to it, largest first; None if none do."""
    sums: list[tuple[int, ...] | None] = [()]
    for total in range(1, longest + 1):
        best: tuple[int, ...] | None = None
        for size in reversed(sizes):
            rest = sums[total - size] if size <= total else None
            if rest is not None and (best is None or len(rest) + 1 < len(best)):
                best = (size, *rest)
        sums.append(best)
    return sums
