"""Limits on requests, tokens and concurrency for keys, models and policies.

windows.py          sliding window arithmetic
request_limits.py   the limits that apply to a request, and the response headers and refusals
limiter.py          the interface of both limiters
counter_table.py    counters shared by the processes of one machine
local_limiter.py    the limiter that counts in that table
redis_limiter.py    the limiter that counts in Redis, or on this machine while Redis is unreachable
scripts.py          its Lua scripts
"""

from __future__ import annotations

from penstock.gateway.limits.counter_table import SharedTable
from penstock.gateway.limits.limiter import Limiter, Reservation
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.resources.config import LimitsConfig

__all__ = ["Limiter", "Reservation", "SharedTable", "open_limiter"]


def open_limiter(config: LimitsConfig, table: SharedTable) -> Limiter:
    """Return the configured limiter, which closes the table when it is closed."""
    local = LocalLimiter(table)
    if config.redis_url is None:
        return local
    # redis-py takes 0.1 to 0.2 s to import
    from penstock.gateway.limits.redis_limiter import RedisLimiter

    return RedisLimiter(config.redis_url, local)
