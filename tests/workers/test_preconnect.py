"""Opening of connections before the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.schedule.share import Share
from penstock.settings.schema import EndpointSettings
from penstock.wire.exchange import WireError
from penstock.workers.preconnect import ConnectError, Preconnect

ALONE = Share()
REFUSED = WireError("ConnectionRefused", "Nothing listens there.", "server")


class FakePool:
    in_handshake = False

    def __init__(self) -> None:
        self.count = 0
        self.on_open: Callable[[int, WireError | None], None] | None = None

    def open_ahead(self, count: int, on_open: Callable[[int, WireError | None], None]) -> None:
        self.count, self.on_open = count, on_open

    def report(self, opened: int, error: WireError | None = None) -> None:
        assert self.on_open is not None
        self.on_open(opened, error)


def make(pools: list[FakePool], connections: int, share: Share = ALONE) -> tuple[Preconnect, list[int]]:
    """Return the object and the list to which it adds the counts of open connections."""
    targets: Any = [SimpleNamespace(url=f"http://server-{n}") for n in range(len(pools))]
    job: Any = SimpleNamespace(settings=EndpointSettings(timeout_s=5), preconnect=connections)
    clock: Any = None
    untyped: Any = pools
    opened: list[int] = []
    return Preconnect(job, targets, share, opened.append, asyncio.get_running_loop(), clock, untyped), opened


async def start(preconnect: Preconnect) -> asyncio.Task[None]:
    task = asyncio.ensure_future(preconnect.run())
    await asyncio.sleep(0.01)
    return task


@pytest.mark.parametrize(
    ("connections", "share", "counts"),
    [
        (5, Share(0, 1), [3, 2]),
        (1, Share(0, 1), [1, 1]),
        (8, Share(0, 2), [2, 2]),
        (8, Share(1, 2), [2, 2]),
        (1, Share(1, 2), [0, 0]),
    ],
)
def test_connections_are_split_over_workers_and_urls(connections: int, share: Share, counts: list[int]) -> None:
    """The first worker opens at least one to each URL."""

    async def check() -> None:
        pools = [FakePool(), FakePool()]
        preconnect, _ = make(pools, connections, share)
        task = await start(preconnect)
        assert [pool.count for pool in pools] == counts
        preconnect.cancel()
        await task

    asyncio.run(check())


def test_worker_is_ready_when_all_connections_are_open() -> None:
    async def check() -> None:
        pool = FakePool()
        preconnect, opened = make([pool], 2)
        task = await start(preconnect)
        pool.report(1)
        await asyncio.sleep(0)
        assert (task.done(), opened) == (False, [1])
        pool.report(2)
        await task
        assert opened == [1, 2]

    asyncio.run(check())


def test_first_connection_that_fails_is_an_error() -> None:
    async def check() -> None:
        pool = FakePool()
        preconnect, _ = make([pool], 2)
        task = await start(preconnect)
        pool.report(0, REFUSED)
        with pytest.raises(ConnectError, match="Nothing listens there"):
            await task

    asyncio.run(check())


def test_later_connection_that_fails_is_no_error() -> None:
    async def check() -> None:
        pool = FakePool()
        preconnect, _ = make([pool], 2)
        task = await start(preconnect)
        pool.report(1)
        pool.report(1, REFUSED)
        await task

    asyncio.run(check())


@pytest.mark.parametrize("opened", [0, 1])
def test_timeout_is_an_error_only_without_a_connection(opened: int) -> None:
    async def check() -> None:
        pools = [FakePool(), FakePool()]
        preconnect, _ = make(pools, 4)
        task = await start(preconnect)
        pools[0].report(1)
        if opened:
            pools[1].report(1)
        preconnect.check_timeout(preconnect._last_opened + 4_000_000_000)
        await asyncio.sleep(0)
        assert not task.done()
        preconnect.check_timeout(preconnect._last_opened + 6_000_000_000)
        if opened:
            await task
        else:
            with pytest.raises(
                ConnectError, match="The server at http://server-1 did not open a connection within 5 s"
            ):
                await task

    asyncio.run(check())


@pytest.mark.parametrize("before", [True, False], ids=["before it starts", "while it waits"])
def test_cancel_ends_without_an_error(before: bool) -> None:
    async def check() -> None:
        pool = FakePool()
        preconnect, _ = make([pool], 2)
        if before:
            preconnect.cancel()
        task = await start(preconnect)
        preconnect.cancel()
        await task

    asyncio.run(check())
