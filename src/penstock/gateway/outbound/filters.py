"""The filters of a reply, in the order of the chain: read usage, bind id, restore model, redact, inspect, send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from time import monotonic, perf_counter

from penstock.gateway.dialects.base import Dialect, StreamReader
from penstock.gateway.dialects.sse_frames import Frame, Frames, Part, RawBytes, WholeReply, joined
from penstock.gateway.guardrails import KEEP_ALIVE, Blocked, ContentPolicy, Inspection, StreamGuard
from penstock.gateway.guardrails.offload import run_in_thread
from penstock.gateway.outbound.chain import Released
from penstock.gateway.outbound.model_names import ModelNames
from penstock.gateway.outbound.response import ResponseStream
from penstock.secrets import REDACTED

PIECE_BYTES = 1 << 16
LARGE_BYTES = 1 << 20
"""A larger whole reply is read and edited in a thread."""
_REDACTED = REDACTED.encode()
_MIN_SPLIT = 16
"""A shorter credential may be a word, whose halves occur in ordinary text."""


class _Filter:
    """A filter that holds nothing back."""

    reads_only = False
    held_bytes = 0

    def finish(self) -> Released:
        return []


class ReadUsage(_Filter):
    """Reads the id, the usage and the end of the reply. With `strips_usage`, drops the event that has only usage, which the
    caller did not ask for."""

    reads_only = True

    def __init__(self, reader: StreamReader, *, strips_usage: bool) -> None:
        self._reader = reader
        self._strips_usage = strips_usage

    def feed(self, frames: list[Frame]) -> Released:
        if _is_large(frames):
            return run_in_thread(lambda: self._read(frames))
        return self._read(frames)

    def _read(self, frames: list[Frame]) -> list[Frame]:
        read = self._reader.read
        if self._strips_usage:
            return [frame for frame in frames if not read(frame)]
        for frame in frames:
            read(frame)
        return frames


class BindId(_Filter):
    """Records who made a reply, before its first bytes are sent. Events before the one with the id wait for it."""

    reads_only = True

    def __init__(self, reader: StreamReader, bind: Callable[[str], None]) -> None:
        self._reader = reader
        self._bind: Callable[[str], None] | None = bind

    def feed(self, frames: list[Frame]) -> Released:
        if self._bind is not None and self._reader.id is not None:
            self._bind(self._reader.id)
            self._bind = None
        return frames


class RestoreModel(_Filter):
    """Replaces the upstream's model name by the alias."""

    def __init__(self, dialect: Dialect, alias: str) -> None:
        self._names = ModelNames(alias, dialect.event_model_path)

    def feed(self, frames: list[Frame]) -> Released:
        if _is_large(frames):
            return run_in_thread(lambda: self._restore(frames))
        return self._restore(frames)

    def _restore(self, frames: list[Frame]) -> list[Frame]:
        for frame in frames:
            self._names.restore(frame)
        return frames


class Redact(_Filter):
    """Removes the credentials of the provider key from a reply that repeats them. One of at least 16 characters is also
    removed if two events of a stream have a part each, except for a part of less than a quarter."""

    def __init__(self, *secrets: bytes) -> None:
        self._secrets = _with_quarters(secrets)
        self._previous = b""
        """The last event with data."""
        self._held: list[Frame] = []
        """That event, if a secret may begin at its end, and the comments after it."""

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        return sum([len(frame.raw) for frame in self._held])

    def feed(self, frames: list[Frame]) -> Released:
        data = joined(frames)
        for secret, quarter in self._secrets:
            if self._held or secret[: quarter or None] in data or (quarter and secret[-quarter:] in data):
                return [released for frame in frames for released in self._redact(frame)]
        for frame in reversed(frames):
            if frame.data is not None or isinstance(frame, Part):
                self._previous = frame.raw
                break
        return frames

    def _redact(self, frame: Frame) -> list[Frame]:
        """Return the frames to pass on."""
        for secret, _ in self._secrets:
            _replace(frame, secret, _REDACTED)
        if frame.data is None and not isinstance(frame, Part):
            if not self._held:
                return [frame]
            self._held.append(frame)
            return []
        held, self._held = self._held, []
        holds = False
        for secret, quarter in self._secrets:
            for length in range(1, len(secret) if quarter else 1):
                begin, rest = secret[:length], secret[length:]
                if len(rest) >= quarter and _ends(self._previous, begin) and _begins(frame.raw, rest):
                    _cut_begin(frame, rest)
                    if held:
                        _cut_end(held[0], begin)
                if length >= quarter and _ends(frame.raw, begin):
                    if len(rest) < quarter:
                        _cut_end(frame, begin)
                    else:
                        holds = True
        self._previous = frame.raw
        if not holds:
            return [*held, frame]
        self._held = [frame]
        return held

    def finish(self) -> Released:
        held, self._held = self._held, []
        return held


@lru_cache(1024)
def _with_quarters(secrets: tuple[bytes, ...]) -> list[tuple[bytes, int]]:
    return [(secret, len(secret) // 4 if len(secret) >= _MIN_SPLIT else 0) for secret in secrets]


def _ends(raw: bytes, text: bytes) -> bool:
    """Return whether a string in an event, or a part of an event, ends with a text."""
    return text + b'"' in raw or raw.endswith(text)


def _begins(raw: bytes, text: bytes) -> bool:
    return b'"' + text in raw or raw.startswith(text)


def _cut_end(frame: Frame, begin: bytes) -> None:
    if frame.raw.endswith(begin):
        frame.raw = frame.raw[: -len(begin)] + _REDACTED
    else:
        _replace(frame, begin + b'"', _REDACTED + b'"')


def _cut_begin(frame: Frame, rest: bytes) -> None:
    if frame.raw.startswith(rest):
        frame.raw = _REDACTED + frame.raw[len(rest) :]
    else:
        _replace(frame, b'"' + rest, b'"' + _REDACTED)


def _replace(frame: Frame, old: bytes, new: bytes) -> None:
    frame.raw = frame.raw.replace(old, new)
    if frame.data is not None:
        frame.data = frame.data.replace(old, new)


class Inspect(_Filter):
    """Inspects the reply with the output guardrails. Raises `Blocked`."""

    def __init__(
        self,
        policy: ContentPolicy,
        dialect: Dialect,
        splitter: Frames | None,
        begin_phase: Callable[[str], None],
        record: Callable[[Inspection], None],
    ) -> None:
        """`splitter` is None for a whole reply. `record` gets the result for a whole reply."""
        self._policy = policy
        self._dialect = dialect
        self._splitter = splitter
        self._begin_phase = begin_phase
        self._record = record
        self.guard: StreamGuard | None = None
        if splitter is not None:
            self.guard = policy.stream(dialect.name)
            assert self.guard is not None
            splitter.limit = self.guard.max_event_bytes
        self._last: Frame | None = None
        self.seconds = 0.0
        """Time spent here while the stream arrived."""

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        return 0 if self.guard is None else self.guard.held_bytes

    @property
    def holds(self) -> bool:
        """True if part of the stream is held."""
        return self.guard is not None and self.guard.waiting

    def feed(self, frames: list[Frame]) -> Released:
        guard = self.guard
        if guard is None:
            return self._inspect_whole(frames[0])
        assert self._splitter is not None
        if self._splitter.ended:
            self._last = frames[-1]
            return [] if guard.holds else frames
        began = perf_counter()
        try:
            verdict = guard.feed(frames, len(self._splitter))
        finally:
            self.seconds += perf_counter() - began
        if not guard.holds:
            return frames
        if isinstance(verdict, bytes):
            return _released(verdict)
        return self._await_verdict(verdict, began)

    async def _await_verdict(self, verdict: Awaitable[bytes], began: float) -> list[Frame]:
        try:
            return _released(await verdict)
        finally:
            self.seconds += perf_counter() - began

    async def _inspect_whole(self, frame: Frame) -> list[Frame]:
        self._begin_phase("guardrail_out")
        inspection = await self._policy.reply(self._dialect, frame.raw)
        self._record(inspection)
        if inspection.blocked_by is not None:
            raise Blocked(inspection.blocked_by, timed_out=inspection.timed_out)
        self._begin_phase("serialise")
        return [WholeReply(inspection.body)]

    def finish(self) -> Released:
        return [] if self.guard is None else self._finish(self.guard)

    async def _finish(self, guard: StreamGuard) -> list[Frame]:
        self._begin_phase("guardrail_out")
        rest = await guard.finish(self._last)
        self._begin_phase("serialise")
        return _released(rest)

    def heartbeat(self, *, is_waiting: bool) -> bytes:
        """Return a comment that keeps a quiet connection alive."""
        return KEEP_ALIVE if is_waiting or self.guard is None else self.guard.heartbeat()


class Send(_Filter):
    """Sends the reply to the caller: all frames of one read of the upstream at once."""

    full_since: float | None = None
    """Since when the caller has not read; None if it reads."""
    _stream: ResponseStream | None = None
    _writable: asyncio.Future[list[Frame]] | None = None
    _stopped = False

    def __init__(
        self,
        reader: StreamReader,
        begin: Callable[[], ResponseStream],
        send_whole: Callable[[bytes], Awaitable[ResponseStream | None]],
        on_closed: Callable[[], None],
    ) -> None:
        """`begin` sends the head of a stream, `send_whole` a whole reply, or only its head. `on_closed` is called if
        the caller has left."""
        self._reader = reader
        self._begin = begin
        self._send_whole = send_whole
        self._on_closed = on_closed
        self.last_sent_at = monotonic()

    def feed(self, frames: list[Frame]) -> Released:
        if isinstance(frames[0], WholeReply):
            return self._whole(frames[0].raw)
        return self.send(joined(frames))

    def send(self, data: bytes) -> Released:
        """Send bytes of a stream."""
        if not data:
            return []
        stream = self._stream
        if stream is None:
            stream = self._stream = self._begin()
        self.last_sent_at = monotonic()
        stream.send(data, is_last=self._reader.terminal)
        if stream.closed:
            self._on_closed()
        elif stream.full:
            return self._wait(stream)
        return []

    async def _whole(self, body: bytes) -> list[Frame]:
        stream = await self._send_whole(body)
        if stream is not None:
            for start in range(0, len(body), PIECE_BYTES):
                stream.send(body[start : start + PIECE_BYTES])
                if stream.full:
                    await self._wait(stream)
                if stream.closed or self._stopped:
                    break
        return []

    def _wait(self, stream: ResponseStream) -> Awaitable[list[Frame]]:
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()
            self.full_since = monotonic()
            stream.wait_until_writable(self._on_writable)
        return self._writable

    def wake(self) -> None:
        """Do not wait for the caller any more, and send no more pieces of a whole reply."""
        self._stopped = True
        self._on_writable()

    def _on_writable(self) -> None:
        writable, self._writable = self._writable, None
        self.full_since = None
        if writable is not None and not writable.done():
            writable.set_result([])


def _is_large(frames: list[Frame]) -> bool:
    return isinstance(frames[0], WholeReply) and len(frames[0].raw) > LARGE_BYTES


def _released(data: bytes) -> list[Frame]:
    return [RawBytes(data)] if data else []
