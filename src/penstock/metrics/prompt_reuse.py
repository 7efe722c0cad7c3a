"""How far the prompts of a run repeat each other, which a server with a prefix cache answers faster."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.metrics.batch import Batch
from penstock.plural import counted
from penstock.records.header import RunHeader
from penstock.records.payloads import PayloadStore
from penstock.records.prompt_reuse import ReuseCounts

_NOTED_SHARE = 0.01
_ADVICE = "A server with a prefix cache answers these faster; --cache-bust first_turn_prefix prevents that."


class ReuseSummary(msgspec.Struct, frozen=True):
    conversations: int
    """Conversations of the profiling phases whose first turn was sent."""
    sent_again: int
    """Conversations among them that the run had already sent to the same server, in the warmup or before."""
    prompts: int
    """Prompts of the dataset that were compared: the first turns of conversations."""
    repeated_prompts: int
    """Prompts that equal an earlier one of the dataset."""
    prompts_with_shared_prefix: int
    """Prompts that share at least their first 256 bytes with an earlier one."""
    shared_prefix_share: float
    """The part of the text of all prompts that is such a prefix; a lower bound."""

    def notes(self) -> list[str]:
        """Return a sentence for the user, unless the prompts are different."""
        parts = []
        if self.sent_again:
            parts.append(
                f"{counted(self.sent_again, 'request')} of {self.conversations:,} sent a prompt that the run had sent before"
            )
        if self.repeated_prompts:
            parts.append(
                f"{self.repeated_prompts:,} of {counted(self.prompts, 'prompt')} in the dataset equal an earlier one"
            )
        if self.shared_prefix_share >= _NOTED_SHARE:
            parts.append(
                f"{self.prompts_with_shared_prefix:,} of {counted(self.prompts, 'prompt')} begin like an earlier one (at least "
                f"{self.shared_prefix_share:.0%} of their text)"
            )
        if not parts:
            return []
        text = "; ".join(parts)
        return [f"{text[:1].upper()}{text[1:]}. {_ADVICE}"]


class ReuseCounter:
    """Counts over the records of a run."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, bool], NDArray[np.uint8]] = {}
        """For each URL, in the profiling phases or before them, one bit per conversation that was sent."""
        self._conversations = 0

    def add(self, batch: Batch, *, profiling: bool) -> None:
        first = batch.turn == 0
        urls, conversations = batch.get("url")[first], batch.get("conversation")[first].astype(np.int64)
        for url in np.unique(urls):
            own = conversations[urls == url]
            sent = self._bits((int(url), profiling), (int(own.max()) >> 3) + 1)
            np.bitwise_or.at(sent, own >> 3, (1 << (own & 7)).astype(np.uint8))
        if profiling:
            self._conversations += len(conversations)

    def _bits(self, key: tuple[int, bool], size: int) -> NDArray[np.uint8]:
        """Return the bits of the conversations that were sent, at least `size` bytes."""
        sent = self._sent.get(key, np.zeros(0, np.uint8))
        if (missing := size - len(sent)) > 0:
            sent = np.pad(sent, (0, max(missing, len(sent))))
        self._sent[key] = sent
        return sent

    def merge(self, other: ReuseCounter) -> None:
        self._conversations += other._conversations
        for key, bits in other._sent.items():
            self._bits(key, len(bits))[: len(bits)] |= bits

    def _sent_again(self) -> int:
        new = 0
        for (url, profiling), sent in self._sent.items():
            if profiling:
                before = self._sent.get((url, False), np.zeros(0, np.uint8))[: len(sent)]
                first = sent.copy()
                first[: len(before)] &= ~before
                new += int(np.unpackbits(first).sum())
        return self._conversations - new

    def summary(self, header: RunHeader, payloads: PayloadStore) -> ReuseSummary | None:
        """Return the counts; None if the dataset was not compared."""
        counts = ReuseCounts.load(payloads.folder)
        if not counts.prompts:
            return None
        return ReuseSummary(
            conversations=self._conversations,
            sent_again=0 if header.settings.input.marks_conversations else self._sent_again(),
            prompts=counts.prompts,
            repeated_prompts=counts.repeated,
            prompts_with_shared_prefix=counts.sharing,
            shared_prefix_share=counts.shared_size / max(1, counts.size),
        )
