"""Make a text have exactly so many tokens when the counts of its pieces do not add up."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.datasets.bank import Bank

__all__ = ["fit"]

_ROUNDS = 24
_NEARBY = 96
_ENDS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?-")


def fit(text: str, target: int, count: Callable[[str], int], bank: Bank, rng: Random) -> str | None:
    """The text with its end changed until it has `target` tokens; None when no end was found that does it."""
    for _ in range(_ROUNDS):
        have = count(text)
        if have == target:
            return text
        # Pieces are drawn anew in each round, so an end that cannot work is not tried for ever.
        text = _cut(text, have, target) if have > target else text + bank.tail(target - have, rng)
        text = text or bank.short(target, rng)
    return _search(text, target, count, bank, rng)


def _cut(text: str, have: int, target: int) -> str:
    words = text.split(" ")
    drop = max(1, (have - target) * len(words) // have)
    return " ".join(words[:-drop])


def _search(text: str, target: int, count: Callable[[str], int], bank: Bank, rng: Random) -> str | None:
    """Try every cut near the right length, then every cut with one more character."""
    for _ in range(_ROUNDS):
        if count(text) > target:
            break
        text += bank.tail(target, rng)
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        if count(text[:middle]) < target:
            low = middle + 1
        else:
            high = middle
    cuts = range(max(0, low - _NEARBY), min(len(text), low + _NEARBY) + 1)
    near = {cut: count(text[:cut]) for cut in cuts if not text[:cut].endswith(" ")}
    for cut, have in near.items():
        if have == target and cut > 0:
            return text[:cut]
    for cut in sorted(near, key=lambda cut: abs(near[cut] - target))[:4]:
        for end in _ENDS:
            if count(text[:cut] + end) == target:
                return text[:cut] + end
    return None
