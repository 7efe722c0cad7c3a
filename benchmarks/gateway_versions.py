"""Compare the gateway with another version of Penstock in one run: throughput, CPU time, added latency and added TTFT.

REFERENCE_PENSTOCK is the program of the other version, or a checkout of it, which runs with the packages of this environment:

    git worktree add /tmp/penstock-0.1 dde3be9
    REFERENCE_PENSTOCK=/tmp/penstock-0.1 python -m benchmarks.gateway_versions

Both gateways run with one worker, on the same cores. The measurements alternate (new, old, old, new), because the speed of a
machine changes; of throughput and latency the best counts, of CPU time the mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from benchmarks.far_end import line
from benchmarks.gateway import MAX_ADDED_MS, MAX_ADDED_TTFT_MS, Server, gateway, latency, model_server, rate

_MIN_RATIO = 0.95
_MAX_CPU_RATIO = 1.05
_REQUESTS = 20_000
_STREAMS = 5_000
_STREAM = ("--streaming",)


def _alternate(measure: Callable[[Server], float], new: Server, old: Server) -> tuple[list[float], list[float]]:
    first, second, third, fourth = [measure(server) for server in (new, old, old, new)]
    return [first, fourth], [second, third]


def _compare_throughput(name: str, new: Server, old: Server, requests: int, *flags: str) -> bool:
    """Compare requests per second, and CPU time per request of all processes of the gateways."""
    seconds: dict[str, float] = {new.url: 0.0, old.url: 0.0}

    def measure(server: Server) -> float:
        before = server.cpu_s()
        result = rate(server.url, requests, 32, *flags)
        seconds[server.url] += server.cpu_s() - before
        return result

    new_rate, old_rate = map(max, _alternate(measure, new, old))
    ratio = new_rate / old_rate
    fast = ratio >= _MIN_RATIO
    line(
        name, f"{new_rate:,.0f} req/s", f"reference {old_rate:,.0f}", f"{ratio:.2f} times (at least {_MIN_RATIO})", fast
    )
    new_us, old_us = (seconds[server.url] / (2 * requests) * 1e6 for server in (new, old))
    ratio = new_us / old_us
    cheap = ratio <= _MAX_CPU_RATIO
    text = f"{ratio:.2f} times (at most {_MAX_CPU_RATIO})"
    line(f"{name}, CPU time", f"{new_us:.0f} µs/request", f"reference {old_us:.0f} µs", text, cheap)
    return fast and cheap


def _compare_latency(name: str, direct_url: str, new: Server, old: Server, tag: str, limit: float, *flags: str) -> bool:
    direct = latency(direct_url, tag, *flags)
    new_ms, old_ms = map(min, _alternate(lambda server: latency(server.url, tag, *flags), new, old))
    added, reference = new_ms - direct, old_ms - direct
    text = f"{added / reference:.2f} times (at most {limit} ms)"
    line(f"added {name}, p50", f"{added:.3f} ms", f"reference {reference:.3f} ms", text, added <= limit)
    return added <= limit


def main() -> bool:
    program = os.environ.get("REFERENCE_PENSTOCK")
    if not program:
        raise SystemExit("Set REFERENCE_PENSTOCK to the program or to a checkout of another version of Penstock.")
    results = []
    with model_server(20) as server:
        with gateway(server.url) as new, gateway(server.url, program=program) as old:
            results.append(_compare_throughput("replies", new, old, _REQUESTS))
            results.append(_compare_throughput("streams of 20 tokens", new, old, _STREAMS, *_STREAM))
            results.append(_compare_latency("latency", server.url, new, old, "request_latency", MAX_ADDED_MS))
            results.append(
                _compare_latency("TTFT", server.url, new, old, "time_to_first_token", MAX_ADDED_TTFT_MS, *_STREAM)
            )
        with gateway(server.url, guardrail=True) as new, gateway(server.url, guardrail=True, program=program) as old:
            results.append(_compare_throughput("replies with a guardrail", new, old, _REQUESTS))
            results.append(_compare_throughput("streams with a guardrail", new, old, _STREAMS, *_STREAM))
    return all(results)


if __name__ == "__main__":
    raise SystemExit(not main())
