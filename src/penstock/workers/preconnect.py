"""Opens connections before the first request, so that its time to first token does not include the connection."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Sequence
from time import monotonic_ns

from penstock.errors import DiskFull, PenstockError, UserError, disk_full
from penstock.schedule.share import Share, split
from penstock.wire.clock import Clock
from penstock.wire.exchange import WireError
from penstock.wire.pool import Pool
from penstock.wire.stats import WireStats
from penstock.workers.job import Job, Target
from penstock.workers.messages import WorkerFailed

_MAX_CHARACTERS = 4000
"""Length of the text of a failure."""
_TIMEOUT_NS = 30_000_000_000
"""Give up the remaining connections when none has opened for this long."""


class ConnectError(Exception):
    """No connection to a target could be opened."""

    def __init__(self, error: WireError) -> None:
        super().__init__(error.message)
        self.error = error


class Preconnect:
    """Opens one worker's share of the connections.

    The first worker opens at least one connection to each URL, for any load and with or without connection reuse, so that
    an unreachable URL ends the run before its first request.
    """

    def __init__(
        self,
        job: Job,
        targets: Sequence[Target],
        share: Share,
        on_connected: Callable[[int], None],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        pools: list[Pool],
    ) -> None:
        """`on_connected` is called with the number of open connections when it changes."""
        self._targets = targets
        self._share = share
        self._worker = share.worker
        self._on_connected = on_connected
        self._loop = loop
        self._timeout = min(round(job.settings.timeout_s * 1e9), _TIMEOUT_NS)
        self._reuse = job.settings.connections == "pooled"
        # Without connection reuse these connections are only a test: they are closed again and not counted.
        self._pools = pools if self._reuse else [Pool(loop, t.origin, clock, WireStats()) for t in targets]
        connections = split(job.preconnect, share) if self._reuse else 0
        minimum = 1 if self._worker == 0 else 0
        self._counts = [max(minimum, split(connections, Share(n, len(pools)))) for n in range(len(pools))]
        self._open = [0] * len(pools)
        self._last_opened = monotonic_ns()
        self._all: asyncio.Future[list[None]] | None = None
        self._cancelled = False

    async def run(self) -> None:
        """Open the connections; raise ConnectError if a URL has none."""
        self._last_opened = monotonic_ns()
        self._all = asyncio.gather(*(self._open_to(url) for url, count in enumerate(self._counts) if count))
        if self._cancelled:
            self._all.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._all
        self._all = None
        unreachable = [url for url, count in enumerate(self._counts) if count and not self._open[url]]
        if unreachable and not self._cancelled:
            url = unreachable[0]
            failed, hint = "did not open a connection", ""
            if self._pools[url].in_handshake:
                failed = "accepted a connection but did not answer the TLS handshake"
                hint = "; it may speak http:// there"
            text = f"{self._server_name(url)} {failed} within {self._timeout / 1e9:g} s{hint}."
            raise ConnectError(WireError("ConnectTimeout", text, "server"))
        if not self._reuse:
            for pool in self._pools:
                pool.close()

    def top_up(self, connections: int) -> None:
        """Open connections until all workers together have `connections`, without waiting for them. A request that finds
        none opens its own."""
        if self._reuse:
            count = split(connections, self._share)
            for url, pool in enumerate(self._pools[: len(self._targets)]):
                pool.open_ahead(split(count, Share(url, len(self._targets))), lambda *_: None)

    def check_timeout(self, now: int) -> None:
        """Give up the remaining connections if none has opened for too long."""
        if now - self._last_opened > self._timeout:
            self._give_up()

    def cancel(self) -> None:
        """End without an error, however few connections are open."""
        self._cancelled = True
        self._give_up()

    def _give_up(self) -> None:
        if self._all is not None:
            self._all.cancel()

    async def _open_to(self, url: int) -> None:
        done: asyncio.Future[None] = self._loop.create_future()

        def on_open(count: int, error: WireError | None) -> None:
            self._open[url] = count
            self._last_opened = monotonic_ns()
            self._on_connected(sum(self._open))
            if done.done() or (error is None and count < self._counts[url]):
                return
            if error is not None and count == 0:
                done.set_exception(ConnectError(error))
            else:
                done.set_result(None)

        self._pools[url].open_ahead(self._counts[url], on_open)
        await done

    def _server_name(self, url: int) -> str:
        return "The server" if len(self._targets) == 1 else f"The server at {self._targets[url].url}"


def describe_failure(targets: Sequence[Target], error: BaseException) -> WorkerFailed:
    """Return the event for the exception that ended a worker."""
    known = _unreachable(targets, error.error) if isinstance(error, ConnectError) else disk_full(error) or error
    if not isinstance(known, PenstockError):
        return WorkerFailed("traceback", "".join(traceback.format_exception(error))[-_MAX_CHARACTERS:])
    kind = "disk" if isinstance(known, DiskFull) else "user" if isinstance(known, UserError) else "run"
    return WorkerFailed(kind, str(known)[:_MAX_CHARACTERS])


def _unreachable(targets: Sequence[Target], error: WireError) -> UserError:
    if error.type in ("CertificateError", "TLSError"):
        return UserError(error.message)  # the server is running, and the message says what to do
    urls = ", ".join(target.url for target in targets)
    return UserError(f"{error.message} Start the server or correct --url ({urls}).")
