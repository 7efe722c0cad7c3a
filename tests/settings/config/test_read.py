"""A configuration file gives the settings of the equivalent flags, or sentences with file, line and key."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.runs.read_settings import read_settings
from penstock.settings.config import with_config
from penstock.settings.config.read import read_config
from penstock.settings.flags import ENDPOINT_TYPES
from penstock.settings.parse import parse
from penstock.settings.schema import Settings

FILE = "run.yaml"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"text": "Hello"}\n')
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n')
    (tmp_path / "key.txt").write_text("sk-from-file")
    return tmp_path


def settings_for(*words: str) -> Settings:
    return msgspec.structs.replace(read_settings(with_config(parse(PROFILE, words))), command="")


def from_file(text: str, *words: str) -> Settings:
    Path(FILE).write_text(text)
    return settings_for("--config", FILE, *words)


def under(section: str, text: str) -> str:
    """Return a file with a model, and the text as a section of the benchmark."""
    return f"benchmark:\n  model: m\n  {section}: {text}\n"


EQUIVALENT = {
    "model": ("benchmark: {model: a}", "-m a"),
    "several models": ("benchmark: {models: [a, b]}", "-m a,b"),
    "items": ("benchmark: {models: {strategy: round_robin, items: [{name: a}, {name: b}]}}", "-m a,b"),
    "weights": (
        "benchmark: {models: {strategy: weighted, items: [{name: a, weight: 3}, {name: b, weight: 1}]}}",
        "-m a,b --model-weights 3,1",
    ),
    "url": (under("endpoint", "{url: 'http://a:1', type: responses}"), "-m m -u a:1 --endpoint-type responses"),
    "urls": (under("endpoint", "{urls: ['a:1', 'b:2'], streaming: true}"), "-m m -u a:1 b:2 --streaming"),
    "snake_case": (
        under("endpoint", "{use_legacy_max_tokens: true, connection_reuse: never}"),
        "-m m --use-legacy-max-tokens --connection-reuse-strategy never",
    ),
    "camelCase": (
        under("endpoint", "{useLegacyMaxTokens: yes, connectionReuse: NEVER}"),
        "-m m --use-legacy-max-tokens --connection-reuse-strategy never",
    ),
    "headers and extra": (
        under("endpoint", "{headers: {X-A: 'a, b', X-B: 2}, extra: {t: 0.5, stop: [a, b], n: null, s: '1'}}"),
        """-m m -H 'X-A:a, b' -H X-B:2 --extra-inputs '{"t":0.5,"stop":["a","b"],"n":null,"s":"1"}'""",
    ),
    "template": (
        under("endpoint", "{type: template, template: {body: '{\"p\": {{ text|tojson }}}', responseField: out}}"),
        """-m m --endpoint-type template --extra-inputs response_field:out 'payload_template:{"p": {{ text|tojson }}}'""",
    ),
    "key file": (under("endpoint", "{apiKeyFile: key.txt}"), "-m m --api-key-file key.txt"),
    "no verification": (under("endpoint", "{verifyTls: false}"), "-m m --insecure"),
    "minutes": (under("endpoint", "{timeout: 5m}"), "-m m --request-timeout-seconds 300"),
    "hours": (under("endpoint", "{timeout: 1.5 h}"), "-m m --request-timeout-seconds 5400"),
    "number as text": (under("endpoint", "{timeout: '30'}"), "-m m --request-timeout-seconds 30"),
    "lengths": (
        under("dataset", "{isl: 100, osl: {mean: 20, stddev: 2.5}}"),
        "-m m --isl 100 --osl 20 --osl-stddev 2.5",
    ),
    "lengths as AIPerf exports them": (
        "benchmark: {model: m, datasets: [{name: main, type: synthetic, prompts: {isl: {mean: 100.0, stddev: 0.0}}}]}",
        "-m m --isl 100 --isl-stddev 0",
    ),
    "turns": (
        under("dataset", "{type: synthetic, turns: {type: normal, mean: 3}, turnDelay: 2s, entries: 5}"),
        "-m m --conversation-turn-mean 3 --conversation-turn-delay-mean 2000 --num-dataset-entries 5",
    ),
    "images": (
        under("dataset", "{images: {width: 64, height: {mean: 32, stddev: 1}, batchSize: 2}}"),
        "-m m --image-width-mean 64 --image-height-mean 32 --image-height-stddev 1 --image-batch-size 2",
    ),
    "audio": (
        under("dataset", "{audio: {length: {value: 2}, sampleRates: [16, 44.1], depths: [16, 24]}}"),
        "-m m --audio-length-mean 2 --audio-sample-rates 16,44.1 --audio-depths 16,24",
    ),
    "file": (
        under("dataset", "{type: file, path: prompts.jsonl, format: single_turn, sampling: shuffle, osl: 9}"),
        "-m m --input-file prompts.jsonl --custom-dataset-type single-turn --dataset-sampling-strategy shuffle --osl 9",
    ),
    "poisson": (under("profiling", "{type: poisson, rate: 5}"), "-m m --request-rate 5"),
    "constant": (
        under("profiling", "{rate: 5, type: constant, rateRamp: {duration: 2s, strategy: linear}}"),
        "-m m --request-rate 5 --arrival-pattern constant --request-rate-ramp-duration 2",
    ),
    "gamma": (
        under("profiling", "{type: gamma, rate: 5, smoothness: 0.5, concurrency: 9}"),
        "-m m --request-rate 5 --arrival-pattern gamma --arrival-smoothness 0.5 --concurrency 9",
    ),
    "conversation rate": (under("profiling", "{type: poisson, conversationRate: 5}"), "-m m --conversation-rate 5"),
    "concurrency": (
        under(
            "profiling", "{type: concurrency, concurrency: 8, concurrencyRamp: 3, prefillConcurrency: 2, requests: 9}"
        ),
        "-m m --concurrency 8 --concurrency-ramp-duration 3 --prefill-concurrency 2 --request-count 9",
    ),
    "stop": (
        under("profiling", "{duration: 1m, gracePeriod: inf, sessions: 4, failedRequestThreshold: 0.5}"),
        "-m m --benchmark-duration 60 --benchmark-grace-period inf --num-sessions 4 --failed-request-threshold 0.5",
    ),
    "cancellation": (
        under("profiling", "{type: concurrency, cancellation: {rate: 10, delay: 500ms}}"),
        "-m m --request-cancellation-rate 10 --request-cancellation-delay 0.5",
    ),
    "series": (
        under("profiling", "{type: poisson, rateSeries: {points: [{timeS: 0, qps: 1}, {time_s: 9, qps: 5}]}}"),
        """-m m --request-rate-series '[{"timeS": 0, "qps": 1}, {"timeS": 9, "qps": 5}]'""",
    ),
    "one phase": (
        "benchmark: {model: m, phases: {type: constant, rate: 5}}",
        "-m m --request-rate 5 --arrival-pattern constant",
    ),
    "phases": (
        "benchmark: {model: m, phases: [{name: warmup, type: concurrency, requests: 3}, {name: main, concurrency: 2}]}",
        "-m m --warmup-request-count 3 --concurrency 2",
    ),
    "warmup by kind": (
        "benchmark: {model: m, phases: [{name: x, kind: warmup, excludeFromResults: true, requests: 3}]}",
        "-m m --warmup-request-count 3",
    ),
    "warmup": (
        "benchmark: {model: m, warmup: {type: poisson, requests: 3}, profiling: {type: poisson, rate: 2}}",
        "-m m --warmup-request-count 3 --request-rate 2",
    ),
    "recorded times": (
        (
            "benchmark: {model: m, profiling: {type: fixed_schedule, startOffset: 5, endOffset: 9},"
            " dataset: {type: file, path: trace.jsonl, format: mooncake_trace, replaySpeedup: 2}}"
        ),
        (
            "-m m --input-file trace.jsonl --custom-dataset-type mooncake_trace --fixed-schedule "
            "--fixed-schedule-start-offset 5 --fixed-schedule-end-offset 9 --replay-speedup 2"
        ),
    ),
    "trace without its times": (
        (
            "benchmark: {model: m, profiling: {type: concurrency},"
            " dataset: {type: file, path: trace.jsonl, format: mooncake_trace}}"
        ),
        "-m m --input-file trace.jsonl --custom-dataset-type mooncake_trace --no-fixed-schedule",
    ),
    "objectives": (
        under("slos", "{time_to_first_token: 200, inter_token_latency: 10.5}"),
        "-m m --goodput 'time_to_first_token:200 inter_token_latency:10.5'",
    ),
    "checks": (
        under("checks", "{requireValid: true, maxErrorRate: 0.1, assert: ['p99 request_latency<5']}"),
        "-m m --require-valid --max-error-rate 0.1 --assert 'p99 request_latency<5'",
    ),
    "required metrics": (
        under("checks", "{requireValid: [request_latency, time_to_first_token]}"),
        "-m m --require-valid Request_Latency time_to_first_token",
    ),
    "verdict that is not required": (under("checks", "{requireValid: false}"), "-m m"),
    "artifacts": (
        under("artifacts", "{dir: out, prefix: p, summary: [json], records: false, showTraceTiming: true, raw: false}"),
        "-m m --artifact-dir out --profile-export-prefix p --export-level summary --show-trace-timing",
    ),
    "raw replies": (
        under("artifacts", "{raw: true, records: [jsonl]}"),
        "-m m --export-level raw",
    ),
    "tokenizer and runtime": (
        "randomSeed: 3\nbenchmark: {model: m, tokenizer: {name: builtin}, runtime: {workers: 2, ui: none}}",
        "-m m --random-seed 3 --tokenizer builtin --workers-max 2 --ui none",
    ),
    "server metrics": (
        under("serverMetrics", "{enabled: true, interval: 0.1, urls: ['http://x/metrics'], formats: [csv]}"),
        "-m m --server-metrics http://x/metrics --telemetry-interval 0.1 --server-metrics-formats csv",
    ),
    "GPU telemetry": (under("gpuTelemetry", "{enabled: true, urls: [pynvml]}"), "-m m --gpu-telemetry pynvml"),
    "server calls": (
        under("endpoint", "{resetKvCache: true, resetKvCacheTimeout: 5s, serverProfiler: true}"),
        "-m m --reset-kv-cache --reset-kv-cache-timeout-seconds 5 --server-profiler",
    ),
    "network latency": (
        under("networkLatency", "{enabled: true, pingInterval: 2s}"),
        "-m m --network-latency-automatic --network-latency-ping-interval 2",
    ),
    "server metrics of the servers": (under("serverMetrics", "{enabled: true}"), "-m m --server-metrics"),
    "exports": (
        (
            "benchmark:\n  model: m\n  otel: {metricsUrl: 'localhost:4318', streamMetricsEnabled: true, streamTimingEnabled:"
            " false, genAiProvider: vllm, customResourceAttributes: {team: perf, tier: '1'}}\n"
            "  mlflow: {trackingUri: 'http://h:5000', runName: r, tags: 'a:b', artifactGlobs: ['*.json', '*.csv']}\n"
            "  wandb: {project: p, tags: [x, y]}"
        ),
        (
            "-m m --otel-url http://localhost:4318/v1/metrics --gen-ai-provider vllm --otel-resource-attributes team=perf "
            "tier=1 --mlflow-tracking-uri h:5000 --mlflow-run-name r --mlflow-tag a:b --mlflow-artifact-glob *.json,*.csv "
            "--wandb-project p --wandb-tag x,y"
        ),
    ),
    "what AIPerf exports as turned off": (
        (
            "benchmark: {model: m, gpu_telemetry: {enabled: false}, server_metrics: {enabled: false, urls: []}, otel: {},"
            " network_latency: {enabled: false}, artifacts: {auto_plot: false, slice_duration: null}}\nplot: null"
        ),
        "-m m --no-server-metrics",
    ),
}


@pytest.mark.parametrize(("text", "flags"), EQUIVALENT.values(), ids=EQUIVALENT)
def test_file_gives_the_settings_of_the_flags(text: str, flags: str) -> None:
    assert from_file(text) == settings_for(*shlex.split(flags))


CHOICES = ", ".join(ENDPOINT_TYPES)
ERRORS = {
    "unknown": (
        under("endpoint", "{tiemout: 5}"),
        "3 benchmark.endpoint.tiemout is not a key of benchmark.endpoint; did you mean timeout?",
    ),
    "elsewhere": ("endpoint: {}", "1 endpoint is not a key of the file; did you mean benchmark.endpoint?"),
    "flag": (
        under("profiling", "{request_count: 5}"),
        "3 benchmark.profiling.request_count is not a key of benchmark.profiling; did you mean benchmark.profiling.requests?",
    ),
    "listed": (
        under("checks", "{zebra: 5}"),
        "3 benchmark.checks.zebra is not a key of benchmark.checks; its keys are requireValid, maxErrorRate, assert.",
    ),
    "type": (
        under("endpoint", "{timeout: soon}"),
        "3 benchmark.endpoint.timeout must be a number greater than 0, not 'soon'.",
    ),
    "unit": (
        under("endpoint", "{timeout: 5 days}"),
        "3 benchmark.endpoint.timeout must be a number of seconds, or have a unit as in 30s, 5m or 2h, not '5 days'.",
    ),
    "limit": (
        under("profiling", "{concurrency: 0}"),
        "3 benchmark.profiling.concurrency must be a whole number of at least 1, not '0'.",
    ),
    "fraction": (
        under("profiling", "{requests: 2.5}"),
        "3 benchmark.profiling.requests must be a whole number of at least 1, not '2.5'.",
    ),
    "boolean": (
        under("endpoint", "{streaming: maybe}"),
        "3 benchmark.endpoint.streaming must be true or false, not 'maybe'.",
    ),
    "choice": (
        under("profiling", "{type: poison}"),
        (
            "3 benchmark.profiling.type must be concurrency, poisson, gamma, constant, user_centric or "
            "fixed_schedule, not 'poison' (did you mean poisson?)."
        ),
    ),
    "mapping": (under("endpoint", "[a]"), "3 benchmark.endpoint must be a mapping of keys, not a list."),
    "scalar": (
        under("endpoint", "{type: {a: 1}}"),
        f"3 benchmark.endpoint.type must be one of {CHOICES}, not a mapping.",
    ),
    "header": (
        under("endpoint", "{headers: {X-A: [1]}}"),
        "3 benchmark.endpoint.headers.X-A must be a text, not a list.",
    ),
    "objective": (
        under("slos", "{request_latency: {p99: 5}}"),
        "3 benchmark.slos.request_latency must be a number, not a mapping.",
    ),
    "limit of an objective": (
        under("slos", "{request_latency: fast}"),
        (
            '3 benchmark.slos takes pairs of a metric and a limit, as in "time_to_first_token:200", not '
            "'request_latency:fast'."
        ),
    ),
    "kind": (
        "benchmark: {phases: [{kind: warm, requests: 1}]}",
        "1 benchmark.phases[0].kind must be warmup or profiling, not 'warm' (did you mean warmup?).",
    ),
    "included warmup": (
        under("warmup", "{requests: 1, excludeFromResults: false}"),
        "3 benchmark.warmup.excludeFromResults must be true, not 'false': the results exclude the warmup.",
    ),
    "excluded profiling": (
        under("profiling", "{exclude_from_results: true}"),
        "3 benchmark.profiling.exclude_from_results must be false, not 'true': the results are those of this phase.",
    ),
    "public": (
        under("dataset", "{type: public}"),
        "3 benchmark.dataset.type public needs the key 'dataset' with the name of a dataset.",
    ),
    "models and model": (
        "benchmark:\n  model: a\n  models: [a]",
        "3 benchmark.models cannot stand beside model; keep one of them.",
    ),
    "point": (
        under("profiling", "{type: poisson, rateSeries: {points: [5]}}"),
        "3 benchmark.profiling.rateSeries.points[0] must be a mapping with timeS and qps, not '5'.",
    ),
    "items": (under("datasets", "{type: file}"), "3 benchmark.datasets must be a list of datasets, not a mapping."),
    "unsupported section": (
        under("accuracy", "{benchmark: mmlu}"),
        "3 benchmark.accuracy.benchmark is a key of AIPerf that this version of Penstock does not have yet; remove it.",
    ),
    "metrics that are not sent": (
        under("otel", "{metricsUrl: h, streamMetricsEnabled: false}"),
        (
            "3 benchmark.otel.streamMetricsEnabled cannot be turned off: the metrics are what metricsUrl receives; remove that "
            "instead."
        ),
    ),
    "collector": (
        under("gpuTelemetry", "{collector: rocm}"),
        "3 benchmark.gpuTelemetry.collector must be dcgm, pynvml or amdsmi, not 'rocm'.",
    ),
    "median": (
        under("dataset", "{isl: {mean: 9, median: 15}}"),
        "3 benchmark.dataset.isl needs a median above 0 and not above the mean, 9, not 15.",
    ),
    "peaks with a mean": (
        under("dataset", "{isl: {mean: 9, peaks: [{mean: 5}]}}"),
        "3 benchmark.dataset.isl has a mean beside its parts; keep one of them.",
    ),
    "peak": (
        under("dataset", "{isl: {peaks: [{mean: 5, wight: 2}]}}"),
        "3 benchmark.dataset.isl.peaks[0].wight is not a key of benchmark.dataset.isl.peaks[0]; did you mean weight?",
    ),
    "points": (
        under("dataset", "{isl: {points: [{value: 0}]}}"),
        "3 benchmark.dataset.isl.points[0].value must be a number of at least 1, not '0'.",
    ),
    "limits": (
        under("dataset", "{isl: {mean: 9, min: 5, max: 4}}"),
        "3 benchmark.dataset.isl has a min, 5, above its max, 4.",
    ),
    "record": (
        under("dataset", "{type: file, records: [a]}"),
        "3 benchmark.dataset.records[0] must be a mapping, as a line of a file, not 'a'.",
    ),
    "sequences": (
        under("dataset", "{prompts: {sequenceDistribution: [{isl: 5, osl: 5, probability: 50}]}}"),
        "3 benchmark.dataset.prompts.sequenceDistribution: the percentages must add up to 100, and these add up to 50.",
    ),
    "user file": (
        under("artifacts", "{userFiles: [{path: ../a, content: b}]}"),
        "3 benchmark.artifacts.userFiles[0] must have a path inside the artifact folder, not '../a'.",
    ),
    "variable of a user file": (
        under("artifacts", "{userFiles: [{path: a, content: '{{ modle }}'}]}"),
        (
            "3 benchmark.artifacts.userFiles[0] uses modle, which is no variable (known: artifact_dir, endpoint_url, epoch, "
            "job_name, model, namespace)."
        ),
    ),
    "plot": ("plot: {vizualization: {}}", "1 plot.vizualization is not a key of plot; did you mean visualization?"),
    "sweep type": (
        "sweep: {type: sobol}",
        "1 sweep.type sobol is not a sweep that Penstock has; use grid, zip or scenarios, or a search (findMax).",
    ),
    "scenario": (
        "sweep:\n  runs:\n  - {nmae: a}",
        "3 sweep.runs[0].nmae is not a key of sweep.runs[0]; did you mean name?",
    ),
    "key of a scenario": (
        "sweep:\n  runs:\n  - {benchmark: {dataset: {islx: 1}}}",
        "3 sweep.runs[0].benchmark.dataset.islx is not a key of sweep.runs[0].benchmark.dataset; did you mean isl?",
    ),
    "name of a scenario": (
        "sweep: {runs: [{name: ../a}]}",
        "1 sweep.runs[0].name must be a name that a folder can have, not '../a'.",
    ),
    "equal scenarios": (
        "sweep: {type: scenarios, runs: [{name: a}, {name: a}]}",
        " the sweep has scenario a twice; its points must differ.",
    ),
    "users of a warmup": (
        under("warmup", "{type: user_centric, users: 2, duration: 1s}"),
        "3 benchmark.warmup.type user_centric needs a rate, which the users share.",
    ),
    "ramp": (
        under("profiling", "{type: poisson, rate: 1, rateRamp: {duration: 5, strategy: poisson}}"),
        "3 benchmark.profiling.rateRamp.strategy must be linear, not 'poisson'.",
    ),
    "profiling only": (
        under("warmup", "{requests: 5, cancellation: {rate: 5}}"),
        (
            "3 benchmark.warmup.cancellation is a key of AIPerf that this version of Penstock does not have yet; remove it (it "
            "applies to the profiling phase)."
        ),
    ),
    "rate without a pattern": (
        under("profiling", "{rate: 5, type: concurrency}"),
        "3 benchmark.profiling.rate does not fit the type concurrency; choose poisson, gamma, constant or user_centric.",
    ),
    "second phase": (
        "benchmark:\n  phases:\n  - {name: a, requests: 1}\n  - {name: b, requests: 1}",
        "4 benchmark.phases[1] is a second profiling phase; this version of Penstock runs one of each.",
    ),
    "second dataset": (
        "benchmark:\n  datasets:\n  - {type: synthetic}\n  - {type: synthetic}",
        "4 benchmark.datasets[1] is a second dataset; this version of Penstock sends one.",
    ),
    "summary": (
        under("artifacts", "{summary: false}"),
        "3 benchmark.artifacts.summary cannot be turned off: Penstock always writes the summary.",
    ),
    "version": ("schemaVersion: '1.0'", "1 schemaVersion must be \"2.0\", not '1.0'."),
    "twice": ("randomSeed: 1\nrandomSeed: 2", "2 randomSeed is given twice; keep one of them."),
    "two cases": ("randomSeed: 1\nrandom_seed: 2", "2 random_seed is also written randomSeed; keep one of them."),
    "two seeds": (
        "benchmark:\n  dataset: {randomSeed: 1}\nrandomSeed: 2",
        "3 randomSeed and run.yaml:2 benchmark.dataset.randomSeed set the same value; keep one of them.",
    ),
    "template": (
        "variables: {isl: 5}\nbenchmark: {model: '{{ name }}'}",
        "2 benchmark.model has a template that cannot be rendered: 'name' is undefined (variables: isl).",
    ),
    "template that does not end": (
        "benchmark: {model: '{{ name'}",
        (
            "1 benchmark.model has a template that cannot be rendered: unexpected end of template, expected 'end of print "
            "statement'."
        ),
    ),
    "variables that refer to each other": (
        "variables: {a: '{{ b }}', b: '{{ a }}'}",
        "1 variables.a and a, b refer to each other.",
    ),
    "rendered value": (
        "variables: {n: -1}\nbenchmark: {profiling: {requests: '{{ n }}'}}",
        "2 benchmark.profiling.requests must be a whole number of at least 1, not the value of {{ n }}.",
    ),
    "redacted": (
        under("endpoint", "{headers: {X-Key: <redacted>}}"),
        "3 benchmark.endpoint.headers.X-Key was redacted when it was written; put the value in again, as ${NAME}.",
    ),
    "variable": (
        "benchmark: {model: '${MISSING_NAME}'}",
        (
            "1 benchmark.model needs the environment variable MISSING_NAME, which is unset or empty; set it, or give "
            "a default as in ${MISSING_NAME:default}."
        ),
    ),
    "name of a variable": (
        "benchmark: {model: '${}'}",
        "1 benchmark.model has ${ without the name of a variable; write $${ for these characters.",
    ),
    "tag": (
        "benchmark: {model: !!int x}",
        "1 benchmark.model has the tag tag:yaml.org,2002:int, which is not allowed here.",
    ),
    "list": ("- a", "1 must be a mapping of keys, not a list."),
    "cross check": (
        under("profiling", "\n    gracePeriod: 5s"),
        (
            "4 benchmark.profiling.gracePeriod begins when --benchmark-duration ends, but --benchmark-duration is "
            "missing; give both or neither."
        ),
    ),
}


@pytest.mark.parametrize(("text", "sentence"), ERRORS.values(), ids=ERRORS)
def test_error_names_file_line_and_key(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        from_file(text)
    assert str(caught.value) == f"run.yaml:{sentence}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "run.yaml is empty; `config init` prints a file to begin with."),
        ("a: [", "run.yaml is not valid YAML at line 2, column 1: "),
        ("a: &a [*a]", "run.yaml:1 a[0]"),
    ],
)
def test_unreadable_file_is_an_error(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        from_file(text)
    assert str(caught.value).startswith(sentence)


def test_missing_file_is_an_error() -> None:
    with pytest.raises(UserError, match=r"--config 'no\.yaml' cannot be read: No such file or directory\."):
        settings_for("--config", "no.yaml")


def test_all_errors_are_listed_by_line() -> None:
    text = "randomSeed: x\nbenchmark:\n  profiling: {requests: 0}\n  endpoint: {a: 1}\n  otel: {x: 1}\n"
    with pytest.raises(UserError) as caught:
        from_file(text)
    heading, *lines = str(caught.value).splitlines()
    assert heading == "run.yaml has 4 errors:"
    assert [line.split()[0] for line in lines] == ["run.yaml:1", "run.yaml:3", "run.yaml:4", "run.yaml:5"]


def test_environment_variables_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_NAME", "big")
    monkeypatch.setenv("EMPTY", "")
    settings = from_file(
        "benchmark:\n  model: ${MODEL_NAME}-${SIZE:7b}\n  endpoint:\n    timeout: '${EMPTY:9}'\n"
        "    streaming: ${STREAM:true}\n    extra:\n      t: ${T:0.5}\n      text: '${T:0.5}'\n      literal: $${T}\n"
    )
    assert settings.models == ("big-7b",)
    assert settings.endpoint.timeout_s == 9
    assert settings.endpoint.streaming
    assert settings.endpoint.extra == {"t": 0.5, "text": "0.5", "literal": "${T}"}


def test_values_of_the_environment_are_not_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "sk-123456")
    with pytest.raises(UserError) as caught:
        from_file(under("endpoint", "{timeout: '${SECRET}'}"))
    assert "must be a number greater than 0, not the value of ${SECRET}." in str(caught.value)


def test_flags_override_the_file() -> None:
    text = (
        "benchmark:\n  model: m\n  endpoint: {url: 'a:1', streaming: true, apiKey: k, headers: {X-A: '1', X-B: '2'},"
        " extra: {t: 1, n: 2}}\n  profiling: {type: poisson, rate: 5, concurrency: 2}\n"
    )
    flags = "-u b:2 --streaming=false --api-key-file key.txt -H x-a:3 --extra-inputs t:9 --concurrency 7 -m n"
    settings = from_file(text, *flags.split(), "--conversation-rate", "3")
    expected = settings_for(*f"{flags} --arrival-pattern poisson --conversation-rate 3".split(), "-H", "X-B:2")
    assert settings.endpoint.extra == {"n": 2, "t": 9}
    assert sorted(name for name, _ in settings.endpoint.headers) == ["X-B", "x-a"]
    same = {"headers": (), "extra": {}}
    assert msgspec.structs.replace(settings, endpoint=msgspec.structs.replace(settings.endpoint, **same)) == (
        msgspec.structs.replace(expected, endpoint=msgspec.structs.replace(expected.endpoint, **same))
    )


@pytest.mark.parametrize(
    ("key", "target", "values"),
    [
        ("concurrency", "load.concurrency", "1,2"),
        ("rate", "load.rate", "1,2"),
        ("phases.profiling.rate", "load.rate", "1,2"),
        ("benchmark.profiling.duration", "load.duration_s", "1,2"),
        ("datasets.default.prompts.isl", "input.input_tokens_mean", "1,2"),
        ("dataset.osl.stddev", "input.output_tokens_stddev", "1,2"),
        ("dataset.turns.mean", "input.conversation.turns_mean", "1,2"),
    ],
)
def test_parameters_of_a_sweep_are_lists_of_the_flags(
    key: str, target: str, values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.settings.config.reader.read_value", lambda _flag, _name, text: text)
    Path(FILE).write_text(
        f"sweep: {{parameters: {{{key}: [1, 2]}}}}\nbenchmark: {{profiling: {{concurrency: 4, rate: 3, duration: 2s}}}}"
    )
    parsed = read_config(FILE, {})
    assert parsed.values[target] == values
    assert parsed.spellings[target] == f"run.yaml:1 sweep.parameters.{key}"


@pytest.mark.parametrize(
    ("key", "values", "sentence"),
    [
        ("zebra", "1, 2", "1 sweep.parameters.zebra is not a key of the benchmark, such as phases.profiling.rate."),
        (
            "endpoint.url",
            "a, b",
            (
                "1 sweep.parameters.endpoint.url[1] cannot differ between the points of a sweep, which share servers; make a "
                "run for each."
            ),
        ),
        (
            "dataset.format",
            "single_turn, single_turn",
            " the sweep has format single_turn twice; its points must differ.",
        ),
    ],
)
def test_keys_that_cannot_be_swept(key: str, values: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        from_file(f"sweep: {{parameters: {{{key}: [{values}]}}}}")
    assert str(caught.value) == f"run.yaml:{sentence}"


def test_keys_of_the_users_mappings_keep_their_case() -> None:
    settings = from_file(under("endpoint", "{extra: {topK: 1, top_k: 2}}"))
    assert settings.endpoint.extra == {"topK": 1, "top_k": 2}


def test_anchors_and_aliases_work() -> None:
    text = "benchmark:\n  model: m\n  dataset: {isl: &length {mean: 9, stddev: 1}, osl: *length}\n"
    settings: Any = from_file(text).input
    assert (settings.input_tokens_mean, settings.output_tokens_mean) == (9, 9)
