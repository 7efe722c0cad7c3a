"""Flags for the warmup: requests before the measured ones, under the same load or another one."""

from __future__ import annotations

from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS
from penstock.settings.flags.flag import Flag, Group

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
        Flag(
            "--num-warmup-sessions",
            "int",
            "Send this many conversations first, all turns of each.",
            target="warmup.conversations",
            metavar="N",
            ge=1,
        ),
        Flag(
            "--warmup-duration",
            "float",
            "Send requests for this many seconds first. With several limits, the first one that is reached ends the warmup.",
            target="warmup.duration_s",
            metavar="SECONDS",
            gt=0,
            hard_min=0.001,
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
        Flag(
            "--warmup-concurrency",
            "int",
            "Number of requests in flight at once during the warmup.",
            target="warmup.concurrency",
            metavar="N",
            default="--concurrency",
            ge=1,
        ),
        Flag(
            "--warmup-prefill-concurrency",
            "int",
            "Number of requests that may wait for the first part of their reply at once during the warmup.",
            target="warmup.prefill_concurrency",
            metavar="N",
            default="--prefill-concurrency",
            ge=1,
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
        Flag(
            "--warmup-concurrency-ramp-duration",
            "float",
            "Raise the concurrency of the warmup from 1 to its value in equal steps over this many seconds.",
            target="warmup.concurrency_ramp_s",
            metavar="SECONDS",
            default="--concurrency-ramp-duration",
            gt=0,
            hard_min=0.001,
        ),
        Flag(
            "--warmup-prefill-concurrency-ramp-duration",
            "float",
            "Raise the prefill concurrency of the warmup from 1 to its value in equal steps over this many seconds.",
            target="warmup.prefill_ramp_s",
            metavar="SECONDS",
            default="--prefill-concurrency-ramp-duration",
            gt=0,
            hard_min=0.001,
        ),
        Flag(
            "--warmup-request-rate-ramp-duration",
            "float",
            "Raise the rate of the warmup from 0 to its value over this many seconds.",
            target="warmup.rate_ramp_s",
            metavar="SECONDS",
            default="--request-rate-ramp-duration",
            gt=0,
            hard_min=0.001,
        ),
    ),
)
