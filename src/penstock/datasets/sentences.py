"""Random English sentences, built from a small grammar and the word lists of this package.

All random choices use `Random.random()`, the only method whose sequence Python guarantees across versions. So a seed
gives the same text on every machine and Python version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from penstock.datasets.word_lists import (
    ADJECTIVES,
    ADVERBS,
    INTRANSITIVE,
    NOUNS,
    NUMBERS,
    PEOPLE,
    PLACES,
    TIMES,
    TRANSITIVE,
)

T = TypeVar("T")

# fmt: off
_PREPOSITIONS = (
    "above", "across", "against", "along", "around", "before", "behind", "below", "beside", "beyond", "by", "near",
    "past", "under",
)
_CONJUNCTIONS = ("and", "but", "so", "while", "because", "until", "although", "and then")
_LINKING_VERBS = ("was", "seemed", "became", "looked", "felt", "stayed", "remained")
_REMARKS = (
    "Yes.", "No.", "Perhaps.", "Indeed.", "Of course.", "Not yet.", "So it goes.", "Nobody knew.", "Nobody answered.",
    "Nothing changed.", "Everything stopped.", "It was over.", "That was all.", "Who knows?", "What next?", "Why not?",
    "It hardly mattered.", "Then it began again.", "There was no answer.", "Time went by.", "They all agreed.",
)
# fmt: on


def pick(rng: Random, items: Sequence[T]) -> T:
    """Return a random item."""
    return items[int(rng.random() * len(items))]


def words() -> tuple[str, ...]:
    """Return every word of the lists once, in a fixed order."""
    lists = (NOUNS, PEOPLE, PLACES, ADJECTIVES, TRANSITIVE, INTRANSITIVE, ADVERBS, NUMBERS)
    return tuple(dict.fromkeys(word for words in lists for word in words))


def first_words() -> tuple[str, ...]:
    """Return the words that can begin a text."""
    return tuple(word.capitalize() for word in words())


def opening_sentence(rng: Random) -> str:
    """Return a sentence to begin a prompt with. Over ten million combinations of its first three words are possible."""
    first = pick(rng, ADJECTIVES).capitalize()
    subject = pick(rng, _COUNTABLE) + "s"
    return f"{first} {subject} {pick(rng, INTRANSITIVE)} {_location(rng)}."


def sentence(rng: Random) -> str:
    text = pick(rng, _SENTENCES)(rng)
    return text[0].upper() + text[1:]


def short_sentence(rng: Random) -> str:
    text = pick(rng, _SHORT)(rng)
    return text[0].upper() + text[1:]


_COUNTABLE = NOUNS + PEOPLE


def _with_article(rng: Random, phrase: str) -> str:
    draw = rng.random()
    if draw < 0.55:
        return f"the {phrase}"
    if draw < 0.65:
        return f"{pick(rng, ('this', 'that', 'his', 'her', 'their', 'our', 'every', 'another'))} {phrase}"
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _noun_phrase(rng: Random, noun: str) -> str:
    return f"{pick(rng, ADJECTIVES)} {noun}" if rng.random() < 0.45 else noun


def _person_phrase(rng: Random) -> str:
    return _with_article(rng, _noun_phrase(rng, pick(rng, PEOPLE)))


def _thing_phrase(rng: Random) -> str:
    if rng.random() < 0.15:
        return f"{pick(rng, NUMBERS)} {_noun_phrase(rng, pick(rng, NOUNS))}s"
    return _with_article(rng, _noun_phrase(rng, pick(rng, NOUNS)))


def _location(rng: Random) -> str:
    place = _noun_phrase(rng, pick(rng, PLACES if rng.random() < 0.7 else NOUNS))
    return f"{pick(rng, _PREPOSITIONS)} the {place}"


def _clause(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return f"{_person_phrase(rng)} {pick(rng, TRANSITIVE)} {_thing_phrase(rng)}"
    if draw < 0.75:
        return f"{_person_phrase(rng)} {pick(rng, INTRANSITIVE)} {_location(rng)}"
    if draw < 0.9:
        return f"{_thing_phrase(rng)} {pick(rng, _LINKING_VERBS)} {pick(rng, ADJECTIVES)}"
    return f"{_person_phrase(rng)} {pick(rng, INTRANSITIVE)} {pick(rng, ADVERBS)}"


_SENTENCES: tuple[Callable[[Random], str], ...] = (
    lambda rng: f"{_clause(rng)}.",
    lambda rng: f"{_clause(rng)} {pick(rng, TIMES)}.",
    lambda rng: f"{pick(rng, TIMES)}, {_clause(rng)}.",
    lambda rng: f"{_clause(rng)}, {pick(rng, _CONJUNCTIONS)} {_clause(rng)}.",
    lambda rng: f"when {_clause(rng)}, {_clause(rng)}.",
    lambda rng: (
        f"{_person_phrase(rng)}, who {pick(rng, INTRANSITIVE)} {_location(rng)}, {pick(rng, TRANSITIVE)} {_thing_phrase(rng)}."
    ),
    lambda rng: f"who {pick(rng, TRANSITIVE)} {_thing_phrase(rng)} {_location(rng)}?",
    lambda rng: (
        f"{pick(rng, NUMBERS)} {pick(rng, PEOPLE)}s {pick(rng, TRANSITIVE)} {_thing_phrase(rng)} {_location(rng)}."
    ),
)

_SHORT: tuple[Callable[[Random], str], ...] = (
    lambda rng: pick(rng, _REMARKS),
    lambda rng: f"{pick(rng, NOUNS)}s {pick(rng, INTRANSITIVE)}.",
    lambda rng: f"it was {pick(rng, ADJECTIVES)}.",
    lambda rng: f"the {pick(rng, PEOPLE)} {pick(rng, INTRANSITIVE)}.",
    lambda rng: f"someone {pick(rng, TRANSITIVE)} the {pick(rng, NOUNS)}.",
    lambda rng: f"they {pick(rng, INTRANSITIVE)} {pick(rng, ADVERBS)}.",
)
