"""The ledger entry of one request, and the clock that splits its time into phases."""

from __future__ import annotations

import re
from time import perf_counter, time
from typing import Literal

import msgspec

from penstock.gateway.dialects.base import Dialect, StreamReader, Usage, WholeReplyReader
from penstock.gateway.guardrails import Inspection
from penstock.gateway.inbound.body import ParsedBody
from penstock.gateway.ledger.entry import Attempt, Entry
from penstock.gateway.upstream.target import Target
from penstock.wire.exchange import Exchange

AttemptKind = Literal["initial", "retry", "fallback"]
UPSTREAM_FAILED = "upstream_failed"
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Accounting:
    """Fills in the ledger entry of a request. Its phases add up to the total time."""

    def __init__(self, request_id: str, dialect: Dialect, worker: int) -> None:
        self._started_at = self._last_lap = perf_counter()
        self._phase = "auth"
        self._dialect = dialect
        self._attempt_running = False
        """True while an attempt is running."""
        self._connect_ms = self._guard_ms = 0.0
        """Connect and inspection time of the running attempt that has already been added to the phases, in ms."""
        self.media_tokens = 0
        """Estimated tokens of the images, audio and files of the request."""
        self.entry = Entry(
            request_id=request_id,
            at=time(),
            route=dialect.name,
            worker=worker,
            phases_ms={},
            attempts=[],
            guardrails=[],
        )

    # -- time -------------------------------------------------------------------------------------------------------------

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._started_at

    def begin_phase(self, phase: str) -> None:
        """End the current phase, and begin another."""
        now, ended, phases = perf_counter(), self._phase, self.entry.phases_ms
        phases[ended] = phases.get(ended, 0.0) + (now - self._last_lap) * 1000
        self._last_lap = now
        self._phase = phase

    def phases_at_head(self) -> dict[str, float]:
        """Return all phases, for the head of a whole reply."""
        self.begin_phase("serialise")
        phases = self.entry.phases_ms
        phases["total"] = (self._last_lap - self._started_at) * 1000
        return phases

    def phases_at_first_byte(self, exchange: Exchange, guard_s: float) -> dict[str, float]:
        """Return the phases so far, for the head of a stream."""
        self.record_time(exchange, guard_s)
        self.entry.ttft_ms = (self._last_lap - self._started_at) * 1000
        return {**self.entry.phases_ms, "total": self.entry.ttft_ms}

    def record_time(self, exchange: Exchange, guard_s: float) -> None:
        """Add the time up to now to the phases. During an attempt, split it into connect, upstream and guardrail_out;
        `guard_s` is the time that inspecting the stream has taken so far."""
        if not self._attempt_running or not (exchange.connect_ns or guard_s):
            self.begin_phase(self._phase)
            return
        now = perf_counter()
        spent = (now - self._last_lap) * 1000
        self._last_lap = now
        connect = min(exchange.connect_ns / 1e6 - self._connect_ms, spent)
        guard = min(guard_s * 1000 - self._guard_ms, spent - connect)
        self._connect_ms += connect
        self._guard_ms += guard
        if connect:
            self._add("connect", connect)
        self._add("upstream", spent - connect - guard)
        if guard:
            self._add("guardrail_out", guard)

    def _add(self, phase: str, ms: float) -> None:
        phases = self.entry.phases_ms
        phases[phase] = phases.get(phase, 0.0) + ms

    def close(self) -> Entry:
        self.begin_phase(self._phase)
        self.entry.phases_ms["total"] = (self._last_lap - self._started_at) * 1000
        return self.entry

    # -- attempts -----------------------------------------------------------------------------------------------------

    def begin_attempt(self, target: Target, kind: AttemptKind) -> Attempt:
        direct = target.model
        record = Attempt(
            model=direct.name,
            upstream=direct.upstream,
            provider_key=target.key.name,
            kind=kind,
            started_ms=(perf_counter() - self._started_at) * 1000,
        )
        self.entry.attempts.append(record)
        self._attempt_running = True
        self._connect_ms = self._guard_ms = 0.0
        return record

    def skip_over_limit(self, target: Target, kind: AttemptKind) -> None:
        """Record a target that was skipped because its own limit is reached. It counts as an attempt."""
        attempt = self.begin_attempt(target, kind)
        self._attempt_running = False
        attempt.status, attempt.error = 429, "over_limit"
        attempt.ended_ms = attempt.started_ms

    def end_attempt(self, attempt: Attempt, exchange: Exchange, guard_s: float) -> None:
        """`guard_s` is the time that inspecting the stream took."""
        attempt.status = exchange.status or None
        attempt.connect_ms = exchange.connect_ns / 1e6
        if exchange.retries:
            self._split_resend(attempt, exchange)
        self.record_time(exchange, guard_s)
        attempt.ended_ms = (self._last_lap - self._started_at) * 1000
        if exchange.first_byte >= 0 <= exchange.start:
            waited = (exchange.first_byte - exchange.start) / 1e6
            attempt.first_byte_ms = attempt.started_ms + attempt.connect_ms + waited
        self._attempt_running = False
        self._phase = "serialise"

    def _split_resend(self, attempt: Attempt, exchange: Exchange) -> None:
        """Record a request that the pool sent twice as two attempts. The upstream did not receive the first one."""
        resent_ms = attempt.started_ms + exchange.lost_ns / 1e6
        lost = msgspec.structs.replace(attempt, status=None, error="transport", connect_ms=0.0, ended_ms=resent_ms)
        self.entry.attempts.insert(-1, lost)
        attempt.kind = "resend"
        attempt.started_ms = resent_ms

    # -- guardrails ----------------------------------------------------------------------------------------------------

    def record_inspection(self, inspection: Inspection) -> None:
        self.entry.guardrails += inspection.hits
        if inspection.blocked_by is not None:
            self.entry.blocked = True

    # -- usage, summed over all attempts: a provider also bills a reply that was lost -----------------------------------

    def add_usage(self, usage: Usage) -> None:
        """Add the usage that the upstream reported."""
        entry = self.entry
        if entry.usage_source == "none":
            entry.usage_source = "upstream"
        entry.input_tokens += usage.input
        entry.output_tokens += usage.output
        entry.reasoning_tokens += usage.reasoning
        entry.cached_tokens += usage.cached

    def add_estimated_usage(self, body: ParsedBody, output: int) -> None:
        if self.entry.usage_source != "reserved":
            self.entry.usage_source = "estimated"
        self.entry.input_tokens += self._estimated_input(body)
        self.entry.output_tokens += output

    def add_reserved_usage(self, body: ParsedBody, reader: StreamReader | None) -> None:
        """Charge a reply whose end is not known with the input and the longest reply, or with what was seen of it if that
        is more. The entry is marked."""
        entry, output = self.entry, body.output_limit
        started = None if reader is None else reader.usage_at_start
        if reader is not None:
            output = max(output, reader.tokens, 0 if started is None else started.output)
        entry.usage_source = "reserved"
        entry.input_tokens += self._estimated_input(body) if started is None else started.input
        entry.cached_tokens += 0 if started is None else started.cached
        entry.output_tokens += output

    def _estimated_input(self, body: ParsedBody) -> int:
        known = body.input_tokens
        return self.media_tokens + (self._dialect.input_tokens(body.data) if known is None else known)

    def identify(self, target: Target, upstream_id: str | None, finish: str | None) -> None:
        """Record the id and the finish reason of the reply. An upstream may put a secret there, so redact them."""
        self.entry.upstream_id = upstream_id and target.redact(upstream_id)
        self.entry.finish = finish and target.redact(finish)

    def record_reply(self, target: Target, reader: StreamReader, body: ParsedBody, *, cut: bool) -> None:
        """Record what was read of a reply. `cut` says that its end is missing because the gateway or the caller ended it."""
        self.entry.events = reader.events
        self.identify(target, reader.id, reader.finish)
        started = reader.usage_at_start
        if reader.usage is not None:
            self.add_usage(reader.usage)
        elif not reader.terminal and (cut or not reader.events):
            self.add_reserved_usage(body, reader)
        elif (
            isinstance(reader, WholeReplyReader) and reader.unfinished
        ):  # a background response: its usage will never be seen here
            self.add_estimated_usage(body, body.output_limit)
        elif started is not None:  # only the output has to be estimated
            started.output = max(started.output, reader.tokens)
            self.add_usage(started)
            if self.entry.usage_source != "reserved":
                self.entry.usage_source = "estimated"
        else:
            self.add_estimated_usage(body, reader.tokens)

    @property
    def tokens(self) -> int:
        return self.entry.input_tokens + self.entry.output_tokens

    # -- the end ----------------------------------------------------------------------------------------------------------

    def record_served(self, status: int, *, failed: bool) -> None:
        """Record a reply that was relayed. One that `failed` reports a failure in its body, whatever its status."""
        self.entry.status = status
        if failed:
            self.entry.error = self.entry.attempts[-1].error = UPSTREAM_FAILED

    def record_failure(self, status: int, error: str, finish: str | None = None) -> None:
        """Record an error. An upstream may send any text as its error type; anything but an identifier is replaced."""
        entry = self.entry
        entry.status = status
        entry.error = error if _IDENTIFIER.fullmatch(error) else "upstream_error"
        if finish is not None:
            entry.finish = finish
