"""A folder with input files, and the settings that a configuration file gives there."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "prompts.jsonl").write_text('{"text": "Hello"}\n')
    (tmp_path / "words.csv").write_text("prompt\nHello\n")
    return tmp_path
