"""The texts that synthetic prompts are made of (`--prompt-corpus`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from penstock.datasets import sentences
from penstock.datasets.sentences import pick
from penstock.datasets.word_lists import ADJECTIVES, NOUNS, TRANSITIVE
from penstock.tokens.tokenizer import Tokenizer

_RANDOM_WORDS = 2048
"""Different tokens in the prompts of the corpus `random`."""
_CANDIDATES = 8 * _RANDOM_WORDS
PRECEDING_TEXT = "It was late."


class Corpus(NamedTuple):
    """Functions that draw parts of a prompt. Each part is counted once, and prompts are joined from them."""

    opening: Callable[[Random], str]
    """Begins a prompt. Its first words should differ from those of other openings."""
    part: Callable[[Random], str]
    """Continues a prompt; it begins with white space."""
    short_part: Callable[[Random], str]
    """Like `part`, with few tokens."""
    parts: int = 2048
    """The number of parts to draw."""


def corpus(name: str | None, tokenizer: Tokenizer) -> Corpus:
    """Return the corpus for a value of `--prompt-corpus`; None gives English sentences."""
    if name == "sonnet":
        return _sonnet()
    if name == "coding":
        return _CODING
    return _random_tokens(tokenizer) if name == "random" else _ENGLISH


def count_after_text(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[str, int]]:
    """Return each text with the number of tokens that it adds to a text before it."""
    base = tokenizer.count(PRECEDING_TEXT)
    counts = tokenizer.count_many([PRECEDING_TEXT + text for text in texts])
    return [(text, count - base) for text, count in zip(texts, counts, strict=True)]


_ENGLISH = Corpus(
    sentences.opening_sentence,
    lambda rng: " " + sentences.sentence(rng),
    lambda rng: " " + sentences.short_sentence(rng),
)


def _sonnet() -> Corpus:
    """Return a corpus of lines of Shakespeare's sonnets."""
    with open(os.path.join(os.path.dirname(__file__), "sonnets.txt"), encoding="ascii") as file:
        lines = file.read().splitlines()
    words = tuple(dict.fromkeys(word.strip(".,;:!?").lower() for line in lines for word in line.split()))
    return Corpus(
        # The first words are drawn one by one: there are only some hundred lines.
        lambda rng: f"{pick(rng, words).capitalize()} {pick(rng, words)} {pick(rng, words)}, {pick(rng, lines)}",
        lambda rng: " " + pick(rng, lines),
        lambda rng: f" {pick(rng, words)} {pick(rng, words)},",
    )


def _function(rng: Random) -> str:
    verb, noun, other, adjective = pick(rng, TRANSITIVE), pick(rng, NOUNS), pick(rng, NOUNS), pick(rng, ADJECTIVES)
    return (
        f"def {verb}_{noun}({other}s, limit={int(rng.random() * 100)}):\n"
        f"    {adjective}_{noun} = [{other} for {other} in {other}s if {other}.{noun}_id > limit]\n"
        f"    return sorted({adjective}_{noun}, key=lambda {other}: {other}.{adjective})"
    )


def _statement(rng: Random) -> str:
    noun, other, verb, number = pick(rng, NOUNS), pick(rng, NOUNS), pick(rng, TRANSITIVE), int(rng.random() * 1000)
    return pick(
        rng,
        (
            f"{noun}_count = {verb}_{other}({noun}s, limit={number})",
            f"assert {noun}_count <= {number}, '{other} {verb} too often'",
            f"for index, {noun} in enumerate({other}s):\n    {noun}.{verb}(index + {number})",
            f"logger.info('{verb} %d {noun}s in %.2f s', {noun}_count, elapsed)",
            f"if {noun} is None:\n    raise ValueError('{other} {number} has no {noun}')",
            f"# The {noun} is {pick(rng, ADJECTIVES)} after the {other} was {verb}.",
        ),
    )


_CODING = Corpus(
    lambda rng: f"# {pick(rng, ADJECTIVES)} {pick(rng, NOUNS)} {pick(rng, NOUNS)}\n{_function(rng)}",
    lambda rng: "\n" + (_function(rng) if rng.random() < 0.3 else _statement(rng)),
    lambda rng: f"\n{pick(rng, NOUNS)} = {int(rng.random() * 10)}",
)


def _random_tokens(tokenizer: Tokenizer) -> Corpus:
    """Return a corpus of words from all over the vocabulary that are single tokens after a space."""
    size = tokenizer.size
    step = max(1, size // _CANDIDATES)
    texts = [tokenizer.decode([token]).strip() for token in range(0, size, step)]
    words = [f" {text}" for text in dict.fromkeys(texts) if text.isalpha()]
    singles = [word for word, count in count_after_text(tokenizer, words) if count == 1]
    if len(singles) < 2:
        return _ENGLISH  # the vocabulary has no words
    kept = singles[:: -(-len(singles) // _RANDOM_WORDS)]

    def word(rng: Random) -> str:
        return pick(rng, kept)

    return Corpus(
        lambda rng: "".join([word(rng) for _ in range(4)]).strip().capitalize(), word, word, parts=2 * len(kept)
    )
