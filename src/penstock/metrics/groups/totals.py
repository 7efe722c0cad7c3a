"""Sums of token counts over the requests of a phase."""

from __future__ import annotations

from penstock.metrics.groups.usage import USAGE
from penstock.metrics.metric import MetricGroup, PhaseFigures, per_run

_SUMMED = {
    "total_isl": "input_sequence_length",
    "total_osl": "output_sequence_length",
    "total_output_tokens": "output_token_count",
    "total_reasoning_tokens": "reasoning_token_count",
    "total_error_isl": "error_isl",
    **{f"total_{tag}": tag for tag, *_ in USAGE},
}
_METRICS = (
    per_run("total_isl", "Total Input Sequence Length", "tokens", "Sum of input_sequence_length.", larger=True),
    per_run("total_osl", "Total Output Sequence Length", "tokens", "Sum of output_sequence_length.", larger=True),
    per_run("total_output_tokens", "Total Output Tokens", "tokens", "Sum of output_token_count.", larger=True),
    per_run("total_reasoning_tokens", "Total Reasoning Tokens", "tokens", "Sum of reasoning_token_count.", larger=True),
    per_run("total_error_isl", "Total Error Input Sequence Length", "tokens", "Sum of error_isl.", larger=True),
    *(
        per_run(f"total_{tag}", f"Total Usage {name} Tokens", "tokens", f"Sum of {tag}.", larger=larger)
        for tag, _, name, larger, _ in USAGE
    ),
    per_run(
        "overall_usage_prompt_cache_read_pct",
        "Overall Usage Prompt Cache Read %",
        "%",
        "100 * total_usage_prompt_cache_read_tokens / total_usage_prompt_tokens.",
        larger=True,
    ),
)


def _summarize(figures: PhaseFigures) -> dict[str, float]:
    sums = {total: value for total, tag in _SUMMED.items() if (value := figures.total(tag)) is not None}
    cached, prompt = sums.get("total_usage_prompt_cache_read_tokens"), sums.get("total_usage_prompt_tokens")
    if cached is not None and prompt:
        sums["overall_usage_prompt_cache_read_pct"] = 100 * cached / prompt
    return sums


GROUP = MetricGroup(_METRICS, summarize=_summarize)
