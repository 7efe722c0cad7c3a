"""How hard and how long."""

from __future__ import annotations

from penstock.settings.flags.flag import Flag, Group

__all__ = ["LOAD", "SCHEDULE", "WARMUP"]

LOAD = Group(
    "Load",
    (
        Flag(
            "--concurrency",
            "int",
            "Requests in flight at once. With --request-rate, the most that may be in flight.",
            target="load.concurrency",
            metavar="N",
            default="1; with --request-rate, unlimited",
            ge=1,
            sweepable=True,
        ),
        Flag(
            "--request-rate",
            "float",
            "Send this many requests each second, whether or not earlier ones were answered.",
            target="load.rate",
            metavar="PER_SECOND",
            gt=0,
            hard_min=0.0001,
            sweepable=True,
        ),
        Flag(
            "--arrival-pattern",
            "enum",
            "The gaps between requests under --request-rate: random like independent users, or all equal.",
            aliases=("--request-rate-mode",),
            target="load.arrivals",
            choices=("poisson", "constant"),
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
            "Stop after this many conversations; each that was begun is finished. Also how many synthetic ones are made.",
            aliases=("--num-conversations", "--num-sessions"),
            target="load.conversations",
            metavar="N",
            ge=1,
            sweepable=True,
        ),
        Flag(
            "--benchmark-duration",
            "float",
            "Send no new request after this many seconds.",
            target="load.duration_s",
            metavar="SECONDS",
            gt=0,
            hard_min=0.001,
            sweepable=True,
        ),
        Flag(
            "--benchmark-grace-period",
            "float",
            "Seconds to wait, after the duration, for replies still under way. Needs --benchmark-duration.",
            target="load.grace_s",
            metavar="SECONDS",
            default="30",
            ge=0,
            allows_inf=True,
        ),
        Flag(
            "--workers-max",
            "int",
            "How many processes send the requests; fewer only when there is not a request in flight for each.",
            aliases=("--max-workers",),
            target="workers_max",
            metavar="N",
            default="chosen from the cores and the load",
            ge=1,
            le=64,
        ),
    ),
)

SCHEDULE = Group(
    "Recorded times",
    (
        Flag(
            "--fixed-schedule",
            "bool",
            "Send each request at the time that the dataset's timestamp says, whether or not earlier ones were answered.",
            target="load.schedule.on",
            default="on for a mooncake_trace named as such",
        ),
        Flag(
            "--no-fixed-schedule",
            "bool",
            "Do not follow the timestamps of a trace.",
            target="load.schedule.on",
            stored_value=False,
        ),
        Flag(
            "--fixed-schedule-auto-offset",
            "bool",
            "Start with the first request, whatever its timestamp is; with =false the recording's zero is the start.",
            target="load.schedule.auto_offset",
            default="true",
        ),
        Flag(
            "--fixed-schedule-start-offset",
            "float",
            "Leave out what was recorded before this time, and start there.",
            target="load.schedule.start_ms",
            metavar="MS",
            ge=0,
            hard_max=10**15,
        ),
        Flag(
            "--fixed-schedule-end-offset",
            "float",
            "Leave out what was recorded after this time.",
            target="load.schedule.end_ms",
            metavar="MS",
            ge=0,
            hard_max=10**15,
        ),
        Flag(
            "--replay-speedup",
            "float",
            "Follow the recorded times this many times as fast.",
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
            "Requests to send first, under the same load, that count for nothing.",
            aliases=("--num-warmup-requests",),
            target="warmup.requests",
            metavar="N",
            default="0",
            ge=0,
        ),
    ),
)
