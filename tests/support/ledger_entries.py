"""Entries as a gateway leaves them, and a worker process that leaves many."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from typing import Any

from penstock.gateway.ledger.entry import Attempt, Entry, GuardrailHit
from support import TESTS

JUNE_1 = 1780272000.0
"""2026-06-01T00:00:00Z"""


def made(**changes: Any) -> Entry:
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


WORKER = """
import sys, time
sys.path.insert(0, {here!r})
from support.ledger_entries import made
from penstock.gateway.ledger.spool import Spool
spool = Spool({folder!r}, {number})
for n in range({count}):
    spool.append(made(request_id=f"{name}-{{n}}"))
    if n % 50 == 49:
        print(n + 1, flush=True)
        time.sleep({pause})
{end}
"""


def worker(
    folder: object, name: str, count: int, *, pause: float = 0.0, end: str = "spool.close()"
) -> subprocess.Popen[str]:
    """A process that appends `count` entries `NAME-0`, `NAME-1` …, and says after every fifty how many there are."""
    script = WORKER.format(here=str(TESTS), folder=str(folder), number=0, name=name, count=count, pause=pause, end=end)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def eventually(holds: Any, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)
