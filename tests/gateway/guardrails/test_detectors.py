"""Detectors: texts that must match, and lookalikes that must not. `text|match` gives the matched part of a text."""

from __future__ import annotations

from typing import get_args

import pytest

from penstock.gateway.guardrails.detectors import DETECTORS
from penstock.gateway.resources.snapshot import Detector
from support.guardrail_streams import guards, pii

JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN {0}PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END {0}PRIVATE KEY-----"

MATCHES = {
    "email": [
        *("joe@example.com", "a.b+c%d@sub.example.co.uk", "x_y-z@1and1.example"),
        *(
            "<joe@example.com>|joe@example.com",
            "写信joe@example.com。|joe@example.com",
            "joe@example.com.|joe@example.com",
        ),
        *("..joe@example.com|joe@example.com",),
    ],
    "china_mobile": [
        *("13800138000", "19912345678", "+8613800138000", "+86 138 0013 8000", "0086-138-0013-8000", "8613800138000"),
        *("电话13800138000，|13800138000", "tel:13800138000|13800138000"),
    ],
    "china_id_card": [
        "11010519491231002X",
        "11010519491231002x",
        "440524188001010014",
        "号码11010519491231002X。|11010519491231002X",
    ],
    "bank_card": [
        *("4111111111111111", "4111 1111 1111 1111", "4111-1111-1111-1111", "378282246310005", "3782 822463 10005"),
        *(
            "6011111111111117",
            "6222020000000000000",
            "2024 4111 1111 1111 1111|4111 1111 1111 1111",
            "4111 1111 1111 1111 123|4111 1111 1111 1111",
        ),
        *("4222222222222",),
    ],
    "us_ssn": ["123-45-6789", "123 45 6789", "SSN:123-45-6789.|123-45-6789"],
    "ip_address": [
        *("10.0.0.1", "255.255.255.255", "1.2.3.4.|1.2.3.4", "1.2.3.4:80|1.2.3.4", "地址1.2.3.4|1.2.3.4"),
        *(
            "::1",
            "2001:db8::ff00:42:8329",
            "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
            "[fe80::1]|fe80::1",
            "::ffff:10.0.0.1",
            "2001:db8::1.|2001:db8::1",
        ),
    ],
    "api_key": [
        *(
            "sk-abcdefghijklmnop1234",
            "sk-proj-" + "A1b2_-" * 26,
            "sk-ant-api03-" + "x" * 90,
            "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        ),
        *(
            "AKIAIOSFODNN7EXAMPLE",
            "ghp_" + "a1B2" * 9,
            "github_pat_" + "a1B2" * 20,
            "glpat-abcdefghij0123456789",
            "xoxb-123456789012-abcdefghij",
        ),
        *(
            "AIza" + "Sy" * 17 + "x",
            "hf_" + "abcDEF" * 6,
            "LTAI5tAbCdEfGhIjKlMn",
            "key=sk-abcdefghijklmnop1234;|sk-abcdefghijklmnop1234",
        ),
    ],
    "jwt": [JWT, f"Bearer {JWT}, ok|{JWT}", "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0."],
    "private_key": [
        *(
            PEM.format(""),
            PEM.format("RSA "),
            PEM.format("OPENSSH "),
            PEM.format("ENCRYPTED "),
            f"key: {PEM.format('')} end|{PEM.format('')}",
        ),
        PEM.format("EC ").replace("\n", "\\n"),
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nMIIEvQIBADANBgkq",
    ],
}

LOOKALIKES = {
    "email": ["joe@", "@example.com", "joe@localhost", "a @ b.com", "joe@example.1", "joe@.com"],
    "china_mobile": ["12800138000", "1380013800", "138001380001", "213800138000", "+1 380 013 8000"],
    "china_id_card": ["110105194912310021", "110105194913310021", "11010519491231002", "1110105194912310021X"],
    "bank_card": [
        "4111111111111112",
        "41111111111111111111",
        "4111 11111111 1111",
        "1234567890",
        "10 20 30 40 50 60 70",
    ],
    "us_ssn": [
        "000-12-3456",
        "666-12-3456",
        "912-12-3456",
        "123-00-4567",
        "123-45-0000",
        "123-45 6789",
        "1123-45-6789",
        "123456789",
        "123-45-6789-1",
    ],
    "ip_address": [
        "256.1.1.1",
        "1.2.3",
        "1.2.3.4.5",
        "v1.2.3.4",
        "12:30:45",
        "std::vector",
        "a::b",
        "::",
        "00:1a:2b:3c:4d:5e",
        "1:2:3:4:5:6:7:8:9",
    ],
    "api_key": [
        "sk-short",
        "task-force-abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPL",
        "XAKIAIOSFODNN7EXAMPLE",
        "sketch-abcdefghijklmnopqrst",
        "ghp_abc",
    ],
    "jwt": [
        "eyJhbGciOiJIUzI1NiJ9",
        "eyJhbGciOiJIUzI1NiJ9.abc.def",
        "xeyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0",
    ],
    "private_key": [
        "-----BEGIN PUBLIC KEY-----\nMIIE\n-----END PUBLIC KEY-----",
        "-----BEGIN CERTIFICATE-----",
        "PRIVATE KEY",
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MATCHES.items() for text in texts])
def test_detector_masks_valid_forms(name: str, text: str) -> None:
    text, _, expected = text.partition("|")
    body = {"input": f"{text}"}
    assert guards(pii(name)).request("responses", body).changed
    assert body["input"] == text.replace(expected or text, f"[{name.upper()}_REDACTED]")


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in LOOKALIKES.items() for text in texts])
def test_detector_ignores_lookalikes(name: str, text: str) -> None:
    assert guards(pii(name, action="block")).request("responses", {"input": text}).blocked_by is None


def test_tables_cover_all_detectors() -> None:
    assert set(MATCHES) == set(LOOKALIKES) == set(DETECTORS)


@pytest.mark.parametrize("name", DETECTORS)
def test_no_match_exceeds_max_length(name: str) -> None:
    max_length = DETECTORS[name].max_length
    assert max_length is not None
    texts = [text.partition("|")[0] for text in MATCHES[name]]
    texts += [
        "a" * 99 + "@" + "b" * 63 + ".c" * 9 + ".org",
        "sk-" + "x" * 999,
        JWT * 99,
        "eyJ" + "x" * 1000 + ".eyJ" + "y" * 9999 + "." + "z" * 9999,
    ]
    texts += ["-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG\n" * 9999]
    for text in texts:
        match = DETECTORS[name].find(text, 0)
        assert match is None or match[1] - match[0] <= max_length


def test_resource_files_may_name_every_detector() -> None:
    assert tuple(DETECTORS) == get_args(Detector)
