"""The timer never fires early, and fires immediately for a time in the past."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from time import monotonic_ns
from types import SimpleNamespace

import pytest
import uvloop

from penstock.wire import timer as timers
from penstock.wire.timer import Timer

MS = 1_000_000


@pytest.fixture(params=["timerfd", "call_later"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "call_later":
        monkeypatch.setattr(timers, "sys", SimpleNamespace(platform="darwin"))
    elif sys.platform != "linux":
        pytest.skip("timerfd exists only on Linux")
    return str(request.param)


@pytest.fixture
def loop(kind: str) -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


def run_until(loop: asyncio.AbstractEventLoop, condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    async def wait() -> None:
        deadline = monotonic_ns() + limit_s * 1e9
        while not condition() and monotonic_ns() < deadline:
            await asyncio.sleep(0.001)

    loop.run_until_complete(wait())


def test_timer_fires_in_order_and_never_early(loop):
    begin = monotonic_ns()
    dues = [begin + n * 7 * MS for n in range(1, 11)]
    fired: list[int] = []

    def on_time() -> None:
        fired.append(monotonic_ns())
        if len(fired) < len(dues):
            timer.at(dues[len(fired)])

    timer = Timer(loop, on_time)
    timer.at(dues[0])
    run_until(loop, lambda: len(fired) == len(dues))
    timer.close()
    assert len(fired) == len(dues)
    assert all(fired_at >= due for fired_at, due in zip(fired, dues, strict=True))


@pytest.mark.parametrize("ago", [0, 1, 10 * MS, 10**18])
def test_time_in_the_past_fires_immediately(loop, ago):
    fired: list[int] = []
    timer = Timer(loop, lambda: fired.append(1))
    timer.at(monotonic_ns() - ago)
    run_until(loop, lambda: bool(fired))
    timer.close()
    assert fired == [1]


def test_new_time_replaces_the_old_one(loop):
    fired: list[int] = []
    timer = Timer(loop, lambda: fired.append(monotonic_ns()))
    begin = monotonic_ns()
    timer.at(begin + 3600 * 1000 * MS)
    timer.at(begin + 20 * MS)
    timer.at(begin + 20 * MS)
    run_until(loop, lambda: bool(fired))
    run_until(loop, lambda: False, 0.05)
    timer.close()
    assert len(fired) == 1
    assert fired[0] - begin >= 19 * MS


def test_closed_timer_does_not_fire(loop):
    fired: list[int] = []
    timer = Timer(loop, lambda: fired.append(1))
    timer.at(monotonic_ns() + 5 * MS)
    timer.close()
    run_until(loop, lambda: False, 0.03)
    assert fired == []
