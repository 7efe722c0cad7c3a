"""Detect replies whose form makes metrics misleading, and describe them in notes.

Replies can have several tokens per chunk, can be longer than requested, and can arrive in one burst at their end.
"""

from __future__ import annotations

from penstock.metrics.reply_values import choice_count, requested_length
from penstock.records.header import RunHeader
from penstock.records.record import Record

__all__ = ["ReplyChecks"]

_TOKENS_PER_CHUNK = 1.1
_LENGTH_TOLERANCE = 0.05
_OVERLONG_SHARE = 0.05
"""Share of overlong replies from which on the limit seems to be ignored. A different tokenizer makes single replies longer."""
_BURST_SHARE = 0.05
"""A burst has its first content within this share of the latency before its last."""
_BURST_GAP_NS = 1_000_000
"""Chunks of a burst are closer together than this on average. Without this limit, a short reply after a long prefill would
be a burst; no model generates a token in less."""


class ReplyChecks:
    """Counts over the successful requests of the profiling phases."""

    def __init__(self, header: RunHeader) -> None:
        endpoint = header.settings.endpoint
        self._server_token_count = endpoint.server_token_count
        self._per_chunk_usage = endpoint.per_chunk_usage
        # The API of the other endpoints has one name for the limit, and recorded payloads have their own.
        has_two_names = len(header.declaration.length_limits) > 1
        self._checks_limit = has_two_names and not endpoint.legacy_max_tokens and not header.payload_files
        self._chunked_tokens = 0
        self._chunks = 0
        self._chunked_choices = 0
        self._limited = 0
        self._overlong = 0
        self._streams = 0
        self._bursts = 0
        self._paced = 0
        self._without_chunk_usage = 0

    def add(self, record: Record, values: dict[str, float]) -> None:
        """Add a successful request and its metrics."""
        tokens = _generated_tokens(record, values)
        choices = choice_count(record)
        requested = requested_length(record)
        if requested and tokens is not None:
            self._limited += 1
            # The end of the sequence may count as a token of each choice.
            self._overlong += tokens > (1 + _LENGTH_TOLERANCE) * requested + choices
        if not record.streamed or not record.stamps:
            return
        chunks = sum(record.pieces)
        if tokens is not None:
            self._chunked_tokens += tokens - _hidden_reasoning(record)
            self._chunks += chunks
            self._chunked_choices += choices
        if chunks > 1:
            self._streams += 1
            self._bursts += _is_burst(record, chunks)
        if len(record.stamps) > 1:
            self._paced += 1
            self._without_chunk_usage += record.head_tokens is None

    def notes(self) -> list[str]:
        notes = []
        if 2 * self._bursts > self._streams:
            notes.append(
                f"{self._bursts:,} of {self._streams:,} streamed replies with several chunks arrived in one burst at their "
                "end: the server or a proxy buffers the stream, so the time to first token and inter-token latency mean "
                "nothing."
            )
        # Subtract the end of the sequence, which has no chunk.
        if self._chunked_tokens - self._chunked_choices > _TOKENS_PER_CHUNK * self._chunks:
            notes.append(self._chunk_note(self._chunked_tokens / self._chunks))
        if self._checks_limit and self._overlong and self._overlong >= _OVERLONG_SHARE * self._limited:
            notes.append(
                f"{self._overlong:,} of {self._limited:,} replies are more than 5 % longer than requested: the server seems "
                "to ignore max_completion_tokens; --use-legacy-max-tokens sends max_tokens instead."
            )
        if self._per_chunk_usage and self._without_chunk_usage:
            notes.append(
                f"{self._without_chunk_usage:,} of {self._paced:,} streamed replies have no usage in their chunks, although "
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


def _generated_tokens(record: Record, values: dict[str, float]) -> int | None:
    """Return the output tokens by the server's count, or by the client's if there is no other."""
    if record.usage is not None and record.usage.completion is not None:
        return record.usage.completion
    length = values.get("output_sequence_length")
    return None if length is None else int(length)


def _hidden_reasoning(record: Record) -> int:
    """Return the reasoning tokens that the server counted but did not send."""
    if record.usage is None or record.reasonings:
        return 0
    return record.usage.reasoning or 0


def _is_burst(record: Record, chunks: int) -> bool:
    first, last = record.stamps[0], record.stamps[-1]
    return last - first <= min(_BURST_SHARE * last, _BURST_GAP_NS * (chunks - 1))
