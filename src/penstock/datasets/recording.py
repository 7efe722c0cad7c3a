"""Recordings: request bodies that are sent as they are in the user's files.

A scan yields the location of each body, and the run stores the locations in its index. The bodies are read from the
files when they are sent. A scan is an iterator: another process, forked in the meantime, can continue it, so that a
large file is indexed while its first bodies are sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Protocol

from penstock.datasets.jsonl import FileErrors, open_failure
from penstock.errors import UserError
from penstock.settings.schema import ScheduleSettings

__all__ = [
    "CONTEXT_MODE_COMPLETE",
    "BodyLocation",
    "Identity",
    "RecordedConversation",
    "Recording",
    "RecordingOptions",
    "SourceFile",
    "select_sessions",
    "source_files",
]

CONTEXT_MODE_COMPLETE = "message_array_with_responses"
"""AIPerf's name for payloads that are complete: no earlier turn or reply is added."""


class BodyLocation(NamedTuple):
    """The location of a request body in one of the user's files."""

    file: int
    """Index into the recording's files."""
    offset: int
    length: int
    timestamp_ms: float | None = None
    delay_ms: float = 0.0
    padding: tuple[bytes, bytes] | None = None
    """White space to send before and after the body."""


class RecordedConversation(NamedTuple):
    """A conversation: the locations of its bodies in the order of its turns."""

    session: str | None
    """None if the file does not name the conversation."""
    bodies: list[BodyLocation]


class Identity(NamedTuple):
    """File attributes that show whether the file has changed."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


class SourceFile(NamedTuple):
    path: str
    """Absolute, because other processes read the file, and the reports read it after the run."""
    identity: Identity


class RecordingOptions(NamedTuple):
    """Options of the run that uses a recording."""

    body_key: str | None = None
    """A key that every body must have."""
    schedule: ScheduleSettings | None = None
    """Set if requests are sent at their recorded times."""
    delay_ratio: float = 1.0
    """Factor for the recorded delays within a conversation."""
    on_progress: Callable[[], None] | None = None
    """Called from time to time by a scan that reads all files before it yields."""


class Recording(Protocol):
    files: list[SourceFile]

    @property
    def scanned(self) -> int:
        """The number of bytes scanned so far."""
        ...

    def scan(self, options: RecordingOptions, errors: FileErrors) -> Iterator[RecordedConversation]:
        """Yield the conversations without errors, and add the errors of the files to `errors`."""
        ...

    def notes(self) -> list[str]:
        """Return sentences for the user about the scanned part that are not errors."""
        ...


def source_files(paths: list[str]) -> list[SourceFile]:
    files = []
    for path in paths:
        absolute = os.path.abspath(path)
        try:
            status = os.stat(absolute)
        except OSError as error:
            raise open_failure(path, error) from None
        if not os.path.isfile(absolute):
            raise UserError(
                f"The input '{path}' is not a regular file, and a replay reads its bodies again when it sends them; "
                "save it to a file first."
            )
        files.append(SourceFile(absolute, Identity.of(status)))
    return files


def select_sessions(
    conversations: Iterator[RecordedConversation], sessions: Collection[str]
) -> Iterator[RecordedConversation]:
    """Yield the conversations with one of these names. A conversation without a name gets one from its number."""
    for number, conversation in enumerate(conversations):
        name = conversation.session or f"session_{number:06d}"
        if name in sessions:
            yield RecordedConversation(name, conversation.bodies)
