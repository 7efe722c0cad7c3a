"""A conversation with a model, one request at a time, on the same wire and endpoints as the workers' requests.

    client = ChatClient(settings, on_text)
    answer = client.ask("Hello")

`on_text` receives the reply while it arrives.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from time import monotonic_ns
from typing import NamedTuple

import msgspec

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import History, endpoint_named
from penstock.endpoints.reply import Reply
from penstock.errors import UserError
from penstock.metrics.measure import measure
from penstock.metrics.token_counting import ServerCounter
from penstock.records.interpret import InFlight, interpret
from penstock.records.record import Record
from penstock.secrets import redact_values, secret_values
from penstock.settings.schema import Settings
from penstock.wire.clock import Clock
from penstock.wire.connection import Origin
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats
from penstock.workers.job import targets
from penstock.workers.redirects import FOLLOWED, Redirects

_CHECK_S = 1.0
"""Time between checks for a lost connection that the event loop does not report."""
_SHARE = 10
"""A stream is read again for the screen after this many times the duration of the last reading: at most a tenth of the time
goes into it, however long the reply is."""

OnText = Callable[[str, bool], None]
"""Called with a part of a reply, and whether it is reasoning."""


class Answer(NamedTuple):
    record: Record
    metrics: dict[str, float]
    """Metrics of the request by tag; empty if it failed or was stopped."""

    @property
    def stopped(self) -> bool:
        return self.record.cancelled


class ChatClient:
    def __init__(self, settings: Settings, on_text: OnText, *, history: bool = True) -> None:
        """With `history`, requests contain the earlier turns. Raise UserError if the endpoint cannot converse."""
        self._model = settings.models[0]
        self._endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
        declaration = self._endpoint.declaration
        if not (declaration.streams and declaration.output_tokens):
            raise UserError(f"--endpoint-type {settings.endpoint.type} does not answer texts with texts; use chat.")
        self._settings = msgspec.structs.replace(settings.endpoint, streaming=True)
        self._system = settings.input.system
        self._has_history = history
        self._history = History(self._system)
        self._on_text = on_text
        self._targets = targets(self._settings, self._endpoint.request_path(self._settings), declaration)
        self._secrets = secret_values(self._settings.headers, self._settings.api_key, self._settings.urls)
        self._correlation = str(uuid.uuid4())
        self._clock = Clock()
        self._loop = asyncio.SelectorEventLoop()
        self._pools: list[Pool] = []
        self._open_pool(self._targets[0].origin)
        self._redirects = Redirects(self._settings, self._targets, self._pools, self._open_pool)
        self._ended: asyncio.Future[Exchange] = self._loop.create_future()
        self._shown = 0
        self._next_reading = 0

    def _open_pool(self, origin: Origin) -> Pool:
        pool = Pool(self._loop, origin, self._clock, WireStats(), private_buffers=True)
        self._pools.append(pool)
        return pool

    def ask(self, text: str) -> Answer:
        """Send a text and return when its reply has ended. The caller must not have a running event loop."""
        turn = Turn(texts=(text,))
        if not self._has_history:
            self._history = History(self._system)
        body = self._endpoint.encode(self._endpoint.build(turn, self._model, self._settings, self._history))
        record, reply = self._loop.run_until_complete(self._exchange(body))
        if reply is not None and (record.failure is None or (record.cancelled and reply.outputs)):
            self._endpoint.remember(self._history, turn, reply, self._settings)
        if record.failure is not None:
            message = redact_values(record.failure.message, self._secrets)
            record.failure = msgspec.structs.replace(record.failure, message=message)
        counts = ServerCounter().count([record])[0]
        return Answer(record, measure(record, counts).values)

    def stop(self) -> None:
        """End the reply in progress. A signal handler may call this."""
        self._loop.call_soon_threadsafe(self._abort, WireError("Stopped", "The reply was stopped.", "penstock"), True)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        self._loop.run_until_complete(asyncio.sleep(0))  # lets the connections close
        self._loop.close()

    async def _exchange(self, body: bytes) -> tuple[Record, Reply | None]:
        now = monotonic_ns()
        request_id = str(uuid.uuid4())
        record = Record(0, 0, 0, 0, 0, 0, 0, request_id, self._correlation, now, now, bytes_sent=len(body))
        target = self._targets[0]
        head = target.head + target.request_headers.format(request_id, self._correlation, len(body)).encode()
        self._ended = self._loop.create_future()
        self._shown = self._next_reading = 0
        self._clock.refresh()
        exchange = Exchange(head + body, self._on_end, InFlight(record))
        exchange.on_data = self._on_data
        self._pools[0].start(exchange)
        ended = await self._wait(now + round(self._settings.timeout_s * 1e9))
        _, reply = interpret(ended, self._endpoint, 0)
        if reply is not None:
            self._show(reply)
        return record, reply

    async def _wait(self, deadline: int) -> Exchange:
        while not self._ended.done():
            left = deadline - monotonic_ns()
            if left <= 0:
                text = f"No complete reply within {self._settings.timeout_s:g} s."
                self._abort(WireError("Timeout", text, "server"))
                break
            await asyncio.wait({self._ended}, timeout=min(_CHECK_S, left / 1e9))
            self._clock.refresh()
            for pool in self._pools:
                pool.check_resets(monotonic_ns())
        return self._ended.result()

    def _abort(self, error: WireError, stopped: bool = False) -> None:
        for pool in self._pools:
            for exchange in list(pool.busy):
                exchange.cancelled = stopped
                pool.abort(exchange, error)

    def _on_end(self, exchange: Exchange) -> None:
        for pool in self._pools:
            pool.ended(exchange)
        hop = self._redirects.hop(exchange, 0) if exchange.status in FOLLOWED else None
        if hop is not None:
            following = Exchange(hop.data, self._on_end, exchange.tag)
            following.redirect, following.on_data = hop.redirect, self._on_data
            hop.pool.start(following)
        elif not self._ended.done():
            if exchange.redirect is not None:  # the time counts from the first send
                exchange.start = exchange.redirect.first.start
            self._ended.set_result(exchange)

    def _on_data(self, exchange: Exchange) -> None:
        """Show what has arrived of a stream."""
        exchange.counts[-1] = len(exchange.pieces)  # the connection counts only the pieces of this read
        content_type = exchange.header(b"content-type") or b""
        if exchange.status != 200 or not content_type.lower().startswith(b"text/event-stream"):
            return
        began = monotonic_ns()
        if began < self._next_reading or exchange.header(b"content-encoding") is not None:
            return
        body = b"".join(exchange.pieces)
        try:
            self._show(self._endpoint.read_stream(body[: body.rfind(b"\n") + 1], timed=False))
        except Exception as error:  # the event loop would only log it
            self._ended.set_exception(error)
            self._abort(WireError("Stopped", "The reply cannot be shown.", "penstock"))
        self._next_reading = monotonic_ns() + _SHARE * (monotonic_ns() - began)

    def _show(self, reply: Reply) -> None:
        """Pass on the pieces that are new. An unstreamed reply has none, but texts."""
        kinds = reply.reasoning or [False] * len(reply.texts)
        pieces = list(zip(reply.texts, kinds, strict=True))
        if not pieces:
            pieces = [(text, True) for text in reply.reasonings] + [(text, False) for text in reply.outputs]
        for text, reasoning in pieces[self._shown :]:
            self._on_text(text, reasoning)
        self._shown = max(self._shown, len(pieces))
