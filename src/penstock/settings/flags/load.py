"""Flags for the load: how many requests, how fast, and for how long."""

from __future__ import annotations

from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS
from penstock.settings.flags.flag import Flag, Group

__all__ = ["LOAD", "SCHEDULE", "WARMUP"]

LOAD = Group(
    "Load",
    (
        Flag(
            "--concurrency",
            "int",
            "Number of requests in flight at once. With a rate, the maximum number in flight.",
            target="load.concurrency",
            metavar="N",
            default="1; with a rate, unlimited",
            ge=1,
            sweepable=True,
        ),
        Flag(
            "--request-rate",
            "float",
            "Send this many requests per second, without waiting for earlier replies. All turns of a conversation count; the "
            "next turn of a conversation, once its reply and delay are over, comes before a new conversation.",
            target="load.rate",
            metavar="PER_SECOND",
            gt=0,
            hard_min=0.0001,
            sweepable=True,
        ),
        Flag(
            "--conversation-rate",
            "float",
            "Start this many conversations per second. Their next turns follow the replies and are not counted.",
            target="load.conversation_rate",
            metavar="PER_SECOND",
            gt=0,
            hard_min=0.0001,
            sweepable=True,
            penstock_only=True,
        ),
        Flag(
            "--arrival-pattern",
            "enum",
            "Gaps between the arrivals of a rate: random, as from independent users (poisson), or equal (constant).",
            aliases=("--request-rate-mode",),
            target="load.arrivals",
            choices=tuple(ARRIVAL_PATTERNS),
            unsupported_choices=("gamma", "concurrency_burst"),
            default="poisson",
        ),
        Flag(
            "--request-count",
            "int",
            "Stop after this many requests.",
            aliases=("--num-requests",),
            target="load.requests",
            metavar="N",
            default="the whole file once; synthetic: 10, or twice the concurrency if that is more",
            ge=1,
            sweepable=True,
        ),
        Flag(
            "--conversation-num",
            "int",
            "Stop after starting this many conversations, and finish those. Also the number of synthetic conversations.",
            aliases=("--num-conversations", "--num-sessions"),
            target="load.conversations",
            metavar="N",
            ge=1,
            sweepable=True,
        ),
        Flag(
            "--benchmark-duration",
            "float",
            "Stop sending new requests after this many seconds.",
            target="load.duration_s",
            metavar="SECONDS",
            gt=0,
            hard_min=0.001,
            sweepable=True,
        ),
        Flag(
            "--benchmark-grace-period",
            "float",
            "After --benchmark-duration, wait this many seconds for the requests in flight.",
            target="load.grace_s",
            metavar="SECONDS",
            default="30",
            ge=0,
            allows_inf=True,
        ),
        Flag(
            "--workers-max",
            "int",
            "Number of processes that send requests; fewer are used when fewer requests are in flight.",
            aliases=("--max-workers",),
            target="workers_max",
            metavar="N",
            default="depends on the cores and the load",
            ge=1,
            le=64,
        ),
    ),
)

SCHEDULE = Group(
    "Recorded schedule",
    (
        Flag(
            "--fixed-schedule",
            "bool",
            "Send each request at its timestamp in the dataset, without waiting for earlier replies.",
            target="load.schedule.on",
            default="on with --custom-dataset-type mooncake_trace and timestamps",
        ),
        Flag(
            "--no-fixed-schedule",
            "bool",
            "Ignore the timestamps of a trace.",
            target="load.schedule.on",
            stored_value=False,
        ),
        Flag(
            "--fixed-schedule-auto-offset",
            "bool",
            "Start the schedule at the first request's timestamp; with =false, at time zero of the recording.",
            target="load.schedule.auto_offset",
            default="true",
        ),
        Flag(
            "--fixed-schedule-start-offset",
            "float",
            "Skip requests recorded before this time, and start the schedule there.",
            target="load.schedule.start_ms",
            metavar="MS",
            ge=0,
            hard_max=10**15,
        ),
        Flag(
            "--fixed-schedule-end-offset",
            "float",
            "Skip requests recorded after this time.",
            target="load.schedule.end_ms",
            metavar="MS",
            ge=0,
            hard_max=10**15,
        ),
        Flag(
            "--replay-speedup",
            "float",
            "Replay the recorded times this many times faster.",
            target="load.schedule.speedup",
            metavar="FACTOR",
            default="1",
            gt=0,
            hard_min=0.0001,
        ),
    ),
)

WARMUP = Group(
    "Warmup",
    (
        Flag(
            "--warmup-request-count",
            "int",
            "Send this many requests first, under the same load; results exclude them.",
            aliases=("--num-warmup-requests",),
            target="warmup.requests",
            metavar="N",
            default="0",
            ge=0,
        ),
    ),
)
