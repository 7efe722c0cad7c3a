from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.runs.read_settings import read_settings
from penstock.settings.artifact_folder import artifact_folder
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import LoadSettings, Settings


def settings_for(*words: str) -> Settings:
    return resolve(parse(PROFILE, words))


def refused(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        settings_for(*words)
    return str(caught.value)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"texts": ["Hello!"]}\n')
    return str(path)


def test_defaults_of_all_settings() -> None:
    settings = settings_for("--model", "m")
    assert settings.models == ("m",)
    assert settings.endpoint.type == "chat"
    assert settings.endpoint.urls == ("http://localhost:8000",)
    assert settings.endpoint.path is None
    assert not settings.endpoint.streaming
    assert settings.endpoint.verify_tls
    assert settings.input.file is None
    assert settings.input.input_tokens_mean == 550
    assert settings.input.output_tokens_mean is None
    assert settings.load.concurrency == 1
    assert settings.load.rate is None
    assert settings.load.requests is None
    assert settings.load.duration_s is None
    assert settings.warmup.requests == 0
    assert settings.tokenizer.name is None
    assert settings.output.folder == "artifacts/m-chat-concurrency1"
    assert settings.max_error_rate == 0
    assert settings.command == "penstock profile --model m"


def test_every_flag_reaches_its_setting(prompts: str, tmp_path: Path) -> None:
    settings = settings_for(
        *("-m", "a,b", "-m", "c", "--endpoint-type", "completions", "--endpoint", "/x", "--streaming"),
        *("-u", "a:1", "b:2", "-u", "https://c/v1/", "--url-strategy", "round-robin", "--api-key", "k"),
        *("-H", "X-A:1, 2", "--extra-inputs", "t:0.5", 'stop:["a","b"]', "--request-timeout-seconds", "9"),
        *("--connection-reuse-strategy", "never", "--insecure", "--use-server-token-count", "--transport", "http"),
        *("--input-file", prompts, "--custom-dataset-type", "Single-Turn", "--dataset-sampling-strategy", "shuffle"),
        *("--random-seed", "7", "--osl", "20", "--osl-stddev", "2", "--tokenizer", "builtin"),
        *(
            "--tokenizer-revision",
            "v1",
            "--concurrency",
            "4",
            "--request-rate",
            "20",
            "--request-rate-mode",
            "constant",
        ),
        *("--num-requests", "30", "--benchmark-duration", "5", "--benchmark-grace-period", "inf"),
        *("--num-warmup-requests", "3", "--artifact-dir", str(tmp_path / "out"), "--profile-export-file", "foo.json"),
        *("--profile-export-level", "records", "--export-http-trace", "--show-trace-timing", "--ui", "none", "-vv"),
        *("--max-workers", "2", "--require-valid", "--max-error-rate", "0.1", "--no-gpu-telemetry"),
        *("--no-server-metrics", "--no-fixed-schedule", "--model-selection-strategy", "round_robin"),
    )
    endpoint, data, load, output = settings.endpoint, settings.input, settings.load, settings.output
    assert settings.models == ("a", "b", "c")
    assert (endpoint.type, endpoint.path, endpoint.streaming) == ("completions", "/x", True)
    assert endpoint.urls == ("http://a:1", "http://b:2", "https://c/v1")
    assert endpoint.api_key is not None
    assert endpoint.api_key.reveal() == "k"
    assert [(name, secret.reveal()) for name, secret in endpoint.headers] == [("X-A", "1, 2")]
    assert endpoint.extra == {"t": 0.5, "stop": ["a", "b"]}
    assert (endpoint.timeout_s, endpoint.connections, endpoint.verify_tls) == (9.0, "never", False)
    assert endpoint.server_token_count
    assert (data.file, data.format, data.sampling, data.seed) == (prompts, "single_turn", "shuffle", 7)
    assert (data.output_tokens_mean, data.output_tokens_stddev) == (20, 2.0)
    assert (settings.tokenizer.name, settings.tokenizer.revision) == ("builtin", "v1")
    assert (load.concurrency, load.rate, load.arrivals) == (4, 20.0, "constant")
    assert (load.requests, load.duration_s, load.grace_s) == (30, 5.0, float("inf"))
    assert settings.warmup.requests == 3
    assert (output.folder, output.prefix, output.export_level) == (str(tmp_path / "out"), "foo", "records")
    assert (output.http_trace, output.show_http, output.ui, output.verbose) == (True, True, "none", True)
    assert (settings.workers_max, settings.require_valid, settings.max_error_rate) == (2, True, 0.1)
    named = settings_for("-m", "m", "--require-valid", "Request_Latency", "time_to_first_token", "--streaming")
    assert named.require_valid == ("request_latency", "time_to_first_token")


def test_synthetic_lengths_and_counts() -> None:
    data = settings_for("-m", "m", "--isl", "64", "--isl-stddev", "4", "-b", "2", "--num-prompts", "9").input
    assert (data.input_tokens_mean, data.input_tokens_stddev, data.batch, data.entries) == (64, 4.0, 2, 9)


@pytest.mark.parametrize(("level", "verbose"), [("trace", True), ("DEBUG", True), ("INFO", False), ("error", False)])
def test_log_level_trace_and_debug_are_verbose(level: str, verbose: bool) -> None:
    assert settings_for("-m", "m", "--log-level", level).output.verbose is verbose


@pytest.mark.parametrize("pattern", ["constant", "poisson", "gamma"])
def test_arrival_pattern_without_a_rate_leaves_a_closed_loop(pattern: str) -> None:
    load = settings_for(
        "-m", "m", "--request-rate-mode", pattern, "--concurrency", "5", "--benchmark-duration", "2"
    ).load
    assert (load.concurrency, load.arrival_rate, load.arrivals) == (5, None, LoadSettings().arrivals)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--model is missing"),
        (
            ("-m", "m", "--benchmark-grace-period", "5"),
            "--benchmark-grace-period begins when --benchmark-duration ends",
        ),
        (
            ("-m", "m", "--arrival-smoothness", "2"),
            "--arrival-smoothness sets the gaps between the requests of --request-rate",
        ),
        (("-m", "m", "--endpoint", "v1/chat"), "--endpoint must start with a slash"),
        (("-m", "m", "--endpoint", "/v1 /chat"), "a space or a control character"),
        (("-m", "m", "--endpoint", "/caf\u00e9?api_key=hunter2"), "write it as %C3%A9"),
        (("-m", "m", "--endpoint", "v1?api_key=hunter2"), "--endpoint must start with a slash"),
        (("-m", "m", "--endpoint", "/?key=hunter2", "--endpoint", "/?key=hunter22"), "(/?key=<redacted> and /?key=<re"),
        (("-m", "m", "--endpoint", "/v1", "/?key=hunter2"), "--endpoint takes one value"),
        (("-m", "m", "--custom-dataset-type", "single_turn"), "--input-file is missing"),
        (("-m", "m", "--osl-stddev", "4"), "--osl, the mean, is missing"),
        (("-m", "m", "--extra-inputs", f"big:{10**30}"), "big cannot be sent: Integer exceeds 64-bit range"),
        (("-m", "m", "--endpoint-type", "responses", "--use-legacy-max-tokens"), "applies to --endpoint-type chat"),
        (("-m", "m", "--per-chunk-usage", "--streaming"), "add --use-server-token-count."),
        (
            ("-m", "m", "--per-chunk-usage", "--endpoint-type", "completions"),
            "add --endpoint-type chat and --streaming and --use-server-token-count.",
        ),
        (("-m", "m", "--export-http-trace", "--export-level", "summary"), "writes no records"),
        (("-m", "m", "--network-latency-automatic", "--network-latency-mean", "2"), "keep one of them"),
        (("-m", "m", "--reset-kv-cache-path", "/a"), "adjusts --reset-kv-cache, but --reset-kv-cache is missing"),
        (("-m", "m", "--server-profiler-timeout-seconds", "5"), "but --server-profiler is missing"),
        (("-m", "m", "--server-profiler", "--server-profiler-stop-path", "stop"), "must start with a slash"),
        (("-m", "m", "--network-latency-ping-interval", "2"), "adjusts --network-latency-automatic"),
        (("-m", "m", "--profile-export-prefix", "a/b"), "must be a file name without a folder"),
        (("-m", "m", "--profile-export-prefix", ".json"), "must be a file name without a folder"),
        (("-m", "m", "--input-file", "/nowhere/at/all"), "--input-file '/nowhere/at/all' does not exist"),
        (("-m", "m", "--artifact-dir", __file__), "is a file, not a folder"),
        (("-m", "m", "--extra-inputs", "a:1", "--extra-inputs", "a:true"), "--extra-inputs sets a twice"),
        (("-m", "m", "-u", "ftp://a"), "-u 'ftp://a' must start with"),
        (("-m", "m", "--api-key", "hunter2", "-H", "authorization:x"), "by --api-key and by an authorization header"),
        (("-m", "m", "--api-key", "hunter2", "-u", "http://u:p@a"), "by --api-key and by the user name in -u"),
        (("-m", "m", "-H", "Authorization:a", "-H", "Authorization:b"), "The Authorization header is set twice"),
        (("-m", "m", "--api-key", "hunter2\n3"), "an HTTP header cannot contain"),
        (("-m", "m", "--session-header", "a b"), "--session-header 'a b' is not a valid header name"),
        (("-m", "m", "--session-header", "Host"), "--session-header cannot be Host"),
        (("-m", "m", "--session-header", "X-A", "-H", "x-a:hunter2"), "--session-header X-A is set by another option"),
    ],
)
def test_contradicting_flags_are_refused(words: tuple[str, ...], sentence: str) -> None:
    message = refused(*words)
    assert sentence in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--isl", "100"),
        ("--synthetic-input-tokens-stddev", "0"),
        ("--batch-size", "1"),
        ("--num-dataset-entries", "5"),
    ],
)
def test_synthetic_flags_are_refused_with_a_file(prompts: str, flag: str, value: str) -> None:
    message = refused("-m", "m", "--input-file", prompts, flag, value)
    assert message.startswith(f"{flag} applies to synthetic prompts, but --input-file has its own")


def test_tilde_is_expanded_in_paths(prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.path.dirname(prompts))
    settings = settings_for("-m", "m", "--input-file=~/prompts.jsonl", "--artifact-dir", "~/out")
    assert settings.input.file == prompts
    assert settings.output.folder == os.path.join(os.path.dirname(prompts), "out")


def test_unreadable_input_file_is_refused(prompts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be read" in refused("-m", "m", "--input-file", prompts)


def test_consistent_flags_are_accepted(tmp_path: Path) -> None:
    assert settings_for("-m", "m", "--osl-stddev", "0").input.output_tokens_stddev == 0
    assert settings_for("-m", "m", "--extra-inputs", "a:1", "--extra-inputs", "a:1").endpoint.extra == {"a": 1}
    assert settings_for("-m", "m", "--input-file", str(tmp_path)).input.file == str(tmp_path)
    assert settings_for("-m", "m", "--use-legacy-max-tokens").endpoint.legacy_max_tokens
    assert settings_for("-m", "m", "--insecure=false").endpoint.verify_tls
    usage = settings_for("-m", "m", "--per-chunk-usage", "--streaming", "--use-server-token-count")
    assert usage.endpoint.per_chunk_usage


@pytest.mark.parametrize(
    ("models", "endpoint", "concurrency", "rate", "folder"),
    [
        (("Qwen/Qwen3-0.6B",), "chat", 1, None, "artifacts/Qwen_Qwen3-0.6B-chat-concurrency1"),
        (("Qwen/Qwen3-0.6B",), "completions", 1, None, "artifacts/Qwen_Qwen3-0.6B-completions-concurrency1"),
        (("m",), "chat", None, 20.0, "artifacts/m-chat-request_rate20.0"),
        (("m",), "chat", 4, 0.5, "artifacts/m-chat-concurrency4-request_rate0.5"),
        (("a/b", "c"), "chat", 8, None, "artifacts/a_b_multi-chat-concurrency8"),
        (("../../etc",), "chat", 1, None, "artifacts/.._.._etc-chat-concurrency1"),
        (('x:8b q?"*<>|\\',), "chat", 1, None, "artifacts/x_8b_q_______-chat-concurrency1"),
        (("é" * 200,), "chat", 1, None, f"artifacts/{'é' * 75}-chat-concurrency1"),
    ],
)
def test_artifact_folder_is_named_after_model_endpoint_and_load(
    models: tuple[str, ...], endpoint: str, concurrency: int | None, rate: float | None, folder: str
) -> None:
    assert artifact_folder(models, endpoint, concurrency, rate) == folder


def test_slash_in_an_endpoint_name_makes_no_subfolder() -> None:
    assert artifact_folder(("m",), "our/chat", 1, None) == "artifacts/m-our_chat-concurrency1"


def test_rate_without_concurrency_is_unlimited() -> None:
    settings = settings_for("-m", "m", "--request-rate", "5")
    assert settings.load.concurrency is None
    assert settings.output.folder == "artifacts/m-chat-request_rate5.0"


def test_fixed_schedule_settings(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 5, "payload": {}}\n')
    flags = ("--input-file", str(path), "--fixed-schedule", "--replay-speedup", "4", "--fixed-schedule-end-offset", "9")
    load = settings_for("--model", "m", *flags).load
    assert load.recorded is not None
    assert (load.recorded.speedup, load.recorded.end_ms, load.recorded.auto_offset) == (4, 9, True)
    assert load.concurrency is None
    assert settings_for("--model", "m", *flags).output.folder.endswith("-fixed_schedule")


@pytest.mark.parametrize(
    ("first", "flags", "on"),
    [
        ('{"timestamp": 5, "payload": {}}', ["--custom-dataset-type", "Mooncake-Trace"], True),
        ('{"payload": {}}', ["--custom-dataset-type", "mooncake_trace"], False),
        ('{"timestamp": 5, "payload": {}}', [], False),
        ('{"timestamp": 5, "payload": {}}', ["--custom-dataset-type", "mooncake_trace", "--no-fixed-schedule"], False),
        ('{"timestamp": 5, "payload": {}}', ["--custom-dataset-type", "mooncake_trace", "--request-rate", "5"], False),
    ],
)
def test_named_trace_with_timestamps_turns_the_schedule_on(
    tmp_path: Path, first: str, flags: list[str], on: bool
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(first + "\n")
    parsed = parse(PROFILE, ["--model", "m", "--input-file", str(path), *flags])
    assert read_settings(parsed).load.schedule.on is on


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--replay-speedup", "2"],
            "--replay-speedup adjusts the schedule of --fixed-schedule, but --fixed-schedule is missing",
        ),
        (
            ["--fixed-schedule"],
            "--fixed-schedule sends requests at the times recorded in a file, but --input-file is missing",
        ),
        (["FILE", "--fixed-schedule", "--request-rate", "3"], "and --request-rate sets other times"),
        (
            ["FILE", "--fixed-schedule", "--warmup-request-count", "3"],
            "would use up requests before the schedule starts",
        ),
        (["FILE", "--fixed-schedule", "--dataset-sampling-strategy", "random"], "changes the order"),
        (
            ["FILE", "--fixed-schedule", "--fixed-schedule-start-offset", "9", "--fixed-schedule-end-offset", "3"],
            "--fixed-schedule-end-offset 3 is before --fixed-schedule-start-offset 9",
        ),
        (
            ["FILE", "--fixed-schedule", "--fixed-schedule-start-offset", "9", "--fixed-schedule-auto-offset"],
            "both set the start of the schedule",
        ),
        (["--sessions", "a"], "--sessions selects sessions of a file, but --input-file is missing"),
    ],
)
def test_contradicting_schedule_flags_are_refused(tmp_path: Path, words: list[str], sentence: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 5, "payload": {}}\n')
    flags = [flag for word in words for flag in (["--input-file", str(path)] if word == "FILE" else [word])]
    assert sentence in refused("--model", "m", *flags)
