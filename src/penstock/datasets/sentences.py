"""English that nobody wrote: sentences from a small grammar over our own word lists.

Everything is drawn through `Random.random()`, the one method whose sequence Python promises to keep, so a seed gives
the same text on every machine and version.
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

__all__ = ["heads", "opening", "pick", "sentence", "short_sentence", "words"]

T = TypeVar("T")

# fmt: off
_PREPOSITIONS = (
    "above", "across", "against", "along", "around", "before", "behind", "below", "beside", "beyond", "by", "near",
    "past", "under",
)
_LINKING = ("and", "but", "so", "while", "because", "until", "although", "and then")
_FEELINGS = ("was", "seemed", "became", "looked", "felt", "stayed", "remained")
_REMARKS = (
    "Yes.", "No.", "Perhaps.", "Indeed.", "Of course.", "Not yet.", "So it goes.", "Nobody knew.", "Nobody answered.",
    "Nothing changed.", "Everything stopped.", "It was over.", "That was all.", "Who knows?", "What next?", "Why not?",
    "It hardly mattered.", "Then it began again.", "There was no answer.", "Time went by.", "They all agreed.",
)
# fmt: on


def pick(rng: Random, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


def words() -> tuple[str, ...]:
    """Every single word, each once, in a fixed order."""
    lists = (NOUNS, PEOPLE, PLACES, ADJECTIVES, TRANSITIVE, INTRANSITIVE, ADVERBS, NUMBERS)
    return tuple(dict.fromkeys(word for each in lists for word in each))


def heads() -> tuple[str, ...]:
    """Words that can begin a text."""
    return tuple(word.capitalize() for word in words())


def opening(rng: Random) -> str:
    """A sentence whose first words differ from text to text: there are over ten million beginnings of three words."""
    first = pick(rng, ADJECTIVES).capitalize()
    subject = pick(rng, _COUNTABLE) + "s"
    return f"{first} {subject} {pick(rng, INTRANSITIVE)} {_where(rng)}."


def sentence(rng: Random) -> str:
    text = pick(rng, _SENTENCES)(rng)
    return text[0].upper() + text[1:]


def short_sentence(rng: Random) -> str:
    text = pick(rng, _SHORT)(rng)
    return text[0].upper() + text[1:]


_COUNTABLE = NOUNS + PEOPLE


def _article(rng: Random, phrase: str) -> str:
    draw = rng.random()
    if draw < 0.55:
        return f"the {phrase}"
    if draw < 0.65:
        return f"{pick(rng, ('this', 'that', 'his', 'her', 'their', 'our', 'every', 'another'))} {phrase}"
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _described(rng: Random, noun: str) -> str:
    return f"{pick(rng, ADJECTIVES)} {noun}" if rng.random() < 0.45 else noun


def _person(rng: Random) -> str:
    return _article(rng, _described(rng, pick(rng, PEOPLE)))


def _thing(rng: Random) -> str:
    if rng.random() < 0.15:
        return f"{pick(rng, NUMBERS)} {_described(rng, pick(rng, NOUNS))}s"
    return _article(rng, _described(rng, pick(rng, NOUNS)))


def _where(rng: Random) -> str:
    place = _described(rng, pick(rng, PLACES if rng.random() < 0.7 else NOUNS))
    return f"{pick(rng, _PREPOSITIONS)} the {place}"


def _event(rng: Random) -> str:
    draw = rng.random()
    if draw < 0.5:
        return f"{_person(rng)} {pick(rng, TRANSITIVE)} {_thing(rng)}"
    if draw < 0.75:
        return f"{_person(rng)} {pick(rng, INTRANSITIVE)} {_where(rng)}"
    if draw < 0.9:
        return f"{_thing(rng)} {pick(rng, _FEELINGS)} {pick(rng, ADJECTIVES)}"
    return f"{_person(rng)} {pick(rng, INTRANSITIVE)} {pick(rng, ADVERBS)}"


_SENTENCES: tuple[Callable[[Random], str], ...] = (
    lambda rng: f"{_event(rng)}.",
    lambda rng: f"{_event(rng)} {pick(rng, TIMES)}.",
    lambda rng: f"{pick(rng, TIMES)}, {_event(rng)}.",
    lambda rng: f"{_event(rng)}, {pick(rng, _LINKING)} {_event(rng)}.",
    lambda rng: f"when {_event(rng)}, {_event(rng)}.",
    lambda rng: f"{_person(rng)}, who {pick(rng, INTRANSITIVE)} {_where(rng)}, {pick(rng, TRANSITIVE)} {_thing(rng)}.",
    lambda rng: f"who {pick(rng, TRANSITIVE)} {_thing(rng)} {_where(rng)}?",
    lambda rng: f"{pick(rng, NUMBERS)} {pick(rng, PEOPLE)}s {pick(rng, TRANSITIVE)} {_thing(rng)} {_where(rng)}.",
)

_SHORT: tuple[Callable[[Random], str], ...] = (
    lambda rng: pick(rng, _REMARKS),
    lambda rng: f"{pick(rng, NOUNS)}s {pick(rng, INTRANSITIVE)}.",
    lambda rng: f"it was {pick(rng, ADJECTIVES)}.",
    lambda rng: f"the {pick(rng, PEOPLE)} {pick(rng, INTRANSITIVE)}.",
    lambda rng: f"someone {pick(rng, TRANSITIVE)} the {pick(rng, NOUNS)}.",
    lambda rng: f"they {pick(rng, INTRANSITIVE)} {pick(rng, ADVERBS)}.",
)
