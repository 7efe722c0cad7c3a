"""Processes that work on large bodies: `python -m penstock.gateway.body_process`.

Parsing, searching or editing a large body holds the interpreter for up to half a second at a time, so a thread would stop
the event loop. A worker starts up to two processes when it needs them; one that has had nothing to do for a minute ends.

A process reads a pickled function with its arguments, and the body, from standard input. It writes the pickled result, or the
exception that the function raised, and the body if it was changed. The body itself is not pickled, which would copy it.
"""

from __future__ import annotations

import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

from penstock.processes import spawn

Work = Callable[..., tuple[Any, bytes]]
"""Takes arguments and a body. Returns a result and the changed body, which is empty if nothing changed."""

IDLE_S = 60.0
_MODULE = "penstock.gateway.body_process"
_LENGTH_BYTES = 8


def _write_parts(stream: IO[bytes], *parts: bytes) -> None:
    for part in parts:
        stream.write(len(part).to_bytes(_LENGTH_BYTES, "big"))
        stream.write(part)
    stream.flush()


def _read_part(stream: IO[bytes]) -> bytes:
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

    def run(self, job: bytes, body: bytes) -> tuple[bytes, bytes]:
        _write_parts(self._jobs, job, body)
        return _read_part(self._results), _read_part(self._results)

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

    def run(self, work: Work, arguments: tuple[Any, ...], body: bytes) -> tuple[Any, bytes]:
        """Return the result of `work` and the body with its changes. Raise what `work` raises."""
        job = pickle.dumps((work, arguments))
        while True:
            try:
                process, is_new = self._idle.pop(), False
            except IndexError:
                process, is_new = _BodyProcess(), True
            try:
                message, changed = process.run(job, body)
            except (OSError, EOFError):
                process.close()
                if is_new:
                    raise RuntimeError("the process for large bodies ended before it was done") from None
                continue  # the process had ended after a minute without work
            self._idle.append(process)
            result = pickle.loads(message)  # noqa: S301 (of a process that this one started)
            if isinstance(result, Exception):
                raise result
            return result, changed or body

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def main() -> None:
    """Work until there is nothing to do, or until the worker that started this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the worker finishes its requests first
        signal.signal(number, signal.SIG_IGN)
    jobs, results = sys.stdin.buffer, sys.stdout.buffer
    try:
        while select.select([jobs], [], [], IDLE_S)[0]:
            work, arguments = pickle.loads(_read_part(jobs))  # noqa: S301 (of the process that started this one)
            body, result, changed = _read_part(jobs), None, b""
            try:
                result, changed = work(*arguments, body)
            except Exception as error:
                result = error
            _write_parts(results, pickle.dumps(result), changed)
    except (EOFError, BrokenPipeError):
        pass


if __name__ == "__main__":
    main()
