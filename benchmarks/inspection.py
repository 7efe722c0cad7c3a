"""Whether the time of an inspection grows with the text and no faster, on texts that are made to be hard.

Each is inspected at two lengths in one run; the second has eight times as much in it. A time that grows with the square would
be 64 times the first.

    python -m benchmarks.inspection
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import thread_time

from benchmarks.far_end import line
from penstock.gateway.guardrails import Guards, SearchBudgets
from penstock.gateway.guardrails.detectors import DETECTORS
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from penstock.gateway.sse_frames import Frame

_GROWTH = 8
_MOST = 20.0
"""Between the 8 of a time that grows with the text and the 64 of one that grows with its square."""
_UNITS = ("1 ", "a@", ":", "1:", "a::1 ", "1.", "sk-", "eyJa.", "-----BEGIN PRIVATE KEY-----", "::1 ")
_EMAIL = GuardrailSpec(name="mail", kind="pii", detectors=(("email", "mask"),))
_WATCHED = GuardrailSpec(
    name="watched",
    kind="keyword",
    patterns=(Pattern(kind="regex", value=r"secret\s+plan"),),
    enforcement="monitor",
)


def _request(spec: GuardrailSpec, content: object) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    Guards([spec], GuardrailMode()).request(body, SearchBudgets(60.0))


def _detector(name: str, unit: str) -> Callable[[int], None]:
    spec = GuardrailSpec(name=name, kind="pii", detectors=((name, "mask"),))
    return lambda size: _request(spec, unit * (size // len(unit)))


def _parts(size: int) -> None:
    _request(_EMAIL, [{"type": "text", "text": "a@b.co"}] * (size // 20))


def _stream(size: int) -> None:
    guard = Guards([_WATCHED, _EMAIL], GuardrailMode(stream_mode="window")).stream("chat")
    assert guard is not None
    chunk = json.dumps(
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "harmless "}}]}
    )
    for _ in range(size // 20):
        guard.feed([Frame(f"data: {chunk}\n\n".encode())], 0)
    guard.finish(None)


def _seconds(inspect: Callable[[int], None], size: int) -> float:
    best = float("inf")
    for _ in range(3):
        began = thread_time()
        inspect(size)
        best = min(best, thread_time() - began)
    return best


def main() -> bool:
    cases = {f"{name} in {unit!r}": _detector(name, unit) for name in DETECTORS for unit in _UNITS}
    cases |= {"masks in parts": _parts, "a stream under a watched regex": _stream}
    growth: dict[str, float] = {}
    for name, inspect in cases.items():
        inspect(2_000)
        growth[name] = _seconds(inspect, 25_000 * _GROWTH) / max(_seconds(inspect, 25_000), 1e-4)
    worst = max(growth, key=growth.__getitem__)
    for name in {worst, *(name for name in cases if growth[name] > _MOST)}:
        line(
            f"inspecting {name}",
            f"{growth[name]:.1f} times as long",
            f"{_GROWTH} times as much text",
            f"at most {_MOST:.0f} (the worst of {len(cases)})",
            growth[name] <= _MOST,
        )
    return growth[worst] <= _MOST


if __name__ == "__main__":
    sys.exit(not main())
