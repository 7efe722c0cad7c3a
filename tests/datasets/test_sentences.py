"""The text that is made up reads like English and is the same everywhere."""

from __future__ import annotations

import hashlib
import re
from random import Random

from penstock.datasets import word_lists
from penstock.datasets.sentences import heads, opening, sentence, short_sentence


def test_sentences_are_sentences() -> None:
    rng = Random(1)
    for make in (sentence, short_sentence, opening):
        for _ in range(500):
            text = make(rng)
            assert re.fullmatch(r"[A-Z][a-z]*([ ,] ?[A-Za-z]+)*[.?]", text), text
            assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n (?!hour)[^aeiou]|  ", text), text


def test_a_seed_gives_the_same_text_on_every_machine() -> None:
    rng = Random("pinned")
    text = " ".join([opening(rng), *(sentence(rng) for _ in range(50)), *(short_sentence(rng) for _ in range(50))])
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "291926b186b2c740b6998bddde7fa7ae360976804cdf8332b2ad10251ef4f8e3"
    )


def test_the_word_lists_have_no_doubles_and_regular_plurals() -> None:
    for name in word_lists.__all__:
        listed = getattr(word_lists, name)
        assert len(set(listed)) == len(listed), name
    irregular = re.compile(r".*([sxz]|[cs]h|[^aeiou]y)$")
    assert not [word for word in word_lists.NOUNS + word_lists.PEOPLE if irregular.fullmatch(word)]
    assert len(heads()) > 1000


def test_openings_rarely_begin_alike() -> None:
    rng = Random(7)
    assert len({tuple(opening(rng).split()[:3]) for _ in range(10_000)}) > 9_950
