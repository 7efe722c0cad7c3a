"""Mixed load with disconnects for a minute (PENSTOCK_SOAK_S for longer)."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.gateway_process import GatewayProcess, keyword, resources
from support.programs import wait_for
from support.scripted_upstream import Upstream

SECONDS = float(os.environ.get("PENSTOCK_SOAK_S", "60"))


def resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_memory_and_descriptors_stay_flat_under_mixed_load(start: Any, upstream: Upstream) -> None:
    resource_file = resources(upstream.url, guardrails=[keyword("words", "BLOCKME")])
    gateway: GatewayProcess = start(resource_file, guardrails={"stream_mode": "window"}, access_log="off")
    pid = gateway.config()["workers"][0]["pid"]
    warm = time.monotonic() + SECONDS / 4
    end = time.monotonic() + SECONDS

    def load(number: int) -> int:
        draw = random.Random(number)
        sent = 0
        while time.monotonic() < end:
            sent += 1
            if draw.random() < 0.5:
                assert gateway.respond("BLOCKME" if draw.random() < 0.05 else "Hi.").status in (200, 422)
                continue
            stream = gateway.stream(draw.choice(["/v1/responses", "/v1/chat/completions"]))
            if draw.random() < 0.1:
                stream.next_event()
                stream.close()
            else:
                stream.read_rest()
        return sent

    with ThreadPoolExecutor(8) as threads:
        loads = [threads.submit(load, number) for number in range(8)]
        time.sleep(max(0.0, warm - time.monotonic()))
        before, descriptors = resident_kb(pid), len(os.listdir(f"/proc/{pid}/fd"))
    sent = sum(done.result() for done in loads)
    grown = resident_kb(pid) - before
    print(f"{sent:,} requests in {SECONDS:g} s; {before:,} kB after a quarter of it, {grown:+,} kB since")
    assert grown < 2048
    wait_for(lambda: gateway.in_flight() == 0, 10)
    wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= descriptors + 4, 40)
    wait_for(lambda: gateway.count_entries() >= sent, 60, "an entry for each request")
    assert gateway.count_entries() == sent
    assert "internal error" not in gateway.log_text()
