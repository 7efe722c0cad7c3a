"""Files that belong to one process for as long as it lives: whoever gets the lock knows that the owner is gone.

A file has its lock before it has its name, so nobody can find it unlocked while its owner is alive. The lock is the
kernel's (flock): it ends with the process however that ends, and knows nothing of process ids that are used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

__all__ = ["NEW", "create", "is_orphan", "sweep"]

NEW = ".new"
_ABANDONED_S = 60.0


def create(path: str, data: bytes = b"") -> int:
    """A descriptor of the file, open for appending; the file is its caller's until that is closed."""
    file = os.open(path + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if data and os.write(file, data) < len(data):
            raise OSError(f"{path} could not be written whole")
        os.replace(path + NEW, path)
    except BaseException:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(path + NEW)
        raise
    return file


def is_orphan(file: int) -> bool:
    """Whether nobody owns it; then the caller does, until it closes `file`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sweep(folder: str) -> None:
    """Remove what owners left that died before they could name their file: nothing is in it."""
    for name in os.listdir(folder):
        if name.endswith(NEW):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > _ABANDONED_S:
                    os.unlink(path)
