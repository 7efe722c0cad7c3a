"""What a dataset format is: a reader, and a test for what a file of it looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.datasets.conversation import Conversation
from penstock.datasets.recording import Recording
from penstock.settings.schema import InputSettings

__all__ = ["Contents", "Format"]


class Contents(NamedTuple):
    conversations: list[Conversation]
    note: str | None = None
    """A sentence for the user about something in the file that is not used."""
    recording: Recording | None = None
    """Instead of conversations: bodies that are sent as they lie in the file."""


class Format(NamedTuple):
    name: str
    needs: str
    """What a line must be, to complete "it reads <name>: …"."""
    matches: Callable[[dict[str, Any]], bool]
    """Whether a file whose first line is this object is of the format."""
    read: Callable[[str, InputSettings], Contents]
