"""How the program ends: the exit statuses of every command."""

from __future__ import annotations

__all__ = ["EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_PIPE", "EXIT_USER"]

EXIT_FAILED = 1
"""Requests failed, something differs, or the run could not be carried out."""
EXIT_USER = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
"""What the shell reports for a program that writes into a closed pipe."""
