"""Files that one process owns while it lives. A process that can lock such a file knows that the owner has ended.

A file is locked before it gets its name, so no other process can find it unlocked while its owner is alive. The lock is
a kernel lock (flock): it ends with the process, however the process ends, and does not depend on process ids, which are
reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time

NEW_SUFFIX = ".new"
_ABANDONED_S = 60.0


def new_path(folder: str, name: str, suffix: str) -> str:
    """Return the path of a new file, whose name has the time and this process."""
    return os.path.join(folder, f"{name}-{time.time_ns():020d}-{os.getpid()}{suffix}")


def paths(folder: str, name: str, suffix: str) -> list[str]:
    """Return the paths that `new_path` gave to files, the oldest first. A name may also have the number of a worker."""
    pattern = re.compile(rf"{name}(?:-[0-9]+)?-([0-9]{{20}})-[0-9]+{re.escape(suffix)}")
    try:
        matches = filter(None, map(pattern.fullmatch, os.listdir(folder)))
    except FileNotFoundError:
        return []
    return [os.path.join(folder, match[0]) for match in sorted(matches, key=lambda match: (match[1], match[0]))]


def create(path: str, data: bytes = b"") -> int:
    """Create or replace the file and return a descriptor for appending. The caller owns the file until it closes it."""
    file = os.open(path + NEW_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if data and os.write(file, data) < len(data):
            raise OSError(f"{path} was written only in part")
        os.replace(path + NEW_SUFFIX, path)
    except BaseException:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(path + NEW_SUFFIX)
        raise
    return file


def is_orphan(file: int) -> bool:
    """Return whether no process owns the file. If so, the caller owns it until it closes `file`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_abandoned(folder: str) -> None:
    """Remove the files of processes that ended before they could rename them. Such files are never read."""
    for name in os.listdir(folder):
        if name.endswith(NEW_SUFFIX):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > _ABANDONED_S:
                    os.unlink(path)
