"""Inspects large bodies in processes of their own.

Parsing and normalising a large body holds the interpreter for up to half a second at a time (10 MB of text in other letters
than ASCII), so a thread would stop the event loop. A worker starts up to two processes when it needs them; one that has had
nothing to do for a minute ends. They run `inspection_worker`.
"""

from __future__ import annotations

import subprocess
from typing import IO, Literal

import msgspec

from penstock.gateway.guardrails.inspection import Inspection
from penstock.gateway.guardrails.json_input import DuplicateKeyError
from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec
from penstock.processes import spawn

__all__ = ["Guardrails", "Hook", "InspectionProcesses", "InspectionResult", "read_part", "write_parts"]

Hook = Literal["request", "reply"]

_MODULE = "penstock.gateway.guardrails.inspection_worker"
_LENGTH_BYTES = 8


class Guardrails(msgspec.Struct):
    """What the process compiles guardrails from."""

    specs: list[GuardrailSpec]
    mode: GuardrailMode


class InspectionResult(msgspec.Struct):
    """An `Inspection` without its body, or the error that it raised."""

    hits: list[GuardrailHit] = []
    blocked_by: str | None = None
    timed_out: bool = False
    error: Literal["duplicate_key", "invalid"] | None = None


_read_result = msgspec.msgpack.Decoder(InspectionResult).decode


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


class _InspectionProcess:
    def __init__(self) -> None:
        self._process = spawn(_MODULE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._results = self._process.stdin, self._process.stdout

    def inspect(self, guardrails: bytes, hook: Hook, body: bytes) -> Inspection:
        write_parts(self._requests, guardrails, hook.encode(), body)
        result = _read_result(read_part(self._results))
        if result.error is not None:
            raise DuplicateKeyError if result.error == "duplicate_key" else ValueError("invalid JSON")
        masked = read_part(self._results)
        return Inspection(masked or body, result.hits, blocked_by=result.blocked_by, timed_out=result.timed_out)

    def close(self) -> None:
        for stream in (self._requests, self._results):
            try:
                stream.close()
            except OSError:  # unsent data of a process that has ended
                continue
        self._process.wait()


class InspectionProcesses:
    """The processes of this worker. `inspect` may be called in several threads."""

    def __init__(self) -> None:
        self._idle: list[_InspectionProcess] = []

    def inspect(self, guardrails: bytes, hook: Hook, body: bytes) -> Inspection:
        """Inspect a body, and raise what the inspection raises. `guardrails` is a message with `Guardrails`."""
        while True:
            process = self._idle.pop() if self._idle else None
            is_new = process is None
            if process is None:
                process = _InspectionProcess()
            try:
                result = process.inspect(guardrails, hook, body)
            except (OSError, EOFError):
                process.close()
                if is_new:
                    raise RuntimeError("the inspection process ended before it was done") from None
                continue  # it had nothing to do for long
            except ValueError:
                self._idle.append(process)
                raise
            self._idle.append(process)
            return result

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
