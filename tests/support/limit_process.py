"""A separate process that shares a limits table. Tests run it as a script, because workers are not forked.

hammer PATH ATTEMPTS RPM        admits as fast as possible, prints the number of admitted requests
hold PATH COUNT CONCURRENCY     admits and settles, prints the start and end of each reservation
occupy PATH COUNT               holds slots until it is killed
lock PATH                       holds the table's lock until it is killed
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from penstock.gateway.limits import Reservation, SharedTable, open_limiter
from penstock.gateway.resources.config import LimitsConfig
from support.limit_objects import NOW, attempt, key, model

MODEL = model()


async def hammer(path: str, attempts: str, rpm: str) -> None:
    limiter = open_limiter(LimitsConfig(), SharedTable.attach(path))
    caller = key(rpm=int(rpm), tpm=10 * int(rpm))
    ready()
    count = 0
    for _ in range(int(attempts)):
        outcome = await attempt(limiter, caller, MODEL, tokens=10, now=NOW)
        if isinstance(outcome, Reservation):
            count += 1
            await limiter.settle(outcome, 10, NOW)
    print(json.dumps(count), flush=True)
    await limiter.close()


async def hold(path: str, count: str, concurrency: str) -> None:
    limiter = open_limiter(LimitsConfig(), SharedTable.attach(path))
    caller = key(concurrency=int(concurrency))
    held: list[tuple[int, int]] = []
    ready()

    async def admit_and_settle() -> None:
        while len(held) < int(count):
            outcome = await attempt(limiter, caller, MODEL, now=time.time())
            if isinstance(outcome, Reservation):
                started = time.monotonic_ns()
                await asyncio.sleep(0)
                held.append((started, time.monotonic_ns()))
                await limiter.settle(outcome, 0, time.time())
            await asyncio.sleep(0)

    await asyncio.gather(*(admit_and_settle() for _ in range(4)))
    print(json.dumps(held), flush=True)
    await limiter.close()


async def occupy(path: str, count: str) -> None:
    limiter = open_limiter(LimitsConfig(), SharedTable.attach(path))
    caller = key(concurrency=int(count))
    outcomes = [await attempt(limiter, caller, MODEL, now=time.time()) for _ in range(int(count))]
    assert all(isinstance(outcome, Reservation) for outcome in outcomes)
    ready()
    await asyncio.sleep(600)


async def lock(path: str) -> None:
    SharedTable.attach(path).lock()
    ready()
    await asyncio.sleep(600)


def ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    asyncio.run({"hammer": hammer, "hold": hold, "occupy": occupy, "lock": lock}[sys.argv[1]](*sys.argv[2:]))
