"""Guardrails: what may go to a model and what may come back from it.

`Guards` is compiled once for a snapshot of the resources. It reads requests and whole replies, and makes a `StreamGuard`
for each streamed one. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.gateway.guardrails.block_errors import block_message, block_type, late_block_event
from penstock.gateway.guardrails.chain import Blocked, Chain, guardrail_problems
from penstock.gateway.guardrails.inspection import GuardrailErrors, Inspection, StreamBlocked, Tally
from penstock.gateway.guardrails.json_input import Ambiguous, read_reply, read_request
from penstock.gateway.guardrails.offload import paced
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.splice import repeated, splice, without
from penstock.gateway.guardrails.streams import BufferGuard, StreamGuard, WatchGuard
from penstock.gateway.guardrails.texts import Line, Slot, reply_texts, request_texts
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec
from penstock.gateway.routes import Route

__all__ = [
    "Ambiguous",
    "GuardrailErrors",
    "Guards",
    "Inspection",
    "SearchBudgets",
    "StreamBlocked",
    "StreamGuard",
    "block_message",
    "block_type",
    "guardrail_problems",
    "late_block_event",
]

_T = TypeVar("_T")
_ON_THE_LOOP = 0.25
"""Of the time for an inspection: what a stream has that is inspected as it passes. Its searches keep all others waiting."""


class Guards:
    """Raises `GuardrailErrors` with everything that is wrong with the guardrails."""

    def __init__(self, specs: Sequence[GuardrailSpec], mode: GuardrailMode) -> None:
        problems = [problem for spec in specs for problem in guardrail_problems(spec)]
        if problems:
            raise GuardrailErrors(problems)
        enabled = [spec for spec in specs if spec.enabled]
        self._input = Chain([spec for spec in enabled if spec.hook != "output"], mode.max_lengths)
        self._output = Chain([spec for spec in enabled if spec.hook != "input"], mode.max_lengths)
        self._limit = mode.max_buffer_bytes
        self._seconds = mode.max_inspection_ms / 1000
        self._window = mode.stream_mode == "window" and self._output.windowed
        self.has_input = bool(self._input.guards)
        self.has_output = bool(self._output.guards)

    async def look(self, size: int, inspect: Callable[[SearchBudgets], _T]) -> _T:
        """Runs an inspection of so many bytes in the time that it has, without keeping the event loop waiting."""
        return await paced(size, inspect, self._seconds)

    def request(self, body: bytes, patience: SearchBudgets) -> Inspection:
        """Raises `Ambiguous` for one that can be read in two ways."""
        source, root = read_request(body)
        return _inspect(self._input, body, source, root, request_texts(root[0]), Tally("input"), patience)

    def reply(self, body: bytes, patience: SearchBudgets) -> Inspection:
        """Of a whole JSON reply; ValueError for what is none."""
        source, root = read_reply(body)
        if self._output.enforced and (spans := repeated(source, root[0])):
            body, source = without(body, spans), without(source, spans)
        lines = reply_texts(root[0] if type(root[0]) is dict else root)
        return _inspect(self._output, body, source, root, lines, Tally("output"), patience)

    def stream(self, route: Route) -> StreamGuard | None:
        """None: nothing holds or watches this stream."""
        if not self.has_output:
            return None
        patience = SearchBudgets(self._seconds * _ON_THE_LOOP, stream=True)
        if not self._output.enforced:
            return WatchGuard(self._output, route, self._limit, patience)
        return (WindowGuard if self._window else BufferGuard)(self._output, route, self._limit, patience)


def _inspect(
    chain: Chain,
    body: bytes,
    source: bytes,
    root: list[Any],
    lines: list[Slot | Line],
    tally: Tally,
    patience: SearchBudgets,
) -> Inspection:
    """`source` is the body as it was read, of the same length."""
    try:
        changed = chain.examine(lines, tally, patience)
    except Blocked as blocked:
        blocked.count(tally)
        return Inspection(body, tally.hits(), blocked_by=blocked.guard.name, timed_out=blocked.timed_out)
    masked = splice(body, source, root, changed) if changed else body
    return Inspection(masked, tally.hits(), blocked_by=None, timed_out=False)
