"""A process that works on large bodies: `python -m penstock.gateway.relay.body_worker` (see `body_process`).

It reads the name of a job, the settings and the body from standard input. It writes the result, and the body if it was
changed. It ends with the worker that started it.
"""

from __future__ import annotations

import select
import signal
import sys
from collections.abc import Callable

from penstock.gateway.body_process import Job, read_part, write_parts
from penstock.gateway.guardrails.inspection_job import inspect_reply, inspect_request
from penstock.gateway.relay.large_bodies import edit_request, read_request

IDLE_S = 60.0

JOBS: dict[Job, Callable[[bytes, bytes], tuple[bytes, bytes]]] = {
    "inspect_request": inspect_request,
    "inspect_reply": inspect_reply,
    "read_request": read_request,
    "edit_request": edit_request,
}
"""Each takes the settings and the body, and returns the result and the changed body, which is empty if nothing changed."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the worker finishes its requests first
        signal.signal(number, signal.SIG_IGN)
    jobs, results = sys.stdin.buffer, sys.stdout.buffer
    by_name = {name.encode(): work for name, work in JOBS.items()}
    try:
        while select.select([jobs], [], [], IDLE_S)[0]:
            work = by_name[read_part(jobs)]
            write_parts(results, *work(read_part(jobs), read_part(jobs)))
    except (EOFError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
