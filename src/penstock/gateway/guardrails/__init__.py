"""Guardrails: content inspection of requests and replies.

`Guards` is compiled once per resource snapshot. It inspects requests and whole replies, and creates a `StreamGuard` for
each streamed reply. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.gateway.guardrails.block_errors import block_event, block_message, block_type
from penstock.gateway.guardrails.chain import Blocked, Chain, guardrail_errors
from penstock.gateway.guardrails.inspection import GuardrailErrors, Inspection, MatchCounts, StreamBlocked
from penstock.gateway.guardrails.json_edits import duplicate_member_spans, remove_spans, replace_texts
from penstock.gateway.guardrails.json_input import DuplicateKeyError, read_reply, read_request
from penstock.gateway.guardrails.offload import run_offloaded
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.streams import BufferGuard, MonitorGuard, StreamGuard
from penstock.gateway.guardrails.texts import InspectedText, reply_texts, request_texts
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec
from penstock.gateway.routes import Route

__all__ = [
    "DuplicateKeyError",
    "GuardrailErrors",
    "Guards",
    "Inspection",
    "SearchBudgets",
    "StreamBlocked",
    "StreamGuard",
    "block_event",
    "block_message",
    "block_type",
    "guardrail_errors",
]

_T = TypeVar("_T")
_STREAM_SHARE = 0.25
"""Share of `max_inspection_ms` for streams, whose searches block the event loop."""


class Guards:
    """The compiled guardrails of a snapshot. The constructor raises `GuardrailErrors` with every configuration error."""

    def __init__(self, specs: Sequence[GuardrailSpec], mode: GuardrailMode) -> None:
        errors = [error for spec in specs for error in guardrail_errors(spec)]
        if errors:
            raise GuardrailErrors(errors)
        enabled = [spec for spec in specs if spec.enabled]
        self._input = Chain([spec for spec in enabled if spec.hook != "output"], mode.max_lengths)
        self._output = Chain([spec for spec in enabled if spec.hook != "input"], mode.max_lengths)
        self._limit = mode.max_buffer_bytes
        self._seconds = mode.max_inspection_ms / 1000
        self._use_window = mode.stream_mode == "window" and self._output.supports_window
        self.has_input = bool(self._input.guards)
        self.has_output = bool(self._output.guards)

    async def run_inspection(self, size: int, inspect: Callable[[SearchBudgets], _T]) -> _T:
        """Run `inspect` on `size` bytes within `max_inspection_ms`, without blocking the event loop."""
        return await run_offloaded(size, inspect, self._seconds)

    def request(self, body: bytes, budgets: SearchBudgets) -> Inspection:
        """Inspect a request body. Raises `DuplicateKeyError` if an object in it has a duplicate key."""
        source, root = read_request(body)
        return _inspect(self._input, body, source, root, request_texts(root[0]), MatchCounts("input"), budgets)

    def reply(self, body: bytes, budgets: SearchBudgets) -> Inspection:
        """Inspect a whole JSON reply. Raises ValueError if the body is not JSON."""
        source, root = read_reply(body)
        if self._output.enforced and (spans := duplicate_member_spans(source, root[0])):
            body, source = remove_spans(body, spans), remove_spans(source, spans)
        texts = reply_texts(root[0] if type(root[0]) is dict else root)
        return _inspect(self._output, body, source, root, texts, MatchCounts("output"), budgets)

    def stream(self, route: Route) -> StreamGuard | None:
        """Return a guard for one stream, or None if there are no output guardrails."""
        if not self.has_output:
            return None
        budgets = SearchBudgets(self._seconds * _STREAM_SHARE, stream=True)
        if not self._output.enforced:
            return MonitorGuard(self._output, route, self._limit, budgets)
        return (WindowGuard if self._use_window else BufferGuard)(self._output, route, self._limit, budgets)


def _inspect(
    chain: Chain,
    body: bytes,
    source: bytes,
    root: list[Any],
    texts: list[InspectedText],
    match_counts: MatchCounts,
    budgets: SearchBudgets,
) -> Inspection:
    """Inspect `texts`. `source` is the body with invalid characters replaced; it has the same length as `body`."""
    try:
        changed = chain.inspect(texts, match_counts, budgets)
    except Blocked as blocked:
        blocked.count(match_counts)
        return Inspection(body, match_counts.hits(), blocked_by=blocked.guard.name, timed_out=blocked.timed_out)
    masked = replace_texts(body, source, root, changed) if changed else body
    return Inspection(masked, match_counts.hits(), blocked_by=None, timed_out=False)
