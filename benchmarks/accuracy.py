"""Compare reported times with the server's own measurements in the same run.

python -m benchmarks.accuracy
"""

from __future__ import annotations

from benchmarks.far_end import far_end, line, profile

_COMMON = (
    "--streaming",
    "--isl",
    "50",
    "--num-dataset-entries",
    "100",
    "--random-seed",
    "1",
    "--use-server-token-count",
)


def compare(name: str, load: tuple[str, ...], timing: tuple[int, int, int], limits_ms: tuple[float, float]) -> bool:
    with far_end(*timing) as server, profile(server.url, *_COMMON, *load) as run:
        measured = server.stop_and_read_stats()["ttft_us"]
        passed = True
        for stat, limit in zip(("p50", "p99"), limits_ms, strict=True):
            reported, actual = run.value("time_to_first_token", stat), measured[stat] / 1000
            error = abs(reported - actual)
            within_limit = error <= limit
            passed = passed and within_limit
            text = f"off by {error:.3f} ms (at most {limit:g})"
            line(f"{name}: TTFT {stat}", f"{reported:.3f} ms", f"server {actual:.3f} ms", text, within_limit)
    return passed


def many_streams() -> bool:
    """Read 500 streams of 100 tokens per second each: 50,000 events per second on one core."""
    load = ("--concurrency", "500", "--request-count", "3000", "--osl", "100", "--workers-max", "1")
    with far_end(100, 50_000, 10_000) as server, profile(server.url, *_COMMON, *load) as run:
        stats = server.stop_and_read_stats()
        verdict = run.certificate["verdict"]
        gap = run.value("inter_token_latency")
        cpu = run.certificate["figures"]["cpu_share"]
        within_limit: bool = verdict == "VALID"
        reference = f"ITL {gap:.3f} ms, server {stats['gap_us']['avg'] / 1000:.3f} ms"
        line(
            "500 streams x 100 tokens/s, one core: certificate",
            verdict,
            reference,
            f"{cpu:.0%} of a core",
            within_limit,
        )
        for reason in run.certificate["reasons"]:
            print(f"      {reason}")
    return within_limit


def main() -> bool:
    burst = ("--concurrency", "64", "--osl", "100", "--request-count", "30000")
    paced = ("--concurrency", "100", "--osl", "100", "--request-count", "1000")
    return all(
        [
            compare("client saturated, bursts", burst, (100, 0, 0), (0.1, 0.5)),
            compare("100 paced streams", paced, (100, 50_000, 10_000), (0.1, 1.0)),
            many_streams(),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(not main())
