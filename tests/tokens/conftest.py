"""Small tokenizers that need no download, and an environment without caches, tokens or a hub."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants

from penstock.tokens.tiktoken_vocabulary import open_builtin

read_once = cache(open_builtin)


@pytest.fixture
def use_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set the hub's address. huggingface_hub reads its environment variables only once, when it is imported."""

    def use(url: str) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_URL_HOSTS", frozenset({urlsplit(url).hostname}))

    return use


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_hub: Callable[[str], None]) -> Path:
    """Return the folder of the hub's cache. Hide the settings of the person who runs the tests."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache" / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    use_hub("http://127.0.0.1:9")  # nothing listens on the discard port
    monkeypatch.setattr("penstock.tokens.hub.ANSWER_S", 60.0)  # a busy machine is not a silent hub
    monkeypatch.setattr("penstock.tokens.tiktoken_vocabulary.open_builtin", read_once)  # loading takes 0.2 s
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def tokenizer_json() -> Callable[..., bytes]:
    """Return a function that makes a tokenizer.json with one token per word."""

    def make(*, truncate: bool = False, bos: bool = False) -> bytes:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        vocab = {word: n for n, word in enumerate(("[UNK]", "<s>", "red", "green", "blue"))}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if bos:
            tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        if truncate:
            tokenizer.enable_truncation(2)
            tokenizer.enable_padding(length=8)
        return tokenizer.to_str().encode()

    return make
