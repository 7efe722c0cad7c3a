"""Exit statuses of all commands."""

from __future__ import annotations

EXIT_FAILED = 1
"""Requests failed, a check found differences, or the run could not be carried out."""
EXIT_USER = 2
"""The user must change the command line or an input file."""
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""128 + SIGPIPE: standard output was closed by its reader."""
