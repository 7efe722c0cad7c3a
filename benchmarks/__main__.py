"""All benchmarks, one line a figure. A line says what was measured, against what, and by which factor.

python -m benchmarks
"""

from __future__ import annotations

from benchmarks import accuracy, compare, gateway, inspection, memory, replay, responses, startup, throughput


def main() -> int:
    results = [
        part()
        for part in (
            startup.main,
            throughput.main,
            responses.main,
            accuracy.main,
            compare.main,
            memory.main,
            replay.main,
            gateway.main,
            inspection.main,
        )
    ]
    print("every target met" if all(results) else "some targets were missed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
