"""Guardrails that cannot be compiled."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.gateway.guardrails import GuardrailErrors, guardrail_problems
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec, Pattern
from support.guardrail_streams import guards, keyword, pii


def test_all_problems_are_told_at_once_and_none_quotes_a_pattern() -> None:
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
            "guardrail 'b': there is no detector 'shoe_size'; there are email, china_mobile, china_id_card, bank_card, us_ssn,"
            " ip_address, api_key, jwt, private_key"
        ),
        "guardrail 'b': pattern 1 is not a valid regular expression: unterminated character set at position 7",
    ]
    assert "hunter" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_disabled_guardrail_is_checked_too() -> None:
    with pytest.raises(GuardrailErrors):
        guards(keyword(regexes=["("], enabled=False))


def test_a_literal_has_a_length() -> None:
    problem = "guardrail 'a': pattern 2 has 4097 characters; a literal may have 4096"
    assert guardrail_problems(keyword("x" * 4096, "x" * 4097, name="a")) == [problem]
    secret = pii(name="a", patterns=[Pattern(kind="regex", value="x"), Pattern(kind="literal", value="x" * 4097)])
    assert guardrail_problems(secret) == [problem]


def test_a_long_literal_takes_little_memory() -> None:
    words = ["".join(chr(97 + (place * place + number) % 26) for place in range(4096)) for number in range(5)]
    tracemalloc.start()
    try:
        guards(keyword(*words))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_good_one_has_no_problems() -> None:
    assert guardrail_problems(keyword("a", regexes=[r"(?i)x\d{1,3}\b"])) == []
    assert guardrail_problems(GuardrailSpec(name="none", kind="keyword")) == []
    assert not guards(GuardrailSpec(name="none", kind="pii")).request("chat", {"messages": []}).hits
    assert GuardrailMode().max_buffer_bytes == 262144
