"""`compare --fail-if`: limits for the difference between two runs."""

from __future__ import annotations

import math

from penstock.comparison.compare_pairs import Comparison, Row
from penstock.comparison.compared_metrics import COMPARED
from penstock.errors import UserError
from penstock.metrics.conditions import Condition, parse_condition


def parse_limit(text: str) -> Condition:
    """Parse a condition on the difference of B against A, absolute or in percent of A."""
    limit = parse_condition("--fail-if", text, example="p99 time_to_first_token>5%", percent=True)
    if limit.metric not in COMPARED:
        raise UserError(f"{limit.text}: {limit.metric} is not compared; use one of {', '.join(COMPARED)}.")
    return limit


def check_difference(limit: Condition, comparison: Comparison) -> str | None:
    """Return a sentence if the difference is one at which the comparison fails, or if it cannot be checked."""
    invalid = [side.name for side in (comparison.a, comparison.b) if side.verdict == "INVALID"]
    if invalid:
        return f"{limit.text} cannot be checked: {' and '.join(invalid)} is INVALID."
    row = next((r for r in comparison.rows if (r.metric, r.statistic) == (limit.metric, limit.statistic)), None)
    if row is None:
        return f"{limit.text} cannot be checked: the comparison has no {limit.subject}, or too few requests for it."
    if not limit.holds(_percent(row) if limit.percent else row.difference):
        return None
    percent = "" if row.percent is None else f" ({row.percent:+.1f} %)"
    return (
        f"{limit.text}: {limit.subject} of {comparison.b.name} differs from that of {comparison.a.name} by "
        f"{row.difference:+,.2f} {row.unit}{percent}{f', {row.verdict}' if row.verdict else ''}."
    )


def _percent(row: Row) -> float:
    if row.percent is not None:
        return row.percent
    return math.copysign(math.inf, row.difference) if row.difference else 0.0
