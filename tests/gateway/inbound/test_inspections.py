"""Inspections whose verdict comes from another service have the interface of local ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.gateway.dialects.base import Dialect
from penstock.gateway.dialects.sse_frames import WholeReply
from penstock.gateway.guardrails import ContentPolicy, Inspection
from penstock.gateway.inbound.body import read_body
from penstock.gateway.inbound.inspections import inspect_input
from penstock.gateway.outbound.filters import Inspect
from penstock.gateway.refusal import Refusal
from penstock.gateway.routes import BY_NAME


class RemotePolicy(ContentPolicy):
    """Asks another service, which answers after a while."""

    has_input = has_output = True

    def __init__(self, blocked_by: str | None = None) -> None:
        self._blocked_by = blocked_by

    async def request(self, dialect: Dialect, body: bytes) -> Inspection:
        del dialect
        await asyncio.sleep(0)
        return Inspection(body.replace(b"secret", b"[MASKED]"), [], blocked_by=self._blocked_by, timed_out=False)

    reply = request


class Records:
    """What the steps of a request tell the accounting."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def begin_phase(self, step: str) -> None:
        self.steps.append(step)

    def record_inspection(self, inspection: Inspection) -> None:
        self.steps.append(inspection.blocked_by)


@pytest.mark.parametrize("blocked_by", [None, "remote"])
def test_verdict_of_another_service_masks_or_blocks(blocked_by: str | None) -> None:
    chat, policy, records = BY_NAME["chat"], RemotePolicy(blocked_by), Records()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "secret"}]}).encode()

    async def inspect() -> tuple[bytes, bytes]:
        request = await inspect_input(policy, read_body(body, chat, 0), chat, 0, records)  # type: ignore[arg-type]
        whole = Inspect(policy, chat, None, records.begin_phase, records.record_inspection)
        [frame] = await whole.feed([WholeReply(body)])  # type: ignore[misc]
        return request.data, frame.raw

    if blocked_by is None:
        assert asyncio.run(inspect()) == (body.replace(b"secret", b"[MASKED]"),) * 2
        assert records.steps == ["guardrail_in", None, "guardrail_out", None, "serialise"]
    else:
        with pytest.raises(Refusal) as refused:
            asyncio.run(inspect())
        assert (refused.value.status, refused.value.type) == (422, "content_filter")
        assert records.steps == ["guardrail_in", "remote"]
