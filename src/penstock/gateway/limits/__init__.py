"""Requests, tokens and concurrency, limited for keys, models and policies.

windows.py          the arithmetic of a sliding window
plan.py             which counters a request is charged to, and what a caller is told
planned.py          what both limiters have in common
table.py            counters shared by the processes of one machine
local.py            the limiter on that table
redis_limiter.py    the limiter that counts in Redis, and on this machine while Redis is away
"""

from __future__ import annotations

from penstock.gateway.limits.counter_table import SharedTable
from penstock.gateway.limits.limiter import Limiter, Reservation
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.resources.config import LimitsConfig

__all__ = ["Limiter", "Reservation", "SharedTable", "open_limiter"]


def open_limiter(config: LimitsConfig, shared: SharedTable | None) -> Limiter:
    """Without a table the counts are this process's own. The limiter closes the table when it is closed."""
    table = shared if shared is not None else SharedTable.private()
    local = LocalLimiter(table)
    if config.redis_url is None:
        return local
    # redis-py takes 0.1 to 0.2 s to import
    from penstock.gateway.limits.redis_limiter import RedisLimiter

    return RedisLimiter(config.redis_url, local, table)
