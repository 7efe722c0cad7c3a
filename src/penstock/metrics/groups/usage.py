"""Token counts of the server (usage), and how they differ from the client's."""

from __future__ import annotations

from penstock.metrics.metric import Measures, MetricGroup, TokenCounts, Tokens, per_request
from penstock.records.record import Record, Usage

__all__ = ["GROUP", "USAGE"]

USAGE: tuple[tuple[str, str, str, bool, Tokens | None], ...] = (
    ("usage_prompt_tokens", "prompt", "Prompt", True, None),
    ("usage_prompt_cache_read_tokens", "cache_read", "Prompt Cache Read", True, None),
    ("usage_prompt_cache_write_tokens", "cache_write", "Prompt Cache Write", False, None),
    ("usage_prompt_audio_tokens", "prompt_audio", "Prompt Audio", True, None),
    ("usage_completion_tokens", "completion", "Completion", True, "output_tokens"),
    ("usage_reasoning_tokens", "reasoning", "Reasoning", True, "output_tokens"),
    ("usage_completion_audio_tokens", "completion_audio", "Completion Audio", True, "output_tokens"),
    ("usage_accepted_prediction_tokens", "accepted_prediction", "Accepted Prediction", True, "output_tokens"),
    ("usage_rejected_prediction_tokens", "rejected_prediction", "Rejected Prediction", False, "output_tokens"),
    ("usage_total_tokens", "total", "Total", True, None),
)
"""Tag, field of `Usage`, name, whether a larger value is better, and the tokens that the endpoint must have."""
_USAGE_NOTE = "As reported by the server. Absent if the reply has no such field."
_DIFF_NOTE = "100 * |server - client| / client, if both counted. Absent with server token counts."

_METRICS = (
    *(
        per_request(tag, f"Usage {name} Tokens", "tokens", _USAGE_NOTE, larger=larger, needs=needs)
        for tag, _, name, larger, needs in USAGE
    ),
    *(
        per_request(f"usage_{part}_tokens_diff_pct", f"Usage {part.title()} Diff %", "%", _DIFF_NOTE)
        for part in ("prompt", "completion", "reasoning")
    ),
)


def _measure(record: Record, counts: TokenCounts, measures: Measures) -> None:
    if record.usage is not None:
        _usage(record.usage, measures.values)
        if not counts.by_server:
            _differences(record.usage, counts, counts.total, measures.values)


def _usage(usage: Usage, values: dict[str, float]) -> None:
    for tag, field, *_ in USAGE:
        tokens = getattr(usage, field)
        if tokens is not None:
            values[tag] = tokens


def _differences(usage: Usage, counts: TokenCounts, length: int | None, values: dict[str, float]) -> None:
    if usage.prompt is not None and counts.input:
        values["usage_prompt_tokens_diff_pct"] = 100 * abs(usage.prompt - counts.input) / counts.input
    if usage.completion is not None and length:
        values["usage_completion_tokens_diff_pct"] = 100 * abs(usage.completion - length) / length
    if usage.reasoning is not None and counts.reasoning:
        values["usage_reasoning_tokens_diff_pct"] = 100 * abs(usage.reasoning - counts.reasoning) / counts.reasoning


GROUP = MetricGroup(_METRICS, measure=_measure)
