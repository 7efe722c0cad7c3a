"""Where a tokenizer comes from, and what the user is told when it cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.tokens.load import load
from penstock.tokens.tekken import builtin

Json = Callable[..., bytes]


def folder_with(path: Path, data: bytes) -> Path:
    path.mkdir(parents=True)
    (path / "tokenizer.json").write_bytes(data)
    return path


def test_builtin_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket", None)
    assert load("builtin", "m").tokenizer.source == "builtin"
    assert load("Builtin", "m").note is None


def test_a_folder(tmp_path: Path, tokenizer_json: Json) -> None:
    folder = folder_with(tmp_path / "tok", tokenizer_json())
    loaded = load(str(folder), "m")
    assert (loaded.tokenizer.source, loaded.tokenizer.name, loaded.note) == ("folder", str(folder), None)
    assert loaded.tokenizer.count("red green") == 2


def test_a_folder_is_used_even_when_the_hub_is_forbidden(
    tmp_path: Path, tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load(str(folder_with(tmp_path / "tok", tokenizer_json())), "m").tokenizer.source == "folder"


def test_a_file(tmp_path: Path, tokenizer_json: Json) -> None:
    folder_with(tmp_path / "tok", tokenizer_json())
    assert load("tok/tokenizer.json", "m").tokenizer.source == "file"


def test_a_tekken_file(tmp_path: Path) -> None:
    import shutil

    (tmp_path / "tok").mkdir()
    shutil.copy(builtin()._path, tmp_path / "tok" / "tekken.json")
    for name in ("tok", "tok/tekken.json"):
        assert load(name, "m").tokenizer.encode("red green") == builtin().encode("red green")


def test_the_model_itself_can_be_a_folder(tmp_path: Path, tokenizer_json: Json) -> None:
    folder_with(tmp_path / "org" / "model", tokenizer_json())
    loaded = load(None, "org/model")
    assert (loaded.tokenizer.source, loaded.note) == ("folder", None)


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", None])
@pytest.mark.parametrize("revision", ["main", "0123abcd"])
def test_the_hub_cache_on_disk(
    tmp_path: Path, tokenizer_json: Json, monkeypatch: pytest.MonkeyPatch, variable: str | None, revision: str
) -> None:
    root = tmp_path / "somewhere"
    if variable:
        monkeypatch.setenv(variable, str(root))
    hub = {"HF_HUB_CACHE": root, "HF_HOME": root / "hub", None: tmp_path / "cache" / "huggingface" / "hub"}[variable]
    model = hub / "models--org--model"
    folder_with(model / "snapshots" / "0123abcd", tokenizer_json())
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0123abcd")
    for name in ("org/model", None):
        loaded = load(name, "org/model", revision)
        assert (loaded.tokenizer.source, loaded.tokenizer.name, loaded.note) == ("cache", "org/model", None)


def test_a_model_without_a_tokenizer_is_counted_with_the_builtin_one_and_says_so() -> None:
    loaded = load(None, "no-such-model")
    assert loaded.tokenizer.source == "builtin"
    assert loaded.note is not None
    assert loaded.note.startswith("No tokenizer for 'no-such-model' could be had: ")
    assert "builtin vocabulary (130,072 tokens)" in loaded.note
    assert "--tokenizer" in loaded.note


def test_a_folder_that_merely_has_the_models_name_does_not_stop_the_search(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    note = load(None, "model").note
    assert note is not None
    assert "the hub could not be reached" in note


def test_a_model_folder_with_a_broken_tokenizer_says_so(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "model", b"{}")
    note = load(None, f"{folder}/").note
    assert note is not None
    assert "tokenizer.json is not a tokenizer" in note


def test_offline_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("penstock.tokens.hub.fetch", None)
    note = load(None, "org/model").note
    assert note is not None
    assert "HF_HUB_OFFLINE" in note


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty", "the folder has no tokenizer.json;"),
        ("old", "the folder has no tokenizer.json (its tokenizer.model is in a format that is not read here);"),
        ("broken", "broken/tokenizer.json is not a tokenizer ("),
        ("/no/such/place", "there is no such folder or file, and it is not a hub id;"),
        ("org/model", "it is neither here nor in the cache, and the hub could not be reached (Connection refused);"),
    ],
)
def test_a_named_tokenizer_that_cannot_be_had(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tokenizer.model").touch()
    folder_with(tmp_path / "broken", b'{"model": 1}')
    with pytest.raises(UserError) as caught:
        load(name, "m")
    message = str(caught.value)
    assert message.startswith(f"The tokenizer '{name}' could not be loaded: {said}")
    assert message.endswith("; give --tokenizer a folder or file that has one, a hub id, or 'builtin'.")
    assert "\n" not in message
