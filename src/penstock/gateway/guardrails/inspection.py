"""Results of inspections. They never contain a matched text or a pattern."""

from __future__ import annotations

from typing import Literal

from penstock.gateway.ledger.entry import GuardrailHit

Action = Literal["blocked", "masked", "would_block", "would_mask", "timed_out"]


class Blocked(Exception):
    """A body, or the rest of a stream, must not pass. `guardrail` is None if the stream could not be inspected."""

    def __init__(self, guardrail: str | None, *, timed_out: bool = False, too_long: bool = False) -> None:
        super().__init__("blocked" if guardrail is None else f"blocked by {guardrail!r}")
        self.guardrail = guardrail
        self.too_long = too_long
        """True if the stream has more text than may be held."""
        self.timed_out = timed_out
        """True if the block is due to a timeout, not to a match."""


class Inspection:
    """The result of inspecting a body. `body` is the inspected body with masks applied, or unchanged if it is blocked."""

    def __init__(self, body: bytes, hits: list[GuardrailHit], *, blocked_by: str | None, timed_out: bool) -> None:
        self.body = body
        self.hits = hits
        self.blocked_by = blocked_by
        self.timed_out = timed_out
        """True if the block is due to a timeout, not to a match. Then `blocked_by` is the guardrail that timed out."""


class MatchCounts:
    """Counts matches by guardrail and action.

    A stream repeats a text up to four times: in the deltas, in the events that end the text and the item, and in the last
    event. So matches are counted per `source`, and the hit has the largest count.
    """

    def __init__(self, hook: Literal["input", "output"]) -> None:
        self.hook = hook
        self._counts: dict[tuple[int, str, Action], dict[str, int]] = {}

    def add(self, order: int, name: str, action: Action, source: str) -> None:
        counts = self._counts.setdefault((order, name, action), {})
        counts[source] = counts.get(source, 0) + 1

    def add_all(self, other: MatchCounts) -> None:
        for key, counts in other._counts.items():
            self._counts.setdefault(key, {}).update(counts)

    def hits(self) -> list[GuardrailHit]:
        return [
            GuardrailHit(
                guardrail=name,
                hook=self.hook,
                action=action,
                count=1 if action in ("blocked", "timed_out") else max(counts.values()),
            )
            for (_, name, action), counts in sorted(self._counts.items(), key=lambda item: item[0])
        ]
