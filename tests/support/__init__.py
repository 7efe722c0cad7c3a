"""Servers, programs and objects that several tests use."""

from pathlib import Path

TESTS = Path(__file__).parent.parent
"""The folder to put on `sys.path` in a child process that imports `support`."""
