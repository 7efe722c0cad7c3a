"""Who is at fault.

    Exception
    └── PenstockError          a sentence for the user, never a traceback
        ├── UserError          something the user must change: exit 2
        └── RunError           the run could not be carried out: exit 1

Failures of single requests are not exceptions: they are facts about the server or the network, and live in
`records.record.Failure`.
"""

__all__ = ["PenstockError", "RunError", "UserError"]


class PenstockError(Exception):
    """Its message is one sentence: what happened, where, and what to do next."""


class UserError(PenstockError):
    """Bad input: a flag, a file, a value."""


class RunError(PenstockError):
    """The run could not start or finish for a reason outside the command line."""
