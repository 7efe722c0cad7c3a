"""A run from a configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

import penstock

FILE = """
benchmark:
  model: test
  endpoint: {{url: "{url}", headers: {{X-Name: "${{TENANT:nobody}}"}}}}
  dataset: {{isl: 20, osl: 5, randomSeed: 1}}
  warmup: {{requests: 2}}
  profiling: {{type: concurrency, concurrency: 3, requests: 9}}
  slos: {{request_latency: 60000}}
  tokenizer: {{name: builtin}}
  artifacts: {{dir: results}}
"""


def write(folder: Path, url: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(FILE.format(url=url))
    return path


def test_run_follows_the_file_and_the_flags(mock, program):
    server = mock(ttft=5)
    path = write(program.folder, server.url)
    words = ("profile", "--config", path.name, "--request-count", 7)
    outcome = program.start(*words, folder=program.folder / "results", TENANT="acme").wait()
    assert outcome.status == 0, outcome
    assert len(server.logged_requests()) == 2 + 7
    assert outcome.summary["request_count"]["avg"] == outcome.summary["good_request_count"]["avg"] == 7
    assert outcome.summary["input_config"]["phases"][1]["concurrency"] == 3
    assert "acme" not in outcome.text("profile_export_aiperf.json")

    path.write_text(path.read_text().replace("requests: 9", "reqests: 9"))
    refused = program.run("profile", "--config", path.name)
    assert refused.status == 2
    assert refused.err == (
        "aiperf profile: run.yaml:7 benchmark.profiling.reqests is not a key of benchmark.profiling; did you mean requests?\n"
    )
    assert len(server.logged_requests()) == 2 + 7  # nothing more was sent


def test_python_api_takes_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "mock://?ttft=5")
    result = penstock.profile(config=path, request_count=5, artifact_dir=tmp_path / "out")
    assert result.summary.succeeded == 5
    assert result.folder == tmp_path / "out"


def test_scenarios_are_points_with_folders_and_files_of_the_user(mock, program):
    server = mock(ttft=2)
    path = program.folder / "run.yaml"
    path.write_text(
        f"""
variables: {{slots: 2, label: dense}}
sweep:
  type: scenarios
  runs:
  - {{name: short, benchmark: {{dataset: {{isl: 10}}}}}}
  - {{name: mixed, benchmark: {{dataset: {{isl: {{points: [{{value: 20}}, {{value: 40}}]}}}}}}}}
benchmark:
  model: test
  endpoint: {{url: "{server.url}"}}
  dataset: {{isl: 5, osl: 3, randomSeed: 1}}
  profiling: {{concurrency: "{{{{ slots }}}}", requests: 8}}
  tokenizer: {{name: builtin}}
  artifacts:
    dir: results
    userFiles:
    - {{path: meta/run.yaml, format: yaml, content: {{slots: "{{{{ slots }}}}", id: "{{{{ job_name }}}}-{{{{ label }}}}"}}}}
    - {{path: NOTE.txt, content: "{{{{ model }}}} at {{{{ endpoint_url }}}}\\n"}}
"""
    )
    outcome = program.run("profile", "--config", path.name)
    assert outcome.status == 0, outcome
    results = program.folder / "results"
    for name in ("short", "mixed"):
        assert yaml.safe_load((results / name / "meta/run.yaml").read_text()) == {"slots": 2, "id": f"{name}-dense"}
        assert (results / name / "NOTE.txt").read_text() == f"test at {server.url}\n"
    document = json.loads((results / "sweep_aggregate/profile_export_aiperf_sweep.json").read_text())
    found = {row["parameters"]["scenario"]: row["metrics"] for row in document["per_combination_metrics"]}
    assert found["short"]["input_sequence_length_max"]["mean"] == 10
    lengths = found["mixed"]["input_sequence_length_min"]["mean"], found["mixed"]["input_sequence_length_max"]["mean"]
    assert lengths == (20, 40)
    summary = json.loads((results / "mixed/profile_export_aiperf.json").read_text())
    assert summary["input_config"]["datasets"][0]["prompts"]["isl"] == {
        "peaks": [{"mean": 20.0, "stddev": 0.0, "weight": 1.0}, {"mean": 40.0, "stddev": 0.0, "weight": 1.0}]
    }
    assert "scenario" in outcome.out
    assert "mixed" in outcome.out


def test_inline_records_are_sent(mock, program):
    server = mock(ttft=2)
    path = program.folder / "run.yaml"
    path.write_text(
        f"""
benchmark:
  model: test
  endpoint: {{url: "{server.url}"}}
  dataset: {{type: file, format: single_turn, records: [{{text: One?}}, {{text: Two?, output_length: 4}}]}}
  profiling: {{requests: 4}}
  tokenizer: {{name: builtin}}
  artifacts: {{dir: results}}
"""
    )
    outcome = program.start("profile", "--config", path.name, XDG_CACHE_HOME=str(program.folder / "cache")).wait()
    assert outcome.status == 0, outcome
    assert len(server.logged_requests()) == 4
    inputs = json.loads((program.folder / "results/inputs.json").read_text())
    bodies = [payload for session in inputs["data"] for payload in session["payloads"]]
    sent = [(body["messages"][0]["content"], body.get("max_completion_tokens")) for body in bodies]
    assert sorted(sent, key=str) == [("One?", None), ("Two?", 4)]
