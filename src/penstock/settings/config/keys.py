"""The keys of the configuration file, and the flag that each one stands for.

Types, limits, defaults and refusals of a key are those of its flag. A key whose flag is in `flags/unsupported.py` is refused
until that flag is supported, and then needs no change here. To add a key for a new flag, add a line to its section. Keys are
written in snake_case here; a file may use camelCase too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from penstock.settings.flags import SPELLINGS, Flag, UnsupportedFlag

__all__ = [
    "BENCHMARK",
    "DATASET",
    "FILE_DATASET",
    "FLAGS_WITHOUT_KEY",
    "KEYS",
    "PHASE_TYPES",
    "PROFILING",
    "SYNTHETIC_DATASET",
    "WARMUP",
    "Alias",
    "Distribution",
    "Inverted",
    "Refused",
    "Row",
    "Section",
    "Special",
    "find_flag",
    "flags_of",
    "rows",
]


class Distribution(NamedTuple):
    """A number, or a mapping with `mean` and `stddev`."""

    mean: str
    stddev: str


class Inverted(NamedTuple):
    """A key that is true where its flag is off."""

    flag: str


class Refused(NamedTuple):
    """A key of AIPerf that Penstock does not have and for which there is no flag."""

    hint: str = ""


class Special(NamedTuple):
    """A key whose value has a form of its own. `form` names the function that reads it, and the one that writes it."""

    form: str
    flags: tuple[str, ...] = ()


class Alias(NamedTuple):
    """Another way to write a key. `config expand` does not write it."""

    row: str | Distribution | Special


Row = str | Distribution | Inverted | Refused | Special | Alias | Mapping[str, "Row"]
"""A string is the flag of the key, a mapping the keys of a section. The key "" is that of a scalar in place of the section."""
Section = Mapping[str, Row]


def _refused(names: str) -> dict[str, Row]:
    return dict.fromkeys(names.split(), Refused())


_MODELS = Special("models", ("--model-names", "--model-selection-strategy", "--model-weights"))
_ISL = Distribution("--prompt-input-tokens-mean", "--prompt-input-tokens-stddev")
_OSL = Distribution("--prompt-output-tokens-mean", "--prompt-output-tokens-stddev")

_ENDPOINT: Final[Section] = {
    "url": Alias("--url"),
    "urls": "--url",
    "url_strategy": "--url-strategy",
    "type": "--endpoint-type",
    "path": "--custom-endpoint",
    "streaming": "--streaming",
    "api_key": "--api-key",
    "api_key_env": "--api-key-env",
    "api_key_file": "--api-key-file",
    "headers": "--header",
    "extra": "--extra-inputs",
    "template": Alias(Special("template", ("--extra-inputs",))),
    "timeout": "--request-timeout-seconds",
    "transport": "--transport",
    "connection_reuse": "--connection-reuse-strategy",
    "use_legacy_max_tokens": "--use-legacy-max-tokens",
    "use_server_token_count": "--use-server-token-count",
    "per_chunk_usage": "--per-chunk-usage",
    "verify_tls": Inverted("--insecure"),
    "proxy": "--proxy",
    "trust_env": "--trust-env",
    "follow_cross_origin_redirects": "--follow-cross-origin-redirects",
    "session_header": "--session-header",
    "wait_for_model_timeout": "--wait-for-model-timeout",
    "wait_for_model_interval": "--wait-for-model-interval",
    "wait_for_model_mode": "--wait-for-model-mode",
    "download_video_content": "--download-video-content",
    "request_content_type": "--request-content-type",
    "uuid_and_strip": "--uuid-and-strip",
    "reset_kv_cache": "--reset-kv-cache",
    "reset_kv_cache_path": "--reset-kv-cache-path",
    "reset_kv_cache_timeout": "--reset-kv-cache-timeout-seconds",
    "server_profiler": "--server-profiler",
    "server_profiler_start_path": "--server-profiler-start-path",
    "server_profiler_stop_path": "--server-profiler-stop-path",
    "server_profiler_timeout": "--server-profiler-timeout-seconds",
}

_SYNTHESIS: Final[Section] = {
    "speedup_ratio": "--synthesis-speedup-ratio",
    "prefix_len_multiplier": "--synthesis-prefix-len-multiplier",
    "prefix_root_multiplier": "--synthesis-prefix-root-multiplier",
    "prompt_len_multiplier": "--synthesis-prompt-len-multiplier",
    "output_len_multiplier": "--synthesis-output-len-multiplier",
    "max_isl": "--synthesis-max-isl",
    "max_osl": "--synthesis-max-osl",
    "allow_dataset_wrap": "--allow-dataset-wrap",
}

_ANY_DATASET: Final[Section] = {
    "name": Special("ignored"),
    "type": Special("dataset_type", ("--public-dataset",)),
    "sampling": "--dataset-sampling-strategy",
    "random_seed": Alias("--random-seed"),
    "osl": Alias(_OSL),
    "turn_delay_ratio": "--conversation-turn-delay-ratio",
    "system_prompt": "--system-prompt",
    "system_prompt_file": "--system-prompt-file",
}

FILE_DATASET: Final[Section] = {
    **_ANY_DATASET,
    "path": "--input-file",
    "format": "--custom-dataset-type",
    "sessions": "--sessions",
    "entries": "--num-dataset-entries",
    "prompts": {"osl": _OSL},
    "replay_speedup": "--replay-speedup",
    "records": Refused("write them to a file, and give its path"),
    "synthesis": _SYNTHESIS,
    "trace_session_sample_ratio": "--trace-session-sample-ratio",
    "inter_turn_delay_cap_seconds": "--inter-turn-delay-cap-seconds",
    "max_idle_gap_cap_seconds": "--max-idle-gap-cap-seconds",
    "open_loop_replay": "--open-loop-replay",
    "open_loop_strict": "--open-loop-strict",
    "omit_kv_hints": "--omit-kv-hints",
    "force_min_tokens": "--force-min-tokens",
    "prompt_batch_size": Alias("--prompt-batch-size"),
    "image_batch_size": Alias("--image-batch-size"),
    "audio_batch_size": Alias("--audio-batch-size"),
    "video_batch_size": "--video-batch-size",
    "block_size": "--prompt-input-tokens-block-size",
    "trace_idle_gap_cap_seconds": "--trace-idle-gap-cap-seconds",
    "ignore_trace_delays": "--ignore-trace-delays",
    "use_think_time_only": "--use-think-time-only",
    "max_context_length": "--max-context-length",
    "cache_bust": {"target": "--cache-bust"},
}

PUBLIC_DATASET: Final[Section] = {
    **_ANY_DATASET,
    "dataset": "--public-dataset",
    "entries": "--num-dataset-entries",
    "cache_bust": {"target": "--cache-bust"},
}

SYNTHETIC_DATASET: Final[Section] = {
    **_ANY_DATASET,
    "entries": "--num-dataset-entries",
    "isl": Alias(_ISL),
    "prompts": {
        "isl": _ISL,
        "osl": _OSL,
        "batch_size": "--prompt-batch-size",
        "block_size": "--prompt-input-tokens-block-size",
        "cache_bust": {"target": "--cache-bust"},
        "corpus": "--prompt-corpus",
        "sequence_distribution": "--seq-dist",
        "random_range_ratio": "--random-range-ratio",
        "random_corpus_style": "--random-corpus-style",
    },
    "prefix_prompts": {
        "shared_system_length": "--shared-system-prompt-length",
        "user_context_length": "--user-context-prompt-length",
        "pool_size": "--prompt-prefix-pool-size",
        "length": "--prompt-prefix-length",
    },
    "turns": Distribution("--conversation-turn-mean", "--conversation-turn-stddev"),
    "turn_delay": Distribution("--conversation-turn-delay-mean", "--conversation-turn-delay-stddev"),
    "images": {
        "batch_size": "--image-batch-size",
        "width": Distribution("--image-width-mean", "--image-width-stddev"),
        "height": Distribution("--image-height-mean", "--image-height-stddev"),
        "format": "--image-format",
        "source": "--image-source",
        "source_sampling": "--image-source-sampling",
    },
    "audio": {
        "batch_size": "--audio-batch-size",
        "length": Distribution("--audio-length-mean", "--audio-length-stddev"),
        "format": "--audio-format",
        "sample_rates": "--audio-sample-rates",
        "depths": "--audio-depths",
        "channels": "--audio-num-channels",
    },
    "video": {
        "batch_size": "--video-batch-size",
        "duration": "--video-duration",
        "fps": "--video-fps",
        "width": "--video-width",
        "height": "--video-height",
        "format": "--video-format",
        "codec": "--video-codec",
        "synth_type": "--video-synth-type",
        "audio": {
            "sample_rate": "--video-audio-sample-rate",
            "channels": "--video-audio-num-channels",
            "codec": "--video-audio-codec",
            "depth": "--video-audio-depth",
        },
    },
    "rankings": {
        "passages": Distribution("--rankings-passages-mean", "--rankings-passages-stddev"),
        "passage_tokens": Distribution(
            "--rankings-passages-prompt-token-mean", "--rankings-passages-prompt-token-stddev"
        ),
        "query_tokens": Distribution("--rankings-query-prompt-token-mean", "--rankings-query-prompt-token-stddev"),
    },
}

DATASET: Final[Section] = {
    "dataset": "--public-dataset",
    "hf_subset": "--hf-subset",
    "filters": "--dataset-filter",
    "hf_weka_dataset": "--hf-weka-dataset",
    **FILE_DATASET,
    **SYNTHETIC_DATASET,
}
"""The keys of all types of datasets. A key that does not fit the type of a dataset is refused because its flag contradicts
other settings."""

PHASE_TYPES: Final = ("concurrency", "poisson", "gamma", "constant", "user_centric", "fixed_schedule")

_ANY_PHASE: Final[Section] = {
    "name": Special("ignored"),
    "kind": Special("phase_kind"),
    "seamless": Refused(),
    "timing_mode": Refused("type says the same"),
    **_refused(
        "sla adaptive_scale adaptive_sustain_duration adaptive_assessment_period "
        "adaptive_min_completed_requests adaptive_control_variable adaptive_control_min adaptive_control_max "
        "adaptive_scale_strategy_type adaptive_scale_step_policy adaptive_scale_base_step "
        "adaptive_scale_max_step_multiplier adaptive_scale_step_percent"
    ),
    "trajectory_start_min_ratio": "--trajectory-start-min-ratio",
    "trajectory_start_max_ratio": "--trajectory-start-max-ratio",
    "burst_phase_starts": "--burst-phase-starts",
    "system_idle_gap_cap_seconds": "--system-idle-gap-cap-seconds",
    "agentic_cache_warmup_duration": "--agentic-cache-warmup-duration",
    "agentic_warmup_grace_period": "--agentic-warmup-grace-period",
}

PROFILING: Final[Section] = {
    "exclude_from_results": Special("included"),
    "type": Special("phase_type", ("--arrival-pattern", "--fixed-schedule", "--no-fixed-schedule")),
    "requests": "--request-count",
    "sessions": "--conversation-num",
    "duration": "--benchmark-duration",
    "grace_period": "--benchmark-grace-period",
    "concurrency": "--concurrency",
    "concurrency_ramp": Special("ramp", ("--concurrency-ramp-duration",)),
    "prefill_concurrency": "--prefill-concurrency",
    "prefill_ramp": Special("ramp", ("--prefill-concurrency-ramp-duration",)),
    "rate": Special("rate", ("--request-rate", "--user-centric-rate")),
    "conversation_rate": "--conversation-rate",
    "rate_ramp": Special("ramp", ("--request-rate-ramp-duration",)),
    "rate_series": Special("rate_series", ("--request-rate-series",)),
    "smoothness": "--arrival-smoothness",
    "users": "--num-users",
    "auto_offset": "--fixed-schedule-auto-offset",
    "start_offset": "--fixed-schedule-start-offset",
    "end_offset": "--fixed-schedule-end-offset",
    "speedup": Alias("--replay-speedup"),
    "cancellation": {"rate": "--request-cancellation-rate", "delay": "--request-cancellation-delay"},
    "failed_request_threshold": "--failed-request-threshold",
    **_ANY_PHASE,
}

_PROFILING_ONLY = Refused("it applies to the profiling phase")

WARMUP: Final[Section] = {
    **dict.fromkeys(PROFILING, _PROFILING_ONLY),
    **_ANY_PHASE,
    "exclude_from_results": Special("excluded"),
    "type": Special("warmup_type", ("--warmup-arrival-pattern",)),
    "requests": "--warmup-request-count",
    "sessions": "--num-warmup-sessions",
    "duration": "--warmup-duration",
    "grace_period": "--warmup-grace-period",
    "concurrency": "--warmup-concurrency",
    "concurrency_ramp": Special("ramp", ("--warmup-concurrency-ramp-duration",)),
    "prefill_concurrency": "--warmup-prefill-concurrency",
    "prefill_ramp": Special("ramp", ("--warmup-prefill-concurrency-ramp-duration",)),
    "rate": "--warmup-request-rate",
    "rate_ramp": Special("ramp", ("--warmup-request-rate-ramp-duration",)),
}

BENCHMARK: Final[Section] = {
    "model": Alias(_MODELS),
    "models": _MODELS,
    "endpoint": _ENDPOINT,
    "dataset": DATASET,
    "datasets": Special("datasets"),
    "phases": Special("phases"),
    "warmup": WARMUP,
    "profiling": PROFILING,
    "slos": Special("slos", ("--goodput",)),
    "until": "--until",
    "reader_tokens_per_second": "--reader-tokens-per-second",
    "checks": {"require_valid": "--require-valid", "max_error_rate": "--max-error-rate", "assert": "--assert"},
    "artifacts": {
        "dir": "--output-artifact-dir",
        "results_url": "--results-url",
        "prefix": "--profile-export-prefix",
        "summary": Special("summary"),
        "records": Special("records", ("--export-level",)),
        "raw": Special("raw", ("--export-level",)),
        "trace": "--export-http-trace",
        "slice_duration": "--slice-duration",
        "show_trace_timing": "--show-trace-timing",
        "user_files": Refused(),
        "auto_plot": "--auto-plot",
        "plot_required": "--plot-required",
        "export_outputs_json": "--export-outputs-json",
        "html": Inverted("--no-html"),
        "export": "--export",
    },
    "tokenizer": {
        "name": "--tokenizer",
        "revision": "--tokenizer-revision",
        "trust_remote_code": "--tokenizer-trust-remote-code",
        "apply_chat_template": "--apply-chat-template",
    },
    "runtime": {
        "ui": "--ui-type",
        "workers": "--workers-max",
        "cluster": "--cluster",
        "metrics_port": "--metrics-port",
        "quiet": "--quiet",
        "verbose": "--verbose",
        "record_processors": "--record-processor-service-count",
        "service_run_type": Refused(),
        "communication": Refused(),
        "api_port": "--api-port",
        "api_host": "--api-host",
        **_refused("dataset_api_base_url workers_per_pod record_processors_per_pod"),
        "workers_min": Refused("workers sets their number"),
        "stats_interval": "--stats-interval",
    },
    "logging": {"level": "--log-level"},
    "gpu_telemetry": {
        "enabled": Special("enabled", ("--gpu-telemetry",)),
        "url": Alias("--gpu-telemetry"),
        "urls": "--gpu-telemetry",
        "metrics_file": Refused(),
        "collector": Refused("urls names the exporters; `urls: [pynvml]` reads the GPUs of this machine"),
        "mode": Refused(),
    },
    "server_metrics": {
        "enabled": Special("enabled", ("--server-metrics",)),
        "interval": "--telemetry-interval",
        "url": Alias("--server-metrics"),
        "urls": "--server-metrics",
        "formats": "--server-metrics-formats",
        "discovery": Refused(),
    },
    "network_latency": {
        "enabled": "--network-latency-automatic",
        "ping_interval": "--network-latency-ping-interval",
        "mean_ms": "--network-latency-mean",
    },
    "otel": {
        "metrics_url": "--otel-url",
        "stream_metrics_enabled": "--stream",
        "stream_timing_enabled": "--stream",
        "custom_resource_attributes": "--otel-resource-attributes",
        "gen_ai_provider": "--gen-ai-provider",
    },
    "mlflow": {
        "tracking_uri": "--mlflow-tracking-uri",
        "experiment": "--mlflow-experiment",
        "run_name": "--mlflow-run-name",
        "tags": "--mlflow-tag",
        "parent_run_id": "--mlflow-parent-run-id",
        "artifact_globs": "--mlflow-artifact-glob",
    },
    "wandb": {
        "project": "--wandb-project",
        "entity": "--wandb-entity",
        "run_name": "--wandb-run-name",
        "tags": "--wandb-tag",
    },
    "accuracy": {
        "benchmark": "--accuracy-benchmark",
        "tasks": "--accuracy-tasks",
        "n_shots": "--accuracy-n-shots",
        "enable_cot": "--accuracy-enable-cot",
        "grader": "--accuracy-grader",
        "system_prompt": "--accuracy-system-prompt",
        "verbose": "--accuracy-verbose",
    },
    "metrics": Refused(),
    "scenario": "--scenario",
    "unsafe_override": "--unsafe-override",
}

KEYS: Final[Section] = {
    "schema_version": Special("schema_version"),
    "random_seed": "--random-seed",
    "benchmark": BENCHMARK,
    "sweep": {
        "": "--sweep",
        "type": "--sweep-type",
        "parameters": Special("parameters"),
        "cooldown_seconds": "--parameter-sweep-cooldown-seconds",
        "iteration_order": "--parameter-sweep-mode",
        "same_seed": "--parameter-sweep-same-seed",
        "sla_filters": Refused(),
        "post_process": Refused(),
        "recipe_name": "--search-recipe",
        "find_max": "--find-max",
        "slo": "--slo",
        "min": "--search-min",
        "max": "--search-max",
        "concurrency_min": "--concurrency-min",
        "concurrency_max": "--concurrency-max",
        "ttft_sla_ms": "--ttft-sla-ms",
        "itl_sla_ms": "--itl-sla-ms",
        "e2e_sla_ms": "--e2e-sla-ms",
        "error_rate_sla": "--error-rate-sla",
        "slo_attainment_fraction": "--slo-attainment-fraction",
        "runs": "--variant",
        **_refused("samples seed dimensions label_format scramble optimization"),
        "planner": "--search-planner",
        "search_space": "--search-space",
        "objectives": "--search-metric",
        "outcome_constraints": "--search-sla",
        "max_iterations": "--search-max-iterations",
        "n_initial_points": "--search-initial-points",
        **_refused("plateau_window plateau_threshold improvement_patience"),
        "random_seed": "--search-random-seed",
        "optuna_sampler": "--optuna-sampler",
        "optuna_acquisition": "--optuna-acquisition",
        "optuna_terminator": "--optuna-terminator",
        "objective_pooling": "--search-percentile-pooling",
        **_refused("monotonic_stability_trials sla_replicates sla_precision sla_warmup_seconds"),
        "constraint_mode": "--bo-constraint-mode",
        "sla_tiers": "--search-sla-tier",
    },
    "no_sweep_table": "--no-sweep-table",
    "multi_run": {
        "num_runs": "--num-profile-runs",
        "cooldown_seconds": "--profile-run-cooldown-seconds",
        "confidence_level": "--confidence-level",
        "set_consistent_seed": "--set-consistent-seed",
        "vary_seed_per_trial": "--vary-seed-per-trial",
        "disable_warmup_after_first": "--profile-run-disable-warmup-after-first",
        "convergence": {
            "metric": "--convergence-metric",
            "stat": "--convergence-stat",
            "mode": "--convergence-mode",
            "threshold": "--convergence-threshold",
            "min_runs": Refused(),
        },
    },
    "plot": Refused(),
    "variables": Refused("use environment variables, as in ${NAME:default}"),
}

FLAGS_WITHOUT_KEY: Final = {
    "--config": "it names the file",
    "--no-gpu-telemetry": "GPU telemetry is off unless gpu_telemetry turns it on",
    "--no-server-metrics": "server metrics are off unless server_metrics turns them on",
    "--extra-verbose": "it has the effect of --verbose, which is runtime.verbose",
}
"""Supported flags that no key stands for, and why."""


def rows(section: Section = KEYS, path: str = "") -> Iterator[tuple[str, Row]]:
    """Yield the path and the row of every key that is not a section."""
    for key, row in section.items():
        if isinstance(row, Mapping):
            yield from rows(row, f"{path}{key}.")
        else:
            yield path + key, row


def find_flag(spelling: str) -> Flag | UnsupportedFlag:
    """Return the row of a flag. A flag that is announced and does not exist yet is unsupported."""
    return SPELLINGS.get(spelling) or UnsupportedFlag(spelling)


def flags_of(row: Row) -> tuple[str, ...]:
    """Return the flags that a key stands for."""
    match row:
        case str():
            return (row,)
        case Distribution():
            return tuple(row)
        case Inverted():
            return (row.flag,)
        case Special():
            return row.flags
        case Alias():
            return flags_of(row.row)
    return ()
