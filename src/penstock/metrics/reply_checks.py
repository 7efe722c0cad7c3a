"""Detect replies whose form makes metrics misleading, and describe them in notes.

Replies can have several tokens per chunk, can be longer than requested, and can arrive in one burst at their end.
"""

from __future__ import annotations

import numpy as np

from penstock.metrics.batch import Batch, MeasureTable
from penstock.metrics.counts import Counts
from penstock.metrics.statistics import Values
from penstock.records.header import RunHeader

_TOKENS_PER_CHUNK = 1.1
_LENGTH_TOLERANCE = 0.05
_OVERLONG_SHARE = 0.05
"""Share of overlong replies from which on the limit seems to be ignored. A different tokenizer makes single replies longer."""
_BURST_SHARE = 0.05
"""A burst has its first content within this share of the latency before its last."""
_BURST_GAP_NS = 1_000_000
"""Chunks of a burst are closer together than this on average. Without this limit, a short reply after a long prefill would
be a burst; no model generates a token in less."""


class _Counts(Counts):
    chunked_tokens: int = 0
    chunks: int = 0
    chunked_choices: int = 0
    limited: int = 0
    overlong: int = 0
    streams: int = 0
    bursts: int = 0
    paced: int = 0
    without_chunk_usage: int = 0


class ReplyChecks:
    """Counts over the successful requests of the profiling phases."""

    def __init__(self, header: RunHeader) -> None:
        endpoint = header.settings.endpoint
        self._server_token_count = endpoint.server_token_count
        self._per_chunk_usage = endpoint.per_chunk_usage
        # The API of the other endpoints has one name for the limit, and recorded payloads have their own.
        has_two_names = len(header.declaration.length_limits) > 1
        self._checks_limit = has_two_names and not endpoint.legacy_max_tokens and not header.payload_files
        self._counts = _Counts()

    def add(self, batch: Batch, table: MeasureTable) -> None:
        """Add the successful requests of a batch."""
        counts = self._counts
        ok, choices, requested = batch.succeeded, batch.choices, batch.requested
        length = table.get("output_sequence_length")
        tokens = np.where(np.isnan(batch.completion), length, batch.completion)
        counted = ok & ~np.isnan(tokens)
        limited = counted & (requested > 0)
        counts.limited += int(limited.sum())
        # The end of the sequence may count as a token of each choice.
        counts.overlong += int((limited & (tokens > (1 + _LENGTH_TOLERANCE) * requested + choices)).sum())
        streams = ok & batch.has_stamps
        chunks = batch.pieces
        chunked = streams & counted
        counts.chunked_tokens += int((tokens - _hidden_reasoning(batch))[chunked].sum())
        counts.chunks += int(chunks[chunked].sum())
        counts.chunked_choices += int(choices[chunked].sum())
        several = streams & (chunks > 1)
        counts.streams += int(several.sum())
        length_ns = np.minimum(_BURST_SHARE * batch.last, _BURST_GAP_NS * (chunks - 1))
        counts.bursts += int((several & (batch.last - batch.first <= length_ns)).sum())
        paced = streams & (batch.stamp_counts > 1)
        counts.paced += int(paced.sum())
        if self._per_chunk_usage:
            counts.without_chunk_usage += int((paced & np.isnan(batch.get("head_tokens"))).sum())

    def merge(self, other: ReplyChecks) -> None:
        self._counts.merge(other._counts)

    def notes(self) -> list[str]:
        counts, notes = self._counts, []
        if 2 * counts.bursts > counts.streams:
            notes.append(
                f"{counts.bursts:,} of {counts.streams:,} streamed replies with several chunks arrived in one burst at their "
                "end: the server or a proxy buffers the stream, so the time to first token and inter-token latency mean "
                "nothing."
            )
        # Subtract the end of the sequence, which has no chunk.
        if counts.chunked_tokens - counts.chunked_choices > _TOKENS_PER_CHUNK * counts.chunks:
            notes.append(self._chunk_note(counts.chunked_tokens / counts.chunks))
        if self._checks_limit and counts.overlong and counts.overlong >= _OVERLONG_SHARE * counts.limited:
            notes.append(
                f"{counts.overlong:,} of {counts.limited:,} replies are more than 5 % longer than requested: the server seems "
                "to ignore max_completion_tokens; --use-legacy-max-tokens sends max_tokens instead."
            )
        if self._per_chunk_usage and counts.without_chunk_usage:
            notes.append(
                f"{counts.without_chunk_usage:,} of {counts.paced:,} streamed replies have no usage in their chunks, although "
                "--per-chunk-usage asks for it; their inter-token latency counts the first chunk as one token."
            )
        return notes

    def _chunk_note(self, mean: float) -> str:
        start = f"Chunks hold {mean:.1f} tokens on average, "
        if self._per_chunk_usage:
            return f"{start}and inter-token latency excludes those of the first chunk."
        remedy = "time per output token corrects this"
        if self._server_token_count:
            remedy = "--per-chunk-usage corrects this if the server sends usage in every chunk"
        return f"{start}but inter-token latency counts the first chunk as one token and is too low; {remedy}."


def _hidden_reasoning(batch: Batch) -> Values:
    """Return the reasoning tokens that the server counted but did not send."""
    counted = batch.usage("reasoning")
    if np.isnan(counted).all():
        return np.zeros(batch.size)
    sent = np.array([bool(record.reasonings) for record in batch.records], np.bool_)
    return np.where(sent, 0.0, np.nan_to_num(counted))
