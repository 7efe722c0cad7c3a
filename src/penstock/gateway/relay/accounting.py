"""The entry of one request, and the clock that fills in where its time went."""

from __future__ import annotations

import re
from time import perf_counter, time
from typing import Literal

from penstock.gateway.guardrails import Inspection
from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.relay.upstream import Target
from penstock.gateway.relay.usage import StreamReader, Usage, input_estimate
from penstock.gateway.routes import Route
from penstock.wire.exchange import Exchange

__all__ = ["Accounting", "AttemptKind"]

AttemptKind = Literal["initial", "retry", "fallback"]
UPSTREAM_FAILED = "upstream_failed"
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Accounting:
    """Phases follow one another without a gap, so they add up to the whole: `enter` ends one and begins the next."""

    __slots__ = ("_began", "_connected", "_guarded", "_last", "_phase", "_relaying", "entry")

    def __init__(self, request_id: str, route: Route, worker: int) -> None:
        self._began = self._last = perf_counter()
        self._phase = "auth"
        self._relaying = False
        """An attempt is being made."""
        self._connected = self._guarded = 0.0
        """Of the attempt that is made: what of its connecting and of its inspection is in the phases already, in ms."""
        self.entry = Entry(
            request_id=request_id, at=time(), route=route, worker=worker, phases_ms={}, attempts=[], guardrails=[]
        )

    # -- time -------------------------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._began

    def enter(self, phase: str) -> None:
        """What happens from now on belongs to it."""
        self._add(self._phase, self._lap())
        self._phase = phase

    def phases_at_head(self) -> dict[str, float]:
        """All of them, for the head of a whole reply."""
        self.enter("serialise")
        phases = self.entry.phases_ms
        phases["total"] = (self._last - self._began) * 1000
        return phases

    def phases_at_first_byte(self, exchange: Exchange, guard_s: float) -> dict[str, float]:
        """Those known when a stream begins."""
        self.note(exchange, guard_s)
        self.entry.ttft_ms = (self._last - self._began) * 1000
        return {**self.entry.phases_ms, "total": self.entry.ttft_ms}

    def note(self, exchange: Exchange, guard_s: float) -> None:
        """Everything up to now. While an attempt is being made its time is the upstream's, less what connecting and
        inspecting took within it; `guard_s` is what inspecting the stream has taken so far."""
        if not self._relaying:
            self.enter(self._phase)
            return
        spent = self._lap()
        connect = min(exchange.connect_ns / 1e6 - self._connected, spent)
        guard = min(guard_s * 1000 - self._guarded, spent - connect)
        self._connected += connect
        self._guarded += guard
        if connect:
            self._add("connect", connect)
        self._add("upstream", spent - connect - guard)
        if guard:
            self._add("guardrail_out", guard)

    def _lap(self) -> float:
        now = perf_counter()
        spent = (now - self._last) * 1000
        self._last = now
        return spent

    def _add(self, phase: str, ms: float) -> None:
        phases = self.entry.phases_ms
        phases[phase] = phases[phase] + ms if phase in phases else ms

    def close(self) -> Entry:
        self.enter(self._phase)
        self.entry.phases_ms["total"] = (self._last - self._began) * 1000
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
        self._relaying = True
        self._connected = self._guarded = 0.0
        return made

    def over_limit(self, target: Target, kind: AttemptKind) -> None:
        """A target whose own limit is reached is passed over, and counts as an attempt."""
        attempt = self.attempt(target, kind)
        self._relaying = False
        attempt.status, attempt.error = 429, "over_limit"
        attempt.ended_ms = attempt.started_ms

    def ended(self, attempt: Attempt, exchange: Exchange, guard_s: float) -> None:
        """`guard_s` is what inspecting a stream took within it."""
        attempt.status = exchange.status or None
        attempt.connect_ms = exchange.connect_ns / 1e6
        self.note(exchange, guard_s)
        attempt.ended_ms = (self._last - self._began) * 1000
        if exchange.first_byte >= 0 <= exchange.start:
            waited = (exchange.first_byte - exchange.start) / 1e6
            attempt.first_byte_ms = attempt.started_ms + attempt.connect_ms + waited
        self._relaying = False
        self._phase = "serialise"

    # -- guardrails ----------------------------------------------------------------------------------------------------

    def inspected(self, found: Inspection) -> None:
        self.entry.guardrails += found.hits
        if found.blocked_by is not None:
            self.entry.blocked = True

    # -- usage: of all attempts together, for a reply that was lost on its way was billed as well ------------------------

    def report(self, usage: Usage) -> None:
        """What the upstream says it was."""
        entry = self.entry
        if entry.usage_source == "none":
            entry.usage_source = "upstream"
        entry.input_tokens += usage.input
        entry.output_tokens += usage.output
        entry.reasoning_tokens += usage.reasoning
        entry.cached_tokens += usage.cached

    def estimate(self, request: bytes, output: int) -> None:
        entry = self.entry
        entry.usage_source = "estimated"
        entry.input_tokens += input_estimate(request)
        entry.output_tokens += output

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

    def failed_within(self) -> None:
        """The caller got the upstream's reply with its status, and the reply says that it failed."""
        self.entry.error = self.entry.attempts[-1].error = UPSTREAM_FAILED

    def failed(self, status: int, error: str, finish: str | None = None) -> None:
        """An upstream may call its error anything; what is not a word is not for the records."""
        entry = self.entry
        entry.status = status
        entry.error = error if _WORD.fullmatch(error) else "upstream_error"
        if finish is not None:
            entry.finish = finish
