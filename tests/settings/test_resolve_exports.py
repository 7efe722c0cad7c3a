"""The flags of exports: what they mean, and what is refused before the run."""

from __future__ import annotations

import pytest

from penstock.cli.profile import COMMAND_LINE
from penstock.errors import UserError
from penstock.settings.parse import parse
from penstock.settings.redact import redacted
from penstock.settings.resolve import resolve
from penstock.settings.schema import ExportSettings, Settings


def settings_for(*flags: str) -> Settings:
    return resolve(parse(COMMAND_LINE, ["-m", "m", *flags]))


def exports_for(*flags: str) -> ExportSettings:
    return settings_for(*flags).exports


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost", "http://localhost/v1/metrics"),
        ("localhost:4318", "http://localhost:4318/v1/metrics"),
        ("https://otel.example/", "https://otel.example/v1/metrics"),
        ("http://h:4318/custom/metrics?x=1", "http://h:4318/custom/metrics?x=1"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
    ],
)
def test_url_of_a_receiver_gets_the_path_for_metrics(text: str, url: str) -> None:
    assert exports_for("--otel-url", text).otel_url == url


@pytest.mark.parametrize("text", ["ftp://h", "http://", "h:99999", "http://h:x", "h:0"])
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"must be the URL of an OTLP/HTTP receiver, such as http://localhost:4318\.$"):
        exports_for("--otel-url", text)


def test_attributes_and_tags_keep_their_texts() -> None:
    attributes = ("--otel-resource-attributes", "a=1.10", "b=x=y", '{"c": "d", "e": 2}')
    assert exports_for("--otel-url", "h", *attributes).otel_attributes == (
        ("a", "1.10"),
        ("b", "x=y"),
        ("c", "d"),
        ("e", "2"),
    )
    tags = ("--mlflow-tag", "team:perf", "--mlflow-tag", "url:http://x")
    assert exports_for("--mlflow-tracking-uri", "file:runs", *tags).mlflow_tags == (
        ("team", "perf"),
        ("url", "http://x"),
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--otel-url", "h", "--otel-resource-attributes", "a"), "--otel-resource-attributes 'a' must be key=value"),
        (("--mlflow-tracking-uri", "u", "--mlflow-tag", ":b"), "--mlflow-tag ':b' must be key:value"),
        (("--mlflow-tracking-uri", "u", "--mlflow-tag", "{a"), "--mlflow-tag '{a' begins like a JSON object"),
        (("--wandb-tag", "a"), "--wandb-tag adjusts --wandb-project, but --wandb-project is missing"),
        (("--mlflow-run-name", "a"), "--mlflow-run-name adjusts --mlflow-tracking-uri, but"),
        (("--gen-ai-provider", "a"), "--gen-ai-provider adjusts --otel-url, but"),
        (
            ("--stream", "default"),
            r"--stream chooses what --otel-url sends \(--streaming asks for streamed replies\), but",
        ),
        (("--otel-url", "h", "--stream", "timing"), "timing"),
    ],
)
def test_unusable_flags_are_refused(flags: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=f"^{sentence}" if sentence[0] == "-" else sentence):
        settings_for(*flags)


def test_log_and_command_have_no_credentials() -> None:
    secrets = ("--otel-url", "http://u:topsecret@h", "--mlflow-tracking-uri", "http://u:topsecret@h:5000")
    settings = redacted(settings_for(*secrets))
    assert settings.exports.otel_url == "http://<redacted>@h/v1/metrics"
    assert settings.exports.mlflow_uri == "http://<redacted>@h:5000"
    assert "topsecret" not in settings.command
