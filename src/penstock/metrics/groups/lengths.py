"""Token counts of a request by the count of the run: the client's, or the server's if it was asked for."""

from __future__ import annotations

from penstock.metrics.metric import Measures, MetricGroup, TokenCounts, per_request
from penstock.metrics.reply_values import requested_length
from penstock.records.record import Record

__all__ = ["GROUP"]

_METRICS = (
    per_request(
        "output_sequence_length",
        "Output Sequence Length",
        "tokens",
        "Output tokens + reasoning tokens of all choices. Counted by the client's tokenizer on the whole text of each "
        "choice, or taken from the server's usage with --use-server-token-count.",
        order=600,
        larger=True,
        needs="output_tokens",
    ),
    per_request(
        "output_token_count",
        "Output Token Count",
        "tokens",
        "Tokens of the reply that are not reasoning, including tool calls and refusals.",
        order=610,
        larger=True,
        needs="output_tokens",
    ),
    per_request(
        "reasoning_token_count",
        "Reasoning Token Count",
        "tokens",
        "Tokens of the reasoning text.",
        larger=True,
        needs="output_tokens",
    ),
    per_request(
        "input_sequence_length",
        "Input Sequence Length",
        "tokens",
        "Tokens of the texts in the body, joined by spaces. Excludes the server's chat template, so the server's count is "
        "usually a little higher.",
        order=700,
        larger=True,
        needs="input_tokens",
    ),
    per_request(
        "osl_mismatch_diff_pct",
        "OSL Mismatch Diff %",
        "%",
        "100 * (output_sequence_length - requested) / requested, signed. Present if a length was requested. With several "
        "choices (n), the length is requested for each of them.",
        needs="output_tokens",
    ),
)


def _measure(record: Record, counts: TokenCounts, measures: Measures) -> None:
    values, length = measures.values, counts.total
    if length is not None:
        values["output_sequence_length"] = length
    if counts.output is not None:
        values["output_token_count"] = counts.output
    if counts.reasoning is not None:
        values["reasoning_token_count"] = counts.reasoning
    if counts.input is not None:
        values["input_sequence_length"] = counts.input
    if length is not None and record.requested_output:
        requested = requested_length(record)
        values["osl_mismatch_diff_pct"] = 100 * (length - requested) / requested


GROUP = MetricGroup(_METRICS, measure=_measure)
