"""The tokenizer of a run, loaded on first use: before the load to generate text, or after it to count tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from penstock.tokens.chat_template import ChatTokenizer


class Choice(Protocol):
    """The part of the settings of a run that chooses its tokenizer."""

    @property
    def name(self) -> str | None: ...
    @property
    def revision(self) -> str: ...
    @property
    def apply_chat_template(self) -> bool: ...


class LazyTokenizer:
    def __init__(self, choice: Choice, model: str, name: str | None = None) -> None:
        """`name` replaces the name in `choice`. With a chat template, the tokenizer is a `ChatTokenizer`."""
        self._arguments = (name or choice.name, model, choice.revision)
        self._chat_template = choice.apply_chat_template
        self._loaded: Any = None
        self.announced = False
        """True once the note has been shown to the user."""

    def load(self) -> Any:
        if self._loaded is None:
            from penstock.tokens.load import load

            loaded = load(*self._arguments)
            if self._chat_template:
                from penstock.tokens.chat_template import with_chat_template

                name, model, revision = self._arguments
                loaded = loaded._replace(tokenizer=with_chat_template(loaded.tokenizer, name or model, revision))
            self._loaded = loaded
        return self._loaded

    def check(self) -> None:
        """Load a tokenizer that the user named, so that an error appears before the run. (The builtin one has none.)"""
        if self._chat_template:
            self.load()
        if self._arguments[0] is not None and self._arguments[0].lower() != "builtin":
            self.load()

    def get(self) -> Tokenizer:
        tokenizer: Tokenizer = self.load().tokenizer
        return tokenizer

    def get_chat(self) -> ChatTokenizer:
        """Return the tokenizer with its chat template."""
        tokenizer: ChatTokenizer = self.load().tokenizer
        return tokenizer

    @property
    def identity(self) -> tuple[str, str] | None:
        """Name and source of the tokenizer; None until it is loaded."""
        return None if self._loaded is None else (self._loaded.tokenizer.name, self._loaded.tokenizer.source)

    @property
    def note(self) -> str | None:
        return None if self._loaded is None else self._loaded.note
