"""Flags that need another one, and flags that exclude each other."""

from __future__ import annotations

from penstock.errors import UserError
from penstock.settings.flag_values import ParsedArguments
from penstock.table_rows import table_rows

_NEEDS = """\
readiness.mode readiness.interval_s | readiness.timeout_s | --wait-for-model-timeout, the time to wait,
    says how to wait for the server
server_calls.reset_path server_calls.reset_timeout_s | server_calls.reset_cache | --reset-kv-cache
server_calls.start_path server_calls.stop_path server_calls.profiler_timeout_s | server_calls.profiler | --server-profiler
load.grace_s | load.duration_s | --benchmark-duration
    begins when --benchmark-duration ends
load.concurrency_ramp_s | load.concurrency | --concurrency
load.prefill_ramp_s | load.prefill_concurrency | --prefill-concurrency
load.cancellation_delay_s | load.cancellation_percent | --request-cancellation-rate
load.users | load.user_rate | --user-centric-rate
    is the number of users of --user-centric-rate
input.range_style | input.range_ratio | --random-range-ratio
    says how to read --random-range-ratio
experiment.convergence_stat experiment.convergence_mode experiment.convergence_limit | \
        experiment.convergence_metric | --convergence-metric
telemetry.ping_interval_s | telemetry.probe_network | that flag
    adjusts --network-latency-automatic
exports.stream | exports.otel_url | --otel-url
    chooses what --otel-url sends (--streaming asks for streamed replies)
exports.otel_attributes exports.provider | exports.otel_url | --otel-url
exports.mlflow_experiment exports.mlflow_run_name exports.mlflow_tags exports.mlflow_parent exports.mlflow_globs | \
        exports.mlflow_uri | --mlflow-tracking-uri
exports.wandb_entity exports.wandb_run_name exports.wandb_tags | exports.wandb_project | --wandb-project
"""
"""Targets, the target that they need, its flag, and what they do; without a text, they adjust that flag."""

_EXCLUDES = """\
endpoint.proxy | endpoint.trust_env | both set the proxy; keep one
load.rate_ramp_s | load.rate_series | both change the rate over time; keep one of them
input.length_pairs | \
        input.input_tokens_mean input.input_tokens_stddev input.output_tokens_mean input.output_tokens_stddev \
        input.range_ratio | both set the lengths; keep one of them
input.range_ratio | input.input_tokens_stddev input.output_tokens_stddev input.distributions.input_tokens_mean \
        input.distributions.output_tokens_mean | both set the lengths; keep one of them
input.system | input.system_file input.conversation.system_tokens | both set the system prompt; keep one of them
input.system_file | input.conversation.system_tokens | both set the system prompt; keep one of them
telemetry.server_metrics | telemetry.no_server_metrics | contradict each other; keep one of them
telemetry.server_metrics_formats | telemetry.no_server_metrics | contradict each other; keep one of them
telemetry.gpu | telemetry.no_gpu_telemetry | contradict each other; keep one of them
"""


def check_rules(parsed: ParsedArguments) -> None:
    """Raise `UserError` for the first rule that the arguments break."""
    values, spelling = parsed.values, parsed.spellings
    for (targets, needed, flag), reason in table_rows(_NEEDS):
        if values.get(needed.strip()) in (None, False, 0):
            for target in targets.split():
                if target in values:
                    does = reason or f"adjusts {flag}"
                    raise UserError(f"{spelling[target]} {does}, but {flag} is missing; give both or neither.")
    for (first, others, conflict), _ in table_rows(_EXCLUDES):
        other = next((other for other in others.split() if values.get(other, False) is not False), None)
        if first in values and other is not None:
            raise UserError(f"{spelling[first]} and {spelling[other]} {conflict}.")
