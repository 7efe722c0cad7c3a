"""Word lists for synthetic text, by part of speech.

The sentence grammar relies on three properties: every noun forms its plural with `s`, the first letter of a noun or
adjective decides between `a` and `an`, and verbs are in the past tense, which is the same for every subject.
"""

from __future__ import annotations

import os

__all__ = ["ADJECTIVES", "ADVERBS", "INTRANSITIVE", "NOUNS", "NUMBERS", "PEOPLE", "PLACES", "TIMES", "TRANSITIVE"]


def _read() -> dict[str, tuple[str, ...]]:
    """Return the words of each list. A paragraph of the file is the name of a list and its words."""
    with open(os.path.join(os.path.dirname(__file__), "word_lists.txt"), encoding="ascii") as file:
        paragraphs = [paragraph.split() for paragraph in file.read().split("\n\n")]
    return {name: tuple(words) for name, *words in paragraphs}


_LISTS = _read()
NOUNS = _LISTS["nouns"]
PEOPLE = _LISTS["people"]
PLACES = _LISTS["places"]
ADJECTIVES = _LISTS["adjectives"]
TRANSITIVE = _LISTS["transitive"]
INTRANSITIVE = _LISTS["intransitive"]
ADVERBS = _LISTS["adverbs"]
NUMBERS = _LISTS["numbers"]
TIMES = (
    "yesterday", "last night", "this morning", "in the evening", "at noon", "before dawn", "after dinner",
    "in early spring", "every summer", "one autumn", "late in winter", "on Monday", "on Tuesday", "on Friday",
    "last Sunday", "at midnight", "a week ago", "long ago", "in March", "by April", "in October", "during the storm",
    "after the rain", "once more", "at first", "in the end", "most days", "from time to time", "an hour later",
    "just then", "that year", "as always", "without a word", "to this day", "at sunset",
)  # fmt: skip
