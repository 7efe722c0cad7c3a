"""Processes that work on large bodies.

Parsing, searching or editing a large body holds the interpreter for up to half a second at a time, so a thread would stop
the event loop. A worker starts up to two processes when it needs them; one that has had nothing to do for a minute ends.
They run `relay.body_worker`.
"""

from __future__ import annotations

import subprocess
from typing import IO, Literal

from penstock.processes import spawn

__all__ = ["BodyProcesses", "Job", "read_part", "write_parts"]

Job = Literal["inspect_request", "inspect_reply", "read_request", "edit_request"]

_MODULE = "penstock.gateway.relay.body_worker"
_LENGTH_BYTES = 8


def write_parts(stream: IO[bytes], *parts: bytes) -> None:
    for part in parts:
        stream.write(len(part).to_bytes(_LENGTH_BYTES, "big"))
        stream.write(part)
    stream.flush()


def read_part(stream: IO[bytes]) -> bytes:
    """Return the next part. Raise EOFError if the other process has ended."""
    head = stream.read(_LENGTH_BYTES)
    size = int.from_bytes(head, "big")
    part = stream.read(size)
    if len(head) < _LENGTH_BYTES or len(part) < size:
        raise EOFError
    return part


class _BodyProcess:
    def __init__(self) -> None:
        self._process = spawn(_MODULE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs, self._results = self._process.stdin, self._process.stdout

    def run(self, job: Job, settings: bytes, body: bytes) -> tuple[bytes, bytes]:
        write_parts(self._jobs, job.encode(), settings, body)
        return read_part(self._results), read_part(self._results) or body

    def close(self) -> None:
        for stream in (self._jobs, self._results):
            try:
                stream.close()
            except OSError:  # unsent data of a process that has ended
                continue
        self._process.wait()


class BodyProcesses:
    """The processes of this worker. `run` may be called in several threads."""

    def __init__(self) -> None:
        self._idle: list[_BodyProcess] = []

    def run(self, job: Job, settings: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the result of a job as a message, and the body with its changes. `settings` is a message of the job."""
        while True:
            try:
                process, is_new = self._idle.pop(), False
            except IndexError:
                process, is_new = _BodyProcess(), True
            try:
                result = process.run(job, settings, body)
            except (OSError, EOFError):
                process.close()
                if is_new:
                    raise RuntimeError("the process for large bodies ended before it was done") from None
                continue  # the process had ended after a minute without work
            self._idle.append(process)
            return result

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
