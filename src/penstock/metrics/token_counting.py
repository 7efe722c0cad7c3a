"""Count the tokens of records with a tokenizer, or take them from the server's usage."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.errors import PenstockError
from penstock.metrics.metric import UNCOUNTED, TokenCounts
from penstock.processes import cores
from penstock.records.bodies import BodyReader
from penstock.records.header import RunHeader
from penstock.records.record import Record

_CACHE_BYTES = 4_000_000
"""Memory for counts of texts that repeat, such as a mock's replies and first words."""
_TEXT_OVERHEAD = 200
"""Bytes of a string object and its dictionary entry."""

_UNKNOWN, _NO_TEXT = -1, -2


class Tokenizer(Protocol):
    """The part of `tokens.tokenizer.Tokenizer` that counting needs."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    def count_many(self, texts: Sequence[str], threads: int = 1) -> list[int]: ...


LoadTokenizer = Callable[[], tuple[Tokenizer, str | None]]
"""Load the tokenizer; return it with a note for the user about the choice, or None."""


class Counter(Protocol):
    def count(self, records: Sequence[Record]) -> list[TokenCounts]: ...


class ServerCounter:
    """Takes counts from the server's usage. A reply without usage has no token metrics."""

    def __init__(self, *, per_chunk: bool = False) -> None:
        """With `per_chunk`, also take the tokens of the first stamp from the usage of the chunks."""
        self._per_chunk = per_chunk

    def count(self, records: Sequence[Record]) -> list[TokenCounts]:
        return [_server_counts(record, record.head_tokens if self._per_chunk else None) for record in records]


def _server_counts(record: Record, head: int | None) -> TokenCounts:
    usage = record.usage
    if usage is None:
        return TokenCounts(by_server=True)
    output = None
    if usage.completion is not None:
        output = max(0, usage.completion - (usage.reasoning or 0))
    return TokenCounts(input=usage.prompt, output=output, reasoning=usage.reasoning, head=head, by_server=True)


class ClientCounter:
    """Counts with a tokenizer, each distinct text once and in batches. Loads the tokenizer on first use."""

    def __init__(
        self,
        load: LoadTokenizer | None,
        header: RunHeader,
        bodies: BodyReader,
        input_texts: Callable[[bytes], list[str]],
        cache_bytes: int = _CACHE_BYTES,
        *,
        separate: bool = False,
    ) -> None:
        """With `separate`, the server reads each text of a body by itself."""
        self._separate = separate
        self._load = load
        self._header = header
        self._bodies = bodies
        self._input_texts = input_texts
        self._cache_bytes = cache_bytes
        self._inputs = array("i", [_UNKNOWN]) * len(bodies.payloads)
        self._built_inputs: dict[tuple[int, int], int] = {}
        """Input tokens of the bodies in this batch that workers built. Each such body was sent once."""
        self._cache: dict[str, int] = {}
        self._cached_bytes = 0
        self.threads = cores()
        self._failed = False
        self.tokenizer: Tokenizer | None = None
        self.note: str | None = None

    def count(self, records: Sequence[Record]) -> list[TokenCounts]:
        self._built_inputs.clear()
        inputs = self._inputs
        new = [record for record in records if record.built is not None or inputs[record.payload] == _UNKNOWN]
        bodies = [(record, texts) for record in new if (texts := self._uncounted_body(record))]
        self._count_texts([*(text for _, texts in bodies for text in texts), *_reply_texts(records)])
        if not self._failed:
            for record, texts in bodies:
                self._remember(record, sum(self._cache[text] for text in texts))
        counts = [self._counts(record) for record in records]
        if self._cached_bytes > self._cache_bytes:
            self._cache.clear()
            self._cached_bytes = 0
        return counts

    def _known(self, record: Record) -> int:
        if record.built is None:
            return self._inputs[record.payload]
        return self._built_inputs.get((record.worker, record.built), _UNKNOWN)

    def _remember(self, record: Record, tokens: int) -> None:
        if record.built is None:
            self._inputs[record.payload] = tokens
        else:
            self._built_inputs[record.worker, record.built] = tokens

    def _uncounted_body(self, record: Record) -> list[str]:
        """Return the body's texts if their tokens are still unknown: joined, unless the server reads each by itself."""
        if self._known(record) != _UNKNOWN:
            return []
        try:
            known = self._stored_count(record)
            texts = [] if known >= 0 else self._input_texts(self._bodies.body(record))
        except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, msgspec.MsgspecError):
            # A replayed body can have any shape, and a killed worker may not have written the body that it built. Such a
            # body has no input length.
            known, texts = _NO_TEXT, []
        if texts:
            return texts if self._separate else [" ".join(texts)]
        self._remember(record, known if known >= 0 else _NO_TEXT)
        return []

    def _stored_count(self, record: Record) -> int:
        """Return the token count from prompt generation if the same tokenizer counts now, else -1.

        If no tokenizer can be loaded, return the stored count anyway: there is no other.
        """
        known = self._bodies.entry(record).input_tokens
        tokenizer = self._get_tokenizer() if known >= 0 else None
        if tokenizer is None:
            return known
        header = self._header
        if header.prompt_tokenizer is None:  # a log of an older version
            same = tokenizer.name == header.settings.tokenizer.name
        else:
            same = header.prompt_tokenizer == (tokenizer.name, tokenizer.source)
        return known if same else _UNKNOWN

    def _count_texts(self, texts: list[str]) -> None:
        """Count texts into the cache, which is cleared only between batches."""
        cache = self._cache
        new = [text for text in dict.fromkeys(texts) if text not in cache]
        tokenizer = self._get_tokenizer() if new else None
        if tokenizer is None:
            return
        cache.update(zip(new, tokenizer.count_many(new, self.threads), strict=True))
        self._cached_bytes += sum(map(len, new)) + len(new) * _TEXT_OVERHEAD

    def _get_tokenizer(self) -> Tokenizer | None:
        if self.tokenizer is None and not self._failed:
            if self._load is None:
                self._failed = True
                return None
            try:
                self.tokenizer, self.note = self._load()
            except PenstockError as error:
                # The run is over: keep its other metrics although there is no tokenizer.
                self._failed = True
                self.note = f"No tokens were counted. {error}"
        return self.tokenizer

    def _counts(self, record: Record) -> TokenCounts:
        known = self._known(record)
        inputs = known if known >= 0 else None
        if self._failed or record.cancelled or record.failure is not None:
            return UNCOUNTED if inputs is None else TokenCounts(inputs)
        cache = self._cache
        output = reasoning = head = None
        if outputs := record.outputs:
            output = cache[outputs[0]] if len(outputs) == 1 else sum([cache[text] for text in outputs])
        if record.reasonings:
            reasoning = sum([cache[text] for text in record.reasonings])
            output = output or 0
        if _needs_head(record):
            head = cache[record.head_outputs]
        return TokenCounts(inputs, output, reasoning, head)


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
