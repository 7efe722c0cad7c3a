"""Errors in the configuration of guardrails."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.gateway.guardrails import GuardrailErrors, guardrail_errors
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from support.guardrail_streams import guards, keyword, pii


def test_all_errors_are_reported_together_without_quoting_patterns() -> None:
    specs = [
        keyword("good", "", name="a", regexes=["(hunter2", "hunter2*|", r"hunter\q", "ok"]),
        pii("email", "shoe_size", name="b", patterns=[Pattern(kind="regex", value="[hunter")]),
    ]
    with pytest.raises(GuardrailErrors) as caught:
        guards(*specs)
    assert caught.value.errors == [
        "guardrail 'a': pattern 2 is empty, so it would match everything",
        "guardrail 'a': pattern 3 is not a valid regular expression: missing ) at position 8",
        "guardrail 'a': pattern 4 matches the empty text, so it would match everything",
        "guardrail 'a': pattern 5 is not a valid regular expression: bad escape at position 8",
        (
            "guardrail 'b': unknown detector 'shoe_size'; the detectors are email, china_mobile, china_id_card, bank_card,"
            " us_ssn, ip_address, api_key, jwt, private_key"
        ),
        "guardrail 'b': pattern 1 is not a valid regular expression: unterminated character set at position 7",
    ]
    assert "hunter" not in str(caught.value)
    assert caught.value.__context__ is None


def test_disabled_guardrail_is_validated() -> None:
    with pytest.raises(GuardrailErrors):
        guards(keyword(regexes=["("], enabled=False))


def test_overlong_literal_is_an_error() -> None:
    error = "guardrail 'a': pattern 2 has 4097 characters; a literal may have at most 4096"
    assert guardrail_errors(keyword("x" * 4096, "x" * 4097, name="a")) == [error]
    secret = pii(name="a", patterns=[Pattern(kind="regex", value="x"), Pattern(kind="literal", value="x" * 4097)])
    assert guardrail_errors(secret) == [error]


def test_long_literals_need_less_than_a_megabyte() -> None:
    literals = ["".join(chr(97 + (index * index + number) % 26) for index in range(4096)) for number in range(5)]
    tracemalloc.start()
    try:
        guards(keyword(*literals))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_valid_guardrail_has_no_errors() -> None:
    assert guardrail_errors(keyword("a", regexes=[r"(?i)x\d{1,3}\b"])) == []
    assert guardrail_errors(GuardrailSpec(name="none", kind="keyword")) == []
    assert not guards(GuardrailSpec(name="none", kind="pii")).request("chat", {"messages": []}).hits
    assert GuardrailMode().max_buffer_bytes == 262144
