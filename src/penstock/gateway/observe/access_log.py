"""The access log: one line per request, written when the request ends and its status, tokens and times are known.

A line costs the request 5 µs: it goes into a queue, and a thread writes the queue, so a slow reader of the log delays no
request. Lines are dropped and counted if the queue is full or the write fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections import deque
from typing import Literal

import msgspec

from penstock.errors import UserError
from penstock.gateway.ledger.entry import Entry, repair_entry
from penstock.gateway.observe.printable import escape_nonprintable
from penstock.gateway.observe.timing import format_string
from penstock.gateway.routes import ENDPOINTS

FLUSH_DELAY_S = 0.05
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for the thread to write the remaining lines."""
MAX_QUEUED_LINES = 50_000
MAX_VALUE_LENGTH = 200
"""In characters. Upstreams can choose some of the values."""
MAX_LINE_BYTES = 16 << 10
STDERR = 2
PIPE_BUF = 4096
"""A write of up to this many bytes to a pipe is atomic: other workers' lines do not mix with it."""

_UNQUOTED = re.compile(r"[!#-<>-~]+\Z")
_INVISIBLE = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""Characters that JSON allows unescaped but a terminal interprets or hides."""


class AccessLog:
    """The access log of one worker. `write` is for one thread. `path` None means standard error. If the file is renamed,
    for example by log rotation, a new file is opened."""

    def __init__(self, form: Literal["text", "json", "off"], path: str | None = None) -> None:
        self._path = path
        self._file = STDERR
        self._max_write_bytes = 1 << 20
        self._lines: deque[bytes] = deque()
        self._ready = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._stamp_second = -1
        self._stamp = ""
        self._line_starts: dict[tuple[object, ...], str] = {}
        self._encode = msgspec.json.Encoder().encode
        self._overflowed = 0
        """Lines dropped because the queue was full; incremented by `write`."""
        self._failed = 0
        """Lines dropped because the write failed; incremented by the thread."""
        self._reported = 0
        if form == "off":
            self.write = _ignore  # type: ignore[method-assign]
            return
        self._format = self._text if form == "text" else self._json
        if path is not None:
            self._file = _open(path)
        self._limit_pipe_writes()
        self._thread = threading.Thread(target=self._run, name="penstock-access-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._overflowed + self._failed

    def write(self, entry: Entry) -> None:
        lines = self._lines
        if len(lines) >= MAX_QUEUED_LINES:
            self._overflowed += 1
            return
        lines.append(self._format(entry))
        if len(lines) == 1:
            self._ready.set()

    def close(self) -> None:
        if self._thread is not None:
            self._closing = True
            self._ready.set()
            self._thread.join(CLOSE_TIMEOUT_S)
            self._thread = None

    def _time(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._stamp_second:
            self._stamp_second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((now - second) * 1000):03d}Z"

    def _text(self, entry: Entry) -> bytes:
        shared = (
            entry.status,
            entry.route,
            entry.api_key_name or entry.api_key_id,
            entry.model,
            entry.provider,
            entry.stream,
            entry.usage_source,
            entry.client,
        )
        start = self._line_starts.get(shared) or self._line_start(shared)
        parts = [f"{self._time()} {start} tokens={entry.input_tokens}+{entry.output_tokens}"]
        if entry.ttft_ms is not None:
            parts.append(f"ttft={entry.ttft_ms:.1f}")
        if phases := entry.phases_ms:
            parts.append(format_string(tuple(phases), "=%.2f", " ") % tuple(phases.values()))
        if entry.finish is not None:
            parts.append(f"finish={_quoted(entry.finish)}")
        if entry.error is not None:
            parts.append(f"error={_quoted(entry.error)}")
        if entry.blocked:
            parts.append("blocked=yes")
        if entry.limited_by is not None:
            parts.append(f"limited_by={_quoted(entry.limited_by)}")
        if len(entry.attempts) > 1:
            parts.append(f"attempts={len(entry.attempts)}")
        if entry.upstream_id is not None:
            parts.append(f"upstream_id={_quoted(entry.upstream_id)}")
        parts.append(f"id={_quoted(entry.request_id)}\n")
        return " ".join(parts).encode()

    def _line_start(self, shared: tuple[object, ...]) -> str:
        """Return the part of the line that many requests share, and cache it."""
        status, route, key, model, provider, stream, source, client = shared
        start = (
            f"{status} {_quoted(ENDPOINTS.get(str(route), str(route)))} key={_quoted(key)} model={_quoted(model)} "
            f"provider={_quoted(provider)} client={_quoted(client)} stream={'yes' if stream else 'no'} usage={source}"
        )
        if len(self._line_starts) >= 4096:
            self._line_starts.clear()
        self._line_starts[shared] = start
        return start

    def _json(self, entry: Entry) -> bytes:
        """Return the ledger entry as JSON, preceded by the time of the request's end."""
        try:
            line = self._encode(entry)
        except Exception:
            line = self._encode(repair_entry(entry))
        if len(line) > MAX_LINE_BYTES:
            line = self._encode(_shorten(entry))
        if not line.isascii() or b"\x7f" in line:
            line = _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", line.decode()).encode()
        return b'{"time":"%b",%b\n' % (self._time().encode(), line[1:])

    def _run(self) -> None:
        while True:
            self._ready.wait()
            if not self._closing:
                time.sleep(FLUSH_DELAY_S)
            self._ready.clear()  # before taking lines, so that a line added meanwhile sets it again
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if self._lines:
                self._ready.set()
            unreported = self.dropped - self._reported
            if unreported:
                cause = b"the reader was too slow, or writing failed"
                lines.append(b"penstock gateway: %d access log lines were dropped here: %b\n" % (unreported, cause))
            failed = self._write_lines(lines)
            if not failed:
                self._reported += unreported
            else:  # the report was not written either
                self._failed += failed - bool(unreported)
            if self._closing and not self._lines:
                return

    def _write_lines(self, lines: list[bytes]) -> int:
        """Return how many lines, counted from the end, could not be written."""
        start = size = 0
        try:
            if self._path is not None and self._is_renamed(self._path):
                previous, self._file = self._file, _open(self._path)
                os.close(previous)
                self._limit_pipe_writes()
            for number, line in enumerate(lines):
                if size + len(line) > self._max_write_bytes and size:
                    _write_all(self._file, b"".join(lines[start:number]))
                    start, size = number, 0
                size += len(line)
            _write_all(self._file, b"".join(lines[start:]))
        except (OSError, UserError):
            return len(lines) - start
        return 0

    def _limit_pipe_writes(self) -> None:
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(self._file).st_mode):
                self._max_write_bytes = PIPE_BUF

    def _is_renamed(self, path: str) -> bool:
        try:
            return not os.path.samestat(os.stat(path), os.fstat(self._file))
        except FileNotFoundError:
            return True


def check_log(path: str | None) -> None:
    """Raise UserError if the log cannot be written. The main process calls this before it starts workers."""
    if path is not None:
        os.close(_open(path))


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"The access log {path} cannot be written ({error.strerror}).") from None


def _ignore(entry: Entry) -> None:
    """Replace `write` if the log is off."""


def _quoted(value: object) -> str:
    """Return the value, in quotes if it contains blanks, quotes or special characters; `-` if it is empty."""
    text = str(value)[:MAX_VALUE_LENGTH]
    if _UNQUOTED.match(text):
        return text
    if not text:
        return "-"
    return '"' + escape_nonprintable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _shorten(entry: Entry) -> Entry:
    short = msgspec.structs.replace(entry, attempts=entry.attempts[:10], guardrails=entry.guardrails[:20])
    for name in entry.__struct_fields__:
        value = getattr(entry, name)
        if isinstance(value, str):
            setattr(short, name, value[:MAX_VALUE_LENGTH])
    return short


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
