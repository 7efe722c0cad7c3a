"""How late the requests of a replay were sent after their recorded times, and whether server or client caused it."""

from __future__ import annotations

from penstock.metrics.metric import MetricGroup, PhaseFigures, per_run

_DEGRADED_MS = 500
_LAG_NOTE = (
    "Percentile of credit_to_start_latency: the delay of a request after its recorded time. Only with --fixed-schedule. "
    "Includes a delay that all requests share; AIPerf measures relative to the least late request."
)
_METRICS = (
    *(per_run(f"replay_sched_lag_p{q}", f"Replay Schedule Lag p{q}", "ms", _LAG_NOTE) for q in (50, 90, 99)),
    per_run(
        "replay_sched_degraded",
        "Replay Schedule Degraded",
        "count",
        "1 if replay_sched_lag_p99 is above 500 ms, else 0. Only with --fixed-schedule.",
    ),
    per_run(
        "replay_server_lag",
        "Replay Lag of the Server",
        "ms",
        "The part of a request's delay after its recorded time in which it waited for earlier replies: for that of the turn "
        "before it, or for a slot. Only with --fixed-schedule.",
    ),
    per_run(
        "replay_client_lag",
        "Replay Lag of the Client",
        "ms",
        "The rest of the delay: the client sent later than it could, or waited for a connection. Only with --fixed-schedule.",
    ),
)


def _summarize(figures: PhaseFigures) -> dict[str, float]:
    delay = figures.stats.get("credit_to_start_latency") if figures.scheduled else None
    if delay is None or delay.p50 is None or delay.p90 is None or delay.p99 is None:
        return {}
    return {
        "replay_sched_lag_p50": delay.p50,
        "replay_sched_lag_p90": delay.p90,
        "replay_sched_lag_p99": delay.p99,
        "replay_sched_degraded": float(delay.p99 > _DEGRADED_MS),
    }


GROUP = MetricGroup(_METRICS, summarize=_summarize)
