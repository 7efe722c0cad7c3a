"""The artifact folder of a run. One run at a time writes to it, and the log of the previous run is kept until the new run
sends its first request.

log ─▶ log.old ─▶ log.gone ─▶ deleted      when the new run is prepared, begins and ends
log ◀─ log.old                             when the new run ends before its first request
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable

from penstock.errors import UserError

LOG_FOLDER = "log"
_PAYLOADS_FILE = "payloads.bin"  # in every log
_RESUME_WAIT_S = 5.0


class RunFolder:
    def __init__(self, path: str, *, resume: bool = False) -> None:
        """With `resume`, go on with the run in the folder instead of replacing it."""
        self._path = path
        self._resume = resume
        self._created = False
        self.log = os.path.join(path, LOG_FOLDER)
        self._old = f"{self.log}.old"
        self._gone = f"{self.log}.gone"
        self._lock = -1
        self._owned = False
        self._has_previous = False
        self.began = False
        self.replaces: float | None = None
        """Start time of the previous run in this folder, which this run replaces."""

    def __enter__(self) -> RunFolder:
        try:
            self._created = not os.path.isdir(self._path)
            os.makedirs(self._path, exist_ok=True)
            self._lock = os.open(self._path, os.O_RDONLY)
            self._take_lock()
            if self._resume:
                self.began = True
                return self
            for path in (self.log, self._old, self._gone):
                if os.path.lexists(path) and not _is_log(path):
                    raise UserError(
                        f"{path} exists and is not the log of a run, which would be written there; "
                        "choose another --artifact-dir."
                    )
            shutil.rmtree(self._gone, ignore_errors=True)
            self._has_previous = os.path.isdir(self.log) or os.path.isdir(self._old)
            self._owned = True
            if os.path.isdir(self.log) and not os.path.isdir(self._old):
                os.rename(self.log, self._old)
            self.replaces = _start_time(self._old)
            shutil.rmtree(self.log, ignore_errors=True)  # left by a run that was killed before its first request
            os.mkdir(self.log)
        except OSError as error:
            self.__exit__()
            raise UserError(
                f"The artifact folder {self._path} cannot be written: {error.strerror}; choose --artifact-dir."
            ) from None
        except UserError:
            self.__exit__()
            raise
        return self

    def _take_lock(self) -> None:
        """Take the lock of the folder. The workers of a run that was killed hold it until they notice, so a resume waits."""
        deadline = time.monotonic() + (_RESUME_WAIT_S if self._resume else 0)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                raise UserError(
                    f"Another run is writing to {self._path}; wait for its end, or choose another --artifact-dir."
                ) from None
            except OSError:
                pass  # the file system has no locks
            return

    @property
    def previous_log(self) -> str | None:
        """Log of the run that this one replaces, until this one begins."""
        return self._old if self.replaces is not None and not self.began else None

    def begin(self, outdated: Iterable[str] = ()) -> None:
        """Replace the previous run: call this before the first request. `outdated` are the artifacts of the previous run.

        They are removed with its log, because beside the log of a run that is killed they would look like its artifacts.
        """
        self.began = True
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._old, self._gone)
        outdated = list(outdated)
        for path in outdated:
            with contextlib.suppress(FileNotFoundError):
                if os.path.isdir(self._gone):  # deleting gigabytes would delay the requests
                    os.rename(path, os.path.join(self._gone, os.path.basename(path)))
                else:
                    os.remove(path)
        for folder in {os.path.dirname(path) for path in outdated} - {self._path}:
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # only if it is empty

    def __exit__(self, *_: object) -> None:
        if self.began:
            shutil.rmtree(self._gone, ignore_errors=True)
        else:
            self.roll_back()
        self._release()

    def roll_back(self) -> None:
        """Restore the folder as it was before this run, unless the run has begun.

        A signal handler may call this at any moment, even during `__enter__` or an earlier call, so every step leaves the
        folder in a state from which another call continues.
        """
        if self._owned and not self.began and (not self._has_previous or os.path.isdir(self._old)):
            shutil.rmtree(self.log, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._old, self.log)
        if self._created:
            with contextlib.suppress(OSError):
                os.rmdir(self._path)  # only if it is empty

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _is_log(log: str) -> bool:
    """True if this is the log of a run or an empty folder, and may be deleted."""
    if os.path.islink(log) or not os.path.isdir(log):
        return False
    names = os.listdir(log)
    return not names or _PAYLOADS_FILE in names


def _start_time(log: str) -> float | None:
    try:
        return os.stat(os.path.join(log, "run.json")).st_mtime
    except OSError:
        return None
