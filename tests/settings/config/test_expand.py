"""Settings written as a configuration file: complete, without credentials, and readable again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from penstock.cli.config_init import TEMPLATES, template_text
from penstock.cli.config_validate import read_points
from penstock.runs.read_settings import read_settings
from penstock.settings.config import with_config
from penstock.settings.config.expand import expanded
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.schema import Settings

FROM_FILE = ParsedArguments({"config_file": "run.yaml"}, {})
EVERYTHING = """
randomSeed: 3
benchmark:
  models: [a, b]
  endpoint: {urls: ["http://h:1"], path: /v2, timeout: 2m, extra: {t: 0.5}, verifyTls: false, trustEnv: true}
  dataset:
    isl: {mean: 9, stddev: 2}
    osl: 4
    turns: 3
    turnDelay: {mean: 100}
    prefixPrompts: {sharedSystemLength: 5}
    images: {width: 8, height: 8, format: png}
    audio: {length: 2, sampleRates: [16, 44.1]}
  warmup: {requests: 2}
  profiling:
    type: gamma
    smoothness: 2
    rate: 5
    rateRamp: 2s
    concurrency: 9
    prefillConcurrency: 3
    prefillRamp: 1
    duration: 1m
    gracePeriod: inf
    cancellation: {rate: 5, delay: 1}
    failedRequestThreshold: 0.5
  slos: {time_to_first_token: 200.5, e2el: 10}
  checks: {requireValid: true, maxErrorRate: 0.1, assert: [p99 request_latency<5]}
  artifacts: {dir: out, prefix: p, records: false}
  tokenizer: {name: builtin, revision: v1}
  runtime: {workers: 2, ui: none, verbose: true}
"""
SERIES = """
benchmark:
  model: m
  profiling: {type: constant, rateSeries: {points: [{timeS: 0, qps: 1}, {timeS: 2, qps: 4}]}, requests: 3}
"""
LENGTHS = """
benchmark:
  models: {strategy: weighted, items: [{name: a, weight: 3}, {name: b, weight: 1}]}
  dataset:
    type: synthetic
    prompts: {sequenceDistribution: "8|2,4:40;9,5:60"}
    prefixPrompts: {poolSize: 2, length: 9}
    systemPrompt: Be brief.
  artifacts: {exportOutputsJson: true}
"""
RANGE = """
benchmark:
  models: {strategy: random, items: [a, b]}
  dataset: {type: synthetic, prompts: {randomRangeRatio: 0.25, randomCorpusStyle: sglang}, systemPromptFile: system.txt}
"""
POOL = """
benchmark:
  model: m
  dataset: {type: file, path: trace.jsonl, format: random_pool, entries: 7}
"""
TRACE = """
benchmark:
  model: m
  dataset: {type: file, path: trace.jsonl, format: mooncake_trace, replaySpeedup: 2, sessions: [a]}
  profiling: {type: fixed_schedule, startOffset: 1, endOffset: 5}
  serverMetrics: {enabled: true, interval: 0.1}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n')
    Path("system.txt").write_text("Be brief.")
    Path("artifacts/minimal").mkdir(parents=True)
    Path("artifacts/minimal/inputs.json").write_text('{"data": []}')


def read(text: str) -> Settings:
    Path("run.yaml").write_text(text)
    return read_settings(with_config(FROM_FILE))


@pytest.mark.parametrize("text", [EVERYTHING, SERIES, LENGTHS, RANGE, POOL, TRACE, *map(template_text, TEMPLATES)])
def test_expanded_settings_are_read_again_as_the_same(text: str) -> None:
    settings = read(text)
    written = expanded(settings)
    assert read(written) == settings
    assert expanded(read(written)) == written


def test_defaults_are_comments() -> None:
    written = expanded(read("benchmark: {model: m}"))
    assert yaml.safe_load(written) == {
        "schemaVersion": "2.0",
        "benchmark": {
            "models": ["m"],
            "dataset": {"type": "synthetic"},
            "profiling": {"type": "concurrency", "concurrency": 1},
            "artifacts": {"dir": "artifacts/m-chat-concurrency1", "records": ["jsonl"]},
        },
    }
    assert "#   benchmark.endpoint.timeout: 21600\n" in written
    assert "#   benchmark.profiling.gracePeriod: 30\n" in written
    assert "#   benchmark.endpoint.streaming: false\n" in written


def test_credentials_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-secret")
    settings = read(
        "benchmark:\n  model: m\n  endpoint:\n    apiKey: ${KEY}\n    url: http://h:1/?api_key=sk-secret\n"
        "    headers: {X-Key: sk-secret}\n    proxy: http://u:sk-secret@h:2\n    extra: {api_key: sk-secret, n: 1}\n"
    )
    written = expanded(settings)
    assert "sk-secret" not in written
    endpoint = yaml.safe_load(written)["benchmark"]["endpoint"]
    assert endpoint["apiKey"] == endpoint["headers"]["X-Key"] == "<redacted>"
    assert endpoint["extra"] == {"api_key": "<redacted>", "n": 1}
    assert endpoint["proxy"] == "http://<redacted>@h:2"


def test_sweep_has_parameters_and_points() -> None:
    Path("run.yaml").write_text(
        "sweep: {parameters: {concurrency: [1, 2], dataset.isl: [8, 9]}}\nbenchmark: {model: m}"
    )
    sweep, points = read_points(with_config(FROM_FILE))
    assert [(s.load.concurrency, s.input.input_tokens_mean) for _, s in points] == [(1, 8), (1, 9), (2, 8), (2, 9)]
    written = yaml.safe_load(expanded(points[0][1], sweep))
    assert written["sweep"]["parameters"] == {"profiling.concurrency": [1, 2], "dataset.prompts.isl": [8, 9]}
    assert "concurrency" not in written["benchmark"]["profiling"]


def test_settings_of_a_file_can_be_stored() -> None:
    """The header of a run holds them."""
    assert msgspec.json.encode(read(SERIES))
