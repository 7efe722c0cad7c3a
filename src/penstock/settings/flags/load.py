"""Flags for the load: how many requests, how fast, and for how long."""

from __future__ import annotations

from penstock.settings.arrival_patterns import ARRIVAL_PATTERNS
from penstock.settings.flags.flag import Flag, Group, count, seconds

__all__ = ["LOAD", "SCHEDULE", "USERS"]

LOAD = Group(
    "Load",
    (
        count(
            "--concurrency",
            "Number of requests in flight at once. With a rate, the maximum number in flight.",
            "load.concurrency",
            default="1; with a rate, unlimited",
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
            "Gaps between the arrivals of a rate: random, as from independent users (poisson), equal (constant), or random "
            "with a chosen evenness (gamma). concurrency_burst, without a rate, starts all slots at once, as is the default.",
            aliases=("--request-rate-mode",),
            target="load.arrivals",
            choices=(*ARRIVAL_PATTERNS, "concurrency_burst"),
            default="poisson",
        ),
        Flag(
            "--arrival-smoothness",
            "float",
            "Evenness of gamma arrivals (their shape): below 1 in bursts, 1 as poisson, above 1 more even. Selects gamma.",
            aliases=("--vllm-burstiness",),
            target="load.smoothness",
            metavar="SHAPE",
            gt=0,
            hard_min=0.001,
            hard_max=1_000_000,
            sweepable=True,
        ),
        seconds(
            "--concurrency-ramp-duration",
            "Raise the concurrency from 1 to its value in equal steps over this many seconds.",
            "load.concurrency_ramp_s",
            sweepable=True,
        ),
        count(
            "--prefill-concurrency",
            "Number of requests that may wait for the first part of their reply at once. With --streaming, this limits how "
            "many prompts the server processes at a time.",
            "load.prefill_concurrency",
            sweepable=True,
        ),
        seconds(
            "--prefill-concurrency-ramp-duration",
            "Raise --prefill-concurrency from 1 to its value in equal steps over this many seconds.",
            "load.prefill_ramp_s",
            sweepable=True,
        ),
        seconds(
            "--request-rate-ramp-duration",
            "Raise the rate from 0 to its value over this many seconds.",
            "load.rate_ramp_s",
            sweepable=True,
        ),
        Flag(
            "--request-rate-series",
            "path",
            'The rate over time, as [{"timeS": 0, "qps": 5}, {"timeS": 60, "qps": 20}] or a JSON file with that. It moves '
            "linearly between the points and stays at the last one.",
            target="load.rate_series",
            metavar="FILE",
        ),
        count(
            "--request-count",
            "Stop after this many requests.",
            "load.requests",
            aliases=("--num-requests",),
            default="the whole file once; synthetic: 10, or twice the concurrency if that is more",
            sweepable=True,
        ),
        count(
            "--conversation-num",
            "Stop after starting this many conversations, and finish those. Also the number of synthetic conversations.",
            "load.conversations",
            aliases=("--num-conversations", "--num-sessions"),
            sweepable=True,
        ),
        seconds(
            "--benchmark-duration",
            "Stop sending new requests after this many seconds.",
            "load.duration_s",
            sweepable=True,
        ),
        Flag(
            "--until",
            "str",
            "End when the 95 % confidence interval of a figure is this narrow, for example 'p99 time_to_first_token ±5%' or "
            "'avg request_latency +-10' (in the metric's unit). --request-count or --benchmark-duration is the limit.",
            target="until",
            metavar="PRECISION",
            penstock_only=True,
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
            "--failed-request-threshold",
            "float",
            "End the run when more than this share of the requests has failed, from 0 to 1, after 10 requests, or as many as "
            "--concurrency if that is more.",
            target="load.max_failed_share",
            metavar="SHARE",
            ge=0,
            le=1,
            sweepable=True,
        ),
        Flag(
            "--request-cancellation-rate",
            "float",
            "Percentage of the profiled requests whose connection is closed before the reply has ended.",
            target="load.cancellation_percent",
            metavar="PERCENT",
            gt=0,
            le=100,
            sweepable=True,
        ),
        Flag(
            "--request-cancellation-delay",
            "float",
            "Close the connection of a cancelled request this many seconds after the request was sent.",
            target="load.cancellation_delay_s",
            metavar="SECONDS",
            default="0",
            ge=0,
            sweepable=True,
        ),
        count(
            "--workers-max",
            "Number of processes that send requests; fewer are used when fewer requests are in flight, and never more than 64.",
            "workers_max",
            aliases=("--max-workers",),
            default="depends on the cores and the load",
        ),
        Flag(
            "--cluster",
            "str",
            "Send from the nodes of a Ray cluster: auto for the one of this machine, or its address. --workers-max "
            "is then the number of processes on each node.",
            target="cluster",
            metavar="auto|ray://HOST:PORT",
            default="this machine sends",
            penstock_only=True,
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
            default="on if --custom-dataset-type names a trace with timestamps",
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

USERS = Group(
    "Users",
    (
        Flag(
            "--user-centric-rate",
            "float",
            "Let --num-users users together send this many requests per second: each sends a turn of its conversation every "
            "users/rate seconds, and a new user follows when it is over.",
            target="load.user_rate",
            metavar="PER_SECOND",
            gt=0,
            hard_min=0.0001,
        ),
        count(
            "--num-users", "Number of users of --user-centric-rate.", "load.users", hard_max=1_000_000, sweepable=True
        ),
    ),
)
