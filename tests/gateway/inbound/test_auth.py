"""Authentication and authorization: who is accepted, and the errors for those who are not."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.inbound.auth import (
    allows,
    authenticate,
    authorize,
    client_ip,
    contains_api_key,
    recorded_model_name,
)
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import CallerKey, Model, Snapshot

NOW = 1_800_000_000.0


def key(plain: str, allowed: tuple[str, ...] = ("*",), **fields: Any) -> CallerKey:
    hashed = hashlib.sha256(plain.encode()).hexdigest()
    return CallerKey(id=f"id-{plain}", name=plain, hash=hashed, allowed_models=allowed, **fields)


KEYS = [
    key("sk-good"),
    key("sk-disabled", disabled=True),
    key("sk-expired", expires_at=NOW - 1),
    key("sk-both", disabled=True, expires_at=NOW - 1),
    key("sk-last-moment", expires_at=NOW),
]
MODELS = [
    Model(id="m1", name="gpt"),
    Model(id="m2", name="inside", allowed_cidrs=("10.0.0.0/8", "2001:db8::/32")),
]
SNAPSHOT = Snapshot(
    caller_keys={key.hash: key for key in KEYS},
    models={model.name: model for model in MODELS},
)


def head(authorization: str | None, x_api_key: str | None = None) -> dict[str, str]:
    headers = {"authorization": authorization, "x-api-key": x_api_key}
    return {name: value for name, value in headers.items() if value is not None}


def entry(at: float = NOW) -> Entry:
    return Entry(request_id="r", at=at, route="responses")


def refused(*arguments: Any, function: Any = authenticate) -> tuple[int, dict[str, str]]:
    with pytest.raises(Refusal) as caught:
        function(*arguments)
    return caught.value.status, orjson.loads(caught.value.body())["error"]


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        ("Bearer sk-good", None),
        ("Bearer   sk-good  ", None),
        ("bearer sk-good", None),
        ("BEARER sk-good", None),
        (None, "sk-good"),
        (None, " sk-good "),
        ("Bearer sk-good", "sk-wrong"),
    ],
)
def test_known_key_is_accepted_in_both_headers(authorization: str | None, x_api_key: str | None) -> None:
    assert authenticate(head(authorization, x_api_key), SNAPSHOT, entry()).name == "sk-good"


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (None, None),
        (None, ""),
        (None, "   "),
        ("", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("bearer", None),
        ("Basic sk-good", None),
        ("sk-good", None),
        ("Token sk-good", "sk-good"),
        ("", "sk-good"),
    ],
)
def test_missing_or_malformed_key_is_401(authorization: str | None, x_api_key: str | None) -> None:
    status, error = refused(head(authorization, x_api_key), SNAPSHOT, entry())
    assert status == 401
    assert error["type"] == "invalid_api_key"
    assert error["code"] == error["type"]
    assert "missing or malformed" in error["message"]


@pytest.mark.parametrize("presented", ["sk-wrong", "sk-good2", "SK-GOOD", "x" * 10_000, "ключ", "\ud800"])
def test_unknown_key_is_401_and_not_repeated(presented: str) -> None:
    status, error = refused(head(f"Bearer {presented}"), SNAPSHOT, entry())
    assert (status, error["type"]) == (401, "invalid_api_key")
    assert error["code"] == error["type"]
    assert "not valid" in error["message"]
    assert "not found" not in error["message"]
    assert presented not in error["message"]


@pytest.mark.parametrize(
    ("presented", "code"),
    [
        ("sk-disabled", "api_key_disabled"),
        ("sk-expired", "api_key_expired"),
        ("sk-both", "api_key_disabled"),
    ],
)
def test_disabled_or_expired_key_is_401_with_code_and_recorded(presented: str, code: str) -> None:
    record = entry()
    status, error = refused(head(f"Bearer {presented}"), SNAPSHOT, record)
    assert (status, error["type"], error["code"]) == (401, "invalid_api_key", code)
    assert (record.api_key_id, record.api_key_name) == (f"id-{presented}", presented)  # the owner is recorded


def test_key_is_valid_up_to_its_expiry() -> None:
    assert authenticate(head("Bearer sk-last-moment"), SNAPSHOT, entry()).name == "sk-last-moment"
    assert refused(head("Bearer sk-last-moment"), SNAPSHOT, entry(NOW + 0.001))[1]["code"] == "api_key_expired"


def test_existing_allowed_model_is_returned() -> None:
    assert authorize(KEYS[0], "gpt", SNAPSHOT, None).id == "m1"


@pytest.mark.parametrize("name", [None, "", 7, True, ["gpt"], {"name": "gpt"}])
def test_missing_or_non_string_model_is_400(name: object) -> None:
    status, error = refused(KEYS[0], name, SNAPSHOT, None, function=authorize)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", "model")


@pytest.mark.parametrize("allowed", [("*",), ("gpt",), ()])
def test_unknown_model_is_404_before_permission_is_checked(allowed: tuple[str, ...]) -> None:
    status, error = refused(key("k", allowed), "gpt-9", SNAPSHOT, None, function=authorize)
    assert (status, error["type"]) == (404, "model_not_found")
    assert "`gpt-9`" in error["message"]


def test_long_model_name_is_truncated_in_the_message() -> None:
    _, error = refused(KEYS[0], "x" * 100_000, SNAPSHOT, None, function=authorize)
    assert len(error["message"]) < 300


@pytest.mark.parametrize("name", ["\ud800", "x\udfff", "\x00"])
def test_model_name_with_invalid_characters_is_404(name: str) -> None:
    assert refused(KEYS[0], name, SNAPSHOT, None, function=authorize)[0] == 404


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("gpt", "gpt"),
        ("gpt-9", "gpt-9"),
        ("two\nlines\x1b[31m\u202e", "twolines[31m"),
        ("x" * 100_000, "x" * 199 + "…"),
        ("sk-mine", "<redacted>"),
        ("prefix-sk-mine", "<redacted>"),
        ("sk-good", "<redacted>"),
    ],
)
def test_recorded_model_name_is_printable_short_and_redacted(name: str, recorded: str) -> None:
    assert recorded_model_name(name, head("Bearer sk-mine"), SNAPSHOT) == recorded


def test_contains_api_key_detects_own_and_other_keys() -> None:
    assert contains_api_key("job-sk-mine-7", head("Bearer sk-mine"), SNAPSHOT)
    assert contains_api_key("sk-mine", head(None, "sk-mine"), SNAPSHOT)
    assert contains_api_key("sk-good", head(None), SNAPSHOT)  # another caller's
    assert not contains_api_key("job-7", head("Bearer sk-mine"), SNAPSHOT)
    assert not contains_api_key("job-7", head(None), SNAPSHOT)


def test_model_not_allowed_for_the_key_is_403() -> None:
    status, error = refused(key("k", ("other", "gp")), "gpt", SNAPSHOT, None, function=authorize)
    assert (status, error["type"]) == (403, "permission_denied")
    assert error["code"] == error["type"]
    assert "gpt" in error["message"]
    assert "not found" not in error["message"]


@pytest.mark.parametrize("address", ["10.1.2.3", "10.1.2.3:5000", "::ffff:10.1.2.3", "2001:db8::7", "[2001:db8::7]:80"])
def test_allowed_address_may_use_the_model(address: str) -> None:
    assert authorize(KEYS[0], "inside", SNAPSHOT, address).id == "m2"


@pytest.mark.parametrize("address", ["11.1.2.3", "::ffff:11.1.2.3", "2001:db9::7", "nonsense", "", None])
def test_other_address_is_403_without_naming_the_networks(address: str | None) -> None:
    status, error = refused(KEYS[0], "inside", SNAPSHOT, address, function=authorize)
    assert (status, error["type"], error["code"]) == (403, "permission_denied", "ip_restricted")
    assert "10." not in error["message"]
    assert "db8" not in error["message"]


@pytest.mark.parametrize(
    ("allowed", "name", "expected"),
    [
        (("gpt",), "gpt", True),
        (("gpt",), "gpt-4", False),
        (("*",), "anything", True),
        (("openai/*",), "openai/gpt", True),
        (("openai/*",), "openai/", True),
        (("openai/*",), "azure/openai/gpt", False),
        (("*-mini",), "gpt-mini", True),
        (("*-mini",), "gpt-mini-2", False),
        (("a*b",), "ab", True),
        (("a*b",), "axxb", True),
        (("aba*ba",), "aba", False),
        (("gpt.4",), "gptx4", False),
        ((), "gpt", False),
        (("no", "gpt*"), "gpt-4", True),
    ],
)
def test_allow_list_matches_names_and_patterns(allowed: tuple[str, ...], name: str, expected: bool) -> None:
    assert allows(allowed, name) is expected


TRUSTED = ("10.0.0.0/8", "::1/128")


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "expected"),
    [
        ("203.0.113.9:4000", None, (), "203.0.113.9"),
        ("203.0.113.9", "1.1.1.1", (), "203.0.113.9"),
        ("203.0.113.9", "1.1.1.1", TRUSTED, "203.0.113.9"),
        ("10.0.0.1:4000", None, TRUSTED, "10.0.0.1"),
        ("10.0.0.1:4000", "1.1.1.1", TRUSTED, "1.1.1.1"),
        ("10.0.0.1", "9.9.9.9, 1.1.1.1", TRUSTED, "1.1.1.1"),
        ("10.0.0.1", "9.9.9.9, 1.1.1.1, 10.0.0.2", TRUSTED, "1.1.1.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", TRUSTED, "10.0.0.3"),
        ("[::1]:4000", "2001:db8::5", TRUSTED, "2001:db8::5"),
        ("10.0.0.1", "1.1.1.1:80", TRUSTED, "1.1.1.1"),
        ("10.0.0.1", "1.1.1.1, unknown", TRUSTED, "10.0.0.1"),
        ("10.0.0.1", "", TRUSTED, "10.0.0.1"),
        ("::ffff:10.0.0.1", "1.1.1.1", TRUSTED, "1.1.1.1"),
        ("unix:", "1.1.1.1", TRUSTED, None),
        (None, "1.1.1.1", TRUSTED, None),
    ],
)
def test_client_ip_is_the_last_untrusted_address(
    peer: str | None, forwarded: str | None, trusted: tuple[str, ...], expected: str | None
) -> None:
    assert client_ip(peer, forwarded, trusted) == expected


@given(st.text(), st.none() | st.text())
def test_arbitrary_headers_are_401(authorization: str, x_api_key: str | None) -> None:
    assert refused(head(authorization, x_api_key), SNAPSHOT, entry())[0] == 401


@given(st.none() | st.text(), st.none() | st.text(alphabet="0123456789.:,[] af"))
def test_client_ip_is_a_valid_address_or_none_for_any_input(peer: str | None, forwarded: str | None) -> None:
    address = client_ip(peer, forwarded, TRUSTED)
    assert address is None or client_ip(address, None, ()) == address
