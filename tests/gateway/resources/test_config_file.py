"""Tests of gateway.yaml: its settings and its error messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import UserError
from penstock.gateway.resources.config import GatewayConfig
from penstock.gateway.resources.config_file import load_config


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def error_message(path: Path, text: str, environment: dict[str, str] | None = None) -> str:
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(str(path), environment or {})
    return str(caught.value)


def test_defaults_apply_without_a_file() -> None:
    assert load_config(None) == GatewayConfig()
    assert load_config(None).listen.port == 3000


def test_given_settings_override_defaults(config_path: Path) -> None:
    config_path.write_text(
        """
listen: {host: 0.0.0.0, port: 8080, workers: 4, drain_s: 5, trusted_proxies: [10.0.0.0/8, "::1/128"]}
limits: {redis_url: "redis://:${REDIS_PASSWORD}@cache:6379/2"}
guardrails: {stream_mode: window, max_lengths: {words: 64}}
access_log: json
watch: false
"""
    )
    config = load_config(str(config_path), {"REDIS_PASSWORD": "pw"})
    assert (config.listen.host, config.listen.port, config.listen.workers) == ("0.0.0.0", 8080, 4)
    assert config.listen.trusted_proxies == ("10.0.0.0/8", "::1/128")
    assert config.listen.drain_s == 5.0
    assert config.limits.redis_url == "redis://:pw@cache:6379/2"
    assert (config.guardrails.stream_mode, config.guardrails.max_lengths) == ("window", {"words": 64})
    assert (config.access_log, config.watch) == ("json", False)
    assert config.upstream == GatewayConfig().upstream


def test_numbers_and_switches_may_come_from_the_environment(config_path: Path) -> None:
    config_path.write_text('listen: {port: "${PORT}", workers: "${WORKERS}", drain_s: "${DRAIN}"}\nwatch: "${WATCH}"\n')
    config = load_config(str(config_path), {"PORT": "8080", "WORKERS": "2", "DRAIN": "1.5", "WATCH": "false"})
    assert (config.listen.port, config.listen.workers, config.listen.drain_s, config.watch) == (8080, 2, 1.5, False)
    assert "listen.port is invalid" in error_message(config_path, "listen: {port: '${PORT}'}", {"PORT": "http"})


@pytest.mark.parametrize("text", ["", "# nothing\n", "listen:\n", "listen: {}\n", "listen: {port: null}\n"])
def test_empty_section_has_defaults(config_path: Path, text: str) -> None:
    config_path.write_text(text)
    assert load_config(str(config_path)).listen == GatewayConfig().listen


def test_relative_paths_are_relative_to_the_file(config_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    config_path.write_text(
        "listen: {tls_cert: certs/a.pem, tls_key: /etc/a.key}\nledger: {url: 'sqlite:///usage.db', spool: ../spool}\n"
        "access_log_file: logs/access.jsonl\n"
    )
    config = load_config(str(config_path))
    folder = config_path.parent
    assert config.listen.tls_cert == str(folder / "certs/a.pem")
    assert config.listen.tls_key == "/etc/a.key"
    assert config.ledger.url == f"sqlite:///{folder}/usage.db"
    assert config.ledger.spool == os.path.normpath(folder / "../spool")
    assert config.access_log_file == str(folder / "logs/access.jsonl")


@pytest.mark.parametrize("url", ["sqlite:////var/lib/usage.db", "postgresql://u@h/db", "postgres://u@h/db"])
def test_absolute_and_postgresql_urls_are_unchanged(config_path: Path, url: str) -> None:
    config_path.write_text(f"ledger: {{url: '{url}'}}\n")
    assert load_config(str(config_path)).ledger.url == url


def test_all_errors_are_in_one_message(config_path: Path) -> None:
    text = error_message(
        config_path,
        "listen: {port: '80', hots: x, workers: 0}\nledger: 5\naccess_log: xml\nlimits: {redis_url: 'http://x'}\n"
        "responses: {id_url: 'mysql://x'}\n",
    )
    for part in (
        "listen.port is invalid",
        "listen.hots is not a setting",
        "listen.workers must be at least 1",
        "ledger must be a mapping",
        "access_log must be one of text, json, off",
        "limits.redis_url must begin with redis://",
        "responses.id_url must begin with postgresql://",
    ):
        assert part in text
    assert "\n" not in text


@pytest.mark.parametrize("url", ["redis://:hus/h@cache:6379", "redis://cache?socket_timeout=soon"])
def test_redis_url_that_cannot_be_read_is_not_quoted(config_path: Path, url: str) -> None:
    text = error_message(config_path, f"limits: {{redis_url: '{url}'}}")
    assert "limits.redis_url cannot be read; write @" in text
    assert "hus" not in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("listen: {port: 70000}", "listen.port must be a port from 0 to 65535 (line 1)"),
        ("listen: {status_port: -1}", "listen.status_port must be a port"),
        ("listen: {tls_cert: a}", "listen needs tls_cert and tls_key together"),
        ("listen: {trusted_proxies: [10.0.0.0/40]}", "listen.trusted_proxies[0] is not a network"),
        ("upstream: {retries: -1}", "upstream.retries must be at least 0"),
        ("upstream: {retries: 1.5}", "upstream.retries is invalid"),
        ("ledger: {url: 'mysql://x'}", "ledger.url must begin with sqlite:/// or postgresql://"),
        ("guardrails: {max_lengths: {a: 0}}", "guardrails.max_lengths.a must be at least 1"),
        ("watch: 'yes'", "watch is invalid"),
        ("watch: true\nwatch: true", "repeats the key 'watch'"),
        ("limits: {redis_url: '${NOT_THERE}'}", "limits.redis_url needs the environment variable NOT_THERE"),
        ("[]", "the file must be a mapping"),
        ("listen: [", "not valid YAML"),
    ],
)
def test_error_names_its_setting(config_path: Path, text: str, part: str) -> None:
    assert part in error_message(config_path, text)


def test_error_message_hides_secrets(config_path: Path) -> None:
    text = "limits: {redis_url: '${PW}'}\nledger: {url: '${PW}'}\naccess_log: '${PW}'\nlisten: {port: '${PW}'}\n"
    assert "hush" not in error_message(config_path, text, {"PW": "hush-hush"})


def test_missing_file_raises_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_config(str(tmp_path / "none.yaml"))


def test_documentation_names_every_setting() -> None:
    document = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text()

    def names(type_: Any, prefix: str = "") -> Iterator[str]:
        for field in msgspec.structs.fields(type_):
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                yield from names(field.type, f"{prefix}{field.name}.")
            else:
                yield prefix + field.name

    assert [name for name in names(GatewayConfig) if f"`{name}`" not in document] == []
