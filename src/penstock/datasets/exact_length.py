"""Changes the end of a text until it has an exact number of tokens.

This is needed for tokenizers with which the token counts of the pieces of a text do not add up to that of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.datasets.text_pieces import CHARACTERS, TextPieces

_ROUNDS = 8
_NEARBY = 96
"""Characters before and after the best cut at which other cuts are tried."""


def fit_length(text: str, target: int, count: Callable[[str], int], pieces: TextPieces, rng: Random) -> str | None:
    """Return the text with another end so that it has `target` tokens; None if no such end is found."""
    for attempt in range(_ROUNDS):
        tokens = count(text)
        if tokens == target:
            return text
        # Later rounds remove more words; otherwise the same pieces could be removed and added forever.
        if tokens > target:
            text = _shorten(text, tokens, target, attempt // 2)
        else:
            text += pieces.continuation(target - tokens, rng)
        text = text or pieces.short_text(target, rng)
    return _search(text, target, count, pieces, rng)


def _shorten(text: str, tokens: int, target: int, extra: int) -> str:
    words = text.split(" ")
    drop = max(1, (tokens - target) * len(words) // tokens) + extra
    return " ".join(words[:-drop])


def _search(text: str, target: int, count: Callable[[str], int], pieces: TextPieces, rng: Random) -> str | None:
    """Try every cut near the right length, then the best cuts with one more character."""
    while count(text) <= target:
        longer = text + pieces.continuation(target, rng)
        if count(longer) <= count(text):
            break  # the tokenizer gives no tokens for this text
        text = longer
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        if count(text[:middle]) < target:
            low = middle + 1
        else:
            high = middle
    candidates: list[tuple[int, str]] = []
    for cut in sorted(range(1, len(text) + 1), key=lambda cut: abs(cut - low))[: 2 * _NEARBY]:
        begin = text[:cut]
        if not begin.endswith(" "):
            tokens = count(begin)
            if tokens == target:
                return begin
            candidates.append((abs(tokens - target), begin))
    for _, begin in sorted(candidates, key=lambda candidate: candidate[0])[:4]:
        for character in CHARACTERS:
            if count(begin + character) == target:
                return begin + character
    return None
