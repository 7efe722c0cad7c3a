"""Small tokenizers of the common kinds, trained here so that no test needs a download."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import pytest

from penstock.datasets.sentences import sentence
from penstock.tokens.huggingface import HuggingFaceTokenizer
from penstock.tokens.tiktoken_vocabulary import open_builtin
from penstock.tokens.tokenizer import Source, Tokenizer


class SpaceTokenizer:
    """One token per word. It is written in Python, so that no release of a library can change its counts."""

    name = "spaces"
    source: Source = "builtin"
    size = 20

    def count(self, text: str) -> int:
        return len(text.split())

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]:
        return [self.count(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join("x" * n for n in ids)


class PairTokenizer(SpaceTokenizer):
    """Two tokens per character, so that no text has an odd length."""

    name = "pairs"

    def count(self, text: str) -> int:
        return 2 * len(text)


class ZeroTokenizer(SpaceTokenizer):
    """No tokens for any text."""

    name = "zero"

    def count(self, text: str) -> int:
        return 0


def _corpus() -> list[str]:
    rng = Random("corpus")
    return [" ".join(sentence(rng) for _ in range(8)) for _ in range(60)]


@cache
def train(kind: str) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "builtin":
        return open_builtin()
    if kind == "byte-level BPE":
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    elif kind == "superword BPE":
        # The text is not split, so that tokens span words and sentences, and counts do not add up.
        inner = Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    elif kind == "prepending BPE":
        # A space is added before every text, so that a piece that begins with a space has one token more alone.
        inner = Tokenizer(models.BPE(unk_token="<unk>"))
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("▁[^▁]*"), "isolated")
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"], show_progress=False)
    elif kind == "WordPiece":
        inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer(lowercase=True)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=800, special_tokens=["[UNK]"], show_progress=False)
    elif kind == "Unigram":
        inner = Tokenizer(models.Unigram())
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    elif kind == "characters":
        inner = Tokenizer(models.WordLevel(unk_token="?"))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        trainer = trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False)
    else:
        raise ValueError(kind)
    inner.train_from_iterator(_corpus(), trainer)
    return HuggingFaceTokenizer(inner, kind, "file")


KINDS = ["builtin", "byte-level BPE", "superword BPE", "prepending BPE", "WordPiece", "Unigram", "characters"]


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train(request.param)


@pytest.fixture
def builtin_tokenizer() -> Tokenizer:
    return train("builtin")


@pytest.fixture
def spaces() -> Tokenizer:
    return SpaceTokenizer()


@pytest.fixture
def pairs() -> Tokenizer:
    return PairTokenizer()


@pytest.fixture
def zero() -> Tokenizer:
    return ZeroTokenizer()
