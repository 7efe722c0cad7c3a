"""Who is at fault.

    Exception
    └── PenstockError          a sentence for the user, never a traceback
        ├── UserError          something the user must change: exit 2
        └── RunError           the run could not be carried out: exit 1

Failures of single requests are not exceptions: they are facts about the server or the network, and live in
`records.record.Failure`.
"""

import errno

__all__ = ["PenstockError", "RunError", "UserError", "disk_full"]


class PenstockError(Exception):
    """Its message is one sentence: what happened, where, and what to do next."""


class UserError(PenstockError):
    """Bad input: a flag, a file, a value."""


class RunError(PenstockError):
    """The run could not start or finish for a reason outside the command line."""


def disk_full(error: BaseException) -> UserError | None:
    """What to tell the user when that is the cause."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" for {error.filename}" if error.filename else ""
    return UserError(f"The disk is full: there was no room{where}. Free some, or choose another --artifact-dir.")
