"""Large bodies, without stopping the event loop: other processes read and edit those of requests (see `body_process`).

Joining pieces of bytes releases the interpreter, so a thread does that.
"""

from __future__ import annotations

import msgspec

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.token_estimate import estimate_tokens
from penstock.gateway.guardrails.offload import INLINE_BYTES, has_many_values, run_in_process, run_in_thread
from penstock.gateway.inbound.body import MAX_VALUES, ParsedBody, edit_body, read_body
from penstock.gateway.json_edits import count_values
from penstock.gateway.routes import BY_NAME
from penstock.gateway.upstream.target import Target

LARGE_BYTES = 1 << 20
"""A larger body is read in another process: reading 1 MiB takes up to 30 ms, for a text that consists of escapes."""
_SLICE_BYTES = 1 << 20


# -- in the worker --------------------------------------------------------------------------------------------------------


async def join(pieces: list[bytes]) -> bytes:
    if sum(map(len, pieces)) <= LARGE_BYTES:
        return b"".join(pieces)
    return await run_in_thread(lambda: b"".join(pieces))


def needs_process(data: bytes) -> bool:
    """Return True if `read_large_body` has to be used instead of `read_body`."""
    return len(data) > INLINE_BYTES and (len(data) > LARGE_BYTES or has_many_values(data))


async def read_large_body(data: bytes, dialect: Dialect, default_output: int) -> ParsedBody:
    """Do what `read_body` does, in another process."""
    request: ParsedBody
    request, _ = await run_in_process(_read, (dialect.name, default_output), data)
    request.data = data
    return request


async def large_message(
    request: ParsedBody, target: Target, usage_options: bytes | None, request_id: str, forwarded: bytes = b""
) -> bytes:
    """Return the message to the upstream. Raise Refusal."""
    if usage_options is None and not target.renames and not target.defaults:
        pieces = await run_in_thread(lambda: _replace_model(request, target.upstream_json))
    else:
        bare = msgspec.structs.replace(request, data=b"")
        edits = (bare, target.upstream_json, usage_options, target.renames, target.defaults)
        pieces = [(await run_in_process(_edit, edits, request.data))[1]]
    return await join([target.head(sum(map(len, pieces)), request_id, forwarded), *pieces])


def _replace_model(request: ParsedBody, model: bytes) -> list[bytes]:
    """Return the body in pieces, because a copy of all of it would hold the interpreter."""
    data = request.data
    return [*_slices(data, 0, request.model_start), model, *_slices(data, request.model_end, len(data))]


def _slices(data: bytes, start: int, end: int) -> list[bytes]:
    return [data[position : min(position + _SLICE_BYTES, end)] for position in range(start, end, _SLICE_BYTES)]


# -- in the other process -------------------------------------------------------------------------------------------------


def _read(route: str, default_output: int, body: bytes) -> tuple[ParsedBody, bytes]:
    dialect = BY_NAME[route]
    request = read_body(body, dialect, default_output)
    request.values = count_values(body)
    # The estimate is only for the case that the upstream reports nothing, and takes 0.7 s for a body of short texts.
    is_simple = request.values <= MAX_VALUES
    request.input_tokens = dialect.input_tokens(body) if is_simple else estimate_tokens(len(body))
    request.data = b""
    return request, b""


def _edit(
    request: ParsedBody,
    model: bytes,
    usage_options: bytes | None,
    renames: dict[bytes, bytes],
    defaults: dict[bytes, bytes],
    body: bytes,
) -> tuple[None, bytes]:
    request.data = body
    return None, edit_body(request, model, usage_options, renames, defaults)
