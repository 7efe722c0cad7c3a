"""The folder of a run: one run at a time writes to it, and the log of the run before stays until the new one has begun.

log ─▶ log.old ─▶ log.gone ─▶ nothing      as the new run is prepared, begins and ends
log ◀─ log.old                             when it does not get as far as its first request
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable

from penstock.errors import UserError

__all__ = ["LOG_FOLDER", "RunFolder"]

LOG_FOLDER = "log"
_FIRST_FILE = "payloads.bin"  # of every log


class RunFolder:
    def __init__(self, path: str) -> None:
        self._path = path
        self._made = False
        self.log = os.path.join(path, LOG_FOLDER)
        self._old = f"{self.log}.old"
        self._gone = f"{self.log}.gone"
        self._lock = -1
        self.began = False
        self.replaces: float | None = None
        """When the run began that was here before and gives way to this one."""

    def __enter__(self) -> RunFolder:
        try:
            self._made = not os.path.isdir(self._path)
            os.makedirs(self._path, exist_ok=True)
            self._lock = os.open(self._path, os.O_RDONLY)
            self._take_lock()
            for each in (self.log, self._old, self._gone):
                if os.path.lexists(each) and not _of_a_run(each):
                    raise UserError(
                        f"{each} is in the way: a run keeps its log there, and this is none; choose another --artifact-dir."
                    )
            shutil.rmtree(self._gone, ignore_errors=True)
            if os.path.isdir(self.log) and not os.path.isdir(self._old):
                os.rename(self.log, self._old)
            self.replaces = _began(self._old)
            shutil.rmtree(self.log, ignore_errors=True)  # of a run that was killed before it began
            os.mkdir(self.log)
        except OSError as error:
            self._release()
            raise UserError(
                f"The artifact folder {self._path} cannot be written: {error.strerror}; choose --artifact-dir."
            ) from None
        except UserError:
            self._release()
            raise
        return self

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another run is writing to {self._path}; wait for its end, or choose another --artifact-dir."
            ) from None
        except OSError:
            pass  # a file system without locks

    @property
    def log_before(self) -> str | None:
        """The log of the run that gives way, until this one begins."""
        return self._old if self.replaces is not None and not self.began else None

    def begin(self, outdated: Iterable[str] = ()) -> None:
        """The first request is about to go out: from here on it is this run's folder. The files of the run before go with
        its log: beside the log of a run that is killed they would pass for its own."""
        self.began = True
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._old, self._gone)
        for path in outdated:
            with contextlib.suppress(FileNotFoundError):
                if os.path.isdir(self._gone):  # deleting gigabytes would hold up the requests
                    os.rename(path, os.path.join(self._gone, os.path.basename(path)))
                else:
                    os.remove(path)

    def __exit__(self, *_: object) -> None:
        if self.began:
            shutil.rmtree(self._gone, ignore_errors=True)
        else:
            shutil.rmtree(self.log, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._old, self.log)
            if self._made:
                with contextlib.suppress(OSError):
                    os.rmdir(self._path)  # if it is as empty as it was made
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _of_a_run(log: str) -> bool:
    """Whether this may go when its time has come: nothing that somebody else keeps under such a name."""
    if os.path.islink(log) or not os.path.isdir(log):
        return False
    names = os.listdir(log)
    return not names or _FIRST_FILE in names


def _began(log: str) -> float | None:
    try:
        return os.stat(os.path.join(log, "run.json")).st_mtime
    except OSError:
        return None
