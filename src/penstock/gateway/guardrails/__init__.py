"""Guardrails: what may go to a model and what may come back from it.

`Guards` is compiled once for a snapshot of the resources. It reads requests and whole replies, and makes a `StreamGuard`
for each streamed one. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.gateway.config import GuardrailMode
from penstock.gateway.guardrails.chain import Blocked, Chain, guardrail_problems
from penstock.gateway.guardrails.inspection import GuardrailErrors, Inspection, StreamBlocked, Tally
from penstock.gateway.guardrails.late import block_message, late_block_event
from penstock.gateway.guardrails.streams import BufferGuard, StreamGuard, WatchGuard
from penstock.gateway.guardrails.texts import Line, Slot, reply_texts, request_texts
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources import GuardrailSpec
from penstock.gateway.routes import Route

__all__ = [
    "GuardrailErrors",
    "Guards",
    "Inspection",
    "StreamBlocked",
    "StreamGuard",
    "block_message",
    "guardrail_problems",
    "late_block_event",
]


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
        self._window = mode.stream_mode == "window" and self._output.windowed
        self.has_input = bool(self._input.guards)
        self.has_output = bool(self._output.guards)

    def request(self, route: Route, body: dict[str, Any]) -> Inspection:
        """Masks rewrite the body in place."""
        del route  # all four carry their text in ways that one reading covers
        return _inspect(self._input, request_texts(body), Tally("input"))

    def reply(self, route: Route, body: dict[str, Any]) -> Inspection:
        """Of a whole JSON reply. Masks rewrite it in place."""
        inspection = _inspect(self._output, reply_texts(body), Tally("output"))
        if inspection.changed and route != "responses" and isinstance(body.get("choices"), list):
            for choice in body["choices"]:
                if isinstance(choice, dict) and choice.get("logprobs"):
                    choice["logprobs"] = None  # it spells out the text that was masked
        return inspection

    def stream(self, route: Route) -> StreamGuard | None:
        """None: nothing holds or watches this stream."""
        if not self.has_output:
            return None
        if not self._output.enforced:
            return WatchGuard(self._output, route, self._limit)
        return (WindowGuard if self._window else BufferGuard)(self._output, route, self._limit)


def _inspect(chain: Chain, lines: list[Slot | Line], tally: Tally) -> Inspection:
    try:
        changed = chain.examine(lines, tally)
    except Blocked as blocked:
        blocked.count(tally)
        return Inspection(blocked.guard.name, tally.hits(), changed=False)
    return Inspection(None, tally.hits(), changed=changed)
