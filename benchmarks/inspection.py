"""Check that inspection time is linear in the length of hostile texts.

Each text is inspected at two lengths in one run; the second is eight times the first. Quadratic time would take 64 times as
long.

    python -m benchmarks.inspection
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from time import process_time

from benchmarks.far_end import line
from penstock.gateway.dialects.sse_frames import Frame
from penstock.gateway.guardrails import LocalPolicy, SearchBudgets
from penstock.gateway.guardrails.detectors import DETECTORS
from penstock.gateway.guardrails.window import WindowGuard
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import Detector, GuardrailSpec, Pattern
from penstock.gateway.routes import BY_NAME

_GROWTH = 8
_MAX_GROWTH = 20.0
"""Between 8 for linear and 64 for quadratic time."""
_UNITS = ("1 ", "a@", ":", "1:", "a::1 ", "1.", "sk-", "eyJa.", "-----BEGIN PRIVATE KEY-----", "::1 ")
_EMAIL = GuardrailSpec(name="mail", kind="pii", detectors=(("email", "mask"),))
_MONITORED = GuardrailSpec(
    name="monitored",
    kind="keyword",
    patterns=(Pattern(kind="regex", value=r"secret\s+plan"),),
    enforcement="monitor",
)


def _request(spec: GuardrailSpec, content: object) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    LocalPolicy([spec], GuardrailMode()).inspect_request(BY_NAME["chat"], body, SearchBudgets(60.0))


def _detector_case(name: Detector, unit: str) -> Callable[[int], None]:
    spec = GuardrailSpec(name=name, kind="pii", detectors=((name, "mask"),))
    return lambda size: _request(spec, unit * (size // len(unit)))


def _masked_parts(size: int) -> None:
    _request(_EMAIL, [{"type": "text", "text": "a@b.co"}] * (size // 20))


def _hidden_matches(size: int) -> None:
    _request(_EMAIL, "a＠b.co " * (size // 7))


def _hidden_matches_in_a_stream(size: int) -> None:
    guard = LocalPolicy([_EMAIL], GuardrailMode(stream_mode="window", max_buffer_bytes=1 << 30)).stream("chat")
    assert isinstance(guard, WindowGuard)
    chunk = {"choices": [{"index": 0, "delta": {"content": "a＠b.co " * (size // 7)}}]}
    guard._feed([Frame(f"data: {json.dumps(chunk)}\n\n".encode())])


def _monitored_stream(size: int) -> None:
    guard = LocalPolicy([_MONITORED, _EMAIL], GuardrailMode(stream_mode="window")).stream("chat")
    assert guard is not None
    chunk = json.dumps(
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "harmless "}}]}
    )
    for _ in range(size // 20):
        guard.feed([Frame(f"data: {chunk}\n\n".encode())], 0)
    asyncio.run(guard.finish(None))


def _seconds(inspect: Callable[[int], None], size: int) -> float:
    best = float("inf")
    for _ in range(3):
        started = process_time()
        inspect(size)
        best = min(best, process_time() - started)
    return best


def main() -> bool:
    cases = {f"{name} in {unit!r}": _detector_case(name, unit) for name in DETECTORS for unit in _UNITS}
    cases |= {"hidden matches": _hidden_matches, "hidden matches in a stream": _hidden_matches_in_a_stream}
    cases |= {"masks in parts": _masked_parts, "a stream with a monitored regex": _monitored_stream}
    growth: dict[str, float] = {}
    for name, inspect in cases.items():
        inspect(2_000)
        growth[name] = _seconds(inspect, 25_000 * _GROWTH) / max(_seconds(inspect, 25_000), 1e-4)
    worst = max(growth, key=growth.__getitem__)
    for name in {worst, *(name for name in cases if growth[name] > _MAX_GROWTH)}:
        line(
            f"inspecting {name}",
            f"{growth[name]:.1f} times as long",
            f"{_GROWTH} times as much text",
            f"at most {_MAX_GROWTH:.0f} (the worst of {len(cases)})",
            growth[name] <= _MAX_GROWTH,
        )
    return growth[worst] <= _MAX_GROWTH


if __name__ == "__main__":
    sys.exit(not main())
