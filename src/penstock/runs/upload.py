"""Sends the results of a run to other places: to a file system that fsspec knows, such as s3:// or gs://, to MLflow and to
W&B."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any, NamedTuple

from penstock.errors import RunError, UserError
from penstock.extras import require_extra
from penstock.plural import counted
from penstock.reports.artifacts import DRAFT_SUFFIX
from penstock.secrets import redact_url
from penstock.settings.schema import Settings


class Sent(NamedTuple):
    """Sentences about what was sent, and about what could not be sent."""

    done: list[str]
    failed: list[str]


def check_results_url(url: str) -> None:
    """Raise UserError if results cannot be copied to the URL. Nothing is sent to it."""
    require_extra("remote", "--results-url", "fsspec")
    _file_system(url)


def check_destinations(settings: Settings) -> None:
    """Raise UserError if results cannot be sent to where the settings say. Nothing is sent."""
    if settings.output.remote is not None:
        check_results_url(settings.output.remote)


def send_results(settings: Settings) -> Sent:
    """Send the results to where the settings say. Raise RunError if they cannot be copied to the results URL; a tracking server
    that cannot be used is only reported."""
    sent, exports = Sent([], []), settings.exports
    trackers = (
        (exports.mlflow_uri, "penstock.runs.mlflow_export:log_to_mlflow"),
        (exports.wandb_project, "penstock.runs.wandb_export:log_to_wandb"),
    )
    for target, log in trackers:
        if target is not None:
            try:
                sent.done.append(resolve_name(log)(settings))
            except RunError as error:
                sent.failed.append(str(error))
    if settings.output.remote is not None:
        count = upload(settings.output.folder, settings.output.remote)
        sent.done.append(f"Copied {counted(count, 'file')} to {redact_url(settings.output.remote)}")
    return sent


@contextlib.contextmanager
def sent_results(settings: Settings) -> Iterator[None]:
    """Send the results that the body writes to where the settings say. Raise UserError before the body if that is not
    possible."""
    check_destinations(settings)
    yield
    for sentence in send_results(settings).failed:
        warnings.warn(sentence, stacklevel=2)


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    from fsspec.core import url_to_fs

    shown = redact_url(url)
    if "://" not in url:
        raise UserError(
            f"--results-url {shown} is not a URL such as s3://bucket/folder; --artifact-dir names a folder."
        )
    try:
        file_system, path = url_to_fs(url)
    except ImportError as error:
        raise UserError(f"--results-url {shown} needs a package that is not installed: {error}") from None
    except ValueError as error:
        raise UserError(f"--results-url {shown} cannot be used: {error}.") from None
    return file_system, str(path)


def upload(folder: str, url: str) -> int:
    """Copy all files in `folder`, with the log and without drafts of a killed report, to the URL, and return how many. Raise
    RunError if that fails."""
    file_system, root = _file_system(url)
    count = 0
    for parent, _, names in os.walk(folder):
        target = os.path.normpath(os.path.join(root, os.path.relpath(parent, folder)))
        try:
            file_system.makedirs(target, exist_ok=True)
            for name in (name for name in names if not name.endswith(DRAFT_SUFFIX)):
                file_system.put_file(os.path.join(parent, name), f"{target}/{name}")
                count += 1
        except Exception as error:  # each file system has exceptions of its own
            raise RunError(
                f"The results cannot be copied to {redact_url(url)}: {type(error).__name__}: {error}. They are in {folder}."
            ) from None
    return count
