"""Templates, distributions, scenarios and sweeps of a configuration file, as the settings of their points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.config_validate import read_points
from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.runs.read_experiment import read_variations
from penstock.runs.read_settings import read_settings
from penstock.settings.config import with_config
from penstock.settings.config.expand import expanded
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.parse import parse
from penstock.settings.schema import NumberDistribution, Settings

pytestmark = pytest.mark.usefixtures("folder")


def arguments(text: str, *words: str) -> ParsedArguments:
    Path("run.yaml").write_text(text)
    return with_config(parse(PROFILE, ("--config", "run.yaml", *words)))


def settings_of(text: str, *words: str) -> Settings:
    return read_settings(arguments(text, *words))


def points(text: str, *words: str) -> list[tuple[dict[str, Any], Settings]]:
    return [(point.parameters, point.settings) for point in read_variations(arguments(text, *words))]


# templates


def test_variables_are_rendered_in_the_order_of_their_uses_and_keep_their_types() -> None:
    settings = settings_of(
        """
variables: {total: "{{ per_gpu * gpus }}", per_gpu: 8, gpus: "{{ nodes * 2 }}", nodes: 2, name: m, stream: true}
benchmark:
  model: "{{ name }}-{{ nodes }}"
  endpoint: {streaming: "{{ stream }}", extra: {temperature: "{{ nodes / 4 }}"}}
  dataset: {entries: "{{ total * 4 }}", isl: {mean: "{{ total }}", stddev: "{{ total // 10 }}"}}
  profiling: {type: concurrency, concurrency: "{{ total }}", requests: "{% if gpus > 2 %}9{% else %}1{% endif %}"}
"""
    )
    assert settings.models == ("m-2",)
    assert settings.endpoint.streaming
    assert settings.endpoint.extra == {"temperature": 0.5}
    assert (settings.input.entries, settings.input.input_tokens_mean, settings.input.input_tokens_stddev) == (
        128,
        32,
        3,
    )
    assert (settings.load.concurrency, settings.load.requests) == (32, 9)


def test_templates_see_other_keys_of_the_file_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTS", "6")
    settings = settings_of(
        """
variables: {slots: "${SLOTS:1}"}
benchmark:
  model: m
  phases:
  - {name: warmup, type: concurrency, requests: "{{ slots | int * 2 }}"}
  - {name: profiling, type: concurrency, concurrency: "{{ slots }}", requests: "{{ slots | int * 3 }}"}
"""
    )
    assert (settings.load.concurrency, settings.load.requests, settings.warmup.requests) == (6, 18, 12)
    settings = settings_of(
        "benchmark:\n  model: m\n  profiling: {concurrency: 5, requests: '{{ profiling.concurrency * 10 }}'}\n"
    )
    assert settings.load.requests == 50


def test_templates_of_requests_are_not_rendered() -> None:
    body = '{"p": {{ text|tojson }}}'
    settings = settings_of(
        "variables: {a: 1}\nbenchmark:\n  model: m\n  endpoint:\n    type: template\n    template:\n"
        f"      body: '{body}'\n"
    )
    assert settings.endpoint.extra["payload_template"] == body


# distributions


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{mean: 100, median: 80}", NumberDistribution(mean=100, median=80)),
        ("{type: lognormal, mean: 100, median: 80, max: 300}", NumberDistribution(mean=100, median=80, high=300)),
        ("{mean: 100, stddev: 20, min: 50}", NumberDistribution(mean=100, stddev=20, low=50)),
        (
            "{peaks: [{mean: 100, stddev: 5, weight: 60}, {mean: 900, median: 800}]}",
            NumberDistribution(
                parts=(
                    NumberDistribution(mean=100, stddev=5, weight=60),
                    NumberDistribution(mean=900, median=800),
                )
            ),
        ),
        (
            "{points: [{value: 100, weight: 3}, {value: 200}]}",
            NumberDistribution(parts=(NumberDistribution(mean=100, weight=3), NumberDistribution(mean=200))),
        ),
    ],
)
def test_distribution_is_read_and_written_again(value: str, expected: NumberDistribution) -> None:
    text = f"benchmark:\n  model: m\n  dataset: {{isl: {value}, osl: {value}, turns: 3, turnDelay: {value}}}\n"
    settings = settings_of(text)
    names = ("input_tokens_mean", "output_tokens_mean", "conversation.delay_mean_ms")
    assert dict(settings.input.distributions) == dict.fromkeys(names, expected)
    assert settings.input.input_tokens_mean == pytest.approx(expected.expected)
    assert settings_of(expanded(settings)).input == settings.input


def test_flag_replaces_a_distribution() -> None:
    text = "benchmark: {model: m, dataset: {isl: {mean: 100, median: 80}, osl: {mean: 9, median: 8}}}"
    settings = settings_of(text, "--isl", "7")
    assert [name for name, _ in settings.input.distributions] == ["output_tokens_mean"]
    assert settings.input.input_tokens_mean == 7


def test_sequence_distribution_can_be_a_list() -> None:
    text = (
        "benchmark: {model: m, dataset: {prompts: {sequenceDistribution: [{isl: 9, osl: 4, probability: 40},"
        " {isl: 8, islStddev: 2, osl: {mean: 5, stddev: 1}, probability: 60}]}}}"
    )
    same = "benchmark: {model: m, dataset: {prompts: {sequenceDistribution: '9,4:40;8|2,5|1:60'}}}"
    assert settings_of(text).input == settings_of(same).input


# other keys


def test_records_are_the_lines_of_a_file() -> None:
    text = (
        "variables: {n: 7}\nbenchmark:\n  model: m\n  dataset:\n    type: file\n    format: single_turn\n    records:\n"
        "    - {text: 'Wörd'}\n    - {text: b, output_length: '{{ n }}'}\n"
    )
    path = Path(settings_of(text).input.file or "")
    assert path.read_text() == '{"text": "Wörd"}\n{"text": "b", "output_length": 7}\n'
    assert settings_of(text.replace("Wörd", "x")).input.file != str(path)


def test_what_has_no_effect_is_noted() -> None:
    text = "plot: {settings: {}}\nbenchmark:\n  model: m\n  profiling: {type: poisson, rate: 5, prefillRamp: 30s}\n"
    settings = settings_of(text)
    assert settings.load.prefill_ramp_s is None
    assert settings.notes == (
        "run.yaml:1 plot has no effect: report.html and `penstock plot` draw charts of their own.",
        "run.yaml:4 benchmark.profiling.prefillRamp has no effect: the concurrency that it would lead to is not set.",
    )
    assert settings_of(text, "--prefill-concurrency", "3").load.prefill_ramp_s == 30


def test_users_of_a_warmup_have_their_own_rate() -> None:
    settings = settings_of(
        "benchmark:\n  model: m\n  dataset: {turns: 4, turnDelay: {mean: 1500, stddev: 500}}\n  phases:\n"
        "  - {name: warmup, type: user_centric, duration: 30, users: 10, rate: 1}\n"
        "  - {name: profiling, type: user_centric, duration: 120, users: 30, rate: 2}\n"
    )
    warmup = settings.warmup.load(settings.load)
    assert warmup is not None
    assert (warmup.users, warmup.user_rate, settings.load.users, settings.load.user_rate) == (10, 1, 30, 2)
    assert settings_of(expanded(settings)).warmup == settings.warmup
    assert [note.split()[1] for note in settings.notes] == [
        "benchmark.dataset.turnDelay.mean",
        "benchmark.dataset.turnDelay.stddev",
    ]
    settings = settings_of(
        "benchmark:\n  model: m\n  dataset: {turns: 4}\n  warmup: {type: user_centric, requests: 9, users: 3, rate: 5}\n"
        "  profiling: {type: concurrency, concurrency: 2, requests: 9}\n"
    )
    warmup = settings.warmup.load(settings.load)
    assert warmup is not None
    assert (warmup.users, warmup.user_rate, settings.load.user_rate) == (3, 5, None)


@pytest.mark.parametrize(
    ("keys", "sources"),
    [
        ("enabled: true, collector: dcgm, mode: summary, urls: [h:1]", ("http://h:1/metrics",)),
        ("mode: realtime_dashboard, url: h:1", ("http://h:1/metrics",)),
        ("enabled: false, collector: pynvml", None),
    ],
)
def test_gpu_collector_and_mode(keys: str, sources: tuple[str, ...] | None) -> None:
    assert settings_of(f"benchmark: {{model: m, gpuTelemetry: {{{keys}}}}}").telemetry.gpu == sources


# sweeps

SCENARIOS = """
variables: {slots: 4}
sweep:
  type: scenarios
  runs:
  - name: chat
    benchmark:
      dataset: {prompts: {isl: 20}}
      phases: [{name: profiling, rate: 50, concurrency: 128}]
  - name: rag
    variables: {slots: 9}
    benchmark:
      dataset: {prompts: {isl: {mean: 1024, median: 904}, osl: 8}}
  - name: closed
    benchmark: {profiling: {type: concurrency}}
benchmark:
  model: m
  dataset: {type: synthetic, entries: 9, prompts: {isl: {mean: 512, stddev: 50}, osl: {mean: 128, stddev: 25}}}
  phases:
  - {name: warmup, type: concurrency, requests: 5, concurrency: 8}
  - {name: profiling, type: poisson, rate: 20, requests: 18, concurrency: "{{ slots }}"}
"""


def test_scenarios_replace_values_of_the_file() -> None:
    (chat, one), (rag, two), (closed, three) = points(SCENARIOS)
    assert [chat, rag, closed] == [{"scenario": "chat"}, {"scenario": "rag"}, {"scenario": "closed"}]
    assert (one.input.input_tokens_mean, one.input.input_tokens_stddev, one.input.output_tokens_stddev) == (20, 0, 25)
    assert (one.load.rate, one.load.concurrency, one.load.requests) == (50, 128, 18)
    assert dict(two.input.distributions) == {"input_tokens_mean": NumberDistribution(mean=1024, median=904)}
    assert (two.input.output_tokens_mean, two.input.output_tokens_stddev, two.load.concurrency) == (8, 0, 9)
    assert (three.load.rate, three.load.concurrency, three.input.input_tokens_mean) == (None, 4, 512)
    assert {settings.warmup.requests for settings in (one, two, three)} == {5}


def test_flag_holds_for_all_scenarios_unless_they_vary_it() -> None:
    assert {settings.load.requests for _, settings in points(SCENARIOS, "--request-count", "6")} == {6}
    with pytest.raises(UserError, match=r"--isl sets what the sweep of run\.yaml:\d+ .* varies; leave it out\."):
        points(SCENARIOS, "--isl", "6")


def test_flag_for_what_only_some_scenarios_set_is_refused() -> None:
    text = "sweep: {type: scenarios, runs: [{name: a}, {name: b, benchmark: {dataset: {isl: 8}}}]}\nbenchmark: {model: m}\n"
    assert [settings.input.input_tokens_mean for _, settings in points(text)] == [550, 8]
    with pytest.raises(
        UserError, match=r"--isl sets what the sweep of run\.yaml:1 sweep\.runs\[1\]\.benchmark\.dataset\.isl"
    ):
        points(text, "--isl", "6")


def test_expanded_scenarios_are_read_again_as_the_same() -> None:
    parsed = arguments(SCENARIOS)
    found = read_points(parsed).points
    written = expanded(found[0][1], {}, {str(values["scenario"]): settings for values, settings in found})
    assert [run["name"] for run in yaml.safe_load(written)["sweep"]["runs"]] == ["chat", "rag", "closed"]
    again = read_points(arguments(written)).points
    assert [(values, settings.input, settings.load) for values, settings in again] == [
        (values, settings.input, settings.load) for values, settings in found
    ]


def test_formats_and_numbers_can_be_swept_together() -> None:
    text = (
        "sweep: {parameters: {datasets.main.format: [single_turn, random_pool], concurrency: [1, 2]}}\n"
        "benchmark: {model: m, datasets: [{name: main, type: file, path: prompts.jsonl, format: single_turn}]}\n"
    )
    found = [(values, settings.input.format, settings.load.concurrency) for values, settings in points(text)]
    assert found == [
        ({"format": name, "concurrency": slots}, name, slots)
        for name in ("single_turn", "random_pool")
        for slots in (1, 2)
    ]
    zipped = [values for values, _ in points(text.replace("sweep: {", "sweep: {type: zip, "))]
    assert zipped == [{"format": "single_turn", "concurrency": 1}, {"format": "random_pool", "concurrency": 2}]


def test_variables_can_be_swept() -> None:
    text = (
        "variables: {isl: 5}\nsweep: {parameters: {variables.isl: [8, 16]}}\n"
        "benchmark: {model: m, dataset: {isl: '{{ isl }}', osl: '{{ isl // 2 }}'}}\n"
    )
    found = [
        (values, settings.input.input_tokens_mean, settings.input.output_tokens_mean)
        for values, settings in points(text)
    ]
    assert found == [({"isl": 8}, 8, 4), ({"isl": 16}, 16, 8)]


@pytest.mark.parametrize("key", ["phases.profiling.concurrency", "concurrency"])
def test_templates_see_the_values_of_a_sweep(key: str) -> None:
    text = (
        f"sweep: {{parameters: {{{key}: [2, 4]}}}}\nbenchmark:\n  model: m\n  phases:\n"
        "  - {name: profiling, concurrency: 1, requests: '{{ phases.profiling.concurrency * 10 }}'}\n"
    )
    found = [(values, settings.load.concurrency, settings.load.requests) for values, settings in points(text)]
    assert found == [({"concurrency": 2}, 2, 20), ({"concurrency": 4}, 4, 40)]


def test_distributions_can_be_swept() -> None:
    text = (
        "sweep: {parameters: {datasets.main.prompts.isl: [64, {mean: 100, median: 80}]}}\n"
        "benchmark: {model: m, dataset: {isl: {mean: 50, stddev: 5}}}\n"
    )
    (_, one), (values, two) = points(text)
    assert (one.input.input_tokens_mean, one.input.input_tokens_stddev, one.input.distributions) == (64, 0, ())
    assert values == {"isl": '{"mean":100,"median":80}'}
    assert dict(two.input.distributions) == {"input_tokens_mean": NumberDistribution(mean=100, median=80)}
    numbers = text.replace("{mean: 100, median: 80}", "128")
    assert [(s.input.input_tokens_mean, s.input.input_tokens_stddev) for _, s in points(numbers)] == [(64, 0), (128, 0)]


RECIPES = (
    "concurrency-ramp, concurrencyMax: 9",
    "prefill-ttft-curve, islMin: 10, islMax: 40, islSteps: 3",
    "decode-itl-curve, oslMax: 90",
    "pareto-sweep, islOslPairs: '9/9,20/5'",
    "max-throughput-ttft-sla, ttftSlaMs: 20",
    "max-goodput-under-slo, e2eSlaMs: 20",
    "max-concurrency-under-sla, e2eSlaMs: 20",
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_expanded_recipe_is_read_again_as_the_same(recipe: str) -> None:
    text = f"sweep: {{recipeName: {recipe}}}\nbenchmark: {{model: m, endpoint: {{streaming: true}}}}\n"
    first = points(text)[0][1]
    found, again = (
        [(values, each.input, each.load, each.goodput) for values, each in points(written)]
        for written in (text, expanded(first))
    )
    assert found == again
