"""A process that inspects large bodies: `python -m penstock.gateway.guardrails.inspection_worker` (see `inspection_process`).

It reads the guardrails, the hook and the body from standard input. It writes the result, and, unless that is an error, the
body if it was changed. It ends with the worker that started it.
"""

from __future__ import annotations

import select
import signal
import sys
from typing import IO

import msgspec

from penstock.gateway.guardrails import Guards
from penstock.gateway.guardrails.inspection_process import Guardrails, InspectionResult, read_part, write_parts
from penstock.gateway.guardrails.json_input import DuplicateKeyError
from penstock.gateway.guardrails.search_budget import SearchBudgets

IDLE_S = 60.0
_MAX_CACHED = 16


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the worker finishes its requests first
        signal.signal(number, signal.SIG_IGN)
    requests, results = sys.stdin.buffer, sys.stdout.buffer
    compiled: dict[bytes, tuple[Guards, float]] = {}
    try:
        while select.select([requests], [], [], IDLE_S)[0]:
            _serve_one(requests, results, compiled)
    except (EOFError, BrokenPipeError):
        pass


def _serve_one(requests: IO[bytes], results: IO[bytes], compiled: dict[bytes, tuple[Guards, float]]) -> None:
    guardrails, hook, body = (read_part(requests) for _ in range(3))
    if guardrails not in compiled:
        if len(compiled) >= _MAX_CACHED:
            compiled.clear()
        source = msgspec.msgpack.decode(guardrails, type=Guardrails)
        compiled[guardrails] = Guards(source.specs, source.mode), source.mode.max_inspection_ms / 1000
    guards, seconds = compiled[guardrails]
    inspect = guards.inspect_request if hook == b"request" else guards.inspect_reply
    try:
        inspection = inspect(body, SearchBudgets(seconds))
    except DuplicateKeyError:
        write_parts(results, msgspec.msgpack.encode(InspectionResult(error="duplicate_key")))
    except ValueError:
        write_parts(results, msgspec.msgpack.encode(InspectionResult(error="invalid")))
    else:
        result = InspectionResult(inspection.hits, inspection.blocked_by, inspection.timed_out)
        write_parts(results, msgspec.msgpack.encode(result), b"" if inspection.body is body else inspection.body)


if __name__ == "__main__":
    main()
