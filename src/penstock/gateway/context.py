"""What the requests of a worker share, as the relay uses it. `serving.app.App` provides it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.memory import MemoryBudget
from penstock.gateway.observe.recorder import Recorder
from penstock.gateway.outbound.response import CommonHeaders
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.storage.response_ids import ResponseIds
from penstock.gateway.upstream.cooldowns import Cooldowns
from penstock.gateway.upstream.routing import RoundRobin


class WorkerContext(Protocol):
    config: GatewayConfig
    worker: int
    limiter: Limiter
    recorder: Recorder
    max_body: int
    memory: MemoryBudget
    abandoned_streams: int
    """Streams that are read on although their callers have left."""
    trusted: tuple[str, ...]
    default_output: int
    common_headers: CommonHeaders
    cooldowns: Cooldowns
    round_robin: RoundRobin
    response_ids: ResponseIds
    loop: asyncio.AbstractEventLoop
