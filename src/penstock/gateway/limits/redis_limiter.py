"""The limiter that counts in Redis, shared by all gateways that use the same Redis.

While Redis is unreachable, limits are counted on this machine: `degraded` is set, `failures` increases, one process of the
machine logs it, and a probe checks once a second whether Redis accepts writes again. Requests that are counted meanwhile
are not transferred to Redis.

A call that timed out may still have been executed. When Redis is back, admissions without a reply are cancelled and
settlements without a reply are repeated; the scripts ignore what they have already executed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from penstock.gateway.limits import scripts
from penstock.gateway.limits.limiter import Limiter, Reservation
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.request_limits import RequestLimits
from penstock.gateway.operator_log import log_operator_message

_TIMEOUT_S: Final = 0.5
"""Bounds the delay that a slow Redis adds to each request; `?socket_timeout=` in the URL overrides it."""
_PROBE_S: Final = 1.0
_HEARTBEAT_S: Final = 5.0
_MAX_CONFIRMED: Final = 64
_PREFIX: Final = b"penstock:{limits}:"
_OWNERS: Final = _PREFIX + b"owners"
_REDIS_ERRORS: Final = (RedisError, OSError, asyncio.TimeoutError)


class RedisLimiter(Limiter):
    def __init__(self, url: str, local: LocalLimiter) -> None:
        """`local` counts while Redis is unreachable; its table determines which process of the machine logs that."""
        super().__init__(local.table)
        self._local = local
        self._address = _redact_url(url)
        self._owner = uuid.uuid4().hex
        self._id_prefix = _PREFIX + b"r:" + uuid.uuid4().hex.encode()
        self._ids = itertools.count()
        self._held: Counter[bytes] = Counter()
        self._unconfirmed: list[tuple[list[bytes], list[Any]]] = []
        """Settlements to send when Redis is back."""
        self._confirmed: list[bytes] = []
        """Admissions about which no further call will be sent."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._heartbeat_running = False
        self._closing = False
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=32,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            # One retry, because the server may have closed a pooled connection. A slow server is not asked again.
            retry=Retry(NoBackoff(), 1, (RedisConnectionError,)),
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._admit_script = self._client.register_script(scripts.ADMIT)
        self._settle_script = self._client.register_script(scripts.SETTLE)
        self._heartbeat_script = self._client.register_script(scripts.HEARTBEAT)

    async def settle(self, reservation: Reservation, tokens: int, now: float) -> None:
        if reservation.owner is self._local:
            await self._local.settle(reservation, tokens, now)
        elif not reservation.settled:
            reservation.settled = True
            self._spawn(self._settle(reservation, tokens))

    async def close(self) -> None:
        """Wait briefly for pending settlements, then close all connections."""
        # redis-py can swallow a cancellation in the middle of a command, hence the flag
        self._closing = True
        unfinished = set(self._background)
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=_TIMEOUT_S)
            unfinished |= pending
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        await self._client.aclose()
        await self._client.connection_pool.disconnect()
        await self._local.close()

    async def _admit(self, limits: RequestLimits, tokens: int, now: float, *, charge: bool) -> Reservation:
        if self.degraded:
            return await self._local._admit(limits, tokens, now, charge=charge)
        admission = self._spawn(self._admit_in_redis(limits, tokens, now, charge=charge))
        try:
            return await asyncio.shield(admission)
        except asyncio.CancelledError:
            # Redis may have counted the request already: refund it when the reply arrives
            admission.add_done_callback(self._refund)
            raise

    async def _admit_in_redis(self, limits: RequestLimits, tokens: int, now: float, *, charge: bool) -> Reservation:
        owner = self._owner
        id_ = b"%b:%x" % (self._id_prefix, next(self._ids))
        keys = [
            id_,
            *(limit.redis_key for limit in (*limits.windows, *limits.concurrency)),
        ]
        amounts = [window.amount(tokens) for window in limits.windows]
        arguments: list[Any] = ["", owner, len(amounts)]
        for window, amount in zip(limits.windows, amounts, strict=True):
            arguments += (window.limit, amount if charge else -amount, window.width)
        arguments += (limit.limit for limit in limits.concurrency)
        confirmed, self._confirmed = self._confirmed[:_MAX_CONFIRMED], self._confirmed[_MAX_CONFIRMED:]
        try:
            reply: list[int] = await self._admit_script(keys=[_OWNERS, *keys, *confirmed], args=arguments)
        except _REDIS_ERRORS as error:
            refund: list[Any] = ["", owner, len(amounts), 0]
            for window, amount in zip(limits.windows, amounts, strict=True):
                refund += (0, amount if charge else 0, 0, window.width)
            self._unconfirmed.append((keys, refund))
            self._record_failure(error)
            return await self._local._admit(limits, tokens, now, charge=charge)
        states = [(reply[index + 1], reply[index + 2]) for index in range(1, 4 * len(amounts), 4)]
        free = reply[1 + 4 * len(amounts) :]
        if not reply[0]:
            raise limits.refusal(states, [reply[index + 3] for index in range(1, 4 * len(amounts), 4)], free)
        for limit in limits.concurrency:
            self._held[limit.redis_key] += 1
        if limits.concurrency and not self._heartbeat_running:
            self._heartbeat_running = True
            self._spawn(self._heartbeat(), self._background)
        charged = limits.token_windows if charge else ()
        charges = tuple((limits.windows[index], reply[1 + 4 * index], amounts[index]) for index in charged)
        headers = limits.headers(states, [left - 1 for left in free])
        reservation = Reservation(headers, charges, limits.concurrency, owner, id_)
        if reservation.settled:
            self._confirmed.append(id_)
        return reservation

    async def _settle(self, reservation: Reservation, tokens: int) -> None:
        owner = str(reservation.owner)
        keys: list[bytes] = [reservation.id]
        arguments: list[Any] = ["", owner, len(reservation.charges), 1]
        for window, tick, reserved in reservation.charges:
            keys.append(window.redis_key)
            arguments += (tick, reserved, tokens, window.width)
        for limit in reservation.slots:
            keys.append(limit.redis_key)
            if owner == self._owner:
                self._held[limit.redis_key] -= 1
        if not self.degraded:
            try:
                await self._settle_script(keys=keys, args=arguments)
                self._confirmed.append(reservation.id)
                return
            except _REDIS_ERRORS as error:
                self._record_failure(error)
        self._unconfirmed.append((keys, arguments))

    def _refund(self, admission: asyncio.Task[Reservation]) -> None:
        if not admission.cancelled() and admission.exception() is None:
            reservation = admission.result()
            is_local = reservation.owner is self._local
            self._spawn(self._local.settle(reservation, 0, time.time()) if is_local else self._settle(reservation, 0))

    async def _heartbeat(self) -> None:
        """Renew the lease of this process's slots while it holds any."""
        while not self._closing and not self.degraded:
            self._held = +self._held
            if not self._held:
                break
            try:
                await self._heartbeat_script(keys=[_OWNERS, *self._held], args=["", self._owner])
            except _REDIS_ERRORS as error:
                self._record_failure(error)
                break
            if not self._closing:
                await asyncio.sleep(_HEARTBEAT_S)
        self._heartbeat_running = False

    def _record_failure(self, error: BaseException) -> None:
        self.failures += 1
        if not self.degraded:
            self.degraded = True
            if self.table.claim_outage_report(down=True):
                log_operator_message(
                    f"Redis at {self._address} is unavailable ({type(error).__name__}); "
                    "limits are counted on this machine only until it is back",
                    "error",
                )
            self._spawn(self._probe(), self._background)

    async def _probe(self) -> None:
        """Wait until Redis accepts writes, then count there under a new owner. The old owner's slots expire."""
        owner = uuid.uuid4().hex
        while not self._closing:
            await asyncio.sleep(_PROBE_S)
            try:
                await self._heartbeat_script(keys=[_OWNERS], args=["", owner])
                await self._repeat_unconfirmed()
            except _REDIS_ERRORS:
                self.failures += 1
            else:
                self._owner = owner
                self._held.clear()
                self.degraded = False
                if self.table.claim_outage_report(down=False):
                    log_operator_message(f"Redis at {self._address} is back; limits are counted there again")
                return

    async def _repeat_unconfirmed(self) -> None:
        while self._unconfirmed:
            keys, arguments = self._unconfirmed[0]
            await self._settle_script(keys=keys, args=arguments)
            self._unconfirmed.pop(0)  # but not confirmed: the first copy of a call may still be on its way

    def _spawn(self, work: Coroutine[Any, Any, Any], tasks: set[asyncio.Task[Any]] | None = None) -> asyncio.Task[Any]:
        tasks = self._tasks if tasks is None else tasks
        task = asyncio.get_running_loop().create_task(work)
        # the event loop keeps only a weak reference to a task
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task


def _redact_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname}:{parts.port or 6379}"
