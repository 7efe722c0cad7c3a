"""The tiktoken encoding of the Qwen vocabulary against the byte-level BPE that Qwen's own tokenizer.json defines."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.tokens.tiktoken_vocabulary import _QWEN_2, _QWEN_PATTERNS, TiktokenTokenizer, open_builtin

TEXTS = 3000
RANGES = [  # scripts with and without marks, symbols, white space; `tokenizers` has older tables for newer marks
    *((0x20, 0x7F), (0x20, 0x7F), (0x09, 0x0E), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700)),
    *((0x900, 0x980), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2070), (0x2070, 0x2C00), (0x3000, 0x3100)),
    *((0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xF900, 0xFB50), (0x1F300, 0x1FA00), (0x20000, 0x2A000)),
]
PIECES = [
    "'s",
    "'LL",
    "'\u017f",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "don't",
    "word",
    "1234",
    "...",
    "\u00a0",
    "\u3000",
    "x\u0301",
]


@pytest.fixture(scope="module")
def builtin() -> TiktokenTokenizer:
    return open_builtin()


@pytest.fixture(scope="module")
def reference(builtin: TiktokenTokenizer) -> Any:
    """Return a tokenizer of the `tokenizers` package with the model, normalizer and pattern of Qwen2Tokenizer."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    ranks = builtin._encoding._mergeable_ranks
    letters = byte_letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocab = {names[token]: rank for token, rank in ranks.items()}
    pairs = [merge_of(token, ranks) for token in ranks if len(token) > 1]
    merges = [(names[left], names[right]) for left, right in pairs]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN_PATTERNS[_QWEN_2]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def byte_letters() -> list[str]:
    """Return the printable character that a byte-level BPE vocabulary writes for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    extra = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(extra)) for byte in range(256)]


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the last two parts that become `token` when only merges of a lower rank are applied."""
    limit = ranks[token]
    parts = [token[n : n + 1] for n in range(len(token))]
    while len(parts) > 2:
        rank, n = min((ranks.get(parts[n] + parts[n + 1], limit), n) for n in range(len(parts) - 1))
        assert rank < limit
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    return parts[0], parts[1]


def random_text(numbers: random.Random) -> str:
    def piece() -> str:
        if numbers.random() < 0.4:
            return numbers.choice(PIECES)
        first, last = numbers.choice(RANGES)
        return "".join(chr(numbers.randrange(first, last)) for _ in range(numbers.randrange(1, 8)))

    return "".join(piece() for _ in range(numbers.randrange(1, 30)))


def test_builtin_encodes_like_the_bpe_model_of_qwen_2(builtin: TiktokenTokenizer, reference: Any) -> None:
    numbers = random.Random(1)
    for _ in range(TEXTS):
        text = random_text(numbers)
        assert builtin.encode(text) == reference.encode(text).ids, ascii(text)
