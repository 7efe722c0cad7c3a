"""The exceptions of Penstock.

    Exception
    └── PenstockError          printed as one sentence, without a traceback
        ├── UserError          the user must change something: exit status 2
        │   └── DiskFull       the user must free space
        └── RunError           the run could not be carried out: exit status 1

The failure of a single request is not an exception but a measurement: see `records.record.Failure`.
"""

import errno


class PenstockError(Exception):
    """Base class. The message is one sentence: what happened, where, and what to do."""


class UserError(PenstockError):
    """A flag, a value or a file that the user must change."""


class DiskFull(UserError):
    """There is no space left, or the quota is used up."""


class RunError(PenstockError):
    """The run could not start or finish, for a reason outside the user's input."""


def disk_full(error: BaseException) -> DiskFull | None:
    """Return the error to report if the disk is full or the quota is used up, else None."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" for {error.filename}" if error.filename else ""
    return DiskFull(f"The disk is full: there was no space{where}. Free some space, or choose another --artifact-dir.")
