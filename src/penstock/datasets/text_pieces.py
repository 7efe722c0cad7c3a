"""Pieces of text whose token counts are known, and how to add them up to a given count.

Counting a prompt costs far more than joining strings, so pieces are counted once and prompts are put together from
them. A piece begins with a space and is counted behind other text, because that is where it will stand: many
tokenizers count a text differently at the beginning. That counts add up is an assumption, which the caller checks.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from random import Random

from penstock.datasets.sentences import heads, pick, sentence, short_sentence, words
from penstock.tokens.tokenizer import Tokenizer

__all__ = ["TextPieces", "build_text_pieces"]

_SENTENCES = 2048
_SHORT = 256
_ANCHOR = "It was late."
_ENOUGH = 16
"""With fewer words of one token than this, single characters join them."""
_CHARACTERS = tuple(string.ascii_lowercase + string.ascii_uppercase + string.digits + ".,;:!?-")


class TextPieces:
    def __init__(self, pieces: Sequence[tuple[str, int]], sentences: int, starts: Sequence[tuple[str, int]]) -> None:
        """The first `sentences` pieces make up the body of a text, all of them its end."""
        self._texts = [text for text, _ in pieces[:sentences]]
        self._counts = [count for _, count in pieces[:sentences]]
        self._longest = max(self._counts, default=0)
        self._by_count: dict[int, list[str]] = {}
        for text, count in pieces:
            if count > 0:
                self._by_count.setdefault(count, []).append(text)
        self._ways = _ways(sorted(self._by_count), self._longest)
        self._starts = starts
        self._usable: dict[int, list[tuple[str, int]]] = {}

    @property
    def complete(self) -> bool:
        """Every count can be made of pieces."""
        return bool(self._texts) and None not in self._ways

    def reaches(self, count: int) -> bool:
        return count > self._longest or (count >= 0 and self._ways[count] is not None)

    def tail(self, count: int, rng: Random) -> str:
        """Text to append that should add `count` tokens, or as many below that as can be reached."""
        if not self._texts:
            return ""
        parts: list[str] = []
        draw, texts, counts, size = rng.random, self._texts, self._counts, len(self._texts)
        while count > self._longest:
            index = int(draw() * size)
            parts.append(texts[index])
            count -= counts[index]
        way = self._ways[count]
        while way is None:
            count -= 1
            way = self._ways[count]
        parts.extend([pick(rng, self._by_count[n]) for n in way])
        return "".join(parts)

    def short(self, count: int, rng: Random) -> str:
        """A text that should have `count` tokens, for counts too small for an opening sentence."""
        usable = self._usable.get(count)
        if usable is None:
            usable = [(text, n) for text, n in self._starts if n <= count and self.reaches(count - n)]
            usable = usable or list(self._starts)
            self._usable[count] = usable
        text, n = pick(rng, usable)
        return text + self.tail(count - n, rng) if count > n else text


def build_text_pieces(tokenizer: Tokenizer, rng: Random) -> TextPieces:
    body = [" " + sentence(rng) for _ in range(_SENTENCES)]
    ends = [" " + short_sentence(rng) for _ in range(_SHORT)]
    pieces = _behind_text(tokenizer, list(dict.fromkeys(body)))
    # A tokenizer can make nothing of our letters, so that a sentence counts 0; such pieces would never add up.
    pieces = [(text, count) for text, count in pieces if count > 0]
    sentences = len(pieces)
    pieces += _behind_text(tokenizer, list(dict.fromkeys(ends)))

    singles = [(text, count) for text, count in _behind_text(tokenizer, [f" {word}" for word in words()]) if count == 1]
    if len(singles) < _ENOUGH:
        # A character must add one token each time it is repeated, or "..." would come out shorter than its parts.
        eight = _behind_text(tokenizer, [character * 8 for character in _CHARACTERS])
        singles += [(text[0], 1) for text, count in eight if count == 8]

    beginnings = heads()
    starts = list(zip(beginnings, tokenizer.count_many(beginnings), strict=True))
    if sum(count == 1 for _, count in starts) < _ENOUGH:
        starts += zip(_CHARACTERS, tokenizer.count_many(_CHARACTERS), strict=True)
    starts = [(text, count) for text, count in starts if count > 0] or [("A", 1)]
    return TextPieces(pieces + singles, sentences, starts)


def _behind_text(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[str, int]]:
    base = tokenizer.count(_ANCHOR)
    counts = tokenizer.count_many([_ANCHOR + text for text in texts])
    return [(text, count - base) for text, count in zip(texts, counts, strict=True)]


def _ways(sizes: Sequence[int], longest: int) -> list[tuple[int, ...] | None]:
    """For each sum up to `longest`, the fewest sizes that make it, largest first; None where nothing does."""
    ways: list[tuple[int, ...] | None] = [()]
    for total in range(1, longest + 1):
        best: tuple[int, ...] | None = None
        for size in reversed(sizes):
            rest = ways[total - size] if size <= total else None
            if rest is not None and (best is None or len(rest) + 1 < len(best)):
                best = (size, *rest)
        ways.append(best)
    return ways
