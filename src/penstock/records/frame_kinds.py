"""The kinds of the frames of a log."""

from __future__ import annotations

__all__ = ["DECISION", "KINDS", "LOST", "NODE", "PHASE", "POINT", "RECORD", "REPORT", "RESUME", "SAMPLE"]

RECORD, REPORT, PHASE, LOST, SAMPLE, POINT, RESUME, NODE, DECISION = range(1, 10)
KINDS = bytes(range(1, 10))
