"""Suggestions for misspelled words."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    from difflib import get_close_matches  # only mistakes need it

    matches = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return the end of a sentence about an unknown word: a suggestion, or `otherwise`."""
    guess = nearest(word.lower(), known)
    return f"did you mean {guess}?" if guess else otherwise
