"""Token counts of the server (usage), and how they differ from the client's."""

from __future__ import annotations

import numpy as np

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, Tokens, per_request

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


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    ok = batch.succeeded & batch.has_usage
    if not ok.any():
        return
    used = {"prompt": batch.prompt, "completion": batch.completion}
    for tag, field, *_ in USAGE:
        if field not in used:
            used[field] = batch.usage(field)
        table.put(tag, used[field], ok, whole=True)
    ok &= ~counts.by_server
    for part, client in (("prompt", counts.input), ("completion", counts.total), ("reasoning", counts.reasoning)):
        table.put(f"usage_{part}_tokens_diff_pct", 100 * np.abs(used[part] - client) / client, ok & (client != 0))


GROUP = MetricGroup(_METRICS, measure_batch=_measure)
