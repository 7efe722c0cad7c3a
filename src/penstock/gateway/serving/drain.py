"""Drain a worker: accept no connections, finish running requests, and close the connections without one.

A caller may send a request on an idle connection at the moment at which the worker closes it, and would not know whether
it was received. So the worker keeps its idle connections open for a notice period, in which every reply carries
`Connection: close`. Then it closes those that are still idle.
"""

from __future__ import annotations

import asyncio

from penstock.gateway.inbound.connection import CallerServer
from penstock.gateway.serving.app import App

NOTICE_S = 1.0
"""How long connections without a request are kept open when the worker drains."""
CHECK_S = 0.05
FLUSH_S = 0.5
"""How long a caller may take to read the end of its reply when the drain time is over."""


class Drain:
    """Ends a worker: `start` after a signal, then wait for `ended`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, app: App, callers: CallerServer, listening: asyncio.Server
    ) -> None:
        self._loop = loop
        self._app = app
        self._callers = callers
        self._listening = listening
        self._started_at: float | None = None
        self._cut_off_at: float | None = None
        self.ended: asyncio.Future[None] = loop.create_future()

    def start(self) -> None:
        if self._started_at is not None:
            return
        self._started_at = self._loop.time()
        self._listening.close()  # the main process and the next worker still listen
        self._app.common_headers.draining = True
        self._loop.call_later(self._app.config.listen.drain_s, self.cut_off)
        self._check()

    def cut_off(self) -> None:
        """End all requests that are left; each writes its entry."""
        self.start()
        if self._cut_off_at is None:
            self._cut_off_at = self._loop.time()
            self._app.cut_off()

    def _check(self) -> None:
        """Close the connections without a request, and end if there are no others."""
        if self.ended.done():
            return
        now = self._loop.time()
        assert self._started_at is not None
        notice_is_over = now >= self._started_at + NOTICE_S or self._cut_off_at is not None
        flush_is_over = self._cut_off_at is not None and now >= self._cut_off_at + FLUSH_S
        for connection in self._callers.callers:
            if connection.is_busy:
                continue
            if flush_is_over:
                connection.abort()
            elif notice_is_over:
                connection.force_close()
        if not self._callers.connections and not self._app.requests:
            self.ended.set_result(None)
        else:
            self._loop.call_later(CHECK_S, self._check)
