"""The steps of a request that inspect bodies: input, and error texts of an upstream."""

from __future__ import annotations

from typing import Protocol

import orjson

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.guardrails import ContentPolicy, DuplicateKeyError, Inspection
from penstock.gateway.inbound.body import ParsedBody, check_complexity, read_body
from penstock.gateway.inbound.large_bodies import needs_process, read_large_body
from penstock.gateway.refusal import Refusal
from penstock.gateway.replies import blocked


class InspectionRecord(Protocol):
    """Where the steps record their time and their result."""

    def begin_phase(self, phase: str) -> None: ...

    def record_inspection(self, inspection: Inspection) -> None: ...


async def inspect_input(
    guards: ContentPolicy, request: ParsedBody, dialect: Dialect, default_output: int, accounting: InspectionRecord
) -> ParsedBody:
    """Return the request with masks applied. Raise Refusal if it is blocked."""
    accounting.begin_phase("guardrail_in")
    check_complexity(request)
    try:
        inspection = await guards.request(dialect, request.data)
    except DuplicateKeyError:
        raise Refusal(400, "invalid_request_error", "An object in the request body has a duplicate key.") from None
    except ValueError:
        raise Refusal(400, "invalid_request_error", "The request body is not valid JSON.") from None
    accounting.record_inspection(inspection)
    if inspection.blocked_by is not None:
        raise blocked("request", inspection.blocked_by, timed_out=inspection.timed_out)
    masked = inspection.body
    if masked is request.data:
        return request
    if needs_process(masked):
        return await read_large_body(masked, dialect, default_output)
    return read_body(masked, dialect, default_output)


async def inspect_refusal(
    guards: ContentPolicy, dialect: Dialect, refusal: Refusal, accounting: InspectionRecord
) -> None:
    """Inspect an error text of the upstream like a reply: it may quote the request or the model's output."""
    accounting.begin_phase("guardrail_out")
    inspection = await guards.reply(dialect, refusal.body())
    accounting.record_inspection(inspection)
    if inspection.blocked_by is not None:
        raise blocked("response", inspection.blocked_by, timed_out=inspection.timed_out)
    error = orjson.loads(inspection.body)["error"]
    refusal.message, refusal.type = error["message"], error["type"]
    refusal.code, refusal.param = error.get("code"), error.get("param")
