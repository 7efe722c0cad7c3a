"""The tokenizer of a run, loaded on first use: before the load to generate text, or after it to count tokens."""

from __future__ import annotations

from typing import Any

from penstock.tokens.tokenizer import Tokenizer

__all__ = ["LazyTokenizer"]


class LazyTokenizer:
    def __init__(self, name: str | None, model: str, revision: str) -> None:
        self._arguments = (name, model, revision)
        self._loaded: Any = None
        self.announced = False
        """True once the note has been shown to the user."""

    def load(self) -> Any:
        if self._loaded is None:
            from penstock.tokens.load import load

            self._loaded = load(*self._arguments)
        return self._loaded

    def check(self) -> None:
        """Load a tokenizer that the user named, so that an error appears before the run. (The builtin one has none.)"""
        if self._arguments[0] is not None and self._arguments[0].lower() != "builtin":
            self.load()

    def get(self) -> Tokenizer:
        tokenizer: Tokenizer = self.load().tokenizer
        return tokenizer

    @property
    def identity(self) -> tuple[str, str] | None:
        """Name and source of the tokenizer; None until it is loaded."""
        return None if self._loaded is None else (self._loaded.tokenizer.name, self._loaded.tokenizer.source)

    @property
    def note(self) -> str | None:
        return None if self._loaded is None else self._loaded.note
