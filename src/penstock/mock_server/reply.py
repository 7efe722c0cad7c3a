"""Turns a planned reply into bytes or into steps that write it.

A reply that is due at once and has no faults is made of cached bytes, into which the id is inserted, and an uncached end
(`whole`). Any other reply is a sequence of steps (`steps`). A test checks that both ways give the same bytes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator

from penstock.mock_server import write_steps
from penstock.mock_server.compiled_behaviour import CompiledBehaviour, Delivery
from penstock.mock_server.dialect import ID_PLACEHOLDER, Dialect, Event, PlannedReply, TokenRange, error_body
from penstock.mock_server.http_format import LAST_CHUNK, chunk, comment_bytes, event_bytes, head
from penstock.mock_server.write_steps import CUT, RESET, SEND, Step

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>\n"


class Reply:
    """One reply, ready to render. `number` is the request's number; `reply_id` replaces ID_PLACEHOLDER."""

    def __init__(
        self,
        compiled: CompiledBehaviour,
        dialect: Dialect,
        planned: PlannedReply,
        delivery: Delivery,
        *,
        number: int,
        reply_id: bytes,
    ) -> None:
        self.compiled = compiled
        self.dialect = dialect
        self.planned = planned
        self.delivery = delivery
        self.number = number
        self.reply_id = reply_id
        self.event_format = compiled.event_format(delivery)
        self.faults = compiled.faults_for(number, planned.request.stream) if compiled.faults else ()

    @property
    def replaced(self) -> bool:
        """A fault replaces the whole reply."""
        faults = self.faults
        return "error" in faults or "empty" in faults or "html" in faults

    def whole(self) -> bytes:
        """Return the complete response. The behaviour must be immediate."""
        planned = self.planned
        stream = planned.request.stream
        key = (self.dialect.name, stream, self.delivery, planned.cache_key)
        parts = self.compiled.cached_reply(key)
        if parts is None:
            parts = self._cacheable_parts()
            self.compiled.cache_reply(key, parts)
        start = self.reply_id.join(parts)
        if not stream:
            return http_response(start + self.dialect.body_suffix(planned), JSON, self.delivery)
        end = b"".join([self._event_bytes(event) for event in self._last_events()])
        if self.delivery.framing == "length":
            return http_response(start + end, SSE, self.delivery)
        return start + end + (LAST_CHUNK if self.event_format.chunked else b"")

    def steps(self) -> Iterator[Step]:
        """Yield the writes of the reply and their times."""
        if self.replaced:
            return self._shape(self._replacement())
        return self._shape(self._stream_steps() if self.planned.request.stream else self._json_steps())

    def _cacheable_parts(self) -> list[bytes]:
        dialect, planned, form = self.dialect, self.planned, self.event_format
        if not planned.request.stream:
            return dialect.body_prefix(planned).split(ID_PLACEHOLDER)
        parts = []
        if self.delivery.framing != "length":
            parts.append(head(200, SSE, chunked=form.chunked, close=self.delivery.close))
        parts += [event_bytes(event, form) for event in dialect.opening_events(planned)]
        parts += [ID_PLACEHOLDER.join(rendered) for rendered, _ in self._token_events()]
        parts += [event_bytes(event, form) for event in dialect.closing_events(planned)]
        return b"".join(parts).split(ID_PLACEHOLDER)

    def _stream_steps(self) -> Iterator[Step]:
        body = self._event_steps()
        if self.compiled.behaviour.comments:
            body = write_steps.comment(body, self.compiled.behaviour.comments, comment_bytes(self.event_format))
        length = None
        if self.delivery.framing == "length":
            steps = list(body)
            length = sum(len(step[1]) for step in steps)
            body = iter(steps)
        chunked = self.event_format.chunked
        head_bytes = head(200, self._content_type(SSE), length=length, chunked=chunked, close=self.delivery.close)
        first = next(body)
        return itertools.chain([(first[0], head_bytes, 0, SEND), first], body)

    def _json_steps(self) -> Iterator[Step]:
        """Yield a JSON body when its last token is due."""
        planned = self.planned
        behaviour = self.compiled.behaviour
        body = self._json_body()
        if "malformed" in self.faults:
            body = body[: len(body) // 2]
        data = http_response(body, self._content_type(JSON), self.delivery)
        event_count = max(1, sum(-(-tokens // behaviour.chunk) for _, tokens in tokens_by_kind(planned)))
        due = next(itertools.islice(self._due_times(), event_count - 1, None))
        body_start = data.index(b"\r\n\r\n") + 4
        yield due, data[:body_start], 0, SEND
        if not planned.tokens:
            yield due, data[body_start:], 0, SEND
            return
        # A fault after k tokens applies at the same share of the body.
        positions = {0, planned.tokens}
        if "cut" in self.faults:
            positions.add(min(behaviour.cut or 0, planned.tokens))
        if "stall" in self.faults:
            positions.add(min(behaviour.stall_after, planned.tokens))
        size = len(data) - body_start
        for start, end in itertools.pairwise(sorted(positions)):
            part = data[body_start + size * start // planned.tokens : body_start + size * end // planned.tokens]
            yield due, part, (end - start) * planned.request.choices, SEND

    def _json_body(self) -> bytes:
        planned = self.planned
        if "failed" in self.faults:
            sent = min(self.compiled.behaviour.failed or 0, planned.tokens)
            return self.dialect.failed_body(planned, sent).replace(ID_PLACEHOLDER, self.reply_id)
        prefix = self.dialect.body_prefix(planned).replace(ID_PLACEHOLDER, self.reply_id)
        return prefix + self.dialect.body_suffix(planned)

    def _replacement(self) -> Iterator[Step]:
        """Yield the response of a fault that replaces the whole reply. It is due at once."""
        behaviour = self.compiled.behaviour
        extra: tuple[tuple[str, str], ...] = ()
        status, content_type, body = 200, SSE if self.planned.request.stream else JSON, b""
        if "error" in self.faults:
            status, content_type = behaviour.error or 500, JSON
            code = "rate_limit_exceeded" if status == 429 else None
            body = error_body(f"the mock was told to answer with {status}", error_type(status), code=code)
            if behaviour.retry_after is not None:
                extra = (("Retry-After", str(behaviour.retry_after)),)
        elif "html" in self.faults:
            content_type, body = "text/html; charset=utf-8", HTML
        yield 0, http_response(body, self._content_type(content_type), self.delivery, status, extra), 0, SEND

    def _content_type(self, correct: str) -> str:
        return self.compiled.behaviour.content_type or correct if "content_type" in self.faults else correct

    def _due_times(self) -> Iterator[int]:
        """Return an endless iterator over the due times of the token events."""
        compiled = self.compiled
        first = compiled.ttft_ns + round(compiled.input_token_ns * self.planned.uncached_tokens)
        jitter = compiled.jitter_ns
        if not jitter:
            return itertools.count(first, compiled.gap_ns)
        draw = random.Random(compiled.behaviour.seed * 1_000_003 + self.number).randint
        gaps = (compiled.gap_ns + draw(0, jitter) for _ in itertools.repeat(None))
        return itertools.accumulate(gaps, initial=first + draw(0, jitter))

    def _token_events(self) -> Iterator[tuple[tuple[bytes, ...], int]]:
        """Return the bytes of each group of token events, split around the id, and its tokens of each choice."""
        planned = self.planned
        request = planned.request
        chunk_tokens = self.compiled.behaviour.chunk
        iterators: list[Iterator[tuple[tuple[bytes, ...], int]]] = []
        for kind, count in tokens_by_kind(planned):
            key = (
                self.dialect.name,
                self.event_format,
                request.model,
                request.choices,
                planned.variant,
                kind,
                planned.chunk_usage_key,
            )
            cached = self.compiled.cached_token_events(key)
            before_last = (count - 1) // chunk_tokens
            # The cached events are iterated in C; the generator takes over where they end.
            iterators.append(zip(itertools.islice(cached, before_last), itertools.repeat(chunk_tokens), strict=False))
            iterators.append(self._uncached_token_events(cached, kind, count, before_last))
        return itertools.chain.from_iterable(iterators)

    def _uncached_token_events(
        self, cached: list[tuple[bytes, ...]], kind: str, count: int, before_last: int
    ) -> Iterator[tuple[tuple[bytes, ...], int]]:
        chunk_tokens = self.compiled.behaviour.chunk
        for i in range(min(len(cached), before_last), before_last):
            rendered = self._render(TokenRange(kind, i * chunk_tokens, chunk_tokens, False))
            # Another reply may have added the event in the meantime.
            if i == len(cached) < self.compiled.cached_events:
                cached.append(rendered)
            yield rendered, chunk_tokens
        start = before_last * chunk_tokens
        yield self._render(TokenRange(kind, start, count - start, True)), count - start

    def _render(self, tokens: TokenRange) -> tuple[bytes, ...]:
        events = self.dialect.token_events(self.planned, tokens)
        return tuple(b"".join([event_bytes(event, self.event_format) for event in events]).split(ID_PLACEHOLDER))

    def _last_events(self) -> list[Event]:
        return self.dialect.usage_events(self.planned) + self._done_events()

    def _done_events(self) -> list[Event]:
        done = self.dialect.done
        return [done] if done is not None and self.compiled.behaviour.done else []

    def _event_bytes(self, event: Event) -> bytes:
        return event_bytes(event, self.event_format).replace(ID_PLACEHOLDER, self.reply_id)

    def _write_events(self, events: list[Event], due: int) -> Iterator[Step]:
        for event in events:
            yield due, self._event_bytes(event), 0, SEND

    def _event_steps(self) -> Iterator[Step]:
        """Yield the events of a stream with their times, including the faults that are events."""
        behaviour = self.compiled.behaviour
        dialect = self.dialect
        planned = self.planned
        reply_id = self.reply_id
        choices = planned.request.choices
        fail_after, failure_event = self._failure()
        malformed_after = math.inf
        if "malformed" in self.faults and behaviour.malformed is not None:
            malformed_after = behaviour.malformed
        malformed = [Event(b'{"id":"mock-%b,"choices":[{"index":0,"delta":{"cont' % ID_PLACEHOLDER)]
        sent = due = 0
        for (parts, count), due in zip(self._token_events(), self._due_times(), strict=False):
            if not sent:
                yield from self._write_events(dialect.opening_events(planned), 0 if behaviour.role == "early" else due)
            if sent >= malformed_after:
                yield from self._write_events(malformed, due)
                malformed_after = math.inf
            if sent >= fail_after:
                break
            yield due, reply_id.join(parts), count * choices, SEND
            sent += count
        if malformed_after < math.inf:
            yield from self._write_events(malformed, due)
        if failure_event is None:
            yield from self._write_events(dialect.closing_events(planned) + self._last_events(), due)
        else:
            yield from self._write_events([failure_event(planned, sent), *self._done_events()], due)
        if self.event_format.chunked:
            yield due, LAST_CHUNK, 0, SEND

    def _failure(self) -> tuple[float, Callable[[PlannedReply, int], Event] | None]:
        """Return after how many tokens the stream fails, and the function that builds its last event."""
        behaviour = self.compiled.behaviour
        if "stream_error" in self.faults and behaviour.stream_error is not None:
            return behaviour.stream_error, self.dialect.error_event
        if "failed" in self.faults and behaviour.failed is not None:
            return behaviour.failed, self.dialect.failed_event
        return math.inf, None

    def _shape(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Apply the faults of the connection, and merge or split writes."""
        behaviour = self.compiled.behaviour
        planned = self.planned
        choices = planned.request.choices
        if "stall" in self.faults and behaviour.stall is not None:
            pause = None if math.isinf(behaviour.stall) else round(behaviour.stall * 1e9)
            steps = write_steps.stall(steps, min(behaviour.stall_after, planned.tokens) * choices, pause)
        if "cut" in self.faults and behaviour.cut is not None:
            action = RESET if behaviour.reset else CUT
            steps = write_steps.cut(steps, min(behaviour.cut, planned.tokens) * choices, action)
        if not behaviour.separate:
            steps = write_steps.coalesce(steps)
        if "slow_head" in self.faults and behaviour.slow_head is not None:
            steps = write_steps.slow_head(steps, round(behaviour.slow_head * 1e9))
        if behaviour.split is not None:
            draw = random.Random(behaviour.seed * 1_000_003 + self.number)
            steps = write_steps.split(steps, round(behaviour.split * 1e6), draw)
        return iter(steps)


def tokens_by_kind(planned: PlannedReply) -> list[tuple[str, int]]:
    """Return the kinds of tokens in their order, with the number of each."""
    counts = [("reasoning", planned.reasoning), (planned.kind, planned.tokens - planned.reasoning)]
    return [(kind, count) for kind, count in counts if count]


def error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def http_response(
    body: bytes, content_type: str, delivery: Delivery, status: int = 200, extra: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Return the head and the body of a response."""
    if delivery.framing == "chunked":
        head_bytes = head(status, content_type, chunked=True, close=delivery.close, extra=extra)
        return head_bytes + (chunk(body) if body else b"") + LAST_CHUNK
    length = len(body) if delivery.framing == "length" else None
    return head(status, content_type, length=length, close=delivery.close, extra=extra) + body
