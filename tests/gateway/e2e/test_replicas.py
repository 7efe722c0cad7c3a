"""Several gateways that share their limits in Redis."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, resources
from support.programs import wait_for
from support.redis_server import RedisServer
from support.scripted_upstream import Upstream


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: `apt-get install redis-server`")
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # the path of a socket is limited to 107 bytes
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.stop()


def test_gateways_share_limits_and_count_locally_without_redis(
    start: Any, upstream: Upstream, redis: RedisServer
) -> None:
    resource_file = resources(upstream.url, caller={"rate_limit": {"rpm": 9}})
    both: list[GatewayProcess] = [start(resource_file, limits={"redis_url": redis.url}) for _ in range(2)]
    statuses = [both[number % 2].respond().status for number in range(14)]
    assert (statuses.count(200), statuses.count(429)) == (9, 5)
    redis.stop()
    # the gateway counts alone and reports it
    assert both[0].respond().status == 200
    wait_for(lambda: "\npenstock_gateway_limits_degraded 1\n" in both[0].metrics())
    assert "\npenstock_gateway_limits_failures_total 0\n" not in both[0].metrics()
    assert "\npenstock_gateway_limits_evicted_windows_total 0\n" in both[0].metrics()
    assert "redis" in both[0].log_text().lower()
