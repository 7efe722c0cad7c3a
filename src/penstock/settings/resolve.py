"""Turns parsed arguments into `Settings`: fills in defaults and checks flags against each other."""

from __future__ import annotations

import math
import os
from typing import Any

import msgspec
import orjson

from penstock.errors import UserError
from penstock.extras import require_extra
from penstock.secrets import Secret, redact_url
from penstock.settings.api_key import KEY_FIELDS, default_key, read_key
from penstock.settings.artifact_folder import artifact_folder
from penstock.settings.endpoint_types import Declaration, EndpointType, load_endpoint
from penstock.settings.flag_rules import check_rules
from penstock.settings.flag_values import ParsedArguments, ValueList
from penstock.settings.model_shares import model_shares
from penstock.settings.rate_series import read_rate_series
from penstock.settings.resolve_exports import exports
from penstock.settings.resolve_search import resolve_search
from penstock.settings.resolve_synthetic import (
    audio,
    check_endpoint,
    conversation,
    images,
    length_shape,
    rankings,
    system_prompt,
)
from penstock.settings.resolve_telemetry import telemetry
from penstock.settings.resolve_users import check_users
from penstock.settings.resolve_warmup import resolve_warmup
from penstock.settings.schema import (
    BURST,
    EndpointSettings,
    ExperimentSettings,
    InputSettings,
    LoadSettings,
    OutputSettings,
    ReadinessSettings,
    ScheduleSettings,
    ServerCallSettings,
    Settings,
    SynthesisSettings,
    TokenizerSettings,
)
from penstock.settings.urls import check_request_target, normalize_urls, parse_proxy


def resolve(
    parsed: ParsedArguments,
    folder_prefix: str = "",
    *,
    parameters: tuple[str, ...] = (),
    endpoint: EndpointSettings | None = None,
    recorded_times: bool = False,
) -> Settings:
    """Return the settings, or raise `UserError`.

    `folder_prefix` begins the default name of the artifact folder. `parameters` are the names of those that vary in a sweep,
    whose points share the settings of the `endpoint`: an API key is read once. With `recorded_times`, requests are sent at the
    times in the input file even without --fixed-schedule."""
    if "models" not in parsed.values:
        raise UserError("--model is missing: name the model to request, for example --model Qwen/Qwen3-0.6B.")
    models = tuple(parsed.values["models"])
    endpoint_type: EndpointType = load_endpoint(parsed.values.get("endpoint.type", EndpointSettings().type))
    endpoint = endpoint or resolve_endpoint(parsed, endpoint_type)
    load = resolve_load(parsed, recorded_times=recorded_times)
    _check_early_ends(parsed, load)
    check_endpoint(parsed, endpoint.type, endpoint_type.declaration)
    return Settings(
        models=models,
        **model_shares(parsed, models),
        endpoint=endpoint,
        input=_input(parsed, endpoint_type.declaration),
        tokenizer=TokenizerSettings(**parsed.section("tokenizer")),
        load=load,
        warmup=resolve_warmup(parsed, load),
        output=_output(
            parsed,
            artifact_folder(
                models,
                endpoint.type,
                load.concurrency,
                load.arrival_rate,
                scheduled=load.recorded is not None,
                users=load.users,
                prefix=folder_prefix,
            ),
        ),
        readiness=ReadinessSettings(**parsed.section("readiness")),
        server_calls=_server_calls(parsed),
        experiment=_experiment(parsed, parameters),
        telemetry=telemetry(parsed),
        exports=exports(parsed),
        assertions=tuple(parsed.values.get("assertions", ())),
        require_valid=required_verdicts(parsed),
        command=parsed.command,
        # AIPerf ends with 0 if a request succeeds, and its name promises the same.
        max_error_rate=parsed.values.get("max_error_rate", None if parsed.program == "aiperf" else 0.0),
        notes=parsed.notes,
        **{
            name: parsed.values[name]
            for name in (
                "workers_max",
                "cluster",
                "goodput",
                "until",
                "reader_rate",
            )
            if name in parsed.values
        },
    )


def required_verdicts(parsed: ParsedArguments) -> bool | tuple[str, ...]:
    """Return what must be VALID. Files and the Python API also give a boolean."""
    names = tuple(name.lower() for name in parsed.values.get("require_valid", ("false",)))
    if names in ((), ("true",)):
        return True
    return False if names == ("false",) else names


def _check_early_ends(parsed: ParsedArguments, load: LoadSettings) -> None:
    """Raise `UserError` for --until and --stop-on-overload where they mean nothing."""
    spelling, values = parsed.spellings, parsed.values
    for flag in ("until", "load.stop_on_overload"):
        for target in ("experiment.find_max", "experiment.recipe"):
            if values.get(flag) and target in values:
                raise UserError(f"A search ends each load by itself; leave out {spelling[flag]} or {spelling[target]}.")
    if "until" in values and load.requests is None and load.duration_s is None:
        raise UserError(
            f"{spelling.get('until', '--until')} needs a limit in case the precision is not reached: give --request-count or "
            "--benchmark-duration."
        )
    if load.stop_on_overload and not load.open_loop:
        raise UserError(
            f"{spelling['load.stop_on_overload']} ends a run that cannot keep up with a rate, and there is none; add "
            "--request-rate. A closed loop cannot overload a server."
        )


def resolve_endpoint(parsed: ParsedArguments, endpoint_type: EndpointType) -> EndpointSettings:
    declaration = endpoint_type.declaration
    fields = parsed.section("endpoint")
    spelling = parsed.spellings.get
    key_fields = [field for field in KEY_FIELDS if field in fields]
    headers = [(name, Secret(value)) for name, value in fields.pop("headers", ())]
    sources = [(declaration.credential_header, str(spelling(f"endpoint.{field}"))) for field in key_fields]
    credentials = {name.lower(): name for name in ("Authorization", declaration.credential_header)}
    sources += [(credentials[name.lower()], f"an {name} header") for name, _ in headers if name.lower() in credentials]
    if "urls" in fields:
        fields["urls"], credential = normalize_urls(
            fields["urls"], spelling("endpoint.urls", "--url"), keep_path=not endpoint_type.path
        )
        if credential is not None:
            headers.append(("Authorization", Secret(credential)))
            sources.append((credentials["authorization"], f"the user name in {spelling('endpoint.urls')}"))
    _check_credentials(sources)
    for field in key_fields:
        fields["api_key"] = read_key(field, fields[field], str(spelling(f"endpoint.{field}")))
    if "proxy" in fields:
        parse_proxy(fields["proxy"], str(spelling("endpoint.proxy")))
        fields["proxy"] = Secret(fields["proxy"])
    if "extra" in fields:
        fields["extra"] = _merged(fields["extra"], str(spelling("endpoint.extra")))
    if "path" in fields:
        _check_path(fields["path"], str(spelling("endpoint.path")))
    if "session_header" in fields:
        fields["session_header"] = _session_header(fields["session_header"], headers, declaration, parsed)
    endpoint = EndpointSettings(**fields, headers=tuple(headers))
    if not sources and (key := default_key(endpoint.urls)) is not None:
        endpoint = msgspec.structs.replace(endpoint, api_key=key, default_api_key=True)
    _check_abilities(endpoint, declaration, parsed)
    return endpoint


def _server_calls(parsed: ParsedArguments) -> ServerCallSettings:
    fields = parsed.section("server_calls")
    for name in ("reset_path", "start_path", "stop_path"):
        if name in fields:
            _check_path(fields[name], parsed.spellings[f"server_calls.{name}"])
    return ServerCallSettings(**fields)


def _session_header(
    text: str, headers: list[tuple[str, Secret]], declaration: Declaration, parsed: ParsedArguments
) -> str:
    from penstock.settings.pairs import header_name

    spelling = str(parsed.spellings.get("endpoint.session_header"))
    name = header_name(text, spelling)
    others = [declaration.credential_header, *(other for other, _ in (*headers, *declaration.headers))]
    if name.lower() in map(str.lower, others):
        raise UserError(f"{spelling} {name} is set by another option, too; choose another name.")
    return name


def _check_credentials(sources: list[tuple[str, str]]) -> None:
    """Raise UserError if two of the sources, each with the header that it sets, set the same header."""
    by_header: dict[str, str] = {}
    for header, source in sources:
        if header in by_header:
            raise UserError(
                f"The {header} header is set twice, by {by_header[header]} and by {source}; keep one of them."
            )
        by_header[header] = source


def _check_abilities(endpoint: EndpointSettings, declaration: Declaration, parsed: ParsedArguments) -> None:
    """Raise UserError for a flag that asks for something which the endpoint type does not have."""
    spelling = parsed.spellings.get
    if endpoint.streaming and not declaration.streams:
        raise UserError(
            f"{spelling('endpoint.streaming')} asks for streamed replies, which --endpoint-type {endpoint.type} does not "
            "have; leave the flag out."
        )
    if endpoint.legacy_max_tokens and "max_tokens" not in declaration.length_limits:
        limit_name = f" ({declaration.length_limits[0]})" if declaration.length_limits else ""
        raise UserError(
            f"{spelling('endpoint.legacy_max_tokens')} applies to --endpoint-type chat; {endpoint.type} has one name for "
            f"the length limit{limit_name}, so leave the flag out."
        )
    if endpoint.per_chunk_usage:
        missing = (
            (declaration.chunk_usage, "--endpoint-type chat"),
            (endpoint.streaming, "--streaming"),
            (endpoint.server_token_count, "--use-server-token-count"),
        )
        if flags := [flag for present, flag in missing if not present]:
            raise UserError(
                f"{spelling('endpoint.per_chunk_usage')} reads the server's token counts in the chunks of chat streams; "
                f"add {' and '.join(flags)}."
            )


def _input(parsed: ParsedArguments, declaration: Declaration) -> InputSettings:
    fields = parsed.section("input")
    spelling = parsed.spellings.get
    if "file" in fields:
        draws = fields.get("format", "").strip().lower().replace("-", "_") in ("random_pool", "sharegpt")
        for field, remedy in _SYNTHETIC_ONLY.items():
            if field in fields and not (draws and field == "entries"):
                raise UserError(
                    f"{spelling(f'input.{field}')} applies to synthetic prompts, but {spelling('input.file')} has its "
                    f"own; {remedy}."
                )
        if "public" not in fields:
            _check_readable(fields["file"], str(spelling("input.file")))
    elif "format" in fields:
        raise UserError(f"{spelling('input.format')} names the format of a file, but --input-file is missing.")
    elif "sessions" in fields:
        raise UserError(f"{spelling('input.sessions')} selects sessions of a file, but --input-file is missing.")
    elif "block_size" in fields:
        raise UserError(
            f"{spelling('input.block_size')} describes the hash_ids of a trace, but --input-file is missing."
        )
    if "sessions" in fields:
        fields["sessions"] = tuple(fields["sessions"])
    if "format" in fields:
        fields["format"] = fields["format"].strip().lower().replace("-", "_")
    if fields.get("output_tokens_stddev") and "output_tokens_mean" not in fields:
        raise UserError(
            f"{spelling('input.output_tokens_stddev')} is the standard deviation of the reply length, but --osl, the mean, "
            "is missing; give both or neither."
        )
    fields = {name: value for name, value in fields.items() if "." not in name}
    fields["distributions"] = tuple(sorted(parsed.section("input.distributions").items()))
    fields |= length_shape(parsed)
    fields |= system_prompt(parsed)
    return InputSettings(
        **fields,
        conversation=conversation(parsed),
        images=images(parsed),
        audio=audio(parsed),
        rankings=rankings(parsed, declaration),
        ranks="passages" in declaration.inputs,
        separate_texts=declaration.separate_texts,
        texts=declaration.input_tokens,
        synthesis=_synthesis(parsed),
    )


def _synthesis(parsed: ParsedArguments) -> SynthesisSettings:
    fields = parsed.section("input.synthesis")
    if fields and "input.file" not in parsed.values:
        name = parsed.spellings[f"input.synthesis.{next(iter(fields))}"]
        raise UserError(f"{name} changes the requests of a trace, but --input-file is missing.")
    return SynthesisSettings(**fields)


_SYNTHETIC_ONLY = {
    "input_tokens_mean": "leave one of them out",
    "input_tokens_stddev": "leave one of them out",
    "length_pairs": "leave one of them out",
    "range_ratio": "leave one of them out",
    "range_style": "leave one of them out",
    "batch": "leave one of them out",
    "entries": "leave the flag out, and use --request-count to send fewer or more",
}
"""Fields that contradict --input-file, and what to do about it."""


def resolve_load(parsed: ParsedArguments, *, recorded_times: bool = False) -> LoadSettings:
    _refuse_lists(parsed)
    check_rules(parsed)
    fields = parsed.section("load")
    spelling = parsed.spellings.get
    schedule = _schedule(parsed, recorded_times)
    fields = {name: value for name, value in fields.items() if not name.startswith("schedule.")}
    _check_rates(parsed, fields)
    check_users(parsed, fields)
    if fields.get("arrivals") == BURST or has_idle_pattern(parsed):
        del fields["arrivals"]  # the closed loop sends when a slot is free
    if "smoothness" in fields:
        fields.setdefault("arrivals", "gamma")
    if "rate_series" in fields:
        fields["rate_series"] = read_rate_series(fields["rate_series"], str(spelling("load.rate_series")))
    elif not schedule.on and not _RATES & fields.keys():
        fields.setdefault("concurrency", 1)
    return LoadSettings(**fields, schedule=schedule)


_RATES = {"rate", "conversation_rate", "rate_series", "user_rate"}


def has_idle_pattern(parsed: ParsedArguments) -> bool:
    """Return whether an arrival pattern is given without a rate. AIPerf ignores it, and so does Penstock, with a note."""
    rates = {f"load.{name}" for name in _RATES}
    searches = parsed.values.get("experiment.find_max") == "request-rate"
    return "load.arrivals" in parsed.values and not searches and not rates & parsed.values.keys()


def _check_rates(parsed: ParsedArguments, fields: dict[str, Any]) -> None:
    """Raise `UserError` for rates that contradict each other, and for what adjusts a rate that is missing."""
    spelling = parsed.spellings.get
    rates = [str(spelling(f"load.{name}")) for name in fields if name in _RATES]
    if len(rates) > 1:
        raise UserError(f"{rates[0]} and {rates[1]} both set the rate; keep one of them.")
    pattern = fields.get("arrivals")
    if pattern == BURST and rates:
        raise UserError(
            f"{spelling('load.arrivals')} {BURST} has no rate; leave out {rates[0]}, or choose another pattern."
        )
    searches_rate = parsed.values.get("experiment.recipe") == "max-goodput-under-slo"
    if not rates and not searches_rate and parsed.values.get("experiment.find_max") != "request-rate":
        adjusting = [name for name in ("smoothness", "rate_ramp_s") if name in fields and pattern != BURST]
        if adjusting:
            raise UserError(
                f"{spelling(f'load.{adjusting[0]}')} {_ADJUSTS[adjusting[0]]} of --request-rate, but --request-rate is "
                "missing; give both or neither."
            )
    if "smoothness" in fields and pattern not in (None, "gamma"):
        raise UserError(f"{spelling('load.smoothness')} shapes gamma arrivals, not {pattern}; leave one of them out.")
    if fields.get("prefill_concurrency", 0) > fields.get("concurrency", math.inf):
        raise UserError(
            f"{spelling('load.prefill_concurrency')} {fields['prefill_concurrency']} is above --concurrency "
            f"{fields['concurrency']}, so it would never be reached; lower it."
        )


_ADJUSTS = {
    "smoothness": "sets the gaps between the requests",
    "rate_ramp_s": "is the time to reach the value",
}


def _schedule(parsed: ParsedArguments, recorded_times: bool) -> ScheduleSettings:
    fields = parsed.section("load.schedule")
    if recorded_times:
        fields["on"] = True
    spelling = parsed.spellings.get
    schedule = ScheduleSettings(**fields)
    adjusting = next((spelling(f"load.schedule.{name}") for name in fields if name != "on"), None)
    if not schedule.on:
        if adjusting is not None:
            raise UserError(
                f"{adjusting} adjusts the schedule of --fixed-schedule, but --fixed-schedule is missing; give both or neither."
            )
        return schedule
    name = spelling("load.schedule.on", f"--custom-dataset-type {parsed.values.get('input.format')}")  # can turn it on
    if "input.file" not in parsed.values:
        raise UserError(f"{name} sends requests at the times recorded in a file, but --input-file is missing.")
    for target, reason in _NOT_WITH_SCHEDULE.items():
        if parsed.values.get(target) not in (None, "sequential", 0):
            raise UserError(
                f"{name} sends each request at its recorded time, and {spelling(target)} {reason}; leave one of them out."
            )
    if schedule.start_ms is not None:
        if fields.get("auto_offset"):
            raise UserError(
                f"{spelling('load.schedule.start_ms')} and {spelling('load.schedule.auto_offset')} both set the start of "
                "the schedule; keep one of them."
            )
        if schedule.end_ms is not None and schedule.end_ms < schedule.start_ms:
            raise UserError(
                f"{spelling('load.schedule.end_ms')} {schedule.end_ms:g} is before "
                f"{spelling('load.schedule.start_ms')} {schedule.start_ms:g}."
            )
    return schedule


_NOT_WITH_SCHEDULE = {
    "load.rate": "sets other times",
    "load.conversation_rate": "sets other times",
    "load.rate_series": "sets other times",
    "load.user_rate": "sets other times",
    "input.sampling": "changes the order",
    "warmup.requests": "would use up requests before the schedule starts",
    "warmup.conversations": "would use up requests before the schedule starts",
    "warmup.duration_s": "would use up requests before the schedule starts",
}
"""Targets that contradict recorded times, and why."""


def _refuse_lists(parsed: ParsedArguments) -> None:
    for target, value in parsed.values.items():
        if isinstance(value, ValueList):
            raise UserError(f"{parsed.spellings[target]} {value} asks for a sweep; give one value here.")


def _experiment(parsed: ParsedArguments, parameters: tuple[str, ...]) -> ExperimentSettings:
    fields = parsed.section("experiment")
    spelling = parsed.spellings.get
    settings = resolve_search(parsed, ExperimentSettings(**fields, parameters=parameters, trial_folders=True))
    if not settings.parameters:
        for name in _SWEEPS_ONLY:
            if name in fields:
                raise UserError(
                    f"{spelling(f'experiment.{name}')} applies to sweeps; give a list of values such as --concurrency 1,8,64, "
                    "or leave it out."
                )
    if settings.sweep == "auto":
        _check_auto(parsed, settings)
    if settings.runs == 1:
        for name in _REPEATED_ONLY:
            if name in fields:
                raise UserError(
                    f"{spelling(f'experiment.{name}')} applies to repeated runs; give --num-profile-runs too, or leave it "
                    "out."
                )
    if "order" in fields and (settings.runs == 1 or not settings.parameters):
        raise UserError(
            f"{spelling('experiment.order')} orders the repeated runs of a sweep; give --num-profile-runs and a list of values "
            "too, or leave it out."
        )
    if settings.convergence_metric is not None and settings.runs < MIN_RUNS:
        raise UserError(
            f"{spelling('experiment.convergence_metric')} needs at least {MIN_RUNS} runs to judge, but --num-profile-runs "
            f"is {settings.runs}."
        )
    if settings.convergence_mode == "distribution" and parsed.values.get("output.export_level") == "summary":
        raise UserError(
            f"{spelling('experiment.convergence_mode')} distribution compares the values of single requests, which "
            f"{spelling('output.export_level')} summary does not write; leave one of them out."
        )
    return settings


def _check_auto(parsed: ParsedArguments, settings: ExperimentSettings) -> None:
    """Raise UserError for flags that contradict a sweep that chooses its points by itself."""
    name = f"{parsed.spellings.get('experiment.sweep', '--sweep')} auto"
    for target in ("load.rate", "load.conversation_rate", "load.rate_series", "load.user_rate", "load.schedule.on"):
        if parsed.values.get(target):
            raise UserError(f"{name} varies the concurrency; leave out {parsed.spellings[target]}.")
    if settings.runs > 1:
        raise UserError(f"{name} measures each point once; leave out {parsed.spellings['experiment.runs']}.")


MIN_RUNS = 3
"""Repeated runs before a metric can be called stable."""
_REPEATED_ONLY = ("run_pause_s", "confidence", "warmup_once", "fixed_seed", "seed_per_run", "convergence_metric")
_SWEEPS_ONLY = ("combine", "point_pause_s", "same_seed", "table")


def _output(parsed: ParsedArguments, default_folder: str) -> OutputSettings:
    fields = {"folder": default_folder, **parsed.section("output")}
    spelling = parsed.spellings.get
    if os.path.exists(fields["folder"]) and not os.path.isdir(fields["folder"]):
        source = spelling("output.folder", "The artifact folder")
        raise UserError(f"{source} {fields['folder']!r} is a file, not a folder; choose another path.")
    if "prefix" in fields:
        fields["prefix"] = _prefix(fields["prefix"], str(spelling("output.prefix")))
    if fields.get("http_trace") and fields.get("export_level") == "summary":
        raise UserError(
            f"{spelling('output.http_trace')} extends the record of each request, but {spelling('output.export_level')} "
            "summary writes no records; leave one of them out."
        )
    if "exports" in fields:
        fields["exports"] = _exports(fields["exports"], str(spelling("output.exports")))
        if fields.get("export_level") == "summary":
            raise UserError(
                f"{spelling('output.exports')} writes the record of each request, but {spelling('output.export_level')} "
                "summary writes no records; leave one of them out."
            )
    if parsed.values.get("log_level") in ("TRACE", "DEBUG"):
        fields["verbose"] = True
    if fields.get("quiet") and fields.get("verbose"):
        verbose = spelling("output.verbose") or spelling("log_level")
        raise UserError(f"{spelling('output.quiet')} prints only errors, and {verbose} prints more; keep one of them.")
    return OutputSettings(**fields)


def _exports(names: list[str], spelling: str) -> tuple[str, ...]:
    for name in names:
        if name != "parquet":
            raise UserError(f"{spelling} must be parquet, not {name!r}.")
    require_extra("parquet", f"{spelling} parquet", "pyarrow")
    return tuple(dict.fromkeys(names))


def _prefix(text: str, spelling: str) -> str:
    name = text.strip()
    for suffix in (".jsonl", ".json", ".csv"):
        name = name.removesuffix(suffix)
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UserError(
            f"{spelling} {text!r} must be a file name without a folder; use --artifact-dir to choose the folder."
        )
    return name


def _merged(pairs: list[tuple[str, Any]], spelling: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in pairs:
        if key in merged and (type(merged[key]), merged[key]) != (type(value), value):
            raise UserError(f"{spelling} sets {key} twice, with different values; keep one of them.")
        try:
            orjson.dumps(value)
        except TypeError as error:  # integers beyond 64 bits, or nesting too deep
            raise UserError(f"{spelling} {key} cannot be sent: {str(error).rstrip('.')}.") from None
        merged[key] = value
    return merged


def _check_path(path: str, spelling: str) -> None:
    if not path.startswith("/"):
        raise UserError(f"{spelling} must start with a slash, like /v1/chat/completions, not {redact_url(path)!r}.")
    check_request_target(path, f"{spelling} {redact_url(path)!r}")


def _check_readable(path: str, spelling: str) -> None:
    if not os.path.exists(path):
        raise UserError(f"{spelling} {path!r} does not exist (the current folder is {os.getcwd()}).")
    if not os.access(path, os.R_OK):
        raise UserError(f"{spelling} {path!r} cannot be read; check its permissions.")
