"""Agreement between the token counts of the server (usage) and of the client's tokenizer.

The counts are compared in total over the successful requests of the profiling phases that have both. A difference of more
than 10 % makes every token metric depend on whose count is used, so these metrics are then given by both counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.counts import Counts
from penstock.metrics.measure import measure_batch, unfit_metrics
from penstock.metrics.phase_stats import PhaseStats
from penstock.metrics.statistics import Stats, Values
from penstock.metrics.token_counting import ServerCounter
from penstock.records.log import RunLog
from penstock.records.read_sections import Advance, read_sections
from penstock.records.section import Section
from penstock.scratch import Scratch

TOKEN_METRICS = (
    "inter_token_latency",
    "time_per_output_token",
    "output_token_throughput_per_user",
    "e2e_output_token_throughput",
    "output_token_throughput",
    "input_token_throughput",
    "total_token_throughput",
)
"""Metrics that are given by both counts."""
_RECORD_METRICS = (*TOKEN_METRICS, "output_sequence_length", "input_sequence_length")
_TOLERANCE = 0.10
_UNSEEN_OUTPUT = 1
"""Output tokens per choice that the server may count although they have no text: the end of the sequence."""
_UNSEEN_INPUT = 50
"""Input tokens per request that the server may count although they are not in the body: the chat template."""


class CountComparison(msgspec.Struct, frozen=True):
    """The total counts of the requests that both sides counted."""

    requests: int
    server: int
    client: int
    ratio: float | None
    """server / client; None if the client counted 0."""
    agrees: bool


class TokenAgreement(msgspec.Struct, omit_defaults=True):
    output: CountComparison | None
    """None if no request has both counts."""
    input: CountComparison | None
    by_client_count: dict[str, Stats] | None = None
    """The token metrics by the client's count; None if the counts agree."""
    by_server_count: dict[str, Stats] | None = None

    @property
    def agrees(self) -> bool:
        return not any(totals and not totals.agrees for totals in (self.output, self.input))

    def disagreements(self) -> Iterator[tuple[str, *tuple[str, ...]]]:
        """Yield a sentence for each pair of totals that do not agree, and the metrics that depend on them."""
        if self.output is not None and not self.output.agrees:
            sentence = (
                f"{_difference(self.output, 'output')}, so inter-token latency, time per output token "
                "and token throughput depend on the count. They use the client's; --use-server-token-count takes the "
                "server's, and --tokenizer selects the client's tokenizer."
            )
            yield (sentence, *(tag for tag in TOKEN_METRICS if tag != "input_token_throughput"))
        if self.input is not None and not self.input.agrees:
            sentence = (
                f"{_difference(self.input, 'input')}, so input token throughput depends on the count. It uses the "
                "client's, which excludes the chat template, images and audio; --use-server-token-count takes the server's, "
                "and --tokenizer selects the client's tokenizer."
            )
            yield sentence, "input_token_throughput", "total_token_throughput"


def _difference(totals: CountComparison, kind: str) -> str:
    if not totals.client:
        return f"The server counted {totals.server:,} {kind} tokens and the client none"
    percent = 100 * (totals.server - totals.client) / totals.client
    comparative = "more" if percent > 0 else "fewer"
    return (
        f"The server counted {totals.server:,} {kind} tokens, {abs(percent):.0f} % {comparative} than the client "
        f"({totals.client:,})"
    )


class _Totals(Counts):
    requests: int = 0
    server: int = 0
    client: int = 0
    unseen: int = 0

    def add(self, server: Values, client: Values, unseen: Values) -> None:
        """Add the counts of requests where both are known, and the tokens that only the server can count."""
        both = ~np.isnan(server + client)
        self.requests += int(both.sum())
        self.server += int(server[both].sum())
        self.client += int(client[both].sum())
        self.unseen += int(unseen[both].sum())

    def comparison(self) -> CountComparison | None:
        if not self.requests:
            return None
        limit = max(_TOLERANCE * self.client, self.unseen)
        return CountComparison(
            requests=self.requests,
            server=self.server,
            client=self.client,
            ratio=self.server / self.client if self.client else None,
            agrees=abs(self.server - self.client) <= limit,
        )


class TokenTotals:
    """Adds up the counts of the server and of the client."""

    def __init__(self) -> None:
        self._output = _Totals()
        self._input = _Totals()

    def add(self, batch: Batch, table: MeasureTable) -> None:
        """Add requests and their metrics, which are by the client's count."""
        self._output.add(batch.completion, table.get("output_sequence_length"), _UNSEEN_OUTPUT * batch.choices)
        self._input.add(batch.prompt, table.get("input_sequence_length"), np.full(batch.size, _UNSEEN_INPUT))

    def merge(self, other: TokenTotals) -> None:
        self._output.merge(other._output)
        self._input.merge(other._input)

    def agreement(self) -> TokenAgreement | None:
        """Return the comparison; None if no request has both counts."""
        output, input_ = self._output.comparison(), self._input.comparison()
        return None if output is None and input_ is None else TokenAgreement(output, input_)


def token_metrics(metrics: dict[str, Stats]) -> dict[str, Stats]:
    return {tag: metrics[tag] for tag in TOKEN_METRICS if tag in metrics}


def token_metrics_by_server(log: RunLog, scratch: Scratch, processes: int) -> dict[str, Stats]:
    """Compute the token metrics of the profiling phases by the server's count, in another pass over the records."""
    total = PhaseStats(scratch, with_timeline=False)
    sections = [(section, scratch.another()) for section in log.sections()]
    for of_section in read_sections(sections, partial(_stats_by_server, log), processes=processes):
        total.merge(of_section)
    return token_metrics(total.metrics())


def _stats_by_server(log: RunLog, part: tuple[Section, Scratch], _advance: Advance) -> PhaseStats:
    section, scratch = part
    counter = ServerCounter()
    profiling = [phase.kind != "warmup" for phase in log.phases]
    stats = PhaseStats(scratch, with_timeline=False)
    unfit = unfit_metrics(log.header)
    for records in section.batches():
        if profiling[records[0].phase]:
            batch = Batch(records)
            stats.add_batch(batch, measure_batch(batch, counter.count(records), unfit).only(_RECORD_METRICS))
    return stats
