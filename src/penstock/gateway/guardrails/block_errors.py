"""Error types, messages and stream events for blocked content. The dialect of the route forms the event."""

from __future__ import annotations

from penstock.gateway.routes import BY_NAME, Route


def block_type(*, timed_out: bool) -> str:
    return "inspection_timeout" if timed_out else "content_filter"


def block_code(*, too_long: bool) -> str | None:
    return "stream_too_long" if too_long else None


def block_message(side: str, guardrail: str | None, *, timed_out: bool = False, too_long: bool = False) -> str:
    """`side` is "request" or "response"."""
    if too_long:
        return f"The {side} was blocked because it is too long to be inspected."
    suffix = "" if guardrail is None else f" (guardrail '{guardrail}')"
    if timed_out:
        return f"Content inspection of the {side} timed out{suffix}."
    return f"The {side} was blocked by content policy{suffix}."


def block_event(
    route: Route,
    guardrail: str | None,
    response_id: str | None,
    sequence: int,
    *,
    model: str = "",
    timed_out: bool = False,
    too_long: bool = False,
) -> bytes:
    """Return the SSE event that ends a stream after part of it has been released."""
    message = block_message("response", guardrail, timed_out=timed_out, too_long=too_long)
    kind, code = block_type(timed_out=timed_out), block_code(too_long=too_long)
    return BY_NAME[route].block_event(kind, message, sequence, response_id, model, code)
