"""Make a text have exactly so many tokens when the counts of its pieces do not add up."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.datasets.text_pieces import TextPieces

__all__ = ["fit"]

_ROUNDS = 8
_NEARBY = 96
_ENDS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?-")


def fit(text: str, target: int, count: Callable[[str], int], bank: TextPieces, rng: Random) -> str | None:
    """The text with its end changed until it has `target` tokens; None when no end was found that does it."""
    for attempt in range(_ROUNDS):
        have = count(text)
        if have == target:
            return text
        # Each round cuts a little deeper, or the same few pieces could be taken off and put back for ever.
        text = _cut(text, have, target, attempt // 2) if have > target else text + bank.tail(target - have, rng)
        text = text or bank.short(target, rng)
    return _search(text, target, count, bank, rng)


def _cut(text: str, have: int, target: int, deeper: int) -> str:
    words = text.split(" ")
    drop = max(1, (have - target) * len(words) // have) + deeper
    return " ".join(words[:-drop])


def _search(text: str, target: int, count: Callable[[str], int], bank: TextPieces, rng: Random) -> str | None:
    """Try every cut near the right length, then every cut with one more character."""
    while count(text) <= target:
        longer = text + bank.tail(target, rng)
        if count(longer) <= count(text):
            break  # a tokenizer that makes nothing of our letters
        text = longer
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        if count(text[:middle]) < target:
            low = middle + 1
        else:
            high = middle
    near: list[tuple[int, str]] = []
    for cut in sorted(range(1, len(text) + 1), key=lambda cut: abs(cut - low))[: 2 * _NEARBY]:
        begin = text[:cut]
        if not begin.endswith(" "):
            have = count(begin)
            if have == target:
                return begin
            near.append((abs(have - target), begin))
    for _, begin in sorted(near, key=lambda each: each[0])[:4]:
        for end in _ENDS:
            if count(begin + end) == target:
                return begin + end
    return None
