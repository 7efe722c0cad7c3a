"""The settings under AIPerf's keys, without secrets, for the JSON artifact."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from penstock.secrets import REDACTED, redact_fields, redact_url
from penstock.settings.endpoint_types import Declaration, load_endpoint
from penstock.settings.schema import (
    EndpointSettings,
    InputSettings,
    LoadSettings,
    NumberDistribution,
    Settings,
    TelemetrySettings,
)


def input_config(settings: Settings, conversations: int | None = None) -> dict[str, Any]:
    """Return the `input_config` of the JSON artifact, without keys that do not apply. `conversations` is how many the dataset
    has, if that is known: they limit a run that has no other limit."""
    output = settings.output
    return {
        "models": model_config(settings),
        "endpoint": _endpoint(settings.endpoint)
        | _present(
            reset_kv_cache=settings.server_calls.reset_cache or None,
            server_profiler=settings.server_calls.profiler or None,
        ),
        "datasets": [_dataset(settings.input)],
        "phases": _phases(settings, conversations),
        "artifacts": _present(
            dir=output.folder,
            prefix=output.prefix,
            records=["jsonl"] if output.export_level != "summary" else None,
            raw=output.keeps_replies or None,
            trace=output.http_trace or None,
            export_outputs_json=output.outputs_json or None,
            show_trace_timing=output.show_http or None,
            slice_duration=output.slice_s,
        ),
        "tokenizer": _tokenizer(settings),
        "gpu_telemetry": _gpu_telemetry(settings.telemetry),
        "server_metrics": _server_metrics(settings.telemetry),
        "network_latency": _network_latency(settings.telemetry),
        "runtime": _present(ui=output.ui, workers=settings.workers_max),
    }


def _tokenizer(settings: Settings) -> dict[str, Any]:
    declaration: Declaration = load_endpoint(settings.endpoint.type).declaration
    if not declaration.input_tokens and not declaration.output_tokens:
        return {}  # AIPerf refuses a tokenizer that counts nothing
    revision = settings.tokenizer.revision
    return _present(name=settings.tokenizer.name, revision=None if revision == "main" else revision)


def _endpoint(endpoint: EndpointSettings) -> dict[str, Any]:
    extra = redact_fields(endpoint.extra)
    template = None
    if "payload_template" in extra:
        template = _present(body=extra.pop("payload_template", None), response_field=extra.pop("response_field", None))
    return _present(
        urls=[redact_url(url) for url in endpoint.urls],
        type=endpoint.type,
        path=None if endpoint.path is None else redact_url(endpoint.path),
        streaming=endpoint.streaming,
        headers={name: REDACTED for name, _ in endpoint.headers} or None,
        extra=extra or None,
        template=template,
        api_key=REDACTED if endpoint.api_key else None,
        timeout=endpoint.timeout_s,
        connection_reuse=endpoint.connections,
        session_header=None
        if endpoint.session_header == EndpointSettings().session_header
        else endpoint.session_header,
        use_legacy_max_tokens=endpoint.legacy_max_tokens or None,
        use_server_token_count=endpoint.server_token_count or None,
        per_chunk_usage=endpoint.per_chunk_usage or None,
        verify_tls=None if endpoint.verify_tls else False,
        proxy=None if endpoint.proxy is None else redact_url(endpoint.proxy.reveal()),
        trust_env=endpoint.trust_env or None,
        follow_cross_origin_redirects=endpoint.cross_origin_redirects or None,
    )


def _dataset(data: InputSettings) -> dict[str, Any]:
    output_length = None
    if data.output_tokens_mean is not None:
        output_length = _length(data, "output_tokens")
    if data.file is not None:
        public = data.public is not None
        return _present(
            name="main",
            type="public" if public else "file",
            dataset=data.public,
            path=None if public else data.file,
            format=None if public else data.format,
            entries=data.entries if public else None,
            sessions=list(data.sessions) or None,
            sampling=data.sampling,
            random_seed=data.seed,
            system_prompt=data.system,
            osl=None if public else output_length,
            prompts={"osl": output_length} if public and output_length else None,
        )
    input_length = _length(data, "input_tokens")
    return _present(
        name="main",
        type="synthetic",
        entries=data.entries,
        sampling=data.sampling,
        random_seed=data.seed,
        system_prompt=data.system,
        prompts=_present(
            isl=None if data.length_pairs else input_length,
            osl=output_length,
            batch_size=data.batch if data.batch != 1 else None,
            **length_shape(data) | _present(sequence_distribution=_length_pairs(data)),
            corpus=data.corpus,
            cache_bust=None if data.cache_bust == "none" else {"target": data.cache_bust},
        ),
        rankings=_rankings(data) if data.ranks else None,
        **_conversation(data),
        **_media(data),
    )


def model_config(settings: Settings) -> dict[str, Any]:
    """Return the models with their selection, as in AIPerf's configuration files."""
    items: list[dict[str, Any]] = [{"name": name} for name in settings.models]
    for item, weight in zip(items, settings.model_weights, strict=False):
        item["weight"] = weight
    selection = settings.model_selection
    return _present(strategy=None if selection == "round_robin" else selection, items=items)


def length_shape(data: InputSettings) -> dict[str, Any]:
    """Return the distributions of lengths, in the form of their flags."""
    pairs = [
        f"{pair.input_mean:g}|{pair.input_stddev:g},{pair.output_mean:g}|{pair.output_stddev:g}:{pair.percent:g}"
        for pair in data.length_pairs
    ]
    ratio = data.range_ratio
    return _present(
        sequence_distribution=";".join(pairs) or None,
        random_range_ratio=None if ratio is None else f'{{"input": {ratio[0]}, "output": {ratio[1]}}}',
        random_corpus_style=None if ratio is None else data.range_style,
    )


def _length_pairs(data: InputSettings) -> list[dict[str, Any]] | None:
    """Return the pairs of lengths as AIPerf writes them, instead of the text of the flag."""
    pairs = [
        {
            "isl": _distribution(pair.input_mean, pair.input_stddev),
            "osl": _distribution(pair.output_mean, pair.output_stddev),
            "probability": pair.percent,
        }
        for pair in data.length_pairs
    ]
    return pairs or None


def _conversation(data: InputSettings) -> dict[str, Any]:
    shape = data.conversation
    several_turns = shape.turns_mean != 1 or shape.turns_stddev
    prefixes = _present(
        shared_system_length=shape.system_tokens,
        user_context_length=shape.context_tokens,
        pool_size=shape.prefixes or None,
        length=shape.prefix_tokens or None,
    )
    return _present(
        turns=_length(data, "conversation.turns") if several_turns else None,
        turn_delay=_length(data, "conversation.delay", "_ms") if several_turns else None,
        turn_delay_ratio=shape.delay_ratio if shape.delay_ratio != 1 else None,
        prefix_prompts=prefixes or None,
    )


def _media(data: InputSettings) -> dict[str, Any]:
    images, audio = data.images, data.audio
    media: dict[str, Any] = {}
    if images.per_turn:
        media["images"] = {
            "batch_size": images.batch,
            "width": _length(data, "images.width"),
            "height": _length(data, "images.height"),
            "format": images.format,
        }
    if audio.per_turn:
        media["audio"] = {
            "batch_size": audio.batch,
            "length": _length(data, "audio.seconds"),
            "format": audio.format,
            "sample_rates": [rate / 1000 for rate in audio.rates],
            "depths": list(audio.depths),
            "channels": audio.channels,
        }
    return media


def _rankings(data: InputSettings) -> dict[str, Any]:
    return {name: _length(data, f"rankings.{name}") for name in ("passages", "passage_tokens", "query_tokens")}


def _length(data: InputSettings, name: str, unit: str = "") -> dict[str, Any]:
    """Return the distribution of a number, by the name of its settings."""
    shape = data.distribution(f"{name}_mean{unit}")
    if shape is not None:
        return distribution_config(shape)
    mean, stddev = (attrgetter(f"{name}_{part}{unit}")(data) for part in ("mean", "stddev"))
    return _distribution(mean, stddev)


def distribution_config(shape: NumberDistribution) -> dict[str, Any]:
    """Return a distribution as in AIPerf's configuration files."""
    limits = _present(min=shape.low, max=shape.high)
    if shape.parts:
        return {"peaks": [distribution_config(part) | {"weight": part.weight} for part in shape.parts]} | limits
    spread = {"stddev": shape.stddev} if shape.median is None else {"median": shape.median}
    return {"mean": shape.mean} | spread | limits


def _distribution(mean: float, stddev: float) -> dict[str, float]:
    return {"mean": float(mean), "stddev": float(stddev)}


def _phases(settings: Settings, conversations: int | None) -> list[dict[str, Any]]:
    warmup = settings.warmup.load(settings.load)
    phases = [] if warmup is None else [_phase("warmup", warmup, None, exclude_from_results=True)]
    return [*phases, _phase("profiling", settings.load, conversations)]


def _phase(kind: str, load: LoadSettings, conversations: int | None, **fields: Any) -> dict[str, Any]:
    has_limit = load.requests is not None or load.duration_s is not None or load.recorded is not None
    return _present(
        name=kind,
        kind=kind,
        type=_load_type(load),
        **fields,
        requests=load.requests,
        sessions=load.conversations if has_limit or load.conversations is not None else conversations,
        concurrency=load.concurrency,
        rate=load.arrival_rate,
        users=load.users,
        duration=load.duration_s,
        grace_period=_grace(load),
        **_schedule(load),
    )


def _load_type(load: LoadSettings) -> str:
    if load.recorded is not None:
        return "fixed_schedule"
    if load.users is not None:
        return "user_centric"
    return "concurrency" if load.arrival_rate is None else load.arrivals


def _schedule(load: LoadSettings) -> dict[str, Any]:
    schedule = load.recorded
    if schedule is None:
        return {}
    return _present(
        auto_offset=schedule.auto_offset and schedule.start_ms is None,
        start_offset=schedule.start_ms,
        end_offset=schedule.end_ms,
        speedup=schedule.speedup if schedule.speedup != 1 else None,
    )


def _grace(load: LoadSettings) -> float | str | None:
    if load.duration_s is None:
        return None
    return "inf" if load.grace_s == float("inf") else load.grace_s  # JSON has no infinity


def _server_metrics(telemetry: TelemetrySettings) -> dict[str, Any]:
    if telemetry.no_server_metrics:
        return {"enabled": False}
    formats = list(telemetry.server_metrics_formats)
    return {"enabled": True, "urls": list(telemetry.server_metrics or ()), "formats": formats}


def _gpu_telemetry(telemetry: TelemetrySettings) -> dict[str, Any]:
    return {"enabled": False} if telemetry.gpu is None else {"enabled": True, "urls": list(telemetry.gpu)}


def _network_latency(telemetry: TelemetrySettings) -> dict[str, Any]:
    if telemetry.network_ms is not None:
        return {"mean_ms": telemetry.network_ms}
    if telemetry.probe_network:
        return {"enabled": True, "ping_interval": telemetry.ping_interval_s}
    return {"enabled": False}


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
