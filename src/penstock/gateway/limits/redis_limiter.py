"""The limiter that counts in Redis, together with every other gateway that uses the same one.

When Redis cannot be reached, this machine counts alone: `degraded` is set, `failures` goes up, one of its processes says
a line, and a probe looks once a second whether Redis takes writes again. From then on it counts there. What was admitted
meanwhile is not carried over.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from penstock.gateway.limits import scripts
from penstock.gateway.limits.base_limiter import BaseLimiter
from penstock.gateway.limits.counter_table import SharedTable
from penstock.gateway.limits.limit_plan import Plan, Slots, Window
from penstock.gateway.limits.limiter import Reservation
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.operator_log import log_operator_message

__all__ = ["RedisLimiter"]

_TIMEOUT_S: Final = 0.5
"""A Redis that takes longer holds up every request; `?socket_timeout=` in the URL overrides it."""
_PROBE_EVERY_S: Final = 1.0
_BEAT_EVERY_S: Final = 5.0
# one hash tag, so that a cluster keeps all counters of a request on one node
_PREFIX: Final = b"penstock:{limits}:"
_OWNERS: Final = _PREFIX + b"owners"
_LOST: Final = (RedisError, OSError, asyncio.TimeoutError)


class RedisLimiter(BaseLimiter):
    def __init__(self, url: str, local: LocalLimiter, table: SharedTable) -> None:
        """`local` counts while Redis is away; its `table` is where the processes of this machine agree on who says so."""
        super().__init__()
        self.degraded = False
        self.failures = 0
        self._local = local
        self._table = table
        self._where = _without_credentials(url)
        self._owner = uuid.uuid4().hex
        self._held: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endless: set[asyncio.Task[Any]] = set()
        self._beating = False
        self._closing = False
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=32,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            # a pooled connection may have been closed by the other side, which one more try mends
            retry=Retry(NoBackoff(), 1),
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._admit_script = self._client.register_script(scripts.ADMIT)
        self._settle_script = self._client.register_script(scripts.SETTLE)
        self._beat_script = self._client.register_script(scripts.BEAT)

    @property
    def evicted(self) -> int:
        return self._local.evicted

    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        self._settle_soon(reservation, tokens, now)

    def _settle_soon(self, reservation: Reservation, tokens: int, now: float) -> None:
        if reservation.owner is self._local:
            self._local.settle_now(reservation, tokens, now)
        elif not reservation.settled:
            reservation.settled = True
            self._spawn(self._settle(reservation, tokens))

    async def close(self) -> None:
        """Waits a moment for what is being settled."""
        # a cancellation that meets redis-py in the middle of a command can get lost there, hence the flag
        self._closing = True
        late = set(self._endless)
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=_TIMEOUT_S)
            late |= pending
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self._client.aclose()
        await self._client.connection_pool.disconnect()
        await self._local.close()

    async def _admit(self, plan: Plan, tokens: int, now: float) -> Reservation:
        if self.degraded:
            return self._local.admit_plan(plan, tokens, now)
        counting = self._spawn(self._count(plan, tokens, now))
        try:
            return await asyncio.shield(counting)
        except asyncio.CancelledError:
            # Redis may have counted it already: it is taken back when the answer is there
            counting.add_done_callback(self._take_back)
            raise

    async def _count(self, plan: Plan, tokens: int, now: float) -> Reservation:
        owner = self._owner
        keys = [_OWNERS, *(_window_key(one) for one in plan.windows), *(_slots_key(one) for one in plan.slots)]
        amounts = [window.amount(tokens) for window in plan.windows]
        arguments: list[Any] = ["", owner, len(amounts)]
        for window, amount in zip(plan.windows, amounts, strict=True):
            arguments += (window.limit, amount, window.width)
        arguments += (slots.limit for slots in plan.slots)
        try:
            reply: list[int] = await self._admit_script(keys=keys, args=arguments)
        except _LOST as error:
            self._lost(error)
            return self._local.admit_plan(plan, tokens, now)
        states = [(reply[at + 1], reply[at + 2]) for at in range(1, 4 * len(amounts), 4)]
        free = reply[1 + 4 * len(amounts) :]
        if not reply[0]:
            raise plan.refusal(states, [reply[at + 3] for at in range(1, 4 * len(amounts), 4)], free)
        for slots in plan.slots:
            self._held[_slots_key(slots)] += 1
        if plan.slots and not self._beating:
            self._beating = True
            self._spawn(self._beat(), self._endless)
        charges = tuple((plan.windows[at], reply[1 + 4 * at], amounts[at]) for at in plan.charged)
        return Reservation(plan.headers(states, [left - 1 for left in free]), charges, plan.slots, owner)

    async def _settle(self, reservation: Reservation, tokens: int) -> None:
        owner = str(reservation.owner)
        keys: list[bytes] = []
        arguments: list[Any] = ["", owner, len(reservation.charges)]
        for window, tick, reserved in reservation.charges:
            assert isinstance(window, Window)
            keys.append(_window_key(window))
            arguments += (tick, reserved, tokens, window.width)
        for slots in reservation.slots:
            assert isinstance(slots, Slots)
            key = _slots_key(slots)
            keys.append(key)
            if owner == self._owner:
                self._held[key] -= 1
        # held by an owner that an outage ended: its slots run out by themselves
        if self.degraded or (owner != self._owner and not reservation.charges):
            return
        try:
            await self._settle_script(keys=keys, args=arguments)
        except _LOST as error:
            self._lost(error)

    def _take_back(self, counting: asyncio.Task[Reservation]) -> None:
        if not counting.cancelled() and counting.exception() is None:
            self._settle_soon(counting.result(), 0, time.time())

    async def _beat(self) -> None:
        """Says that this process lives, for as long as it holds slots."""
        while not self._closing and not self.degraded:
            self._held = +self._held
            if not self._held:
                break
            try:
                await self._beat_script(keys=[_OWNERS, *self._held], args=["", self._owner])
            except _LOST as error:
                self._lost(error)
                break
            if not self._closing:
                await asyncio.sleep(_BEAT_EVERY_S)
        self._beating = False

    def _lost(self, error: BaseException) -> None:
        self.failures += 1
        if not self.degraded:
            self.degraded = True
            if self._table.first_to_tell(away=True):
                why = type(error).__name__
                log_operator_message(
                    f"Redis at {self._where} cannot be used ({why}); limits count on this machine alone until it can"
                )
            self._spawn(self._probe(), self._endless)

    async def _probe(self) -> None:
        """Until Redis takes a write again. Slots that were held before have run out or will: the owner is a new one."""
        owner = uuid.uuid4().hex
        while not self._closing:
            await asyncio.sleep(_PROBE_EVERY_S)
            try:
                await self._beat_script(keys=[_OWNERS], args=["", owner])
            except _LOST:
                self.failures += 1
            else:
                self._owner = owner
                self._held.clear()
                self.degraded = False
                if self._table.first_to_tell(away=False):
                    log_operator_message(f"Redis at {self._where} is back; limits count there again")
                return

    def _spawn(self, work: Coroutine[Any, Any, Any], tasks: set[asyncio.Task[Any]] | None = None) -> asyncio.Task[Any]:
        tasks = self._tasks if tasks is None else tasks
        task = asyncio.get_running_loop().create_task(work)
        # the loop alone would let go of it
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task


def _window_key(window: Window) -> bytes:
    return _PREFIX + b"w:" + window.key.hex().encode()


def _slots_key(slots: Slots) -> bytes:
    return _PREFIX + b"s:" + slots.key.hex().encode()


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname}:{parts.port or 6379}"
