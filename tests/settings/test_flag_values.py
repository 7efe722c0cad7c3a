from __future__ import annotations

import math
from typing import Any

import pytest

from penstock.errors import UserError
from penstock.settings.flag_values import nearest, parse_bool, read_value
from penstock.settings.flags import ENDPOINT_TYPES, SPELLINGS, Flag


def value(spelling: str, text: str) -> Any:
    flag = SPELLINGS[spelling]
    assert isinstance(flag, Flag)
    return read_value(flag, spelling, text)


@pytest.mark.parametrize(
    ("spelling", "text", "expected"),
    [
        ("--concurrency", "16", 16),
        ("--concurrency", " 16 ", 16),
        ("--concurrency", "+16", 16),
        ("--osl", "100_000", 100_000),
        ("--random-seed", "0", 0),
        ("--warmup-request-count", "0", 0),
        ("--request-rate", "5", 5.0),
        ("--request-rate", "0.5", 0.5),
        ("--request-rate", ".5", 0.5),
        ("--request-rate", "1e3", 1000.0),
        ("--benchmark-grace-period", "inf", math.inf),
        ("--benchmark-grace-period", "0", 0.0),
        ("--max-error-rate", "1", 1.0),
        ("--endpoint-type", "CHAT", "chat"),
        ("--connection-reuse-strategy", "Never", "never"),
        ("--model-selection-strategy", "round-robin", "round_robin"),
        ("--url-strategy", "ROUND_ROBIN", "round_robin"),
        ("--log-level", "debug", "DEBUG"),
        ("--streaming", "FALSE", False),
        ("--streaming", "yes", True),
        ("--insecure", "true", False),
        ("--insecure", "false", True),
        ("--model", "a,b", ["a", "b"]),
        ("--model", "a, b", ["a", "b"]),
        ("--url", "http://a/x,y", ["http://a/x,y"]),
        ("--tokenizer", "builtin", "builtin"),
    ],
)
def test_text_is_converted_to_its_type(spelling: str, text: str, expected: Any) -> None:
    actual = value(spelling, text)
    assert actual == expected
    assert type(actual) is type(expected)


@pytest.mark.parametrize(
    ("spelling", "text", "sentence"),
    [
        ("--concurrency", "0", "--concurrency must be a whole number of at least 1, not '0'."),
        ("--concurrency", "-3", "--concurrency must be a whole number of at least 1, not '-3'."),
        ("--concurrency", "1.5", "--concurrency must be a whole number of at least 1, not '1.5'."),
        ("--concurrency", "_1000", "--concurrency must be a whole number of at least 1, not '_1000'."),
        ("--concurrency", "٣", "--concurrency must be a whole number of at least 1, not '٣'."),
        ("--concurrency", "9" * 200, "--concurrency must be a whole number of at least 1"),
        ("--isl", "1__0", "--isl must be a whole number of at least 1, not '1__0'."),
        ("--isl", "many", "--isl must be a whole number of at least 1, not 'many'."),
        ("--slice-duration", "0", "--slice-duration must be a number of at least 0.01, not '0'."),
        ("--request-rate", "0", "--request-rate must be a number greater than 0, not '0'."),
        ("--request-rate", "nan", "--request-rate must be a number greater than 0, not 'nan'."),
        ("--request-rate", "inf", "--request-rate must be a number greater than 0, not 'inf'."),
        ("--request-rate", "1e999", "--request-rate must be a number greater than 0, not '1e999'."),
        ("--request-rate", "1e-300", "--request-rate must be at least 0.0001, not '1e-300'."),
        ("--request-rate", "1e300", "--request-rate must be at most 1,000,000,000, not '1e300'."),
        ("--benchmark-duration", "1e300", "--benchmark-duration must be at most 1,000,000,000, not '1e300'."),
        ("--request-timeout-seconds", "1e300", "--request-timeout-seconds must be at most 1,000,000,000, not '1e300'."),
        ("--benchmark-grace-period", "1e300", "--benchmark-grace-period must be at most 1,000,000,000, not '1e300'."),
        ("--osl", "10000001", "--osl must be at most 10,000,000, not '10000001'."),
        ("--concurrency", "9" * 20, f"--concurrency must be at most 1,000,000,000, not '{'9' * 20}'."),
        ("--random-seed", str(2**63), f"--random-seed must be at most {2**63 - 1:,}, not '{2**63}'."),
        ("--random-seed", "-1", "--random-seed must be a whole number of at least 0, not '-1'."),
        ("--max-error-rate", "5", "--max-error-rate must be a number from 0 to 1, not '5'."),
        (
            "--benchmark-grace-period",
            "nan",
            "--benchmark-grace-period must be a number of at least 0 or inf, not 'nan'.",
        ),
        ("--benchmark-duration", "30s", "not '30s' (a plain number of seconds, without a unit)."),
        (
            "--endpoint-type",
            "chta",
            f"--endpoint-type must be one of {', '.join(ENDPOINT_TYPES)}, not 'chta' (did you mean chat?).",
        ),
        ("--workers-max", "0", "--workers-max must be a whole number of at least 1, not '0'."),
        ("--transport", "grpc", "--transport must be http, not 'grpc'."),
        ("--streaming", "maybe", "--streaming must be true or false, not 'maybe'."),
        ("--model", "a,,b", "--model 'a,,b' has an empty name next to a comma."),
        ("--model", "", "--model needs a value, but the value is empty."),
        ("--tokenizer", " ", "--tokenizer needs a value, but the value is empty."),
    ],
)
def test_invalid_text_is_refused(spelling: str, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        value(spelling, text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("spelling", "choice", "supported"),
    [
        ("--endpoint-type", "solido_rag", "chat, completions, .* and"),
        ("--endpoint-type", "Video-generation", "chat, completions, .* and"),
    ],
)
def test_unsupported_choices_are_refused_by_name(spelling: str, choice: str, supported: str) -> None:
    with pytest.raises(UserError, match=f"is not supported yet; this version of Penstock has {supported}") as caught:
        value(spelling, choice)
    assert str(caught.value).startswith(spelling)


@pytest.mark.parametrize(
    "spelling",
    [
        "--isl",
        "--isl-stddev",
        "--osl",
        "--osl-stddev",
        "--concurrency",
        "--request-rate",
        "--request-count",
        "--benchmark-duration",
    ],
)
def test_comma_lists_are_sweeps(spelling: str) -> None:
    assert value(spelling, "1, 2,40") == (1, 2, 40)
    with pytest.raises(UserError, match=f"{spelling} '1,,2' has an empty value next to a comma"):
        value(spelling, "1,,2")
    with pytest.raises(UserError, match=f"{spelling} must be .*, not '-3'"):
        value(spelling, "1,-3")


@pytest.mark.parametrize("spelling", ["--no-gpu-telemetry", "--no-server-metrics"])
def test_always_on_flags_cannot_be_turned_off(spelling: str) -> None:
    assert value(spelling, "true") is True
    with pytest.raises(UserError, match="does not have yet"):
        value(spelling, "false")


def test_parse_bool_and_nearest() -> None:
    assert [parse_bool(word) for word in ("On", "0", "chat")] == [True, False, None]
    assert nearest("chatt", ["chat", "completions"]) == "chat"
    assert nearest("zebra", ["chat", "completions"]) is None
