"""Statistics of traces, against values that are computed by hand."""

from __future__ import annotations

from penstock.datasets.conversation import Conversation, PromptShape, Turn
from penstock.datasets.trace_statistics import trace_statistics


def row(time: float | None, length: int, *hash_ids: int, output: int | None = None, delay: float = 0.0) -> Turn:
    return Turn(timestamp_ms=time, delay_ms=delay, prompt=PromptShape(length, hash_ids), output_tokens=output)


def conversation(*turns: Turn) -> Conversation:
    return Conversation(id="c", turns=turns)


def test_reuse_follows_the_order_of_the_times() -> None:
    found = trace_statistics(
        [
            conversation(row(3000, 25, 1, 2, 4)),  # blocks 1 and 2 are cached, and 5 tokens are not
            conversation(row(1000, 30, 1, 2, 3), row(None, 30, 1, 2, 3, delay=1000)),  # the second is cached whole
        ],
        block_size=10,
    )
    assert found.reuse is not None
    assert found.arrivals is not None
    assert (found.requests, found.sessions, found.output_length) == (3, 1, None)
    assert (found.arrivals.duration_s, found.arrivals.rate, found.arrivals.peak_rate) == (2.0, 1.0, 1)
    assert (found.reuse.blocks, found.reuse.distinct_blocks, found.reuse.shared_blocks) == (9, 4, 3)
    assert (found.reuse.cached_tokens, found.reuse.cache_hit_rate) == (50, 50 / 85)
    assert found.reuse.shared_length.max == 30


def test_block_after_a_new_block_is_not_reused() -> None:
    found = trace_statistics([conversation(row(0, 20, 1, 2)), conversation(row(1, 20, 3, 2))], block_size=10)
    assert found.reuse is not None
    assert found.reuse.cached_tokens == 0


def test_trace_without_times_and_hashes_has_lengths_only() -> None:
    found = trace_statistics([conversation(row(None, 4, output=2)), conversation(row(5, 8))], block_size=10)
    assert (found.arrivals, found.reuse) == (None, None)
    assert found.input_length is not None
    assert found.output_length is not None
    assert (found.input_length.avg, found.input_length.p50, found.output_length.max) == (6, 6, 2)
