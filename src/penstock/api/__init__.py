"""The Python API: benchmarks from a script, a notebook or a test.

    import penstock

    with penstock.mock(ttft=20, itl=5) as url:
        result = penstock.profile(model="test", url=url, streaming=True, concurrency=4, request_count=40)
    print(result.metrics["time_to_first_token"].p99, result.certificate.verdict)

Nothing here prints, forks the calling process, or touches its signal handlers, garbage collector and event loop: workers are
new interpreters. A mistake in an option raises `UserError` with the sentence that the command line would print.
"""

from penstock.api.functions import Runner, compare, mock, profile, sweep
from penstock.api.result import PointResult, Request, Result, SweepResult

__all__ = ["PointResult", "Request", "Result", "Runner", "SweepResult", "compare", "mock", "profile", "sweep"]
