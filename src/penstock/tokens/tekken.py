"""Vocabularies in the Tekken format, read straight into tiktoken; the builtin one is such a file.

The builtin vocabulary is the data file inside the `mistral-common` package, used without importing that package: its
own loader takes 1.5 to 2.4 s, this one 0.2 to 0.35 s, of which half is tiktoken building its tables. A copy in a format
of our own on disk would save the other 0.1 s at best, so there is none.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import RunError
from penstock.tokens.tokenizer import Source, spread

if TYPE_CHECKING:
    import tiktoken

__all__ = ["TekkenTokenizer", "builtin", "open_tekken"]

_PREFERRED = ("tekken_240718.json", "tekken_240911.json")
"""Both hold the same 130,072 text tokens; the first is the smaller file. Named, so that the same seed keeps making the
same prompts when the package brings a newer vocabulary."""

_SLICE = 400_000
"""tiktoken's regex engine runs out of stack on a million white-space characters in a row."""


class _Entry(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Entry]


class TekkenTokenizer:
    __slots__ = ("_encoding", "_path", "name", "source")

    def __init__(self, encoding: tiktoken.Encoding, path: str, name: str, source: Source) -> None:
        self._encoding = encoding
        self._path = path
        self.name = name
        self.source = source

    def count(self, text: str) -> int:
        if len(text) > _SLICE:
            return sum(len(self._encoding.encode_ordinary(part)) for part in _slices(text))
        return len(self._encoding.encode_ordinary(text))

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]:
        return spread(self._count_here, texts, threads)

    def _count_here(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        return [token for part in _slices(text) for token in self._encoding.encode_ordinary(part)]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._encoding.decode(ids)
        return text

    @property
    def size(self) -> int:
        size: int = self._encoding.n_vocab
        return size

    def __reduce__(self) -> tuple[Any, ...]:
        return open_tekken, (self._path, self.name, self.source)


def builtin() -> TekkenTokenizer:
    return open_tekken(_builtin_path(), "builtin", "builtin")


def open_tekken(path: str, name: str, source: Source) -> TekkenTokenizer:
    """Raises OSError or ValueError (which msgspec's errors are) when the file cannot be read or is something else."""
    import tiktoken

    with open(path, "rb") as file:
        data = msgspec.json.decode(file.read(), type=_File)
    # The ids of special tokens come first in the model's own numbering; the file lists text tokens only, from rank 0.
    size = data.config.default_vocab_size - data.config.default_num_special_tokens
    ranks = {entry.token_bytes: entry.rank for entry in data.vocab[:size]}
    encoding = tiktoken.Encoding(name, pat_str=data.config.pattern, mergeable_ranks=ranks, special_tokens={})
    return TekkenTokenizer(encoding, path, name, source)


def _builtin_path() -> str:
    from importlib.util import find_spec

    # For a top-level name this looks at the path only; the package is not executed.
    spec = find_spec("mistral_common")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        folder = os.path.join(package, "data")
        for path in [os.path.join(folder, name) for name in _PREFERRED] + sorted(glob.glob(f"{folder}/tekken_*.json")):
            if os.path.exists(path):
                return path
    raise RunError(
        "The builtin vocabulary is missing: the package mistral-common is not installed or has no Tekken file; "
        "reinstall it with `pip install --force-reinstall mistral-common`."
    )


def _slices(text: str) -> Iterator[str]:
    """Parts of a very long text, cut where the pattern would begin a new word anyway: at a lone space before a word."""
    while len(text) > _SLICE:
        cut = _SLICE
        while (cut := text.rfind(" ", 1, cut)) > 0:
            if not text[cut - 1].isspace() and not text[cut + 1].isspace():
                break
        cut = cut if cut > 0 else _SLICE
        yield text[:cut]
        text = text[cut:]
    yield text
