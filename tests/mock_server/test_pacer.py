"""The pacer in an event loop. The tests check the order of calls, not exact times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import uvloop

from penstock.mock_server.pacer import Pacer

MS = 1_000_000


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


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
