"""Files that are joined from parts."""

from __future__ import annotations

import os
import shutil

__all__ = ["append_file"]


def append_file(path: str, part: str, skipped: int = 0) -> None:
    """Append the file `part`, without its first `skipped` bytes, to the file at `path`, and delete it."""
    with open(path, "ab") as file, open(part, "rb") as source:
        source.seek(skipped)
        shutil.copyfileobj(source, file, 1 << 20)
    os.remove(part)
