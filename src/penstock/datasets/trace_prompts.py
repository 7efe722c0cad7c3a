"""Prompts of traces that have lengths and block hashes instead of texts.

A hash id stands for a block of tokens. The same id always gives the same text, so prompts share the prefixes that the trace
shares. A block begins with four random words, so that blocks with different ids differ in their first tokens. Texts are
plain English and have no special tokens.

Blocks are assembled from pieces with known token counts (see `text_pieces`). The first texts are counted. If each has the
sum of the counts of its pieces, later texts are not counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from random import Random

import msgspec

from penstock.datasets.conversation import Turn
from penstock.datasets.corpora import corpus
from penstock.datasets.exact_length import fit_length
from penstock.datasets.random_streams import stream
from penstock.datasets.text_pieces import TextPieces, build_text_pieces
from penstock.tokens.tokenizer import Tokenizer

__all__ = ["TracePrompts"]

_CHECKED_TEXTS = 64
_RANDOM_WORDS = 4
_KEPT_BLOCKS = 8192
"""20 MB of blocks of 512 tokens."""
_PRECEDING_TEXT = "It was late."


class TracePrompts:
    """Writes the prompts of a trace."""

    def __init__(self, tokenizer: Tokenizer, seed: int, block_size: int, corpus_name: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._block_size = block_size
        self._pieces: TextPieces = build_text_pieces(tokenizer, stream(seed, "bank"), corpus(corpus_name, tokenizer))
        self._repairs = stream(seed, "repairs")
        self._base = tokenizer.count(_PRECEDING_TEXT)
        self._unchecked = _CHECKED_TEXTS
        self._counts_add_up = self._pieces.complete
        self._prompts = 0
        self._block = lru_cache(_KEPT_BLOCKS)(self._write_block)
        self._begin_of_block = lru_cache(_KEPT_BLOCKS)(self._cut_block)

    def write(self, turn: Turn) -> Turn:
        """Return the turn with the text that its `prompt` describes."""
        shape = turn.prompt
        if shape is None:
            return turn
        text = self._prompt(shape.length, shape.hash_ids)
        count = shape.length
        if self._unchecked or not self._counts_add_up:
            count = self._tokenizer.count(text)
            self._counts_add_up = self._counts_add_up and count == shape.length
        return msgspec.structs.replace(turn, texts=(text,), input_tokens=count, prompt=None)

    def _prompt(self, length: int, hash_ids: tuple[int, ...]) -> str:
        size = self._block_size
        full = min(len(hash_ids), length // size)
        parts = [self._block(hash_id) for hash_id in hash_ids[:full]]
        rest = length - full * size
        if rest and full < len(hash_ids):
            parts.append(self._begin_of_block(hash_ids[full], rest))
        elif rest:
            self._prompts += 1
            parts.append(self._text(("end", self._prompts), rest))
        return "".join(parts)

    def _write_block(self, hash_id: int) -> str:
        return self._text(("block", hash_id), self._block_size)

    def _text(self, purpose: tuple[Hashable, ...], count: int) -> str:
        """Return text that adds `count` tokens to a text before it."""
        rng = stream(self._seed, f"{purpose[0]} {purpose[1]}")
        text = self._compose(rng, count)
        if self._unchecked or not self._counts_add_up:
            self._unchecked = max(0, self._unchecked - 1)
            if self._count_after_text(text) != count:
                self._counts_add_up = False
                text = self._fitted(text, count)
        return text

    def _compose(self, rng: Random, count: int) -> str:
        words = min(_RANDOM_WORDS, count)
        return "".join([self._pieces.continuation(1, rng) for _ in range(words)]) + self._pieces.continuation(
            count - words, rng
        )

    def _cut_block(self, hash_id: int, count: int) -> str:
        """Return the first `count` tokens of a block."""
        text = self._block(hash_id)
        begin = self._tokenizer.decode(self._tokenizer.encode(text)[:count])
        if not text.startswith(begin) or self._count_after_text(begin) != count:
            begin = text[: self._find_cut(text, count)]
        return begin if self._count_after_text(begin) == count else self._fitted(begin, count)

    def _find_cut(self, text: str, count: int) -> int:
        """Return the largest index before which the text has at most `count` tokens."""
        low, high = 0, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            if self._count_after_text(text[:middle]) <= count:
                low = middle
            else:
                high = middle - 1
        return low

    def _fitted(self, text: str, count: int) -> str:
        """Return the text with another end so that it has `count` tokens, or the text if there is none."""
        return fit_length(text, count, self._count_after_text, self._pieces, self._repairs) or text

    def _count_after_text(self, text: str) -> int:
        return self._tokenizer.count(_PRECEDING_TEXT + text) - self._base
