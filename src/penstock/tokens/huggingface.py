"""Tokenizers in `tokenizer.json` files, read by the `tokenizers` package."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.tokens.tokenizer import Source, count_in_threads

if TYPE_CHECKING:
    import tokenizers

_BATCH = 64


class HuggingFaceTokenizer:
    def __init__(self, inner: tokenizers.Tokenizer, name: str, source: Source) -> None:
        # A file may enable truncation and padding, which are meant for training and would falsify every count.
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self.name = name
        self.source = source

    @property
    def size(self) -> int:
        return self._inner.get_vocab_size(with_added_tokens=False)

    def count(self, text: str) -> int:
        return self._count_batches([text])[0]

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]:
        return count_in_threads(self._count_batches, texts, threads)

    def _count_batches(self, texts: Sequence[str]) -> list[int]:
        counts: list[int] = []
        # Batches limit memory: an encoding holds far more than its ids.
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            try:
                encodings = self._inner.encode_batch_fast(batch, add_special_tokens=False)
            except (TypeError, UnicodeError):
                batch = [_without_surrogates(text) for text in batch]
                encodings = self._inner.encode_batch_fast(batch, add_special_tokens=False)
            counts.extend(map(len, encodings))
        return counts

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(_without_surrogates(text), add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


def read_tokenizer_json(data: bytes, name: str, source: Source) -> HuggingFaceTokenizer:
    """Raise ValueError if the data are not a tokenizer."""
    # `count_many` starts the threads. Setting the variable also silences the package's warning after a fork.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the package raises bare Exception
        raise ValueError(str(error)) from error
    return HuggingFaceTokenizer(inner, name, source)


def _without_surrogates(text: str) -> str:
    """Combine surrogate pairs and replace lone surrogates with U+FFFD. JSON escapes in a reply can produce both."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
