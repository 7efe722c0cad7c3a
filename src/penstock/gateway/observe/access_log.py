"""One line for each request, written when it has ended: only then are its status, tokens and times known.

A line costs the request 5 µs: it goes into memory, and a thread writes what has gathered, so that a
reader who does not keep up holds up nobody. Lines that pass the bound meanwhile, and those that cannot be written, are
counted and left out.
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
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.repair import repaired
from penstock.gateway.observe.printable import visible
from penstock.gateway.observe.timing import layout
from penstock.gateway.routes import ENDPOINTS

__all__ = ["AccessLog", "check_log"]

GATHER_S = 0.05
CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for the thread to write the remaining lines."""
BACKLOG_LINES = 50_000
LONGEST = 200
"""Characters of a value that an upstream made up."""
LONGEST_LINE = 16 << 10
STDERR = 2
PIPE_BUF = 4096
"""A write to a pipe that is no longer than this is not mixed with those of other workers."""

_PLAIN = re.compile(r"[!#-<>-~]+\Z")
_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")
"""What JSON allows to stand as it is, and a terminal obeys or hides."""


class AccessLog:
    """For one thread. `path` None is standard error; a file that was moved away is opened anew."""

    def __init__(self, form: Literal["text", "json", "off"], path: str | None = None) -> None:
        self._path = path
        self._file = STDERR
        self._atomic = 1 << 20  # the most that is written at once
        self._lines: deque[bytes] = deque()
        self._ready = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._second = -1
        self._stamp = ""
        self._heads: dict[tuple[object, ...], str] = {}
        self._encode = msgspec.json.Encoder().encode
        self._passed = 0
        """Lines beyond the bound; counted by whoever writes them."""
        self._failed = 0
        """Lines that the file did not take; counted by the thread."""
        self._told = 0
        if form == "off":
            self.write = _nothing  # type: ignore[method-assign]
            return
        self._line = self._text if form == "text" else self._json
        if path is not None:
            self._file = _opened(path)
        self._know_file()
        self._thread = threading.Thread(target=self._run, name="penstock-access-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._passed + self._failed

    def write(self, entry: Entry) -> None:
        lines = self._lines
        if len(lines) >= BACKLOG_LINES:
            self._passed += 1
            return
        lines.append(self._line(entry))
        if len(lines) == 1:
            self._ready.set()

    def close(self) -> None:
        if self._thread is not None:
            self._ending = True
            self._ready.set()
            self._thread.join(CLOSE_TIMEOUT_S)
            self._thread = None

    def _time(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{int((now - second) * 1000):03d}Z"

    def _text(self, entry: Entry) -> bytes:
        what = (
            entry.status,
            entry.route,
            entry.api_key_name or entry.api_key_id,
            entry.model,
            entry.provider,
            entry.stream,
            entry.usage_source,
            entry.client,
        )
        head = self._heads.get(what) or self._head(what)
        words = [f"{self._time()} {head} tokens={entry.input_tokens}+{entry.output_tokens}"]
        if entry.ttft_ms is not None:
            words.append(f"ttft={entry.ttft_ms:.1f}")
        if phases := entry.phases_ms:
            words.append(layout(tuple(phases), "=%.2f", " ") % tuple(phases.values()))
        if entry.finish is not None:
            words.append(f"finish={_word(entry.finish)}")
        if entry.error is not None:
            words.append(f"error={_word(entry.error)}")
        if entry.blocked:
            words.append("blocked=yes")
        if entry.limited_by is not None:
            words.append(f"limited_by={_word(entry.limited_by)}")
        if len(entry.attempts) > 1:
            words.append(f"attempts={len(entry.attempts)}")
        if entry.upstream_id is not None:
            words.append(f"upstream_id={_word(entry.upstream_id)}")
        words.append(f"id={_word(entry.request_id)}\n")
        return " ".join(words).encode()

    def _head(self, what: tuple[object, ...]) -> str:
        """The part that is the same for many requests."""
        status, route, key, model, provider, stream, source, client = what
        head = (
            f"{status} {_word(ENDPOINTS.get(str(route), str(route)))} key={_word(key)} model={_word(model)} "
            f"provider={_word(provider)} client={_word(client)} stream={'yes' if stream else 'no'} usage={source}"
        )
        if len(self._heads) >= 4096:
            self._heads.clear()
        self._heads[what] = head
        return head

    def _json(self, entry: Entry) -> bytes:
        """All that the ledger holds, with the time of the end before it."""
        try:
            line = self._encode(entry)
        except Exception:
            line = self._encode(repaired(entry))
        if len(line) > LONGEST_LINE:
            line = self._encode(_shortened(entry))
        if not line.isascii() or b"\x7f" in line:
            line = _UNSEEN.sub(lambda unseen: f"\\u{ord(unseen[0]):04x}", line.decode()).encode()
        return b'{"time":"%b",%b\n' % (self._time().encode(), line[1:])

    def _run(self) -> None:
        while True:
            self._ready.wait()
            if not self._ending:
                time.sleep(GATHER_S)
            self._ready.clear()  # before taking, so that a line which comes meanwhile calls again
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            if self._lines:
                self._ready.set()
            lost = self.dropped - self._told
            if lost:
                why = b"too slow a reader, or a log that took nothing"
                lines.append(b"penstock gateway: %d access log lines were left out here: %b\n" % (lost, why))
            failed = self._put(lines)
            if not failed:
                self._told += lost
            else:  # nobody to tell now: the log is what failed
                self._failed += failed - bool(lost)
            if self._ending and not self._lines:
                return

    def _put(self, lines: list[bytes]) -> int:
        """How many of them, the last ones, could not be written."""
        start = size = 0
        try:
            if self._path is not None and self._moved_away(self._path):
                before, self._file = self._file, _opened(self._path)
                os.close(before)
                self._know_file()
            for number, line in enumerate(lines):
                if size + len(line) > self._atomic and size:
                    _write_all(self._file, b"".join(lines[start:number]))
                    start, size = number, 0
                size += len(line)
            _write_all(self._file, b"".join(lines[start:]))
        except (OSError, UserError):
            return len(lines) - start
        return 0

    def _know_file(self) -> None:
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(self._file).st_mode):
                self._atomic = PIPE_BUF

    def _moved_away(self, path: str) -> bool:
        try:
            return not os.path.samestat(os.stat(path), os.fstat(self._file))
        except FileNotFoundError:
            return True


def check_log(path: str | None) -> None:
    """Raises UserError when no log can be written there: before the workers, who could only die of it."""
    if path is not None:
        os.close(_opened(path))


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"The access log {path} cannot be written ({error.strerror}).") from None


def _nothing(entry: Entry) -> None:
    """The log is off."""


def _word(value: object) -> str:
    """As it is when it has neither blanks nor quotes, else in quotes; `-` for nothing."""
    text = str(value)[:LONGEST]
    if _PLAIN.match(text):
        return text
    if not text:
        return "-"
    return '"' + visible(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _shortened(entry: Entry) -> Entry:
    short = msgspec.structs.replace(entry, attempts=entry.attempts[:10], guardrails=entry.guardrails[:20])
    for name in entry.__struct_fields__:
        value = getattr(entry, name)
        if isinstance(value, str):
            setattr(short, name, value[:LONGEST])
    return short


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
