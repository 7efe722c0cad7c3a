from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings


def settings_for(*words: str) -> Settings:
    return resolve(parse(PROFILE, words, "aiperf"))


def test_synthetic_chat_settings_use_aiperf_keys() -> None:
    config = input_config(
        settings_for(
            *("--model", "mock-model", "--endpoint", "/v1/chat/completions", "--streaming", "--isl", "100"),
            *("--isl-stddev", "0", "--osl", "50", "--url", "localhost:18101", "--request-count", "20"),
            *("--num-prompts", "20", "--tokenizer", "builtin", "--ui", "none", "--random-seed", "1"),
        )
    )
    assert config["models"] == {"items": [{"name": "mock-model"}]}
    assert config["endpoint"] == {
        "urls": ["http://localhost:18101"],
        "type": "chat",
        "path": "/v1/chat/completions",
        "streaming": True,
        "timeout": 21600.0,
        "connection_reuse": "pooled",
    }
    assert config["datasets"] == [
        {
            "name": "main",
            "type": "synthetic",
            "entries": 20,
            "sampling": "sequential",
            "random_seed": 1,
            "prompts": {"isl": {"mean": 100.0, "stddev": 0.0}, "osl": {"mean": 50.0, "stddev": 0.0}},
        }
    ]
    assert config["phases"] == [
        {"name": "profiling", "kind": "profiling", "type": "concurrency", "requests": 20, "concurrency": 1}
    ]
    assert config["artifacts"] == {"dir": "artifacts/mock-model-chat-concurrency1", "records": ["jsonl"]}
    assert config["tokenizer"] == {"name": "builtin"}
    assert config["runtime"] == {"ui": "none"}


def test_file_warmup_and_rate_settings_use_aiperf_keys(tmp_path: Path) -> None:
    config = input_config(
        settings_for(
            *("-m", "m", "--input-file", str(tmp_path), "--custom-dataset-type", "raw_payload", "--request-rate", "5"),
            *("--arrival-pattern", "constant", "--benchmark-duration", "9", "--benchmark-grace-period", "inf"),
            *("--warmup-request-count", "5", "--concurrency", "2", "--workers-max", "3"),
        )
    )
    assert config["datasets"] == [
        {"name": "main", "type": "file", "path": str(tmp_path), "format": "raw_payload", "sampling": "sequential"}
    ]
    warmup, profiling = config["phases"]
    assert warmup == {
        "name": "warmup",
        "kind": "warmup",
        "type": "constant",
        "exclude_from_results": True,
        "requests": 5,
        "concurrency": 2,
        "rate": 5.0,
    }
    assert profiling["type"] == "constant"
    assert (profiling["rate"], profiling["duration"], profiling["grace_period"]) == (5.0, 9.0, "inf")
    assert "requests" not in profiling
    assert config["runtime"]["workers"] == 3


SECRETS = [
    (("--api-key", "hunter2"), "--api-key '<redacted>'"),
    (("--api-key=hunter2",), "'--api-key=<redacted>'"),
    (("-H", "Authorization: Bearer hunter2"), "-H 'Authorization:<redacted>'"),
    (("--header=X-Anything:hunter2",), "'--header=X-Anything:<redacted>'"),
    (("-H", "X-A:hunter2", "X-B:hunter2"), "-H 'X-A:<redacted>' 'X-B:<redacted>'"),
    (("--header", '{"X-A":"hunter2"}'), """--header '{"X-A": "<redacted>"}'"""),
    (("-u", "http://me:hunter2@host:1/v1"), "-u 'http://<redacted>@host:1/v1'"),
    (("--url", "hunter2@a", "hunter2@b"), "--url '<redacted>@a' '<redacted>@b'"),
]


@pytest.mark.parametrize(("words", "command"), SECRETS)
def test_secrets_appear_in_no_output(words: tuple[str, ...], command: str) -> None:
    settings = settings_for("-m", "m", *words)
    assert settings.command == f"aiperf profile -m m {command}"
    for shown in (repr(settings), str(settings), settings.command, json.dumps(input_config(settings))):
        assert "hunter2" not in shown
        assert "aHVudGVyMg" not in shown  # hunter2 in Base64
        assert "bWU6aHVudGVyMg" not in shown


def test_credentials_in_body_fields_and_queries_are_redacted() -> None:
    settings = settings_for("-m", "m", "--extra-inputs", "n:1,api_key:hunter2", "-u", "http://a/v1?api-key=hunter2&v=1")
    for shown in (settings.command, json.dumps(input_config(settings))):
        assert "hunter2" not in shown
    assert settings.endpoint.extra == {"n": 1, "api_key": "hunter2"}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("--endpoint", "/v1?api_key=hunter2&n=1"), "--endpoint '/v1?api_key=<redacted>&n=1'"),
        (("--custom-endpoint=/v1?hf_token=hunter2",), "'--custom-endpoint=/v1?hf_token=<redacted>'"),
    ],
)
def test_credentials_in_the_path_are_redacted(words: tuple[str, ...], command: str) -> None:
    settings = settings_for("-m", "m", *words)
    assert settings.command == f"aiperf profile -m m {command}"
    assert "<redacted>" in input_config(settings)["endpoint"]["path"]
    assert "hunter2" not in json.dumps(input_config(settings))
    assert "hunter2" in (settings.endpoint.path or "")


def test_redacted_credentials_are_still_sent() -> None:
    settings = settings_for("-m", "m", "-u", "http://me:hunter2@host")
    ((name, secret),) = settings.endpoint.headers
    assert (name, secret.reveal()) == ("Authorization", "Basic bWU6aHVudGVyMg==")
    assert input_config(settings)["endpoint"]["headers"] == {"Authorization": "<redacted>"}
