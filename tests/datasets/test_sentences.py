"""Synthetic text looks like English and is the same on every machine."""

from __future__ import annotations

import hashlib
import re
from random import Random

from penstock.datasets import word_lists
from penstock.datasets.sentences import first_words, opening_sentence, sentence, short_sentence


def test_sentences_are_well_formed() -> None:
    rng = Random(1)
    for make in (sentence, short_sentence, opening_sentence):
        for _ in range(500):
            text = make(rng)
            assert re.fullmatch(r"[A-Z][a-z]*([ ,] ?[A-Za-z]+)*[.?]", text), text
            assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n (?!hour)[^aeiou]|  ", text), text


def test_seed_gives_the_same_text_on_every_machine() -> None:
    rng = Random("pinned")
    text = " ".join(
        [opening_sentence(rng), *(sentence(rng) for _ in range(50)), *(short_sentence(rng) for _ in range(50))]
    )
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "291926b186b2c740b6998bddde7fa7ae360976804cdf8332b2ad10251ef4f8e3"
    )


def test_word_lists_have_no_duplicates_and_regular_plurals() -> None:
    for name in word_lists.__all__:
        listed = getattr(word_lists, name)
        assert len(set(listed)) == len(listed), name
    irregular = re.compile(r".*([sxz]|[cs]h|[^aeiou]y)$")
    assert not [word for word in word_lists.NOUNS + word_lists.PEOPLE if irregular.fullmatch(word)]
    assert len(first_words()) > 1000


def test_opening_sentences_rarely_share_their_first_words() -> None:
    rng = Random(7)
    assert len({tuple(opening_sentence(rng).split()[:3]) for _ in range(10_000)}) > 9_950
