"""X-18: mixed load with disconnects for a minute (PENSTOCK_SOAK_S for longer); memory and descriptors stay flat."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gateway_process import GatewayProcess, keyword, resources
from scripted_upstream import Upstream

from programs import wait_for

SECONDS = float(os.environ.get("PENSTOCK_SOAK_S", "60"))


def resident_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_soak(start: Any, upstream: Upstream) -> None:
    given = resources(upstream.url, guardrails=[keyword("words", "BLOCKME")])
    gateway: GatewayProcess = start(given, guardrails={"stream_mode": "window"}, access_log="off")
    pid = gateway.config()["workers"][0]["pid"]
    warm = time.monotonic() + SECONDS / 4
    end = time.monotonic() + SECONDS
    counts = [0] * 8

    def load(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            counts[number] += 1
            if draw.random() < 0.5:
                assert gateway.respond("BLOCKME" if draw.random() < 0.05 else "Hi.").status in (200, 422)
                continue
            stream = gateway.stream(draw.choice(["/v1/responses", "/v1/chat/completions"]))
            if draw.random() < 0.1:
                stream.event()
                stream.close()
            else:
                stream.rest()

    threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, warm - time.monotonic()))
    before, descriptors = resident_kb(pid), len(os.listdir(f"/proc/{pid}/fd"))
    for thread in threads:
        thread.join()
    grown = resident_kb(pid) - before
    assert grown < 1024 * max(2.0, SECONDS * 0.75 / 60), f"{grown} kB more after {sum(counts)} requests"
    wait_for(lambda: gateway.in_flight() == 0, 10)
    wait_for(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= descriptors + 4, 40)
    wait_for(lambda: len(gateway.rows()) == sum(counts), 20, "a record for each request")
    assert "fault in Penstock" not in gateway.said()
