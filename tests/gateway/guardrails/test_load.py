"""Errors in the configuration of guardrails."""

from __future__ import annotations

import json
import tracemalloc

from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.snapshot import GuardrailSpec
from support.guardrail_streams import guards, keyword
from support.resource_files import Files


def errors(*guardrails: dict[str, object]) -> list[str]:
    return Files().errors(f"guardrails: {json.dumps(guardrails)}\n")


def patterns(*values: str, kind: str = "regex") -> list[dict[str, object]]:
    return [{"kind": kind, "value": value} for value in values]


def test_all_errors_are_reported_together_without_quoting_patterns() -> None:
    regexes = patterns("(hunter2", "hunter2*|", r"hunter\q", "ok")
    assert errors(
        {"name": "a", "kind": "keyword", "patterns": [*patterns("good", "", kind="literal"), *regexes]},
        {
            "name": "b",
            "kind": "pii",
            "detectors": [{"type": "email"}, {"type": "shoe_size"}],
            "custom_patterns": [{"name": "c", "regex": "[hunter"}],
        },
    ) == [
        "guardrails[0] 'a': patterns[1].value must be a non-empty string",
        "guardrails[0] 'a': patterns[2].value is not a valid regular expression: missing ) at position 8",
        "guardrails[0] 'a': patterns[3].value matches the empty text, so it would match everything",
        "guardrails[0] 'a': patterns[4].value is not a valid regular expression: bad escape at position 8",
        (
            "guardrails[1] 'b': detectors[1].type must be one of email, china_mobile, china_id_card, bank_card, us_ssn, "
            "ip_address, api_key, jwt, private_key"
        ),
        (
            "guardrails[1] 'b': custom_patterns[0].regex is not a valid regular expression: unterminated character set at "
            "position 7"
        ),
    ]


def test_disabled_guardrail_is_validated() -> None:
    assert errors({"name": "a", "kind": "keyword", "enabled": False, "patterns": patterns("(")})


def test_overlong_literal_is_an_error() -> None:
    literals = patterns("x" * 4096, "x" * 4097, kind="literal")
    assert errors({"name": "a", "kind": "keyword", "patterns": literals}) == [
        "guardrails[0] 'a': patterns[1].value has 4097 characters; a literal may have at most 4096"
    ]


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
    valid = {"name": "a", "kind": "keyword", "patterns": [*patterns("a", kind="literal"), *patterns(r"(?i)x\d{1,3}\b")]}
    guardrails = [valid, {"name": "none", "kind": "keyword", "patterns": []}]
    assert len(Files().read(f"guardrails: {json.dumps(guardrails)}\n").guardrails) == 2
    assert not guards(GuardrailSpec(name="none", kind="pii")).request("chat", {"messages": []}).hits
    assert GuardrailMode().max_buffer_bytes == 262144
