"""The entry of one request, and the clock that fills in where its time went."""

from __future__ import annotations

import re
from time import perf_counter, time
from typing import Literal

from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.routes import Route
from penstock.gateway.upstream import Target
from penstock.gateway.usage import StreamReader, Usage, input_estimate
from penstock.wire.exchange import Exchange

__all__ = ["AttemptKind", "Books"]

AttemptKind = Literal["initial", "retry", "fallback"]
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Books:
    """Phases follow one another without a gap: each `mark` gives the time since the last one to a phase."""

    __slots__ = ("_began", "_last", "entry")

    def __init__(self, request_id: str, route: Route, worker: int) -> None:
        self._began = self._last = perf_counter()
        self.entry = Entry(
            request_id=request_id, at=time(), route=route, worker=worker, phases_ms={}, attempts=[], guardrails=[]
        )

    # -- time -------------------------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._began

    def mark(self, phase: str) -> None:
        now = perf_counter()
        phases = self.entry.phases_ms
        spent = (now - self._last) * 1000
        phases[phase] = phases[phase] + spent if phase in phases else spent
        self._last = now

    def phases_at_head(self) -> dict[str, float]:
        """All of them, for the head of a whole reply."""
        phases = self.entry.phases_ms
        now = perf_counter()
        phases["serialise"] = (now - self._last) * 1000
        self._last = now
        phases["total"] = (now - self._began) * 1000
        return phases

    def phases_at_first_byte(self, exchange: Exchange) -> dict[str, float]:
        """Those known when a stream begins; it is not over yet, so nothing is marked."""
        now = perf_counter()
        phases = dict(self.entry.phases_ms)
        connect = exchange.connect_ns / 1e6
        if connect:
            phases["connect"] = phases.get("connect", 0.0) + connect
        phases["upstream"] = phases.get("upstream", 0.0) + max(0.0, (now - self._last) * 1000 - connect)
        self.entry.ttft_ms = phases["total"] = (now - self._began) * 1000
        return phases

    def close(self) -> Entry:
        self.entry.phases_ms["total"] = (perf_counter() - self._began) * 1000
        return self.entry

    # -- attempts -----------------------------------------------------------------------------------------------------

    def attempt(self, target: Target, kind: AttemptKind) -> Attempt:
        direct = target.model
        made = Attempt(
            model=direct.name,
            upstream=direct.upstream,
            provider_key=target.key.name,
            kind=kind,
            started_ms=(perf_counter() - self._began) * 1000,
        )
        self.entry.attempts.append(made)
        return made

    def over_limit(self, target: Target, kind: AttemptKind) -> None:
        """A target whose own limit is reached is passed over, and counts as an attempt."""
        attempt = self.attempt(target, kind)
        attempt.status, attempt.error = 429, "over_limit"
        attempt.ended_ms = attempt.started_ms

    def ended(self, attempt: Attempt, exchange: Exchange, guard_s: float) -> None:
        """`guard_s` is what inspecting a stream took within it."""
        attempt.status = exchange.status or None
        attempt.connect_ms = exchange.connect_ns / 1e6
        now = perf_counter()
        attempt.ended_ms = (now - self._began) * 1000
        if exchange.first_byte >= 0 <= exchange.start:
            waited = (exchange.first_byte - exchange.start) / 1e6
            attempt.first_byte_ms = attempt.started_ms + attempt.connect_ms + waited
        spent = (now - self._last) * 1000
        self._last = now
        phases = self.entry.phases_ms
        if attempt.connect_ms:
            phases["connect"] = phases.get("connect", 0.0) + min(attempt.connect_ms, spent)
            spent = max(0.0, spent - attempt.connect_ms)
        if guard_s:
            phases["guardrail_out"] = phases.get("guardrail_out", 0.0) + guard_s * 1000
            spent = max(0.0, spent - guard_s * 1000)
        phases["upstream"] = phases.get("upstream", 0.0) + spent

    # -- usage ------------------------------------------------------------------------------------------------------------

    def report(self, usage: Usage) -> None:
        """What the upstream says it was."""
        entry = self.entry
        entry.usage_source = "upstream"
        entry.input_tokens, entry.output_tokens = usage.input, usage.output
        entry.reasoning_tokens, entry.cached_tokens = usage.reasoning, usage.cached

    def estimate(self, request: bytes, output: int) -> None:
        entry = self.entry
        entry.usage_source = "estimated"
        entry.input_tokens, entry.output_tokens = input_estimate(request), output

    def identify(self, target: Target, upstream_id: str | None, finish: str | None) -> None:
        """What the upstream calls its reply and the reply's end. It may call them anything."""
        self.entry.upstream_id = upstream_id and target.redact(upstream_id)
        self.entry.finish = finish and target.redact(finish)

    def stream(self, target: Target, reader: StreamReader, request: bytes) -> None:
        self.entry.events = reader.events
        self.identify(target, reader.id, reader.finish)
        if reader.usage is not None:
            self.report(reader.usage)
        else:
            self.estimate(request, reader.tokens)

    @property
    def tokens(self) -> int:
        return self.entry.input_tokens + self.entry.output_tokens

    # -- the end ----------------------------------------------------------------------------------------------------------

    def failed(self, status: int, error: str, finish: str | None = None) -> None:
        """An upstream may call its error anything; what is not a word is not for the records."""
        entry = self.entry
        entry.status = status
        entry.error = error if _WORD.fullmatch(error) else "upstream_error"
        if finish is not None:
            entry.finish = finish
