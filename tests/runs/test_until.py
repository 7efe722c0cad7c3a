"""The rule of `--until`, on records that a worker has written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.metrics.precision import parse_precision
from penstock.records.log import LogWriter
from penstock.runs.until import UntilRule
from support.records import MS, make_record

RUNNING: Any = SimpleNamespace(index=0)


@pytest.mark.parametrize(("width", "reached"), [("10", True), ("0.001", False)])
def test_requests_after_the_last_look_count_at_the_end(tmp_path: Path, width: str, reached: bool) -> None:
    """A run can end at its limit before the rule has looked at its last requests."""
    rule = UntilRule(str(tmp_path), parse_precision(f"avg request_latency ±{width}"))
    log = LogWriter(str(tmp_path), 0)
    assert not rule.is_met(RUNNING)
    for at in range(150):
        end = 100 * MS + at % 7 * MS
        log.record(make_record(start=at, end=at + end, stamps=[50 * MS, end]))
    log.close()
    facts = rule.facts()
    assert facts["requests"] == 150
    assert facts["reached"] == reached
    assert not facts["ended_run"]
    assert facts["interval"]["low"] < 103 < facts["interval"]["high"]
