"""The alarm and the heap on it, in a real loop. Only orders are asserted, no tight times."""

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
    made = uvloop.new_event_loop()
    yield made
    made.close()


@pytest.mark.parametrize("platform", ["linux", "elsewhere"])
def test_the_alarm_is_never_early(
    loop: asyncio.AbstractEventLoop, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if platform == "elsewhere":
        monkeypatch.setattr("penstock.wire.timer.sys.platform", "elsewhere")
    late = []
    timer: Timer

    def ring() -> None:
        late.append(time.monotonic_ns() - due[len(late)])
        if len(late) == len(due):
            loop.stop()
        else:
            timer.at(due[len(late)])

    timer = Timer(loop, ring)
    now = time.monotonic_ns()
    due = [now + 3 * MS, now + 3 * MS, now - 5 * MS, now + 10 * MS]
    timer.at(now + 10_000 * MS)
    timer.at(due[0])
    loop.run_forever()
    assert len(late) == 4
    # the loop's own timers round to a millisecond
    assert min(late) >= (0 if platform == "linux" else -2 * MS)
    timer.close()
    timer.close()


def test_an_alarm_that_rang_stays_silent(loop: asyncio.AbstractEventLoop) -> None:
    rings = []
    timer = Timer(loop, lambda: rings.append(1))
    timer.at(1)
    loop.call_later(0.05, loop.stop)  # a second ring would follow the first at once
    loop.run_forever()
    timer.close()
    assert rings == [1]


class Item:
    def __init__(self, pacer: Pacer, name: str, again: list[int], fired: list[str]) -> None:
        self.pacer, self.name, self.again, self.fired = pacer, name, again, fired

    def on_due(self, now: int) -> int:
        self.fired.append(self.name)
        return now + self.again.pop(0) if self.again else 0


def run(loop: asyncio.AbstractEventLoop, pacer: Pacer, fired: list[str], count: int) -> None:
    """Until so many have fired, and a moment longer, in which one too many would."""

    def look() -> None:
        if len(fired) < count and loop.time() < guard:
            loop.call_later(0.005, look)
        else:
            loop.call_later(0.02, loop.stop)

    guard = loop.time() + 30
    look()
    loop.run_forever()
    pacer.close()


def test_the_pacer_keeps_the_order_of_times(loop: asyncio.AbstractEventLoop) -> None:
    pacer = Pacer(loop)
    fired: list[str] = []
    now = time.monotonic_ns()
    for name, delay in (("c", 12), ("a", 4), ("b", 8), ("z", 30)):
        pacer.push(now + delay * MS, Item(pacer, name, [], fired))
    pacer.push(now + 2 * MS, Item(pacer, "r", [4 * MS, 4 * MS], fired))
    run(loop, pacer, fired, 7)
    assert fired.count("r") == 3
    assert [name for name in fired if name != "r"] == ["a", "b", "c", "z"]
    assert fired[0] == "r"


def test_an_item_may_push_while_it_fires(loop: asyncio.AbstractEventLoop) -> None:
    pacer = Pacer(loop)
    fired: list[str] = []

    class Pusher(Item):
        def on_due(self, now: int) -> int:
            self.pacer.push(now - 5 * MS, Item(self.pacer, "pushed", [], fired))
            return super().on_due(now)

    pacer.push(time.monotonic_ns() + MS, Pusher(pacer, "pusher", [MS], fired))
    run(loop, pacer, fired, 4)
    assert fired == ["pusher", "pushed", "pusher", "pushed"]
