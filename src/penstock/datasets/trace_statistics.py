"""Statistics of a trace: lengths, arrivals, and how much of its prompts a prefix cache could reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from penstock.datasets.conversation import Conversation, Turn


class Distribution(msgspec.Struct, frozen=True):
    avg: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


class Arrivals(msgspec.Struct, frozen=True):
    duration_s: float
    """From the first to the last timestamp."""
    rate: float | None
    """Mean requests per second; None for a single moment."""
    peak_rate: int
    """Most requests in one second."""


class Reuse(msgspec.Struct, frozen=True):
    block_size: int
    blocks: int
    """Blocks of all prompts."""
    distinct_blocks: int
    shared_blocks: int
    """Distinct blocks that more than one prompt has."""
    cached_tokens: int
    """Tokens that an unlimited prefix cache has from earlier prompts."""
    cache_hit_rate: float
    """`cached_tokens` as a share of all prompt tokens."""
    shared_length: Distribution
    """Leading tokens of each prompt that an earlier prompt has, too."""
    unique_length: Distribution
    """The other tokens of each prompt."""


class TraceStatistics(msgspec.Struct, frozen=True):
    requests: int
    sessions: int
    """Conversations with several requests."""
    input_length: Distribution | None
    output_length: Distribution | None
    arrivals: Arrivals | None
    """None if a request has neither a timestamp nor an earlier turn with one."""
    reuse: Reuse | None
    """None if the trace has no hash ids."""


def trace_statistics(conversations: Sequence[Conversation], block_size: int) -> TraceStatistics:
    turns, times = _in_order(conversations)
    inputs = [turn.prompt.length for turn in turns if turn.prompt is not None]
    outputs = [turn.output_tokens for turn in turns if turn.output_tokens is not None]
    return TraceStatistics(
        requests=len(turns),
        sessions=sum(len(each.turns) > 1 for each in conversations),
        input_length=_distribution(inputs) if inputs else None,
        output_length=_distribution(outputs) if outputs else None,
        arrivals=None if times is None else _arrivals(times),
        reuse=_reuse(turns, block_size),
    )


def _in_order(conversations: Sequence[Conversation]) -> tuple[list[Turn], list[float] | None]:
    """Return the turns in the order of their times, and their times. A turn without a time follows the one before it."""
    timed: list[tuple[float, Turn]] = []
    for conversation in conversations:
        time = None
        for turn in conversation.turns:
            if turn.timestamp_ms is not None:
                time = turn.timestamp_ms
            elif time is not None:
                time += turn.delay_ms
            if time is None:
                return [turn for each in conversations for turn in each.turns], None
            timed.append((time, turn))
    timed.sort(key=lambda pair: pair[0])
    return [turn for _, turn in timed], [time for time, _ in timed]


def _arrivals(times: Sequence[float]) -> Arrivals:
    duration = (times[-1] - times[0]) / 1000
    seconds = Counter(int((time - times[0]) // 1000) for time in times)
    return Arrivals(duration, (len(times) - 1) / duration if duration else None, max(seconds.values()))


def _reuse(turns: Sequence[Turn], block_size: int) -> Reuse | None:
    prompts = [turn.prompt for turn in turns if turn.prompt is not None]
    users = Counter(block for prompt in prompts for block in set(prompt.hash_ids))
    if not users:
        return None
    seen: set[int] = set()
    shared: list[int] = []
    for prompt in prompts:
        blocks = next((n for n, block in enumerate(prompt.hash_ids) if block not in seen), len(prompt.hash_ids))
        shared.append(min(blocks * block_size, prompt.length))
        seen.update(prompt.hash_ids)
    unique = [prompt.length - cached for prompt, cached in zip(prompts, shared, strict=True)]
    return Reuse(
        block_size=block_size,
        blocks=sum(len(prompt.hash_ids) for prompt in prompts),
        distinct_blocks=len(users),
        shared_blocks=sum(count > 1 for count in users.values()),
        cached_tokens=sum(shared),
        cache_hit_rate=sum(shared) / sum(prompt.length for prompt in prompts),
        shared_length=_distribution(shared),
        unique_length=_distribution(unique),
    )


def _distribution(values: Sequence[float]) -> Distribution:
    import numpy as np

    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Distribution(sum(values) / len(values), min(values), p50, p90, p99, max(values))
