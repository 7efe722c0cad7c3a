"""Run all benchmarks. Each line of the output has a figure, its reference and the ratio of the two.

python -m benchmarks
"""

from __future__ import annotations

from benchmarks import (
    accuracy,
    cluster,
    compare,
    dashboard,
    gateway,
    inspection,
    intervals,
    large_summary,
    liveness,
    memory,
    replay,
    report,
    responses,
    run_memory,
    scaling,
    schedule,
    scrape,
    search,
    startup,
    sweep,
    throughput,
    trace,
)


def main() -> int:
    results = [
        benchmark()
        for benchmark in (
            startup.main,
            sweep.main,
            throughput.main,
            responses.main,
            accuracy.main,
            schedule.main,
            compare.main,
            intervals.main,
            search.main,
            memory.main,
            dashboard.main,
            run_memory.main,
            large_summary.main,
            replay.main,
            scaling.main,
            cluster.main,
            trace.main,
            report.main,
            scrape.main,
            gateway.main,
            inspection.main,
            liveness.main,
        )
    ]
    print("All targets were met." if all(results) else "Some targets were missed.")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
