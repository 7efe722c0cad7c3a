"""The timer and the pacer in an event loop. The tests check the order of calls, not exact times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import uvloop

from penstock.mock.pacer import Pacer
from penstock.wire.timer import Timer

MS = 1_000_000


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("platform", ["linux", "elsewhere"])
def test_timer_is_never_early(loop: asyncio.AbstractEventLoop, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform == "elsewhere":
        monkeypatch.setattr("penstock.wire.timer.sys.platform", "elsewhere")
    lateness = []
    timer: Timer

    def on_timer() -> None:
        lateness.append(time.monotonic_ns() - due[len(lateness)])
        if len(lateness) == len(due):
            loop.stop()
        else:
            timer.at(due[len(lateness)])

    timer = Timer(loop, on_timer)
    now = time.monotonic_ns()
    due = [now + 3 * MS, now + 3 * MS, now - 5 * MS, now + 10 * MS]
    timer.at(now + 10_000 * MS)
    timer.at(due[0])
    loop.run_forever()
    assert len(lateness) == 4
    # the timers of the event loop are rounded to milliseconds
    assert min(lateness) >= (0 if platform == "linux" else -2 * MS)
    timer.close()
    timer.close()


def test_timer_fires_once(loop: asyncio.AbstractEventLoop) -> None:
    calls = []
    timer = Timer(loop, lambda: calls.append(1))
    timer.at(1)
    loop.call_later(0.05, loop.stop)  # a second call would follow the first at once
    loop.run_forever()
    timer.close()
    assert calls == [1]


class Item:
    def __init__(self, pacer: Pacer, name: str, delays: list[int], called: list[str]) -> None:
        self.pacer, self.name, self.delays, self.called = pacer, name, delays, called

    def on_due(self, now: int) -> int:
        self.called.append(self.name)
        return now + self.delays.pop(0) if self.delays else 0


def run(loop: asyncio.AbstractEventLoop, pacer: Pacer, called: list[str], count: int) -> None:
    """Run until `count` items were called, and 20 ms longer, to catch an extra call."""

    def check() -> None:
        if len(called) < count and loop.time() < deadline:
            loop.call_later(0.005, check)
        else:
            loop.call_later(0.02, loop.stop)

    deadline = loop.time() + 30
    check()
    loop.run_forever()
    pacer.close()


def test_pacer_calls_items_in_order_of_their_times(loop: asyncio.AbstractEventLoop) -> None:
    pacer = Pacer(loop)
    called: list[str] = []
    now = time.monotonic_ns()
    for name, delay in (("c", 12), ("a", 4), ("b", 8), ("z", 30)):
        pacer.push(now + delay * MS, Item(pacer, name, [], called))
    pacer.push(now + 2 * MS, Item(pacer, "r", [4 * MS, 4 * MS], called))
    run(loop, pacer, called, 7)
    assert called.count("r") == 3
    assert [name for name in called if name != "r"] == ["a", "b", "c", "z"]
    assert called[0] == "r"


def test_item_may_push_another_while_it_runs(loop: asyncio.AbstractEventLoop) -> None:
    pacer = Pacer(loop)
    called: list[str] = []

    class Pusher(Item):
        def on_due(self, now: int) -> int:
            self.pacer.push(now - 5 * MS, Item(self.pacer, "pushed", [], called))
            return super().on_due(now)

    pacer.push(time.monotonic_ns() + MS, Pusher(pacer, "pusher", [MS], called))
    run(loop, pacer, called, 4)
    assert called == ["pusher", "pushed", "pusher", "pushed"]
