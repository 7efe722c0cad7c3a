"""The proxy for a URL."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import EndpointSettings, Settings
from penstock.settings.urls import Proxy, proxy_for


def settings_for(*flags: str) -> Settings:
    return resolve(parse(PROFILE, ("-m", "m", *flags)))


@pytest.fixture(autouse=True)
def no_proxies_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        ("http://proxy.example:3128", Proxy("proxy.example", 3128, "")),
        ("proxy.example", Proxy("proxy.example", 80, "")),
        ("http://ann:p%40w@[::1]:3128/", Proxy("::1", 3128, "Basic YW5uOnBAdw==")),
    ],
)
def test_flag_names_the_proxy_for_all_urls(text: str, proxy: Proxy) -> None:
    endpoint = settings_for("--proxy", text).endpoint
    assert proxy_for(endpoint, urlsplit("http://localhost:8000")) == proxy
    assert proxy_for(endpoint, urlsplit("https://a.example")) == proxy


@pytest.mark.parametrize("text", ["https://a:1", "socks5://a:1", "http://a:1/path", "http://a:99999", "mock://"])
def test_other_proxies_are_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(UserError) as caught:
        settings_for("--proxy", text.replace("//", "//ann:hunter2@"))
    assert "--proxy" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_password_of_the_proxy_is_in_no_artifact() -> None:
    settings = settings_for("--proxy", "http://ann:hunter2@a:1")
    assert input_config(settings)["endpoint"]["proxy"] == "http://<redacted>@a:1"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in settings.command


def test_both_flags_are_refused() -> None:
    with pytest.raises(UserError, match="--proxy and --trust-env both set the proxy"):
        settings_for("--proxy", "http://a:1", "--trust-env")


def test_environment_is_used_only_with_trust_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://plain:1")
    monkeypatch.setenv("https_proxy", "http://secure:2")
    monkeypatch.setenv("NO_PROXY", "localhost,.internal.example")
    trusting, other = EndpointSettings(trust_env=True), EndpointSettings()
    assert proxy_for(other, urlsplit("http://a.example")) is None
    assert proxy_for(trusting, urlsplit("http://a.example:8000")) == Proxy("plain", 1, "")
    assert proxy_for(trusting, urlsplit("https://a.example")) == Proxy("secure", 2, "")
    assert proxy_for(trusting, urlsplit("http://localhost:8000")) is None
    assert proxy_for(trusting, urlsplit("https://x.internal.example")) is None


def test_unusable_proxy_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://ann:hunter2@a:1")
    with pytest.raises(UserError, match="HTTP_PROXY") as caught:
        proxy_for(EndpointSettings(trust_env=True), urlsplit("http://a.example"))
    assert "hunter2" not in str(caught.value)
