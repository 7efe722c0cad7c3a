"""The token counts of a server, under any of the names that servers use."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.endpoints.reply import Usage

_MAX_COUNT = 1 << 62
Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]


class Details(msgspec.Struct):
    reasoning_tokens: Count | None = None
    cached_tokens: Count | None = None
    audio_tokens: Count | None = None
    accepted_prediction_tokens: Count | None = None
    rejected_prediction_tokens: Count | None = None


_NO_DETAILS = Details()
_NO_USAGE = Usage()


class WireUsage(msgspec.Struct):
    """A usage object of a reply, with all names in use."""

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
    """Return the token counts of a usage object; None if it has none."""
    prompt_details = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    completion_details = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    cached = prompt_details.cached_tokens
    if cached is None:
        cached = usage.cache_read_input_tokens
    if cached is None:
        cached = usage.prompt_cache_hit_tokens
    if cached is None:
        cached = usage.cached_tokens
    counts = Usage(
        usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
        usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens,
        usage.total_tokens,
        completion_details.reasoning_tokens,
        cached,
        usage.cache_creation_input_tokens,
        prompt_details.audio_tokens,
        completion_details.audio_tokens,
        completion_details.accepted_prediction_tokens,
        completion_details.rejected_prediction_tokens,
    )
    return None if counts == _NO_USAGE else counts


def parse_usage(value: Any) -> WireUsage | None:
    """Read a usage object without types: take the counts that are whole numbers and ignore everything else."""
    if not isinstance(value, dict) or not value:
        return None
    counts: dict[str, Any] = {}
    for name in WireUsage.__struct_fields__:
        field = value.get(name)
        if not name.endswith("_details"):
            counts[name] = _count(field)
        elif isinstance(field, dict):
            counts[name] = {key: _count(field.get(key)) for key in Details.__struct_fields__}
    return msgspec.convert(counts, WireUsage)


def _count(value: Any) -> int | None:
    """Return a whole number, which some servers write as `12.0`; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_COUNT:
        return None
    return int(value) if value == int(value) else None
