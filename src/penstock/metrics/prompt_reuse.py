"""How far the prompts of a run repeat each other, which a server with a prefix cache answers faster."""

from __future__ import annotations

import msgspec

from penstock.plural import counted
from penstock.records.log import RunLog
from penstock.records.prompt_reuse import ReuseCounts
from penstock.records.record import Record

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
        self._sent: dict[int, bytearray] = {}
        """For each URL, one bit per conversation that was sent."""
        self._conversations = 0
        self._again = 0

    def add(self, record: Record, *, profiling: bool) -> None:
        if record.turn:
            return
        is_new = self._mark(record.url, record.conversation)
        if profiling:
            self._conversations += 1
            self._again += not is_new

    def _mark(self, url: int, conversation: int) -> bool:
        """Note that a conversation was sent. Return whether it was the first time."""
        sent = self._sent.setdefault(url, bytearray())
        place, bit = conversation >> 3, 1 << (conversation & 7)
        if place >= len(sent):
            sent.extend(bytes(max(place + 1 - len(sent), len(sent))))
        is_new = not sent[place] & bit
        sent[place] |= bit
        return is_new

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
