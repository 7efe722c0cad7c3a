"""How far the prompts of a run repeat each other, which a server with a prefix cache answers faster."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.metrics.batch import Batch
from penstock.plural import counted
from penstock.records.log import RunLog
from penstock.records.prompt_reuse import ReuseCounts

__all__ = ["ReuseCounter", "ReuseSummary"]

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

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._sent: dict[int, NDArray[np.uint8]] = {}
        """For each URL, one bit per conversation that was sent."""
        self._conversations = 0
        self._again = 0

    def add(self, batch: Batch, *, profiling: bool) -> None:
        first = batch.turn == 0
        urls, conversations = batch.get("url")[first], batch.get("conversation")[first].astype(np.int64)
        new = sum(self._mark(int(url), np.unique(conversations[urls == url])) for url in np.unique(urls))
        if profiling:
            self._conversations += len(conversations)
            self._again += len(conversations) - new

    def _mark(self, url: int, conversations: NDArray[np.int64]) -> int:
        """Note that conversations were sent. Return how many of them were not sent before."""
        sent = self._sent.get(url, np.zeros(0, np.uint8))
        places, bits = conversations >> 3, (1 << (conversations & 7)).astype(np.uint8)
        if (missing := int(places.max()) + 1 - len(sent)) > 0:
            sent = np.pad(sent, (0, max(missing, len(sent))))
        self._sent[url] = sent
        new = int(((sent[places] & bits) == 0).sum())
        np.bitwise_or.at(sent, places, bits)
        return new

    def summary(self) -> ReuseSummary | None:
        """Return the counts; None if the dataset was not compared."""
        counts = ReuseCounts.load(self._log.payloads.folder)
        if not counts.prompts:
            return None
        return ReuseSummary(
            conversations=self._conversations,
            sent_again=0 if self._log.header.settings.input.marks_conversations else self._again,
            prompts=counts.prompts,
            repeated_prompts=counts.repeated,
            prompts_with_shared_prefix=counts.sharing,
            shared_prefix_share=counts.shared_size / max(1, counts.size),
        )
