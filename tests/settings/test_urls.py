from __future__ import annotations

import pytest

from penstock.errors import UserError
from penstock.secrets import redact_fields, redact_headers, redact_url
from penstock.settings.urls import normalize_urls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost", "http://localhost"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("https://a.example/v1?api-version=2", "https://a.example/v1?api-version=2"),
        ("HTTP://Host:80", "http://Host:80"),
        ("host:", "http://host"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("127.0.0.1:65535/base//", "http://127.0.0.1:65535/base"),
        ("mock://", "mock://"),
        ("mock://x?ttft=50&itl=5", "mock://x?ttft=50&itl=5"),
        ("MOCK://?ttft=50", "mock://?ttft=50"),
    ],
)
def test_urls_are_normalized(text: str, expected: str) -> None:
    assert normalize_urls([text], "--url") == ((expected,), None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ftp://a", "must start with http://, https:// or mock://, not ftp://"),
        ("http://", "has no host"),
        ("http://:8000", "has no host"),
        ("/v1/chat", "has no host"),
        ("a:0", "a port from 1 to 65535"),
        ("a:65536", "a port from 1 to 65535"),
        ("a:eighty", "a port from 1 to 65535"),
        ("http://[::1", "needs a host"),
        ("a:1,b:2", "separate several URLs by spaces"),
        ("http://a,http://b", "separate several URLs by spaces"),
        ("http://a b", "a space or a control character"),
        ("http://a/\x01", "a space or a control character"),
        ("http://a/#top", "has a fragment after '#'"),
        ("http://a/caf\u00e9", "contains '\u00e9', which a request cannot carry; write it as %C3%A9."),
        ("http://a/?q=\u4e2d", "contains '\u4e2d', which a request cannot carry; write it as %E4%B8%AD."),
        ("http://b\u00fccher.example", "has a non-ASCII host name; write its ASCII form, which begins with xn--"),
    ],
)
def test_invalid_urls_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        normalize_urls([text], "-u")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("-u ")


def test_userinfo_becomes_an_authorization_header() -> None:
    urls, credential = normalize_urls(["http://me:p%40ss@a:1/v1", "me:p%40ss@b:2"], "--url")
    assert urls == ("http://a:1/v1", "http://b:2")
    assert credential == "Basic bWU6cEBzcw=="


def test_different_credentials_are_refused_without_showing_them() -> None:
    with pytest.raises(UserError, match="different user names or passwords") as caught:
        normalize_urls(["http://me:hunter2@a", "http://b"], "--url")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@a:x", "http://me:hun/hunter2@a", "me:hunter2@a b", "ftp://me:hunter2@a"]
)
def test_error_does_not_show_the_password_of_a_url(text: str) -> None:
    with pytest.raises(UserError) as caught:
        normalize_urls([text], "--url")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://a:1/v1", "http://a:1/v1"),
        ("http://me:pw@a:1/v1", "http://<redacted>@a:1/v1"),
        ("token@a", "<redacted>@a"),
        ("me:p@w@a:1", "<redacted>@a:1"),
        ("http://a/@x", "http://a/@x"),
        ("http://[::1]:8/@x", "http://[::1]:8/@x"),
        ("http://a?api-key=k&n=1", "http://a?api-key=<redacted>&n=1"),
        ("http://a/?next=http://b&API_KEY=k", "http://a/?next=http://b&API_KEY=<redacted>"),
        ("/v1/chat?api_key=k&n=1", "/v1/chat?api_key=<redacted>&n=1"),
        ("http://a?api%5Fkey=k", "http://a?api%5Fkey=<redacted>"),
        ("http://a/?n=1#access_token=k", "http://a/?n=1#access_token=<redacted>"),
        ("http://me:hun/ter@a/?key=k", "http://<redacted>@a/?key=<redacted>"),
    ],
)
def test_redact_url_removes_credentials(url: str, expected: str) -> None:
    assert redact_url(url) == expected


CREDENTIAL_NAMES = """
    key api_key apiKey APIKey apikey X-API-Key x_api_key openai_api_key OPENAI_API_KEY api_key_2 subscription-key
    Ocp-Apim-Subscription-Key token hf_token api_token refresh_token access-token accesstoken X-Amz-Security-Token sig
    signature X-Amz-Signature X-Amz-Credential credentials secret client_secret clientSecret password passwd db_password
    auth Authorization bearer jwt code
"""
OTHER_NAMES = """
    max_tokens max_completion_tokens min_tokens skip_special_tokens stop_token_ids tokens keys eos_token bos_token
    prompt_cache_key model temperature api-version language_code status_code author key_points n 7
"""


@pytest.mark.parametrize(
    ("names", "redacted"), [(CREDENTIAL_NAMES, True), (OTHER_NAMES, False)], ids=["credentials", "others"]
)
def test_credentials_are_recognised_by_the_last_word_of_their_name(names: str, redacted: bool) -> None:
    for name in names.split():
        shown = "<redacted>" if redacted else "v"
        assert redact_url(f"http://a/?{name}=v") == f"http://a/?{name}={shown}"
        assert redact_fields({name: "v"}) == {name: shown}


def test_booleans_and_null_are_not_redacted() -> None:
    assert redact_fields({"echo_token": True, "api_key": None}) == {"echo_token": True, "api_key": None}


def test_fields_and_headers_are_redacted() -> None:
    fields = {"max_tokens": 5, "api_key": "k", "nested": [{"Access-Token": "k", "n": 1}]}
    assert redact_fields(fields) == {
        "max_tokens": 5,
        "api_key": "<redacted>",
        "nested": [{"Access-Token": "<redacted>", "n": 1}],
    }
    assert redact_headers("X-A: b:c") == "X-A:<redacted>"
    assert redact_headers("no colon") == "<redacted>"
    assert redact_headers('{"X-A":"b"}') == '{"X-A": "<redacted>"}'
    assert redact_headers('{"X-A":') == "<redacted>"
