"""Token counts of a request by the count of the run: the client's, or the server's if it was asked for."""

from __future__ import annotations

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, read_metrics

_METRICS = read_metrics("""\
output_sequence_length | Output Sequence Length | tokens | order=600 larger needs=output_tokens
    Output tokens + reasoning tokens of all choices. Counted by the client's tokenizer on the whole text of each choice,
    or taken from the server's usage with --use-server-token-count.
output_token_count | Output Token Count | tokens | order=610 larger needs=output_tokens
    Tokens of the reply that are not reasoning, including tool calls and refusals.
reasoning_token_count | Reasoning Token Count | tokens | larger needs=output_tokens
    Tokens of the reasoning text.
input_sequence_length | Input Sequence Length | tokens | order=700 larger needs=input_tokens
    Tokens of the texts in the body and of its tool definitions, joined by spaces; texts to embed count one by one.
    Excludes the server's chat template, so the server's count is usually a little higher.
osl_mismatch_diff_pct | OSL Mismatch Diff % | % | needs=output_tokens
    100 * (output_sequence_length - requested) / requested, signed. Present if a length was requested. With several
    choices (n), the length is requested for each of them.
""")


def _measure(batch: Batch, counts: CountColumns, table: MeasureTable) -> None:
    ok, length, requested = batch.succeeded, counts.total, batch.requested
    table.put("output_sequence_length", length, ok, whole=True)
    table.put("output_token_count", counts.output, ok, whole=True)
    table.put("reasoning_token_count", counts.reasoning, ok, whole=True)
    table.put("input_sequence_length", counts.input, ok, whole=True)
    table.put("osl_mismatch_diff_pct", 100 * (length - requested) / requested, ok & (requested != 0))


GROUP = MetricGroup(_METRICS, measure_batch=_measure)
