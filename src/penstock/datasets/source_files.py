"""The user's files that a run reads while it sends, and how a change of them is noticed."""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.datasets.jsonl import open_failure
from penstock.errors import UserError


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


def source_files(paths: list[str]) -> list[SourceFile]:
    files = []
    for path in paths:
        absolute = os.path.abspath(path)
        try:
            status = os.stat(absolute)
        except OSError as error:
            raise open_failure(path, error) from None
        if not os.path.isfile(absolute):
            reason = "Is a directory" if os.path.isdir(absolute) else "It is not a regular file"
            raise UserError(f"The input file '{path}' cannot be read: {reason}.")
        files.append(SourceFile(absolute, Identity.of(status)))
    return files
