"""Bodies that are sent as they lie in the user's files: where each one is, read once and never kept.

A recording is scanned in the order of its files. What a scan yields goes into the index of the run; the bodies stay where
they are until they are sent. A scan can be stopped and carried on, also by a process forked in between, so that a large file
is indexed ahead of the sending.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

from penstock.datasets.jsonl import Problems, open_failure
from penstock.errors import UserError
from penstock.settings.schema import ScheduleSettings

__all__ = [
    "CONTEXT_MODE",
    "BodyLocation",
    "Identity",
    "Recorded",
    "Recording",
    "RecordingOptions",
    "SourceFile",
    "chosen",
    "source_files",
]

CONTEXT_MODE = "message_array_with_responses"
"""Each payload holds all that its turn needs: nothing is added to it and no reply is kept."""


class BodyLocation(NamedTuple):
    """A body in a file of the user's."""

    file: int
    """Index into the recording's files."""
    offset: int
    length: int
    timestamp_ms: float | None = None
    delay_ms: float = 0.0
    padding: tuple[bytes, bytes] | None = None
    """White space to send before and behind it, which stands elsewhere in the file."""


class Recorded(NamedTuple):
    """A conversation: its bodies in the order of its turns."""

    session: str | None
    """None when the file gives it no name."""
    places: list[BodyLocation]


class Identity(NamedTuple):
    """What changes when a file does."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


class SourceFile(NamedTuple):
    path: str
    """Absolute: it is read by other processes, and again after the run."""
    identity: Identity


class RecordingOptions(NamedTuple):
    """What a run wants of a recording."""

    endpoint: str
    schedule: ScheduleSettings | None = None
    """Send at the recorded times."""
    delay_ratio: float = 1.0
    """What the recorded waits within a conversation are multiplied by."""


class Recording(Protocol):
    files: list[SourceFile]

    @property
    def needs_whole(self) -> bool:
        """Nothing can be sent before all of it has been read."""
        ...

    @property
    def scanned(self) -> int:
        """Bytes looked at so far."""
        ...

    def scan(self, wish: RecordingOptions, problems: Problems) -> Iterator[Recorded]:
        """What is wrong with the files goes to `problems`; a conversation with a problem is not yielded."""
        ...

    def notes(self) -> list[str]:
        """Sentences about what has been scanned that stop nothing."""
        ...


def source_files(paths: list[str]) -> list[SourceFile]:
    found = []
    for path in paths:
        whole = os.path.abspath(path)
        try:
            status = os.stat(whole)
        except OSError as error:
            raise open_failure(path, error) from None
        if not os.path.isfile(whole):
            raise UserError(
                f"The input '{path}' is not a regular file, and a replay reads its bodies again when it sends them; "
                "save it to a file first."
            )
        found.append(SourceFile(whole, Identity.of(status)))
    return found


def chosen(conversations: Iterator[Recorded], sessions: Collection[str]) -> Iterator[Recorded]:
    """Those that are called by one of these names. One without a name is called by its number."""
    for number, each in enumerate(conversations):
        name = each.session or f"session_{number:06d}"
        if name in sessions:
            yield Recorded(name, each.places)
