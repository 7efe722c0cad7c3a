"""The metrics by name, kind, labels and meaning. All names get the prefix `penstock_gateway_`.

Labels hold names from the configuration and values from closed sets, never a string that a caller can make up: what is
not known is `unknown`. A family that would still grow past its bound counts the rest under `other`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["ATTEMPT_OUTCOMES", "DURATION_EDGES", "FAMILIES", "LAYERS", "PHASES", "TTFT_EDGES", "Family"]

DURATION_EDGES = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
TTFT_EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

ATTEMPT_OUTCOMES = frozenset(
    ("success", "upstream_status", "upstream_failed", "timeout", "transport", "decode", "aborted", "over_limit")
)
LAYERS = frozenset(("api_key", "model", "policy"))
PHASES = frozenset(
    (
        "auth",
        "receive",
        "guardrail_in",
        "quota",
        "connect",
        "upstream",
        "guardrail_out",
        "serialise",
        "total",
    )
)


class Family(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


_WHO = ("endpoint", "model", "provider")
_TOKENS = ("model", "provider", "key")

FAMILIES = {
    "requests_total": Family(
        "counter", (*_WHO, "status", "stream", "key"), "Requests that have ended; 499 is a caller that went away."
    ),
    "request_duration_seconds": Family(
        "histogram", (*_WHO, "status", "stream"), "From the arrival of a request to its end."
    ),
    "ttft_seconds": Family("histogram", _WHO, "From the arrival of a streamed request to the first byte of its reply."),
    "tokens_total": Family("counter", ("direction", *_TOKENS), "Tokens, reported or estimated."),
    "reasoning_tokens_total": Family("counter", _TOKENS, "The part of the output tokens that was reasoning."),
    "cached_tokens_total": Family("counter", _TOKENS, "The part of the input tokens that came from a cache upstream."),
    "estimated_tokens_total": Family("counter", _TOKENS, "The part of the tokens that no upstream reported."),
    "upstream_attempts_total": Family("counter", ("model", "kind", "outcome"), "Calls of upstreams."),
    "guardrail_hits_total": Family("counter", ("guardrail", "hook", "action"), "Matches of guardrails."),
    "ratelimit_rejections_total": Family("counter", ("layer",), "Requests refused by a limit."),
    "client_disconnects_total": Family("counter", ("endpoint",), "Callers that went away before the end."),
    "phase_seconds_total": Family("counter", ("phase",), "Time of requests by phase."),
    "inflight_requests": Family("gauge", (), "Requests that have not ended yet."),
    "workers": Family("gauge", (), "Worker processes that are alive."),
    "limits_degraded": Family(
        "gauge", (), "1 while a worker counts limits by itself because the shared store is lost."
    ),
    "limits_failures_total": Family(
        "counter", (), "Times that the shared store of limits did not answer; this machine counted instead."
    ),
    "limits_evicted_windows_total": Family(
        "counter", (), "Counts given up for want of room while they still mattered: limits that admitted too much."
    ),
    "spool_entries_total": Family("counter", (), "Usage entries that workers have written down."),
    "spool_write_failures_total": Family(
        "counter", (), "Writes to the spool that the disk refused; they are tried again."
    ),
    "spool_dropped_entries_total": Family("counter", (), "Usage entries lost; anything but 0 is an alarm."),
    "access_log_dropped_lines_total": Family("counter", (), "Access log lines lost because their reader is too slow."),
    "observation_failures_total": Family(
        "counter", (), "Requests that metrics or log could not show: a fault in Penstock."
    ),
    "ledger_pending_entries": Family("gauge", (), "Usage entries in the spool that are not in the ledger yet."),
    "ledger_pending_bytes": Family("gauge", (), "Bytes of the spool that are not in the ledger yet."),
    "ledger_up": Family("gauge", (), "0 while the ledger's database does not work."),
    "ledger_moved_entries_total": Family("counter", (), "Usage entries put into the ledger."),
    "ledger_failures_total": Family(
        "counter", (), "Attempts that the ledger's database did not serve; they are repeated."
    ),
    "ledger_refused_entries_total": Family(
        "counter", (), "Usage entries set aside because the ledger takes them in no form."
    ),
    "ledger_torn_bytes_total": Family("counter", (), "Bytes that killed workers left unfinished in the spool."),
    "config_last_reload_successful": Family("gauge", (), "Whether the newest resource file was accepted."),
    "config_last_reload_success_timestamp_seconds": Family("gauge", (), "When a resource file was last accepted."),
    "config_reloads_total": Family("counter", (), "Resource files accepted."),
    "config_reload_failures_total": Family("counter", (), "Resource files rejected."),
    "config_hash_info": Family("gauge", ("hash",), "SHA-256 of the resource file that is served."),
    "process_resident_memory_bytes": Family("gauge", ("process",), "Memory of each process."),
    "build_info": Family("gauge", ("version",), "The version of Penstock."),
}
