"""Connections that are opened before the first request, so that its time to first token is not the connection's."""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic_ns

from penstock.schedule.scheduler import Share, split
from penstock.wire.clock import Clock
from penstock.wire.exchange import WireError
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats
from penstock.workers import shared_state as cells
from penstock.workers.job import Job
from penstock.workers.shared_state import SharedState

__all__ = ["ConnectError", "Preconnect"]

_PATIENCE_NS = 30_000_000_000  # without one more open connection: then the rest is given up


class ConnectError(Exception):
    """Not one connection to a target could be opened."""

    def __init__(self, error: WireError) -> None:
        super().__init__(error.message)
        self.error = error


class Preconnect:
    """One worker's part of it. A url where nobody answers ends the run before its first request, whatever the load is and
    however connections are used: the first worker opens at least one to each."""

    def __init__(
        self,
        job: Job,
        share: Share,
        board: SharedState,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        pools: list[Pool],
    ) -> None:
        self._job = job
        self._me = share.worker
        self._board = board
        self._loop = loop
        self._patience = min(job.timeout_ns, _PATIENCE_NS)
        # Where each request is to open its own, these are closed again, and appear in no figure.
        self._pools = pools if job.reuse else [Pool(loop, t.origin, clock, WireStats()) for t in job.targets]
        wanted = split(job.open_ahead, share) if job.reuse else 0
        least = 1 if self._me == 0 else 0
        self._counts = [max(least, split(wanted, Share(n, len(pools)))) for n in range(len(pools))]
        self._open = [0] * len(pools)
        self._last_ns = monotonic_ns()
        self._all: asyncio.Future[list[None]] | None = None
        self._cancelled = False

    async def run(self) -> None:
        self._board.set(self._me, cells.READY, 0)
        self._last_ns = monotonic_ns()
        self._all = asyncio.gather(*(self._open_to(url) for url, count in enumerate(self._counts) if count))
        if self._cancelled:
            self._all.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._all
        self._all = None  # `look` goes on for the whole run
        silent = [url for url, count in enumerate(self._counts) if count and not self._open[url]]
        if silent and not self._cancelled:
            text = f"{self._where(silent[0])} did not open a connection within {self._patience / 1e9:g} s."
            raise ConnectError(WireError("ConnectTimeout", text, "server"))
        if not self._job.reuse:
            for pool in self._pools:
                pool.close()
        self._board.set(self._me, cells.READY, 1)

    def look(self, now: int) -> None:
        """Give up the rest when nothing has opened for too long."""
        if now - self._last_ns > self._patience:
            self._end()

    def cancel(self) -> None:
        """The run is to end: what is open is enough, even when it is nothing."""
        self._cancelled = True
        self._end()

    def _end(self) -> None:
        if self._all is not None:
            self._all.cancel()

    async def _open_to(self, url: int) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def opened(n: int, error: WireError | None) -> None:
            self._open[url] = n
            self._last_ns = monotonic_ns()
            self._board.set(self._me, cells.CONNECTED, sum(self._open))
            if done.done() or (error is None and n < self._counts[url]):
                return
            if error is not None and n == 0:
                done.set_exception(ConnectError(error))
            else:
                done.set_result(None)

        self._pools[url].open_ahead(self._counts[url], opened)
        await done

    def _where(self, url: int) -> str:
        return "The server" if len(self._job.targets) == 1 else f"The server at {self._job.targets[url].url}"
