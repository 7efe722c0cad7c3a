"""A run from a configuration file."""

from __future__ import annotations

from pathlib import Path

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
