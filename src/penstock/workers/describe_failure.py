"""The event that tells a run why a worker failed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from penstock.errors import PenstockError, UserError, disk_full
from penstock.wire.exchange import WireError
from penstock.workers.job import Target
from penstock.workers.messages import WorkerFailed
from penstock.workers.preconnect import ConnectError

__all__ = ["describe_failure"]

_MAX_CHARACTERS = 4000


def describe_failure(targets: Sequence[Target], error: BaseException) -> WorkerFailed:
    """Return the event for the exception that ended a worker."""
    known = _unreachable(targets, error.error) if isinstance(error, ConnectError) else disk_full(error) or error
    if not isinstance(known, PenstockError):
        return WorkerFailed("traceback", "".join(traceback.format_exception(error))[-_MAX_CHARACTERS:])
    return WorkerFailed("user" if isinstance(known, UserError) else "run", str(known)[:_MAX_CHARACTERS])


def _unreachable(targets: Sequence[Target], error: WireError) -> UserError:
    if error.type in ("CertificateError", "TLSError"):
        return UserError(error.message)  # the server is running, and the message says what to do
    urls = ", ".join(target.url for target in targets)
    return UserError(f"{error.message} Start the server or correct --url ({urls}).")
