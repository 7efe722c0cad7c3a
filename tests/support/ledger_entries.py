"""Ledger entries for tests, and a worker process that appends them to a spool."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from penstock.gateway.ledger.entry import Attempt, Entry, GuardrailHit
from support import TESTS

JUNE_1 = 1780272000.0
"""2026-06-01T00:00:00Z"""


def make_entry(**changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "request_id": f"req_{uuid.uuid4().hex}",
        "at": JUNE_1,
        "route": "responses",
        "api_key_id": "id-of-team-a",
        "api_key_name": "team-a",
        "model": "gpt-4o-prod",
        "upstream_model": "gpt-4o-mini",
        "provider": "openai",
        "status": 200,
        "input_tokens": 12,
        "output_tokens": 5,
        "usage_source": "upstream",
        "phases_ms": {"auth": 0.1, "total": 20.5},
        "attempts": [
            Attempt(model="gpt-4o-prod", upstream="gpt-4o-mini", provider_key="up", kind="initial", status=200)
        ],
        "guardrails": [GuardrailHit(guardrail="names", hook="input", action="would_block")],
    }
    return Entry(**{**fields, **changes})


class Messages(list[str]):
    """Collects the messages for the operator."""

    def __call__(self, message: str, level: str = "info") -> None:
        self.append(message)


WORKER = """
import sys, time
sys.path.insert(0, {tests!r})
from support.ledger_entries import make_entry
from penstock.gateway.ledger.spool import Spool
spool = Spool({folder!r}, {number})
for n in range({count}):
    spool.append(make_entry(request_id=f"{name}-{{n}}"))
    if n % 50 == 49:
        print(n + 1, flush=True)
        time.sleep({pause})
{end}
"""


def start_worker(
    folder: object, name: str, count: int, *, pause: float = 0.0, end: str = "spool.close()"
) -> subprocess.Popen[str]:
    """Start a process that appends the entries `NAME-0` to `NAME-(count - 1)` and prints their number after every 50."""
    script = WORKER.format(tests=str(TESTS), folder=str(folder), number=0, name=name, count=count, pause=pause, end=end)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def eventually(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {timeout_s:g} s"
        time.sleep(0.02)
