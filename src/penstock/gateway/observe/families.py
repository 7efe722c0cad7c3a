"""All metric families with their type, labels and help text. Names get the prefix `penstock_gateway_`.

Label values are names from the configuration or members of fixed sets. Callers cannot choose them: any other value becomes
`unknown`. A family that reaches its size limit counts further series under `other`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

DURATION_EDGES = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
TTFT_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
HISTOGRAMS = {
    "request_duration_seconds": DURATION_EDGES,
    "ttft_seconds": TTFT_EDGES,
    "upstream_ttfb_seconds": TTFT_EDGES,
}
"""The upper edges of the buckets of each histogram."""

ATTEMPT_OUTCOMES = frozenset(
    ("success", "upstream_status", "upstream_failed", "timeout", "transport", "decode", "aborted", "over_limit")
)
LAYERS = frozenset(("api_key", "model", "policy"))
PHASES = frozenset(
    [
        "auth",
        "receive",
        "guardrail_in",
        "quota",
        "connect",
        "backoff",
        "upstream",
        "guardrail_out",
        "serialise",
        "total",
    ],
)

# Each family with its labels and its help text. A counter ends with `_total`.
_TABLE = """
requests_total(endpoint, model, provider, status, stream, key): Requests that have ended; status 499 means that the
    caller disconnected.
request_duration_seconds(endpoint, model, provider, status, stream): Time from the arrival of a request to its end.
ttft_seconds(endpoint, model, provider): Time from the arrival of a streamed request to the first byte of its reply.
upstream_ttfb_seconds(endpoint, model, provider): Time from the start of the last attempt, with its connect, to the
    upstream's first byte.
tokens_total(direction, model, provider, key): Input and output tokens, reported or estimated.
reasoning_tokens_total(model, provider, key): Output tokens used for reasoning.
cached_tokens_total(model, provider, key): Input tokens that an upstream read from its cache.
estimated_tokens_total(model, provider, key): Tokens that were estimated because no upstream reported them.
upstream_attempts_total(model, kind, outcome): Attempts to call an upstream.
guardrail_hits_total(guardrail, hook, action): Guardrail matches.
ratelimit_rejections_total(layer): Requests refused by a rate limit.
client_disconnects_total(endpoint): Requests whose caller disconnected before the end.
phase_seconds_total(phase): Time that requests spent in each phase.
inflight_requests: Requests in progress.
workers: Running worker processes.
worker_restarts_total(worker): Worker processes that ended or hung and were replaced.
worker_generation(worker): Generation of the resources that a worker serves.
loop_lag_seconds(worker): Longest delay of a worker's event loop in the last second, or in the last five if it is idle.
inspection_queue: Inspections and large bodies in a thread or another process, or waiting for one.
upstream_cooldown_seconds(model): Remaining cooldown of a target; 0 for a healthy one. Absent until a target fails.
limits_degraded: 1 while limits are counted locally because Redis is unavailable.
limits_failures_total: Failed Redis calls; the limits were counted locally instead.
limits_evicted_windows_total: Active limit windows evicted from the full table; their limits may have admitted too much.
spool_entries_total: Usage entries written to the spool.
spool_write_failures_total: Failed writes to the spool; they are retried.
spool_dropped_entries_total: Lost usage entries; alert on any value above 0.
access_log_dropped_lines_total: Access log lines dropped: slow reader or failed write.
collapsed_series_total: How often new labels were counted under `other`, because there are too many.
access_log_unlogged_refusals_total: Refused requests without a line in the access log, which contains a sample of 401
    and 404.
observation_failures_total: Requests missing from metrics or access log because of an error in Penstock.
ledger_pending_entries: Usage entries in the spool that are not in the ledger yet.
ledger_pending_bytes: Bytes of the spool that are not in the ledger yet.
ledger_up: 0 while the ledger is unavailable, else 1.
ledger_moved_entries_total: Usage entries inserted into the ledger.
ledger_failures_total: Failed attempts to move usage entries; they are retried.
ledger_refused_entries_total: Usage entries that the ledger refused; they are kept in refused.frames.
ledger_torn_bytes_total: Bytes of incomplete entries in the spool, left by killed workers.
config_last_reload_successful: 1 if the latest resource file was accepted, else 0.
config_last_reload_success_timestamp_seconds: Unix time when a resource file was last accepted.
config_reloads_total: Resource files accepted.
config_reload_failures_total: Resource files rejected.
config_generation: Generation of the active resource file.
config_hash_info(hash): SHA-256 of the active resource file.
process_resident_memory_bytes(process): Resident memory of each process.
build_info(version): The version of Penstock.
"""


class Family(NamedTuple):
    """A metric family."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


def _kind(name: str) -> Literal["counter", "gauge", "histogram"]:
    if name in HISTOGRAMS:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


FAMILIES = {
    name: Family(_kind(name), tuple(filter(None, labels.split(", "))), " ".join(meaning.split()))
    for name, labels, meaning in re.findall(r"^(\w+)(?:\(([^)]*)\))?: (.+(?:\n    .+)*)$", _TABLE, re.MULTILINE)
}
