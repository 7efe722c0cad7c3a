"""Reads input files to their end while a run sends, and watches them.

A low-priority child process continues to fill the payload store. It reports its end and any errors through a pipe. The files
must not change during the run, so their size, modification time and inode are checked.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from time import monotonic

import msgspec

from penstock.datasets.json_window import LineNumbers
from penstock.datasets.source_files import Identity, SourceFile
from penstock.errors import UserError
from penstock.processes import end_with_parent, fork
from penstock.runs.companion import Companion, CompanionControl
from penstock.runs.payload_builder import PayloadBuilder
from penstock.workers.messages import ChangedFile, Event

_NICE = 10
_CHECK_S = 0.25
_CHECK_FILES = 64
"""Files that are checked for changes every `_CHECK_S`."""


class _Message(msgspec.Struct):
    """A message from the child, one JSON line: the first error when it occurs, and everything in the last message."""

    error: str | None = None
    notes: list[str] = []
    last: bool = False


class InputFiles(Companion):
    """The input files during a run: a child process continues to read them, and `poll` checks that they do not change."""

    def __init__(self, builder: PayloadBuilder, files: Sequence[SourceFile]) -> None:
        self._builder = builder
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
        self._read_to_end = builder.done
        self._error: str | None = None
        self._changed: SourceFile | None = None
        """The first file that was found changed."""
        self.notes: list[str] = builder.notes() if builder.done else []

    def start(self, control: CompanionControl) -> None:
        """Start the child if there is more to read."""
        self._control = control
        if self._builder.done:
            return
        self._pipe, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._child = fork()
        if self._child == 0:
            os.close(self._pipe)
            os._exit(_read_rest(self._builder, write_end, parent))
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
            if self._child and not self._read_to_end:
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
        while not self._read_to_end:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            for line in lines:
                message = msgspec.json.decode(line, type=_Message)
                self._read_to_end = self._read_to_end or message.last
                self._error = message.error or self._error
                self.notes += message.notes
                if message.last and message.error is None and self._error is None and self._control is not None:
                    self._control.data_complete()
            if not data and not self._read_to_end:
                self._read_to_end = True
                self._error = "The process that reads the input file ended unexpectedly."

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
        line = LineNumbers(file.path).line(now.size)
        return f"{name}:{line}: the file was cut short during the run, from {before.size:,} to {now.size:,} bytes."
    if now.size > before.size:
        return (
            f"{name} grew during the run, from {before.size:,} to {now.size:,} bytes; replay a copy that nobody writes."
        )
    return f"{name} was changed during the run (its modification time moved); replay a copy that nobody writes."


def _read_rest(builder: PayloadBuilder, pipe: int, parent: int) -> int:
    """Run the child process; return its exit status."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not end_with_parent(parent, signal.SIGKILL):
        return 1
    os.nice(_NICE)

    def send(message: _Message) -> None:
        os.write(pipe, msgspec.json.encode(message) + b"\n")

    try:
        builder.errors.on_first = lambda text: send(_Message(error=text))
        builder.advance(None, only_needed=True)
        if builder.errors.count:
            send(_Message(error=builder.errors.text(), last=True))
            return 0
        send(_Message(notes=builder.notes(), last=True))
    except UserError as error:
        send(_Message(error=str(error), last=True))
    except BaseException:  # os._exit follows, which prints nothing
        traceback.print_exc()
        return 1
    return 0
