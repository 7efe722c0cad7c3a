"""Guardrails: content inspection of requests and replies.

`ContentPolicy` is compiled once per resource snapshot. It inspects requests and whole replies, and creates a `StreamGuard` for
each streamed reply. All verdicts can be awaited, so that a check by another service has the same interface as a local one;
the relay pauses the upstream while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.texts import Texts, walk
from penstock.gateway.guardrails.block_errors import block_code, block_event, block_message, block_type
from penstock.gateway.guardrails.chain import Blocked, Chain, compile_guardrails, guardrail_errors
from penstock.gateway.guardrails.inspection import GuardrailErrors, Inspection, MatchCounts, StreamBlocked
from penstock.gateway.guardrails.json_input import (
    DuplicateKeyError,
    read_reply,
    read_request,
    without_duplicate_keys,
    write_changes,
)
from penstock.gateway.guardrails.offload import ContentPolicySource, inspect_in_process, is_large, run_offloaded
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.streams import KEEP_ALIVE, BufferGuard, MonitorGuard, StreamGuard, StreamLimits
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec
from penstock.gateway.routes import Route

__all__ = [
    "KEEP_ALIVE",
    "ContentPolicy",
    "DuplicateKeyError",
    "GuardrailErrors",
    "Inspection",
    "SearchBudgets",
    "StreamBlocked",
    "StreamGuard",
    "block_code",
    "block_event",
    "block_message",
    "block_type",
    "guardrail_errors",
]


class ContentPolicy:
    """The compiled guardrails of a snapshot. The constructor raises `GuardrailErrors` with every configuration error.

    The relay awaits `request` and `reply`, and the verdicts of a `StreamGuard`. None of them blocks the event loop for
    longer than a few milliseconds.
    """

    def __init__(self, specs: Sequence[GuardrailSpec], mode: GuardrailMode) -> None:
        errors = [error for spec in specs for error in guardrail_errors(spec)]
        if errors:
            raise GuardrailErrors(errors)
        self._source = ContentPolicySource(list(specs), mode)
        enabled = [spec for spec in specs if spec.enabled]
        self._input = _chain([spec for spec in enabled if spec.hook != "output"], mode)
        self._output = _chain([spec for spec in enabled if spec.hook != "input"], mode)
        self._enforcing, self._monitoring = self._output.split()
        self._seconds = mode.max_inspection_ms / 1000
        self._limits = StreamLimits(mode.max_buffer_bytes, self._seconds, mode.heartbeat_s)
        self._use_window = mode.stream_mode == "window" and self._output.supports_window
        self.has_input = bool(self._input.guardrails)
        self.has_output = bool(self._output.guardrails)

    async def request(self, dialect: Dialect, body: bytes) -> Inspection:
        """Inspect a request body. Raises `DuplicateKeyError` if an object in it has a duplicate key."""
        if is_large(body):
            return await inspect_in_process(self._message(dialect), "inspect_request", body)
        return await run_offloaded(
            len(body), lambda budgets: self.inspect_request(dialect, body, budgets), self._seconds
        )

    async def reply(self, dialect: Dialect, body: bytes) -> Inspection:
        """Inspect a whole JSON reply. Raises ValueError if the body is not JSON."""
        if is_large(body):
            return await inspect_in_process(self._message(dialect), "inspect_reply", body)
        return await run_offloaded(len(body), lambda budgets: self.inspect_reply(dialect, body, budgets), self._seconds)

    def _message(self, dialect: Dialect) -> bytes:
        """Return what another process needs for an inspection, besides the body."""
        return msgspec.msgpack.encode((dialect.name, self._source))

    def stream(self, route: Route) -> StreamGuard | None:
        """Return a guard for one stream, or None if there are no output guardrails."""
        if not self.has_output:
            return None
        if not self._output.enforced:
            return MonitorGuard(self._output, route, self._limits)
        if not self._use_window:
            return BufferGuard(self._output, route, self._limits)
        monitor = MonitorGuard(self._monitoring, route, self._limits) if self._monitoring.guardrails else None
        return WindowGuard(self._enforcing, route, self._limits, monitor)

    def inspect_request(self, dialect: Dialect, body: bytes, budgets: SearchBudgets) -> Inspection:
        """Inspect a request body within the budgets, in the calling thread."""
        source, root = read_request(body)
        texts = walk(root, dialect.request_fields, "request")
        return _inspect(self._input, body, source, root, texts, MatchCounts("input"), budgets)

    def inspect_reply(self, dialect: Dialect, body: bytes, budgets: SearchBudgets) -> Inspection:
        """Inspect a whole JSON reply within the budgets, in the calling thread."""
        source, root = read_reply(body)
        if self._output.enforced:
            unique = without_duplicate_keys(source, root[0])
            if unique is not source:
                body = source = unique
        texts = walk(root, dialect.reply_map(root[0]), "reply")
        return _inspect(self._output, body, source, root, texts, MatchCounts("output"), budgets)


def _chain(specs: list[GuardrailSpec], mode: GuardrailMode) -> Chain:
    return Chain(compile_guardrails(specs, mode.max_lengths))


def _inspect(
    chain: Chain,
    body: bytes,
    source: bytes,
    root: list[Any],
    texts: Texts,
    match_counts: MatchCounts,
    budgets: SearchBudgets,
) -> Inspection:
    """Inspect `texts`. `source` is the body with invalid characters replaced; it has the same length as `body`."""
    try:
        changed = chain.inspect(texts.complete, match_counts, budgets)
    except Blocked as blocked:
        blocked.count(match_counts)
        return Inspection(body, match_counts.hits(), blocked_by=blocked.guardrail.name, timed_out=blocked.timed_out)
    drops_tokens = changed or (match_counts.hook == "output" and chain.enforced)
    masked = write_changes(body, source, root, changed, texts.tokens if drops_tokens else ())
    return Inspection(masked, match_counts.hits(), blocked_by=None, timed_out=False)
