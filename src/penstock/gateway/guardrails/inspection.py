"""What an inspection ends in. Nothing here holds a matched text or a pattern."""

from __future__ import annotations

from typing import Literal

from penstock.gateway.ledger.entry import GuardrailHit

__all__ = ["Action", "GuardrailErrors", "Inspection", "StreamBlocked", "Tally"]

Action = Literal["blocked", "masked", "would_block", "would_mask", "timed_out"]


class GuardrailErrors(ValueError):
    """Guardrails that cannot be compiled, with all that is wrong with them."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = errors


class StreamBlocked(Exception):
    """The rest of a stream must not be released. `guardrail` is None when more would have to be held than may be."""

    def __init__(self, guardrail: str | None, *, timed_out: bool = False) -> None:
        super().__init__("the stream was blocked" if guardrail is None else f"the stream was blocked by {guardrail!r}")
        self.guardrail = guardrail
        self.timed_out = timed_out
        """Nothing was found; the time for looking is over."""


class Inspection:
    """`body` is what may go on its way: the one that was inspected, or with its masks. A blocked one is not masked."""

    __slots__ = ("blocked_by", "body", "hits", "timed_out")

    def __init__(self, body: bytes, hits: list[GuardrailHit], *, blocked_by: str | None, timed_out: bool) -> None:
        self.body = body
        self.hits = hits
        self.blocked_by = blocked_by
        self.timed_out = timed_out
        """Nothing was found; the time for looking is over. Then `blocked_by` is whose time it was."""


class Tally:
    """Counts matches by guardrail and action.

    A stream says the same text up to four times: in deltas, in the event that ends the text, in the one that ends the
    item, and in the last one. So each `source` is counted by itself and the largest count is the hit's.
    """

    __slots__ = ("_counts", "_hook")

    def __init__(self, hook: Literal["input", "output"]) -> None:
        self._hook = hook
        self._counts: dict[tuple[int, str, Action], dict[str, int]] = {}

    def add(self, order: int, name: str, action: Action, source: str) -> None:
        counts = self._counts.setdefault((order, name, action), {})
        counts[source] = counts.get(source, 0) + 1

    def hits(self) -> list[GuardrailHit]:
        return [
            GuardrailHit(
                guardrail=name,
                hook=self._hook,
                action=action,
                count=1 if action in ("blocked", "timed_out") else max(counts.values()),
            )
            for (_, name, action), counts in sorted(self._counts.items(), key=lambda item: item[0])
        ]
