"""Token counts of the server, under any of the names that servers give them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.endpoints.reply import Usage

__all__ = ["WireUsage", "read_usage", "usage_of"]

_LARGEST = 1 << 62
Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class Details(msgspec.Struct):
    reasoning_tokens: Count | None = None
    cached_tokens: Count | None = None
    audio_tokens: Count | None = None
    accepted_prediction_tokens: Count | None = None
    rejected_prediction_tokens: Count | None = None


_NO_DETAILS = Details()
_NO_USAGE = Usage()


class WireUsage(msgspec.Struct):
    """A usage object as it is sent, under any of the names in use."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None
    cached_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    prompt_cache_hit_tokens: Count | None = None


def read_usage(usage: WireUsage) -> Usage | None:
    """Token counts under any of the names that servers give them; None when there are none."""
    given = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    made = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    cached = given.cached_tokens
    if cached is None:
        cached = usage.cache_read_input_tokens
    if cached is None:
        cached = usage.prompt_cache_hit_tokens
    if cached is None:
        cached = usage.cached_tokens
    found = Usage(
        usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens,
        usage.total_tokens,
        made.reasoning_tokens,
        cached,
        usage.cache_creation_input_tokens,
        given.audio_tokens,
        made.audio_tokens,
        made.accepted_prediction_tokens,
        made.rejected_prediction_tokens,
    )
    return None if found == _NO_USAGE else found


def usage_of(found: Any) -> WireUsage | None:
    """The forgiving reading of a usage object: counts that are whole numbers, and nothing else."""
    if not isinstance(found, dict) or not found:
        return None
    counts: dict[str, Any] = {}
    for name in WireUsage.__struct_fields__:
        value = found.get(name)
        if not name.endswith("_details"):
            counts[name] = value if _is_count(value) else None
        elif isinstance(value, dict):
            counts[name] = {key: value[key] for key in Details.__struct_fields__ if _is_count(value.get(key))}
    return msgspec.convert(counts, WireUsage)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
