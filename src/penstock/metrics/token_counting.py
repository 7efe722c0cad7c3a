"""Token counts of records: from the server's usage, or by a tokenizer, each text encoded once and in batches."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.errors import PenstockError
from penstock.metrics.measure import UNCOUNTED, Counts
from penstock.processes import cores
from penstock.records.log import RunLog
from penstock.records.record import Record

__all__ = ["ClientCounter", "Counter", "LoadTokenizer", "ServerCounter", "Tokenizer"]

_CACHE_BYTES = 4_000_000
"""Mock servers and first words repeat themselves; this is what that is worth."""
_TEXT_OVERHEAD = 200
"""Of a string and its place in a dictionary."""

_UNKNOWN, _NO_TEXT = -1, -2


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
    """Counts with a tokenizer that is loaded when the first text, or the first count made before, asks for it."""

    def __init__(self, load: LoadTokenizer | None, log: RunLog, input_texts: Callable[[bytes], list[str]]) -> None:
        self._load = load
        self._log = log
        self._input_texts = input_texts
        self._inputs = array("i", [_UNKNOWN]) * len(log.payloads)
        self._built: dict[tuple[int, int], int] = {}
        """The same for bodies that workers built, of this batch only: each was sent once."""
        self._cache: dict[str, int] = {}
        self._cached_bytes = 0
        self._threads = cores()
        self._failed = False
        self.tokenizer: Tokenizer | None = None
        self.note: str | None = None

    def count(self, records: Sequence[Record]) -> list[Counts]:
        self._built.clear()
        bodies = [(record, text) for record in records if (text := self._uncounted_body(record)) is not None]
        self._count_texts([*(text for _, text in bodies), *_reply_texts(records)])
        if not self._failed:
            for record, text in bodies:
                self._remember(record, self._cache[text])
        counts = [self._counts(record) for record in records]
        if self._cached_bytes > _CACHE_BYTES:
            self._cache.clear()
            self._cached_bytes = 0
        return counts

    def _known(self, record: Record) -> int:
        if record.built is None:
            return self._inputs[record.payload]
        return self._built.get((record.worker, record.built), _UNKNOWN)

    def _remember(self, record: Record, tokens: int) -> None:
        if record.built is None:
            self._inputs[record.payload] = tokens
        else:
            self._built[record.worker, record.built] = tokens

    def _uncounted_body(self, record: Record) -> str | None:
        """Its text, when nobody counted it yet."""
        if self._known(record) != _UNKNOWN:
            return None
        try:
            known = self._counted_before(record)
            texts = [] if known >= 0 else self._input_texts(self._log.body(record))
        except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, msgspec.MsgspecError):
            # A replayed body may have any shape, and a worker that was killed may have lost what it built: such a body
            # has no length that we could tell.
            known, texts = _NO_TEXT, []
        if texts:
            return " ".join(texts)
        self._remember(record, known if known >= 0 else _NO_TEXT)
        return None

    def _counted_before(self, record: Record) -> int:
        """By the tokenizer that made the prompt, when that is the one that counts here; otherwise -1. One that cannot be had
        counts nothing, and then the count of before is all there is."""
        known = self._log.entry(record).input_tokens
        tokenizer = self._loaded() if known >= 0 else None
        if tokenizer is None:
            return known
        header = self._log.header
        if header.prompt_tokenizer is None:  # a log from before it was written down
            same = tokenizer.name == header.tokenizer
        else:
            same = header.prompt_tokenizer == (tokenizer.name, tokenizer.source)
        return known if same else _UNKNOWN

    def _count_texts(self, texts: list[str]) -> None:
        """Into the cache, which forgets nothing while a batch is being counted."""
        cache = self._cache
        new = list(dict.fromkeys(text for text in texts if text not in cache))
        tokenizer = self._loaded() if new else None
        if tokenizer is None:
            return
        cache.update(zip(new, tokenizer.count_many(new, self._threads), strict=True))
        self._cached_bytes += sum(map(len, new)) + len(new) * _TEXT_OVERHEAD

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
        known = self._known(record)
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
