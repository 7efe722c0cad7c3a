"""Small tokenizers, made here so that no test needs a download, and a disk without any cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from penstock.tokens.tekken import builtin

read_once = cache(builtin)


@pytest.fixture(autouse=True)
def clean_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache, token or setting of the person who runs the tests, and no hub unless a test brings one."""
    for name in (
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    monkeypatch.setattr("penstock.tokens.hub.ANSWER_S", 60.0)  # a busy machine is no silent hub
    monkeypatch.setattr("penstock.tokens.load.builtin", read_once)  # 0.3 s each time otherwise
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer_json() -> Callable[..., bytes]:
    """A tokenizer.json that knows one token a word, as bytes."""

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
