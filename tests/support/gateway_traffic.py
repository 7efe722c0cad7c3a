"""Entries of ended requests, and a worker process that records them."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

from penstock.gateway.ledger.entry import Attempt, Entry
from support import TESTS

_numbers = itertools.count()


def finished_entry(**changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "request_id": f"req_{next(_numbers)}",
        "at": 1780272000.0,
        "route": "responses",
        "api_key_name": "team-a",
        "model": "gpt-4o-prod",
        "provider": "openai",
        "status": 200,
        "input_tokens": 12,
        "output_tokens": 5,
        "usage_source": "upstream",
        "phases_ms": {"auth": 0.25, "upstream": 30.0, "total": 40.0},
        "attempts": [
            Attempt(model="gpt-4o-prod", upstream="gpt-4o-mini", provider_key="up", kind="initial", status=200)
        ],
        "client": "127.0.0.1",
    }
    return Entry(**{**fields, **changes})


WORKER = """
import sys
sys.path.insert(0, {tests!r})
from support.gateway_traffic import finished_entry
from penstock.gateway.observe import access_log
from penstock.gateway.observe.recorder import Recorder
access_log.CLOSE_TIMEOUT_S = 60.0
recorder = Recorder({folder!r}, {number}, {form!r}, {log!r})
for line in sys.stdin:
    for n in range(int(line)):
        recorder.metrics.started()
        recorder.record(finished_entry(request_id=f"{number}-{{n}}", api_key_name="key {number}"))
        if n:
            recorder.metrics.ended()
    recorder.tick()
    print("done", flush=True)
recorder.close()
"""


class Worker:
    """A worker process with a recorder. The first request of each `serve` stays in flight."""

    def __init__(self, folder: object, number: int, form: str = "off", log: str | None = None) -> None:
        script = WORKER.format(tests=str(TESTS), folder=str(folder), number=number, form=form, log=log)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def serve(self, requests: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{requests}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0
