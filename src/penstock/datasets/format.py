"""The interface of a dataset format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.datasets.dataset import Contents, Dataset
from penstock.settings.schema import InputSettings

__all__ = ["Contents", "Format"]


class Format(NamedTuple):
    name: str
    needs: str
    """Description of a valid line or file; messages show it after the name."""
    matches: Callable[[dict[str, Any]], bool]
    """Whether a file with this first line has the format."""
    read: Callable[[str, InputSettings], Dataset]
    """Returns the dataset of a file: `Contents` if the file is small, or a class with a method `read` of its own."""
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
