"""What a misspelled word was meant to be."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(word: str, known: Iterable[str], likeness: float = 0.7) -> str | None:
    from difflib import get_close_matches  # only what is wrong needs it

    found = get_close_matches(word, list(known), n=1, cutoff=likeness)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a sentence about a word that is not known."""
    guess = nearest(word.lower(), known)
    return f"did you mean {guess}?" if guess else otherwise
