"""Flags for the warmup: requests before the measured ones, under the same load or another one."""

from __future__ import annotations

from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS
from penstock.settings.flags.flag import Flag, Group, count, seconds

__all__ = ["WARMUP"]

WARMUP = Group(
    "Warmup",
    (
        Flag(
            "--warmup-request-count",
            "int",
            "Send this many requests first; results exclude them. The load is that of the run, unless other flags set it.",
            aliases=("--num-warmup-requests",),
            target="warmup.requests",
            metavar="N",
            default="0",
            ge=0,
        ),
        count(
            "--num-warmup-sessions", "Send this many conversations first, all turns of each.", "warmup.conversations"
        ),
        seconds(
            "--warmup-duration",
            "Send requests for this many seconds first. With several limits, the first one that is reached ends the warmup.",
            "warmup.duration_s",
        ),
        Flag(
            "--warmup-grace-period",
            "float",
            "After --warmup-duration, wait this many seconds for the requests in flight, and cancel the others.",
            target="warmup.grace_s",
            metavar="SECONDS",
            default="unlimited",
            ge=0,
            allows_inf=True,
        ),
        count(
            "--warmup-concurrency",
            "Number of requests in flight at once during the warmup.",
            "warmup.concurrency",
            default="--concurrency",
        ),
        count(
            "--warmup-prefill-concurrency",
            "Number of requests that may wait for the first part of their reply at once during the warmup.",
            "warmup.prefill_concurrency",
            default="--prefill-concurrency",
        ),
        Flag(
            "--warmup-request-rate",
            "float",
            "Requests per second during the warmup.",
            target="warmup.rate",
            metavar="PER_SECOND",
            default="the rate of the run",
            gt=0,
            hard_min=0.0001,
        ),
        Flag(
            "--warmup-arrival-pattern",
            "enum",
            "Gaps between the arrivals of the warmup. concurrency_burst has no rate: it starts a request when one ends.",
            target="warmup.arrivals",
            choices=(*ARRIVAL_PATTERNS, "concurrency_burst"),
            default="--arrival-pattern",
        ),
        seconds(
            "--warmup-concurrency-ramp-duration",
            "Raise the concurrency of the warmup from 1 to its value in equal steps over this many seconds.",
            "warmup.concurrency_ramp_s",
            default="--concurrency-ramp-duration",
        ),
        seconds(
            "--warmup-prefill-concurrency-ramp-duration",
            "Raise the prefill concurrency of the warmup from 1 to its value in equal steps over this many seconds.",
            "warmup.prefill_ramp_s",
            default="--prefill-concurrency-ramp-duration",
        ),
        seconds(
            "--warmup-request-rate-ramp-duration",
            "Raise the rate of the warmup from 0 to its value over this many seconds.",
            "warmup.rate_ramp_s",
            default="--request-rate-ramp-duration",
        ),
    ),
)
