"""The interface of a dataset format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.datasets.conversation import Conversation
from penstock.datasets.large_trace import LargeTrace
from penstock.datasets.recording import Recording
from penstock.settings.schema import InputSettings
from penstock.tokens.tokenizer import Tokenizer

__all__ = ["Contents", "Format"]


class Contents(NamedTuple):
    """The contents of a file, as a format has read them."""

    conversations: list[Conversation]
    note: str | None = None
    """A sentence for the user about unused fields of the file."""
    recording: Recording | None = None
    """Replaces the conversations if bodies are sent as they are in the file."""
    large_trace: LargeTrace | None = None
    """Replaces the conversations if they are too many to keep."""
    block_size: int = 512
    """Tokens that a hash id of a trace stands for, unless the user sets it."""
    complete: Callable[[Tokenizer], Contents] | None = None
    """For a format that needs token counts: returns the contents, with the conversations."""


class Format(NamedTuple):
    name: str
    needs: str
    """Description of a valid line or file; messages show it after the name."""
    matches: Callable[[dict[str, Any]], bool]
    """Whether a file with this first line has the format."""
    read: Callable[[str, InputSettings], Contents]
    matches_scheduled: Callable[[dict[str, Any]], bool] | None = None
    """Like `matches`, but for a run that replays recorded times; tried before `matches` of any format."""
    matches_file: Callable[[str], bool] | None = None
    """Whether a file has the format. For formats that are not one object per line; tried before the first line is read."""
    has_times: Callable[[str], bool] | None = None
    """Whether a file of this format has recorded times. A run follows them if the user names the format."""
    draws: bool = False
    """True if requests are drawn from the file with the seed."""
    reads_folders: bool = False
    """True if the input may be a folder of .jsonl files."""
