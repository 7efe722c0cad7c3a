"""Prompts of traces that have lengths and block hashes instead of texts.

A hash id stands for a block of tokens. The same id always gives the same text, so prompts share the prefixes that the trace
shares. A block begins with four random words, so that blocks with different ids differ in their first tokens. Texts are
plain English and have no special tokens.

Blocks are assembled from pieces with known token counts (see `text_pieces`). The first texts are counted. If each has the
sum of the counts of its pieces, later texts are not counted, and the beginning of a block is cut within one piece.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from random import Random

import msgspec

from penstock.datasets.conversation import Turn
from penstock.datasets.corpora import PRECEDING_TEXT, corpus
from penstock.datasets.exact_length import fit_length
from penstock.datasets.random_streams import stream
from penstock.datasets.text_pieces import TextPieces, build_text_pieces
from penstock.tokens.tokenizer import Tokenizer

_CHECKED_TEXTS = 64
_RANDOM_WORDS = 4
_KEPT_BLOCKS = 8192
"""20 MB of beginnings of blocks of 512 tokens."""


class TracePrompts:
    """Writes the prompts of a trace."""

    def __init__(self, tokenizer: Tokenizer, seed: int, block_size: int, corpus_name: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._block_size = block_size
        self._pieces: TextPieces = build_text_pieces(tokenizer, stream(seed, "bank"), corpus(corpus_name, tokenizer))
        self._repairs = stream(seed, "repairs")
        self._base = tokenizer.count(PRECEDING_TEXT)
        self._unchecked = _CHECKED_TEXTS
        self._counts_add_up = self._pieces.complete
        self._prompts = 0
        self._block = lru_cache(_KEPT_BLOCKS)(self._write_block)
        self._begin_of_block = lru_cache(_KEPT_BLOCKS)(self._cut_block)
        self._begin_of_piece = lru_cache(_KEPT_BLOCKS)(self._cut_piece)

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
        parts = [piece for hash_id in hash_ids[:full] for piece in self._block(hash_id)]
        rest = length - full * size
        if rest and full < len(hash_ids):
            parts.append(self._begin_of_block(hash_ids[full], rest))
        elif rest:
            self._prompts += 1
            parts += self._text(("end", self._prompts), rest)
        return "".join(parts)

    def _write_block(self, hash_id: int) -> list[str]:
        return self._text(("block", hash_id), self._block_size)

    def _text(self, purpose: tuple[Hashable, ...], count: int) -> list[str]:
        """Return the pieces of a text that adds `count` tokens to a text before it, or the text if it is not made of pieces."""
        rng = stream(self._seed, f"{purpose[0]} {purpose[1]}")
        pieces = self._compose(rng, count)
        if self._unchecked or not self._counts_add_up:
            self._unchecked = max(0, self._unchecked - 1)
            text = "".join(pieces)
            if self._count_after_text(text) != count:
                self._counts_add_up = False
                return [self._fitted(text, count)]
        return pieces

    def _compose(self, rng: Random, count: int) -> list[str]:
        words = min(_RANDOM_WORDS, count)
        first = [piece for _ in range(words) for piece in self._pieces.parts(1, rng)]
        return first + self._pieces.parts(count - words, rng)

    def _cut_block(self, hash_id: int, count: int) -> str:
        """Return the first `count` tokens of a block."""
        pieces = self._block(hash_id)
        if self._counts_add_up:
            begin = self._cut_pieces(pieces, count)
            if begin is not None and not (self._unchecked and self._count_after_text(begin) != count):
                return begin
        text = "".join(pieces)
        begin = self._cut_text(text, count)
        return begin if self._count_after_text(begin) == count else self._fitted(begin, count)

    def _cut_pieces(self, pieces: Sequence[str], count: int) -> str | None:
        """Return the first `count` tokens of pieces; None if none of the cuts of a piece has its share of them."""
        taken = []
        for piece in pieces:
            size = self._pieces.count_of[piece]
            if size <= count:
                taken.append(piece)
                count -= size
            else:
                begin = self._begin_of_piece(piece, count) if count else ""
                return None if begin is None else "".join([*taken, begin])
        return "".join(taken)

    def _cut_piece(self, piece: str, count: int) -> str | None:
        begin = self._cut_text(piece, count)
        return begin if self._count_after_text(begin) == count else None

    def _cut_text(self, text: str, count: int) -> str:
        """Return the first `count` tokens of a text after another text, or the most characters that have fewer."""
        tokens = self._tokenizer.encode(PRECEDING_TEXT + text)
        begin = self._tokenizer.decode(tokens[: self._base + count]).removeprefix(PRECEDING_TEXT)
        if not text.startswith(begin) or self._count_after_text(begin) != count:
            begin = text[: self._find_cut(text, count)]
        return begin

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
        return self._tokenizer.count(PRECEDING_TEXT + text) - self._base
