"""The keys of the configuration file, and the flag that each one stands for.

Types, limits, defaults and refusals of a key are those of its flag. A key whose flag is in `flags/unsupported.py` is refused
until that flag is supported, and then needs no change here. To add a key for a new flag, add a line to its section. Keys are
written in snake_case here; a file may use camelCase too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from penstock.settings.flags import SPELLINGS, Flag, UnsupportedFlag


class Distribution(NamedTuple):
    """A number, or a mapping with `mean` and `stddev`, with a `median`, or with `peaks` or `points`."""

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


def _named(names: str, prefix: str = "--") -> dict[str, Row]:
    """Return the rows of keys whose flags have their names after a prefix."""
    return {name: prefix + name.replace("_", "-") for name in names.split()}


def _refused(names: str) -> dict[str, Row]:
    return dict.fromkeys(names.split(), Refused())


_MODELS = Special("models", ("--model-names", "--model-selection-strategy", "--model-weights"))
_ISL = Distribution("--prompt-input-tokens-mean", "--prompt-input-tokens-stddev")
_OSL = Distribution("--prompt-output-tokens-mean", "--prompt-output-tokens-stddev")

_ENDPOINT: Final[Section] = {
    "url": Alias("--url"),
    "urls": "--url",
    **_named(
        "url_strategy streaming api_key api_key_env api_key_file transport use_legacy_max_tokens "
        "use_server_token_count per_chunk_usage proxy trust_env follow_cross_origin_redirects session_header "
        "wait_for_model_timeout wait_for_model_interval wait_for_model_mode download_video_content "
        "request_content_type uuid_and_strip reset_kv_cache reset_kv_cache_path server_profiler "
        "server_profiler_start_path server_profiler_stop_path"
    ),
    "type": "--endpoint-type",
    "path": "--custom-endpoint",
    "headers": "--header",
    "extra": "--extra-inputs",
    "template": Alias(Special("template", ("--extra-inputs",))),
    "timeout": "--request-timeout-seconds",
    "connection_reuse": "--connection-reuse-strategy",
    "verify_tls": Inverted("--insecure"),
    "reset_kv_cache_timeout": "--reset-kv-cache-timeout-seconds",
    "server_profiler_timeout": "--server-profiler-timeout-seconds",
}

_SYNTHESIS: Final[Section] = {
    **_named(
        "speedup_ratio prefix_len_multiplier prefix_root_multiplier prompt_len_multiplier output_len_multiplier "
        "max_isl max_osl",
        "--synthesis-",
    ),
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
    **_named(
        "sessions replay_speedup trace_session_sample_ratio inter_turn_delay_cap_seconds max_idle_gap_cap_seconds "
        "open_loop_replay open_loop_strict omit_kv_hints force_min_tokens video_batch_size trace_idle_gap_cap_seconds "
        "ignore_trace_delays use_think_time_only max_context_length"
    ),
    "entries": "--num-dataset-entries",
    "prompts": {"osl": _OSL},
    "records": Special("inline_records", ("--input-file",)),
    "synthesis": _SYNTHESIS,
    "prompt_batch_size": Alias("--prompt-batch-size"),
    "image_batch_size": Alias("--image-batch-size"),
    "audio_batch_size": Alias("--audio-batch-size"),
    "block_size": "--prompt-input-tokens-block-size",
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
        "sequence_distribution": Special("length_pairs", ("--seq-dist",)),
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
        **_named("batch_size format source source_sampling", "--image-"),
        "width": Distribution("--image-width-mean", "--image-width-stddev"),
        "height": Distribution("--image-height-mean", "--image-height-stddev"),
    },
    "audio": {
        **_named("batch_size format sample_rates depths", "--audio-"),
        "length": Distribution("--audio-length-mean", "--audio-length-stddev"),
        "channels": "--audio-num-channels",
    },
    "video": {
        **_named("batch_size duration fps width height format codec synth_type", "--video-"),
        "audio": {
            **_named("sample_rate codec depth", "--video-audio-"),
            "channels": "--video-audio-num-channels",
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
    **_named(
        "trajectory_start_min_ratio trajectory_start_max_ratio burst_phase_starts system_idle_gap_cap_seconds "
        "agentic_cache_warmup_duration agentic_warmup_grace_period"
    ),
}

PROFILING: Final[Section] = {
    "exclude_from_results": Special("included"),
    "type": Special("phase_type", ("--arrival-pattern", "--fixed-schedule", "--no-fixed-schedule")),
    "requests": "--request-count",
    "sessions": "--conversation-num",
    "duration": "--benchmark-duration",
    "grace_period": "--benchmark-grace-period",
    **_named("concurrency prefill_concurrency conversation_rate failed_request_threshold stop_on_overload"),
    "concurrency_ramp": Special("ramp", ("--concurrency-ramp-duration",)),
    "prefill_ramp": Special("ramp", ("--prefill-concurrency-ramp-duration",)),
    "rate": Special("rate", ("--request-rate", "--user-centric-rate")),
    "rate_ramp": Special("ramp", ("--request-rate-ramp-duration",)),
    "rate_series": Special("rate_series", ("--request-rate-series",)),
    "smoothness": "--arrival-smoothness",
    "users": "--num-users",
    **_named("auto_offset start_offset end_offset", "--fixed-schedule-"),
    "speedup": Alias("--replay-speedup"),
    "cancellation": {"rate": "--request-cancellation-rate", "delay": "--request-cancellation-delay"},
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
    **_named("duration grace_period concurrency prefill_concurrency", "--warmup-"),
    "concurrency_ramp": Special("ramp", ("--warmup-concurrency-ramp-duration",)),
    "prefill_ramp": Special("ramp", ("--warmup-prefill-concurrency-ramp-duration",)),
    "rate": Special("warmup_rate", ("--warmup-request-rate", "--warmup-user-centric-rate")),
    "users": "--warmup-num-users",
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
    **_named("until reader_tokens_per_second scenario unsafe_override"),
    "checks": {"require_valid": "--require-valid", "max_error_rate": "--max-error-rate", "assert": "--assert"},
    "artifacts": {
        "dir": "--output-artifact-dir",
        **_named("results_url slice_duration show_trace_timing auto_plot plot_required export_outputs_json export"),
        "prefix": "--profile-export-prefix",
        "summary": Special("summary"),
        "records": Special("records", ("--export-level",)),
        "raw": Special("raw", ("--export-level",)),
        "trace": "--export-http-trace",
        "user_files": Special("user_files"),
        "html": Inverted("--no-html"),
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
        **_named("cluster metrics_port quiet verbose api_port api_host stats_interval"),
        "record_processors": "--record-processor-service-count",
        "service_run_type": Refused(),
        "communication": Refused(),
        **_refused("dataset_api_base_url workers_per_pod record_processors_per_pod"),
        "workers_min": Refused("workers sets their number"),
    },
    "logging": {"level": "--log-level"},
    "gpu_telemetry": {
        "enabled": Special("enabled", ("--gpu-telemetry",)),
        "url": Alias("--gpu-telemetry"),
        "urls": "--gpu-telemetry",
        "metrics_file": Refused(),
        "collector": Special("gpu_collector"),
        "mode": Special("gpu_mode"),
    },
    "server_metrics": {
        "enabled": Special("enabled", ("--server-metrics", "--no-server-metrics")),
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
        "stream_metrics_enabled": Special("stream_metrics", ("--stream",)),
        "stream_timing_enabled": Special("ignored"),
        "custom_resource_attributes": Special("pairs", ("--otel-resource-attributes",)),
        "gen_ai_provider": "--gen-ai-provider",
    },
    "mlflow": {
        **_named("tracking_uri experiment run_name parent_run_id", "--mlflow-"),
        "tags": Special("pairs", ("--mlflow-tag",)),
        "artifact_globs": "--mlflow-artifact-glob",
    },
    "wandb": {
        **_named("project entity run_name", "--wandb-"),
        "tags": "--wandb-tag",
    },
    "accuracy": {
        **_named("benchmark tasks n_shots enable_cot grader system_prompt verbose", "--accuracy-"),
    },
    "metrics": Refused(),
}

KEYS: Final[Section] = {
    "schema_version": Special("schema_version"),
    "random_seed": "--random-seed",
    "benchmark": BENCHMARK,
    "sweep": {
        "": "--sweep",
        "type": Special("sweep_type", ("--sweep-type",)),
        "parameters": Special("parameters"),
        "cooldown_seconds": "--parameter-sweep-cooldown-seconds",
        "iteration_order": "--parameter-sweep-mode",
        "same_seed": "--parameter-sweep-same-seed",
        "sla_filters": Refused(),
        "post_process": Refused(),
        "recipe_name": "--search-recipe",
        **_named(
            "find_max slo concurrency_min concurrency_max ttft_sla_ms itl_sla_ms tpot_sla_ms e2e_sla_ms "
            "error_rate_sla slo_attainment_fraction degradation_threshold degradation_metric_tag degradation_stat "
            "concurrency_steps isl_min isl_max isl_steps osl_min osl_max osl_steps isl_osl_pairs "
            "search_space optuna_sampler optuna_acquisition optuna_terminator"
        ),
        **_named("min max level_requests planner max_iterations random_seed", "--search-"),
        "runs": Special("scenarios"),
        **_refused("samples seed dimensions label_format scramble optimization"),
        "objectives": "--search-metric",
        "outcome_constraints": "--search-sla",
        "n_initial_points": "--search-initial-points",
        **_refused("plateau_window plateau_threshold improvement_patience"),
        "objective_pooling": "--search-percentile-pooling",
        **_refused("monotonic_stability_trials sla_replicates sla_precision sla_warmup_seconds"),
        "constraint_mode": "--bo-constraint-mode",
        "sla_tiers": "--search-sla-tier",
    },
    "no_sweep_table": "--no-sweep-table",
    "multi_run": {
        "num_runs": "--num-profile-runs",
        "cooldown_seconds": "--profile-run-cooldown-seconds",
        **_named("confidence_level set_consistent_seed vary_seed_per_trial"),
        "disable_warmup_after_first": "--profile-run-disable-warmup-after-first",
        "convergence": {
            **_named("metric stat mode threshold", "--convergence-"),
            "min_runs": Refused(),
        },
    },
    "plot": Special("plot"),
    "variables": Special("variables"),
}

FLAGS_WITHOUT_KEY: Final = {
    "--config": "it names the file",
    "--no-gpu-telemetry": "GPU telemetry is off unless gpu_telemetry turns it on",
    **dict.fromkeys(("--zmq-host", "--zmq-ipc-path", "--zmq-dual-bind"), "it has no effect"),
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


def target_of(name: str) -> str:
    """Return the target of a supported flag."""
    flag = find_flag(name)
    assert isinstance(flag, Flag)
    assert flag.target is not None
    return flag.target


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
