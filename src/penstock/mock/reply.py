"""From what a reply says to the steps that write it.

There are two ways to the same bytes. A reply that is due at once and has no peculiarities is one cached block, into
which the id is inserted, with a short end (`whole`). Everything else is a row of steps (`steps`). A test holds the two
together.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator

from penstock.mock import write_steps as on
from penstock.mock.compiled_behaviour import CompiledBehaviour, Delivery
from penstock.mock.dialect import STAMP, Dialect, Event, Say, Span, error_body
from penstock.mock.http_format import LAST_CHUNK, chunk, comment_bytes, event_bytes, head
from penstock.mock.write_steps import CUT, RESET, SEND, Step

__all__ = ["JSON", "Reply", "delimited", "error_type"]

SSE = "text/event-stream; charset=utf-8"
JSON = "application/json"
HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>\n"

CACHED_PIECES = 4096
"""Pieces of one text that are kept; later ones are rendered when they are due."""


class Reply:
    """One reply, decided. `number` is the request's, `mark` the reply's id and time."""

    __slots__ = ("delivery", "dialect", "form", "mark", "number", "profile", "say", "struck")

    def __init__(
        self, profile: CompiledBehaviour, dialect: Dialect, say: Say, delivery: Delivery, *, number: int, mark: bytes
    ):
        self.profile = profile
        self.dialect = dialect
        self.say = say
        self.delivery = delivery
        self.number = number
        self.mark = mark
        self.form = profile.form(delivery)
        self.struck = profile.struck(number, say.ask.stream) if profile.faults else ()

    def whole(self) -> bytes:
        """The reply as one block; only for a plain profile."""
        say = self.say
        stream = say.ask.stream
        key = (self.dialect.name, stream, self.delivery, say.shape)
        block = self.profile.blocks.get(key)
        if block is None:
            block = self._block()
            self.profile.keep_block(key, block)
        if not stream:
            return delimited(self.mark.join(block) + self.dialect.back(say), JSON, self.delivery)
        end = b"".join([event_bytes(event, self.form) for event in self._last_events()]).replace(STAMP, self.mark)
        if self.delivery.how == "length":
            return delimited(self.mark.join(block) + end, SSE, self.delivery)
        return self.mark.join(block) + end + (LAST_CHUNK if self.form.chunked else b"")

    def steps(self) -> Iterator[Step]:
        """The reply as a row of writes with their times."""
        struck = self.struck
        if "error" in struck or "empty" in struck or "html" in struck:
            row: Iterable[Step] = self._instead()
        elif self.say.ask.stream:
            row = self._streamed()
        else:
            row = self._at_once()
        return self._shaped(row)

    def _block(self) -> list[bytes]:
        if not self.say.ask.stream:
            return self.dialect.front(self.say).split(STAMP)
        form = self.form
        delivery = self.delivery
        found = [head(200, SSE, chunked=form.chunked, close=delivery.close)]
        if delivery.how == "length":
            found.clear()
        found += [event_bytes(event, form) for event in self.dialect.opening(self.say)]
        found += [STAMP.join(parts) for parts, _ in self._pieces()]
        found += [event_bytes(event, form) for event in self.dialect.closing(self.say)]
        return b"".join(found).split(STAMP)

    def _streamed(self) -> Iterator[Step]:
        delivery = self.delivery
        body = self._events()
        if self.profile.behaviour.comments:
            body = on.comment(body, self.profile.behaviour.comments, comment_bytes(self.form))
        length = None
        if delivery.how == "length":
            steps = list(body)
            length = sum(len(step[1]) for step in steps)
            body = iter(steps)
        top = head(200, self._type(SSE), length=length, chunked=self.form.chunked, close=delivery.close)
        first = next(body)
        return itertools.chain([(first[0], top, 0, SEND), first], body)

    def _at_once(self) -> Iterator[Step]:
        """A JSON body, when its last token is due."""
        say = self.say
        behaviour = self.profile.behaviour
        body = self._body()
        if "malformed" in self.struck:
            body = body[: len(body) // 2]
        data = delimited(body, self._type(JSON), self.delivery)
        due = next(itertools.islice(self._dues(), self._count_pieces() - 1, None))
        top = data.index(b"\r\n\r\n") + 4
        yield due, data[:top], 0, SEND
        if not say.tokens:
            yield due, data[top:], 0, SEND
            return
        # A fault after k tokens strikes at the same share of the body.
        marks = {0, say.tokens}
        if "cut" in self.struck:
            marks.add(min(behaviour.cut or 0, say.tokens))
        if "stall" in self.struck:
            marks.add(min(behaviour.stall_after, say.tokens))
        size = len(data) - top
        for start, end in itertools.pairwise(sorted(marks)):
            piece = data[top + size * start // say.tokens : top + size * end // say.tokens]
            yield due, piece, (end - start) * say.ask.choices, SEND

    def _body(self) -> bytes:
        say = self.say
        if "failed" in self.struck:
            sent = min(self.profile.behaviour.failed or 0, say.tokens)
            return (self.dialect.failed_body(say, sent) or self.dialect.error(say, sent).data).replace(STAMP, self.mark)
        return self.dialect.front(say).replace(STAMP, self.mark) + self.dialect.back(say)

    def _instead(self) -> Iterator[Step]:
        """The faults that replace the whole reply. They come at once."""
        behaviour = self.profile.behaviour
        extra: tuple[tuple[str, str], ...] = ()
        status, kind, body = 200, SSE if self.say.ask.stream else JSON, b""
        if "error" in self.struck:
            status, kind = behaviour.error or 500, JSON
            code = "rate_limit_exceeded" if status == 429 else None
            body = error_body(f"the mock was told to answer with {status}", error_type(status), code=code)
            if behaviour.retry_after is not None:
                extra = (("Retry-After", str(behaviour.retry_after)),)
        elif "html" in self.struck:
            kind, body = "text/html; charset=utf-8", HTML
        yield 0, delimited(body, self._type(kind), self.delivery, status, extra), 0, SEND

    def _type(self, right: str) -> str:
        return self.profile.behaviour.content_type or right if "content_type" in self.struck else right

    def _count_pieces(self) -> int:
        """At least 1, so that a reply without tokens has a due time too."""
        return max(1, sum(-(-tokens // self.profile.behaviour.chunk) for _, tokens in phases(self.say)))

    def _dues(self) -> Iterator[int]:
        """When each piece of the reply is due, without end."""
        profile = self.profile
        first = profile.ttft + round(profile.input_cost * self.say.ask.prompt_tokens)
        if not profile.jitter:
            return itertools.count(first, profile.gap)
        draw = random.Random(profile.behaviour.seed * 1_000_003 + self.number).randint
        later = (profile.gap + draw(0, profile.jitter) for _ in itertools.repeat(None))
        return itertools.accumulate(later, initial=first + draw(0, profile.jitter))

    def _pieces(self) -> Iterator[tuple[tuple[bytes, ...], int]]:
        """(the events of one piece, to be joined by the id; the tokens of each choice in it)."""
        say = self.say
        ask = say.ask
        width = self.profile.behaviour.chunk
        found: list[Iterator[tuple[tuple[bytes, ...], int]]] = []
        for kind, count in phases(say):
            key = (self.dialect.name, self.form, ask.model, ask.choices, say.variant, ask.shape, kind)
            kept = self.profile.kept_pieces(key)
            before_last = (count - 1) // width
            # No Python runs for those that are kept; where they end, the generator takes over.
            found.append(zip(itertools.islice(kept, before_last), itertools.repeat(width), strict=False))
            found.append(self._new_pieces(kept, kind, count, before_last))
        return itertools.chain.from_iterable(found)

    def _new_pieces(
        self, kept: list[tuple[bytes, ...]], kind: str, count: int, before_last: int
    ) -> Iterator[tuple[tuple[bytes, ...], int]]:
        width = self.profile.behaviour.chunk
        for i in range(min(len(kept), before_last), before_last):
            parts = self._rendered(Span(kind, i * width, width, False))
            # Other replies may have added it in the meantime.
            if i == len(kept) < CACHED_PIECES:
                kept.append(parts)
            yield parts, width
        start = before_last * width
        yield self._rendered(Span(kind, start, count - start, True)), count - start

    def _rendered(self, span: Span) -> tuple[bytes, ...]:
        events = self.dialect.piece(self.say, span)
        return tuple(b"".join([event_bytes(event, self.form) for event in events]).split(STAMP))

    def _last_events(self) -> list[Event]:
        return self.dialect.accounting(self.say) + self._done()

    def _done(self) -> list[Event]:
        done = self.dialect.done
        return [done] if done is not None and self.profile.behaviour.done else []

    def _written(self, events: list[Event], due: int) -> Iterator[Step]:
        for event in events:
            yield due, event_bytes(event, self.form).replace(STAMP, self.mark), 0, SEND

    def _events(self) -> Iterator[Step]:
        """The events of a stream with their times, and the faults that are events."""
        behaviour = self.profile.behaviour
        dialect = self.dialect
        say = self.say
        mark = self.mark
        choices = say.ask.choices
        fail_at, fail = self._failure()
        break_at = behaviour.malformed if "malformed" in self.struck else None
        fault_at = min(math.inf if fail_at is None else fail_at, math.inf if break_at is None else break_at)
        broken = [Event(b'{"id":"mock-%b,"choices":[{"index":0,"delta":{"cont' % STAMP)]
        sent = due = 0
        for (parts, count), due in zip(self._pieces(), self._dues(), strict=False):
            if not sent:
                yield from self._written(dialect.opening(say), 0 if behaviour.role == "early" else due)
            if sent >= fault_at:
                if break_at is not None and sent >= break_at:
                    yield from self._written(broken, due)
                    break_at = None
                if fail_at is not None and sent >= fail_at:
                    break
            yield due, mark.join(parts), count * choices, SEND
            sent += count
        if break_at is not None:
            yield from self._written(broken, due)
        if fail is None:
            yield from self._written(dialect.closing(say) + self._last_events(), due)
        else:
            yield from self._written([fail(say, sent), *self._done()], due)
        if self.form.chunked:
            yield due, LAST_CHUNK, 0, SEND

    def _failure(self) -> tuple[int | None, Callable[[Say, int], Event] | None]:
        """After how many tokens the stream fails, and how it says so."""
        behaviour = self.profile.behaviour
        if "stream_error" in self.struck:
            return behaviour.stream_error, self.dialect.error
        if "failed" in self.struck:
            return behaviour.failed, self._failed
        return None, None

    def _failed(self, say: Say, sent: int) -> Event:
        return self.dialect.failed(say, sent) or self.dialect.error(say, sent)

    def _shaped(self, row: Iterable[Step]) -> Iterator[Step]:
        """The faults of the connection, and how steps become writes."""
        behaviour = self.profile.behaviour
        say = self.say
        if "stall" in self.struck and behaviour.stall is not None:
            pause = None if math.isinf(behaviour.stall) else round(behaviour.stall * 1e9)
            row = on.stall(row, min(behaviour.stall_after, say.tokens) * say.ask.choices, pause)
        if "cut" in self.struck and behaviour.cut is not None:
            act = RESET if behaviour.reset else CUT
            row = on.cut(row, min(behaviour.cut, say.tokens) * say.ask.choices, act)
        if not behaviour.separate:
            row = on.coalesce(row)
        if "slow_head" in self.struck and behaviour.slow_head is not None:
            row = on.slow_head(row, round(behaviour.slow_head * 1e9))
        if behaviour.split is not None:
            draw = random.Random(behaviour.seed * 1_000_003 + self.number)
            row = on.split(row, round(behaviour.split * 1e6), draw)
        return iter(row)


def phases(say: Say) -> list[tuple[str, int]]:
    """Kinds of token in their order, with how many of each."""
    both = [("reasoning", say.reasoning), (say.kind, say.tokens - say.reasoning)]
    return [(kind, count) for kind, count in both if count]


def error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def delimited(
    body: bytes, kind: str, delivery: Delivery, status: int = 200, extra: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Head and body."""
    if delivery.how == "chunked":
        top = head(status, kind, chunked=True, close=delivery.close, extra=extra)
        return top + (chunk(body) if body else b"") + LAST_CHUNK
    length = len(body) if delivery.how == "length" else None
    return head(status, kind, length=length, close=delivery.close, extra=extra) + body
