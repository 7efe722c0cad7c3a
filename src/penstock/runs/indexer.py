"""Indexes and watches input files whose bodies are sent unchanged.

The first 64 MB are checked and indexed before the first request, the rest by a low-priority child process while the run sends
(about 100,000 lines per second). The child reports its end and any errors through a pipe. The files must not change during
the run, so their size, modification time and inode are checked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol

import msgspec

from penstock.datasets.jsonl import FileErrors
from penstock.datasets.recording import (
    BodyLocation,
    Identity,
    RecordedConversation,
    Recording,
    RecordingOptions,
    SourceFile,
    select_sessions,
)
from penstock.errors import UserError
from penstock.processes import end_with_parent, fork
from penstock.records.payloads import MissingBody, PayloadFiles, PayloadWriter
from penstock.records.prompt_reuse import PromptReuse
from penstock.runs.companion import Companion, CompanionControl
from penstock.workers.messages import ChangedFile, Event

__all__ = ["FIRST_BYTES", "Indexer", "InputFiles"]

FIRST_BYTES = int(os.environ.get("PENSTOCK_FIRST_BYTES", str(64 << 20)))
"""Bytes that are indexed before the first request. The environment variable is for tests, which have no large files."""
_FLUSH_EVERY = 1000
"""Conversations between flushes: few enough that the index never fills its buffer and is written before the bodies."""
_FLUSH_BYTES = 4 << 20
"""Scanned bytes between flushes, so that large bodies become visible before there are a thousand of them."""
_MAX_FILES = 0xFFFF
"""File numbers in the index have 16 bits. The bodies of a folder with more files are copied."""
_MAX_BODY = 0x7FFFF000
"""Most bytes that one read returns on Linux."""
_NICE = 10
_CHECK_S = 0.25
_CHECK_FILES = 64
"""Files that are checked for changes every `_CHECK_S`."""

Progress = Callable[[int, int], None]


class Indexer:
    """Writes the index of a recording to the payload store, step by step."""

    def __init__(
        self,
        writer: PayloadWriter,
        recording: Recording,
        options: RecordingOptions,
        *,
        name: str,
        sessions: tuple[str, ...] = (),
        max_conversations: int | None = None,
    ) -> None:
        """`max_conversations` is how many conversations the run can need."""
        self._writer = writer
        self._recording = recording
        self._prompt_key = f'"{options.body_key}"'.encode() if options.body_key else b'"messages"'
        self._missing = set(sessions)
        """Selected sessions that have not been found yet."""
        self._max_conversations = max_conversations
        self._total = sum(file.identity.size for file in recording.files)
        self._copying = len(recording.files) > _MAX_FILES
        self.errors = FileErrors(name)
        self._conversations: Iterator[RecordedConversation] = recording.scan(
            options._replace(on_progress=self._tell_progress), self.errors
        )
        self._progress: Progress | None = None
        self._reuse = PromptReuse()
        self._bodies = PayloadFiles([file.path for file in recording.files])
        if sessions:
            self._conversations = select_sessions(self._conversations, frozenset(sessions))
        self.done = False

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that bodies are read from."""
        return () if self._copying else tuple(file.path for file in self._recording.files)

    def advance(self, until: int | None, progress: Progress | None = None, *, only_needed: bool = False) -> None:
        """Index until `until` bytes are scanned, or to the end; with `only_needed`, no further than the run can need.

        After the first error nothing is written, and the rest is only scanned for more errors.
        """
        recording = self._recording
        self._progress = progress
        flushed = recording.scanned
        for number, recorded in enumerate(self._conversations, 1):
            self._missing.discard(recorded.session or "")
            if not self.errors.count and not self._full:
                self._write(recorded)
            if number % _FLUSH_EVERY == 0 or recording.scanned - flushed >= _FLUSH_BYTES:
                flushed = recording.scanned
                self._flush()
                self._tell_progress()
            if only_needed and self._full:
                break
            if until is not None and recording.scanned >= until:
                self._flush()
                self.done = self._full
                return
        else:
            self._check_sessions()
        self._flush()
        self.done = True
        if progress is not None:
            progress(self._total, self._total)

    def _flush(self) -> None:
        self._writer.flush()
        self._reuse.counts.save(self._writer.folder)

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._recording.scanned, self._total)

    @property
    def _full(self) -> bool:
        return self._writer.conversations == self._max_conversations

    def notes(self) -> list[str]:
        return self._recording.notes()

    def _compare(self, first: BodyLocation) -> None:
        """Compare the prompt of a conversation with the earlier ones: its body from the key of the prompt on."""
        with contextlib.suppress(MissingBody):  # the check of the files reports a change
            body = self._bodies.read(first.file, first.length, first.offset)
            start = max(0, body.find(self._prompt_key))
            self._reuse.add(body[start:])

    def _write(self, recorded: RecordedConversation) -> None:
        if recorded.bodies and recorded.bodies[0].length <= _MAX_BODY:
            self._compare(recorded.bodies[0])
        for location in recorded.bodies:
            if location.length > _MAX_BODY:
                self.errors.add(1, f"a payload of {location.length:,} bytes is larger than the 2 GB that can be sent")
            elif self._copying or location.padding is not None:
                before, after = location.padding or (b"", b"")
                with open(self._recording.files[location.file].path, "rb") as file:
                    file.seek(location.offset)
                    body = before + file.read(location.length) + after
                self._writer.add_body(body, timestamp_ms=location.timestamp_ms, delay_ms=location.delay_ms)
            else:
                self._writer.add_reference(
                    location.file + 1,
                    location.offset,
                    location.length,
                    timestamp_ms=location.timestamp_ms,
                    delay_ms=location.delay_ms,
                )
        self._writer.end_conversation(recorded.session)

    def _check_sessions(self) -> None:
        if self.errors.count:  # an error may be the reason why a session is missing
            return
        for name in sorted(self._missing):
            self.errors.add(1, f"there is no session {name!r} in it (--sessions)")


class _Message(msgspec.Struct):
    """A message from the child, one JSON line: the first error when it occurs, and everything in the last message."""

    error: str | None = None
    notes: list[str] = []
    last: bool = False


class Steps(Protocol):
    """Work on the payload store that is done in steps."""

    errors: FileErrors
    done: bool

    def advance(self, until: int | None, progress: Progress | None = None, *, only_needed: bool = False) -> None: ...

    def notes(self) -> list[str]: ...


class InputFiles(Companion):
    """The input files during a run: a child process continues to read them, and `poll` checks that they do not change."""

    def __init__(self, indexer: Steps, files: list[SourceFile]) -> None:
        self._indexer = indexer
        self._files = files
        self._next_check = 0
        """Position in `_files` of the file to check next."""
        self._check_at = 0.0
        self._control: CompanionControl | None = None
        self._missing_body_in = 0
        """Number (from 1) of a file in which a worker did not find a body; 0 for none."""
        self._child = 0
        self._pipe = -1
        self._partial_line = b""
        self._indexed = indexer.done
        self._error: str | None = None
        self._changed: SourceFile | None = None
        """The first file that was found changed."""
        self.notes: list[str] = indexer.notes() if indexer.done else []

    def start(self, control: CompanionControl) -> None:
        """Start the child if there is more to index."""
        self._control = control
        if self._indexer.done:
            return
        self._pipe, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._child = fork()
        if self._child == 0:
            os.close(self._pipe)
            os._exit(_index_rest(self._indexer, write_end, parent))
        os.close(write_end)

    @property
    def _must_stop(self) -> bool:
        return self._error is not None or self._changed is not None

    def worker_event(self, event: Event) -> None:
        if isinstance(event, ChangedFile):
            self._missing_body_in = event.file

    def poll(self) -> bool:
        if not self._must_stop and self._child:
            self._read_messages()
            if self._error is not None:
                self._check(len(self._files))  # a changed file may be the cause of the error
        if not self._must_stop and self._missing_body_in:
            self._changed = self._files[self._missing_body_in - 1]
        now = monotonic()
        if not self._must_stop and now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._check(_CHECK_FILES)
        return self._must_stop

    def finish(self) -> str | None:
        """End the child and return why the run had to stop, or None."""
        try:
            if self._child and self._changed is None:
                self._read_messages(wait=self._error is not None)  # after the first error, wait for the complete list
            if self._child and not self._indexed:
                os.kill(self._child, signal.SIGKILL)  # the run ended before the end of the file
        finally:
            if self._child:
                os.waitpid(self._child, 0)
                os.close(self._pipe)
                self._child = 0
        if not self._must_stop:
            self._check(len(self._files))
        return self._error if self._changed is None else _describe_change(self._changed)

    def _read_messages(self, *, wait: bool = False) -> None:
        os.set_blocking(self._pipe, wait)
        while not self._indexed:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            for line in lines:
                message = msgspec.json.decode(line, type=_Message)
                self._indexed = self._indexed or message.last
                self._error = message.error or self._error
                self.notes += message.notes
                if message.last and message.error is None and self._error is None and self._control is not None:
                    self._control.data_complete()
            if not data and not self._indexed:
                self._indexed = True
                self._error = "The process that indexes the input file ended unexpectedly."

    def _check(self, count: int) -> None:
        for _ in range(min(count, len(self._files))):
            file = self._files[self._next_check % len(self._files)]
            self._next_check += 1
            try:
                same = Identity.of(os.stat(file.path)) == file.identity
            except OSError:
                same = False
            if not same:
                self._changed = file
                return


def _describe_change(file: SourceFile) -> str:
    """Describe how the file changed. This may count the lines of a large file, so call it after the load."""
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


def _index_rest(indexer: Steps, pipe: int, parent: int) -> int:
    """Run the child process; return its exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not end_with_parent(parent, signal.SIGKILL):
        return 1
    os.nice(_NICE)

    def send(message: _Message) -> None:
        os.write(pipe, msgspec.json.encode(message) + b"\n")

    try:
        indexer.errors.on_first = lambda text: send(_Message(error=text))
        indexer.advance(None, only_needed=True)
        if indexer.errors.count:
            send(_Message(error=indexer.errors.text(), last=True))
            return 0
        send(_Message(notes=indexer.notes(), last=True))
    except UserError as error:
        send(_Message(error=str(error), last=True))
    except BaseException:  # os._exit follows, which prints nothing
        traceback.print_exc()
        return 1
    return 0
