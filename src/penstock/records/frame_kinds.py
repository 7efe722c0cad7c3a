"""The kinds of the frames of a log."""

from __future__ import annotations

RECORD, REPORT, PHASE, LOST, SAMPLE, POINT, RESUME, NODE, DECISION = range(1, 10)
KINDS = bytes(range(1, 10))
