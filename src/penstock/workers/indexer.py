"""The user's files while they are replayed: their index, and whether they stay what they were.

The first 64 MB are checked and indexed before the first request, the rest by a child process of low priority that stays ahead
of the sending (100,000 lines a second and core here). Its end, or what it found wrong, comes through a pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from time import monotonic

import msgspec

from penstock.datasets.jsonl import FileErrors
from penstock.datasets.recording import (
    Identity,
    RecordedConversation,
    Recording,
    RecordingOptions,
    SourceFile,
    select_sessions,
)
from penstock.errors import UserError
from penstock.processes import end_with_parent
from penstock.records.payloads import PayloadWriter
from penstock.workers.shared_state import SharedState

__all__ = ["FIRST_BYTES", "Index", "Sources"]

FIRST_BYTES = int(os.environ.get("PENSTOCK_FIRST_BYTES", str(64 << 20)))
"""Checked before the first request; the variable is for tests, which have no large files."""
_FLUSH_EVERY = 1000
"""Conversations; fewer than fill the writer's buffer, which would let the reader see them before their bodies."""
_FLUSH_BYTES = 4 << 20
"""Scanned; so that large bodies do not wait for a thousand of them."""
_MOST_FILES = 0xFFFF
"""What the index can number; the bodies of a folder with more files are copied."""
_LONGEST = 0x7FFFF000
"""What one read gives."""
_NICE = 10
_LOOK_S = 0.25
_LOOK_FILES = 64

Progress = Callable[[int, int], None]


class Index:
    """Puts a recording into the payload store, as far as it is told to."""

    def __init__(
        self,
        writer: PayloadWriter,
        recording: Recording,
        wish: RecordingOptions,
        *,
        name: str,
        sessions: tuple[str, ...] = (),
        most: int | None = None,
    ) -> None:
        """`most` is how many conversations the run can need."""
        self._writer = writer
        self._recording = recording
        self._missing = set(sessions)
        """Those that were asked for and have not come yet."""
        self._most = most
        self._total = sum(file.identity.size for file in recording.files)
        self._copying = len(recording.files) > _MOST_FILES
        self.problems = FileErrors(name)
        self._found: Iterator[RecordedConversation] = recording.scan(wish, self.problems)
        if sessions:
            self._found = select_sessions(self._found, frozenset(sessions))
        self.done = False

    @property
    def files(self) -> tuple[str, ...]:
        """Those in which bodies lie."""
        return () if self._copying else tuple(file.path for file in self._recording.files)

    def advance(self, scanned: int | None, progress: Progress | None = None, *, only_needed: bool = False) -> None:
        """Go on until so many bytes are scanned, or to the end; with `only_needed`, no farther than the run can need. Behind
        a problem nothing is written any more: the rest is read for what else is wrong."""
        writer, recording = self._writer, self._recording
        flushed = recording.scanned
        for number, recorded in enumerate(self._found, 1):
            self._missing.discard(recorded.session or "")
            if not self.problems.count and not self._full:
                self._write(recorded)
            if number % _FLUSH_EVERY == 0 or recording.scanned - flushed >= _FLUSH_BYTES:
                flushed = recording.scanned
                writer.flush()
                if progress is not None:
                    progress(recording.scanned, self._total)
            if only_needed and self._full:
                break
            if scanned is not None and recording.scanned >= scanned:
                writer.flush()
                self.done = self._full
                return
        else:
            self._check_sessions()
        writer.flush()
        self.done = True
        if progress is not None:
            progress(self._total, self._total)

    @property
    def _full(self) -> bool:
        return self._writer.conversations == self._most

    def notes(self) -> list[str]:
        return self._recording.notes()

    def _write(self, recorded: RecordedConversation) -> None:
        for place in recorded.bodies:
            if place.length > _LONGEST:
                self.problems.add(1, f"a payload of {place.length:,} bytes is larger than the 2 GB that can be sent")
            elif self._copying or place.padding is not None:
                before, behind = place.padding or (b"", b"")
                with open(self._recording.files[place.file].path, "rb") as file:
                    file.seek(place.offset)
                    body = before + file.read(place.length) + behind
                self._writer.add_body(body, timestamp_ms=place.timestamp_ms, delay_ms=place.delay_ms)
            else:
                self._writer.add_reference(
                    place.file + 1,
                    place.offset,
                    place.length,
                    timestamp_ms=place.timestamp_ms,
                    delay_ms=place.delay_ms,
                )
        self._writer.end_conversation(recorded.session)

    def _check_sessions(self) -> None:
        if self.problems.count:  # one of them may be why a session did not come
            return
        for name in sorted(self._missing):
            self.problems.add(1, f"there is no session {name!r} in it (--sessions)")


class _Word(msgspec.Struct):
    """What the child says, one line each: the first thing wrong at once, and in the end all there is to say."""

    wrong: str | None = None
    notes: list[str] = []
    last: bool = False


class Sources:
    """Beside a run: carries the index on, and watches the files."""

    def __init__(self, index: Index, files: list[SourceFile]) -> None:
        self._index = index
        self._files = files
        self._next = 0
        self._due = 0.0
        self._board: SharedState | None = None
        self._child = 0
        self._pipe = -1
        self._heard = b""
        self._over = index.done
        self._wrong: str | None = None
        """What the child found."""
        self._changed: SourceFile | None = None
        """The first that is not what it was."""
        self.notes: list[str] = index.notes() if index.done else []

    def start(self, board: SharedState) -> None:
        """Before the workers are: what this process forks now has none of their sockets."""
        self._board = board
        if self._index.done:
            return
        board.growing = True
        self._pipe, tell = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        me = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            os.close(self._pipe)
            os._exit(_carry_on(self._index, board, tell, me))
        os.close(tell)

    @property
    def _must_end(self) -> bool:
        return self._wrong is not None or self._changed is not None

    def look(self) -> bool:
        """Call this every few milliseconds; returns whether the run must end."""
        if not self._must_end and self._child:
            self._listen()
            if self._wrong is not None:
                self._watch(len(self._files))  # what the reader stumbled over may be the change of a file
        if not self._must_end and self._board is not None and self._board.broken:
            self._changed = self._files[self._board.broken - 1]
        now = monotonic()
        if not self._must_end and now >= self._due:
            self._due = now + _LOOK_S
            self._watch(_LOOK_FILES)
        return self._must_end

    def finish(self) -> str | None:
        """The run is over: why it had to be, if it had to."""
        try:
            if self._child and self._changed is None:
                self._listen(wait=self._wrong is not None)  # then the list of problems is being completed
            if self._child and not self._over:
                os.kill(self._child, signal.SIGKILL)  # the run ended before the file did
        finally:
            if self._child:
                os.waitpid(self._child, 0)
                os.close(self._pipe)
                self._child = 0
        if not self._must_end:
            self._watch(len(self._files))
        return self._wrong if self._changed is None else _what_changed(self._changed)

    def _listen(self, *, wait: bool = False) -> None:
        os.set_blocking(self._pipe, wait)
        while not self._over:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._heard = (self._heard + data).split(b"\n")
            for line in lines:
                word = msgspec.json.decode(line, type=_Word)
                self._over = self._over or word.last
                self._wrong = word.wrong or self._wrong
                self.notes += word.notes
            if not data and not self._over:
                self._over = True
                self._wrong = "The process that reads the input file ahead of the sending ended before its time."

    def _watch(self, count: int) -> None:
        for _ in range(min(count, len(self._files))):
            file = self._files[self._next % len(self._files)]
            self._next += 1
            try:
                same = Identity.of(os.stat(file.path)) == file.identity
            except OSError:
                same = False
            if not same:
                self._changed = file
                return


def _what_changed(file: SourceFile) -> str:
    """To be asked when nothing is measured any more: it may have to count the lines of a large file."""
    name = os.path.basename(file.path)
    before = file.identity
    try:
        now = Identity.of(os.stat(file.path))
    except OSError as error:
        return f"{name} cannot be read any more ({error.strerror}): it was there when the run began."
    if now.inode != before.inode:
        return f"{name} was replaced by another file during the run; replay a copy that nobody touches."
    if now.size < before.size:
        line = _lines_in(file.path) + 1
        return f"{name}:{line}: the file was cut short during the run, from {before.size:,} to {now.size:,} bytes."
    if now.size > before.size:
        return (
            f"{name} grew during the run, from {before.size:,} to {now.size:,} bytes; replay a copy that nobody writes."
        )
    return f"{name} was changed during the run (its modification time moved); replay a copy that nobody writes."


def _lines_in(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 22), b""))
    except OSError:
        return 0


def _carry_on(index: Index, board: SharedState, tell: int, parent: int) -> int:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may want to finish
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not end_with_parent(parent, signal.SIGKILL):
        return 1
    os.nice(_NICE)

    def say(word: _Word) -> None:
        os.write(tell, msgspec.json.encode(word) + b"\n")

    try:
        index.problems.on_first = lambda text: say(_Word(wrong=text))
        index.advance(None, only_needed=True)
        if index.problems.count:
            say(_Word(wrong=index.problems.text(), last=True))
            return 0
        board.growing = False
        say(_Word(notes=index.notes(), last=True))
    except UserError as error:
        say(_Word(wrong=str(error), last=True))
    except BaseException:  # this is the end of the process: nobody else would hear of it
        traceback.print_exc()
        return 1
    return 0
