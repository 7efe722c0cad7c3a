"""What counting promises, for both kinds of tokenizer."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest

import penstock
from penstock.tokens.huggingface import read_tokenizer_json
from penstock.tokens.tekken import TekkenTokenizer, builtin
from penstock.tokens.tokenizer import Tokenizer

TEXTS = ["", "red", "red green blue", "Grüße, 世界! 🙂", "a\n\n  b\tc", "<s> is text like any other"]


@pytest.fixture(scope="module")
def tekken() -> TekkenTokenizer:
    return builtin()


def test_builtin_is_a_large_real_vocabulary(tekken: TekkenTokenizer) -> None:
    assert tekken.size >= 100_000
    assert (tekken.name, tekken.source) == ("builtin", "builtin")
    assert tekken.count("The weather was calm.") == 5


def test_builtin_decodes_what_it_encoded(tekken: TekkenTokenizer) -> None:
    for text in TEXTS:
        ids = tekken.encode(text)
        assert tekken.decode(ids) == text
        assert tekken.count(text) == len(ids)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_counting_many_equals_counting_each(tekken: TekkenTokenizer, threads: int) -> None:
    texts = [f"{text} {n}" for n in range(150) for text in TEXTS]
    assert tekken.count_many(texts, threads=threads) == [tekken.count(text) for text in texts]
    assert tekken.count_many([], threads=threads) == []


def test_a_very_long_text_counts_as_the_sum_of_its_words(tekken: TekkenTokenizer) -> None:
    words = 300_000
    text = " ".join(["river"] * words)
    assert tekken.count(text) == words + tekken.count("river") - tekken.count(" river")
    assert len(tekken.encode(text)) == tekken.count(text)


def test_a_million_blanks_do_not_crash(tekken: TekkenTokenizer) -> None:
    assert tekken.count(" " * 1_200_000) > 0


def test_a_lone_surrogate_in_a_reply_is_counted(tekken: TekkenTokenizer, tokenizer_json: Callable[..., bytes]) -> None:
    for tokenizer in (tekken, read_tokenizer_json(tokenizer_json(), "t", "file")):
        assert tokenizer.count("a \ud83d b") == len(tokenizer.encode("a \ud83d b")) > 0
        assert tokenizer.count_many(["a", "\udc00"])[0] == 1


def test_special_tokens_are_not_added(tokenizer_json: Callable[..., bytes]) -> None:
    tokenizer = read_tokenizer_json(tokenizer_json(bos=True), "t", "file")
    assert tokenizer.count("red green") == 2
    assert tokenizer.encode("red green") == [2, 3]


def test_truncation_and_padding_of_the_file_do_not_apply(tokenizer_json: Callable[..., bytes]) -> None:
    tokenizer = read_tokenizer_json(tokenizer_json(truncate=True), "t", "file")
    assert tokenizer.count("red green blue red green") == 5
    assert tokenizer.count_many(["red", "red green blue"]) == [1, 3]


@pytest.mark.parametrize("threads", [1, 3])
def test_hugging_face_counting_many_equals_counting_each(tokenizer_json: Callable[..., bytes], threads: int) -> None:
    tokenizer = read_tokenizer_json(tokenizer_json(), "t", "file")
    texts = ["red " * (n % 7) for n in range(500)]
    assert tokenizer.count_many(texts, threads=threads) == [n % 7 for n in range(500)]


def test_tokenizers_can_be_sent_to_another_process(
    tekken: TekkenTokenizer, tokenizer_json: Callable[..., bytes]
) -> None:
    for tokenizer in (tekken, read_tokenizer_json(tokenizer_json(), "t", "hub")):
        copy: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
        assert (copy.name, copy.source) == (tokenizer.name, tokenizer.source)
        assert copy.encode("red green") == tokenizer.encode("red green")


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, penstock.tokens.load, penstock.datasets.load;"
        "heavy = {'tiktoken', 'tokenizers', 'mistral_common', 'huggingface_hub', 'numpy', 'requests', 'ssl'};"
        "print(sorted(heavy & set(sys.modules)));"
        "penstock.tokens.load.load('builtin', 'm');"
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(penstock.__file__))}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["[]", "['tiktoken']"]
