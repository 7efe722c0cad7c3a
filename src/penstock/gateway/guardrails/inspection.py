"""Results of inspections, and what callers are told of a block. They never contain a matched text or a pattern."""

from __future__ import annotations

from typing import Literal

from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.routes import BY_NAME, Route

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


def block_type(*, timed_out: bool) -> str:
    return "inspection_timeout" if timed_out else "content_filter"


def block_code(*, too_long: bool) -> str | None:
    return "stream_too_long" if too_long else None


def block_message(side: str, guardrail: str | None, *, timed_out: bool = False, too_long: bool = False) -> str:
    """`side` is "request" or "response"."""
    if too_long:
        return f"The {side} was blocked because it is too long to be inspected."
    suffix = "" if guardrail is None else f" (guardrail '{guardrail}')"
    if timed_out:
        return f"Content inspection of the {side} timed out{suffix}."
    return f"The {side} was blocked by content policy{suffix}."


def block_event(
    route: Route,
    guardrail: str | None,
    response_id: str | None,
    sequence: int,
    *,
    model: str = "",
    timed_out: bool = False,
    too_long: bool = False,
) -> bytes:
    """Return the SSE event that ends a stream after part of it has been released."""
    message = block_message("response", guardrail, timed_out=timed_out, too_long=too_long)
    kind, code = block_type(timed_out=timed_out), block_code(too_long=too_long)
    return BY_NAME[route].block_event(kind, message, sequence, response_id, model, code)
