"""Token counts of records: from the server's usage, or by a tokenizer, each text encoded once and in batches."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import PenstockError
from penstock.metrics.measure import UNCOUNTED, Counts
from penstock.records.log import PayloadStore
from penstock.records.record import Record

__all__ = ["ClientCounter", "Counter", "LoadTokenizer", "ServerCounter", "Tokenizer"]

_CACHED_CHARACTERS = 4_000_000
"""Mock servers and cached prompts repeat themselves; 4 million characters of memory is what that is worth."""


class Tokenizer(Protocol):
    """What counting needs of `tokens.tokenizer.Tokenizer`."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]: ...


LoadTokenizer = Callable[[], tuple[Tokenizer, str | None]]
"""Loads it and says what the user should know about the choice."""


class Counter(Protocol):
    def count(self, records: Sequence[Record]) -> list[Counts]: ...


class ServerCounter:
    """What the server says. A reply without usage has no token metrics."""

    def count(self, records: Sequence[Record]) -> list[Counts]:
        return [_by_server(record) for record in records]


def _by_server(record: Record) -> Counts:
    usage = record.usage
    if usage is None:
        return Counts(by_server=True)
    output = None
    if usage.completion is not None:
        output = max(0, usage.completion - (usage.reasoning or 0))
    return Counts(input=usage.prompt, output=output, reasoning=usage.reasoning, by_server=True)


class ClientCounter:
    """Counts with a tokenizer that is loaded when the first text asks for it."""

    def __init__(
        self,
        load: LoadTokenizer | None,
        payloads: PayloadStore,
        input_texts: Callable[[bytes], list[str]],
    ) -> None:
        self._load = load
        self._payloads = payloads
        self._input_texts = input_texts
        self._inputs = array("i", [_UNKNOWN]) * len(payloads)
        self._cache: dict[str, int] = {}
        self._cached_characters = 0
        self._threads = os.cpu_count() or 1
        self._failed = False
        self.tokenizer: Tokenizer | None = None
        self.note: str | None = None

    def count(self, records: Sequence[Record]) -> list[Counts]:
        bodies = self._uncounted_bodies(records)
        self._count_texts([*bodies.values(), *_reply_texts(records)])
        if not self._failed:
            for number, text in bodies.items():
                self._inputs[number] = self._cache[text]
        counts = [self._counts(record) for record in records]
        if self._cached_characters > _CACHED_CHARACTERS:
            self._cache.clear()
            self._cached_characters = 0
        return counts

    def _uncounted_bodies(self, records: Sequence[Record]) -> dict[int, str]:
        """Payload number -> its text, for those that nobody counted yet."""
        found: dict[int, str] = {}
        inputs = self._inputs
        for record in records:
            number = record.payload
            if inputs[number] != _UNKNOWN or number in found:
                continue
            known = self._payloads.entry(number).input_tokens
            if known >= 0:
                inputs[number] = known
            elif texts := self._input_texts(self._payloads.body(number)):
                found[number] = " ".join(texts)
            else:
                inputs[number] = _NO_TEXT
        return found

    def _count_texts(self, texts: list[str]) -> None:
        """Into the cache, which forgets nothing while a batch is being counted."""
        cache = self._cache
        new = list(dict.fromkeys(text for text in texts if text not in cache))
        tokenizer = self._loaded() if new else None
        if tokenizer is None:
            return
        cache.update(zip(new, tokenizer.count_many(new, self._threads), strict=True))
        self._cached_characters += sum(map(len, new))

    def _loaded(self) -> Tokenizer | None:
        if self.tokenizer is None and not self._failed:
            if self._load is None:
                self._failed = True
                return None
            try:
                self.tokenizer, self.note = self._load()
            except PenstockError as error:
                # The run is over: its other figures must not be lost for want of a tokenizer.
                self._failed = True
                self.note = f"No tokens were counted. {error}"
        return self.tokenizer

    def _counts(self, record: Record) -> Counts:
        known = self._inputs[record.payload]
        inputs = known if known >= 0 else None
        if self._failed or record.cancelled or record.failure is not None:
            return UNCOUNTED if inputs is None else Counts(inputs)
        cache = self._cache
        output = reasoning = head = None
        if record.outputs:
            output = sum([cache[text] for text in record.outputs])
        if record.reasonings:
            reasoning = sum([cache[text] for text in record.reasonings])
            output = output or 0
        if _needs_head(record):
            head = cache[record.head_outputs]
        return Counts(inputs, output, reasoning, head)


_UNKNOWN = -1
_NO_TEXT = -2


def _needs_head(record: Record) -> bool:
    return record.streamed and len(record.stamps) > 1 and bool(record.head_outputs)


def _reply_texts(records: Sequence[Record]) -> list[str]:
    texts: list[str] = []
    for record in records:
        if record.failure is None and not record.cancelled:
            texts += record.outputs
            texts += record.reasonings
            if _needs_head(record):
                texts.append(record.head_outputs)
    return texts
