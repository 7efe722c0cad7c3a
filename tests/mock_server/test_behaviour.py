from __future__ import annotations

import math

import pytest

from penstock.errors import UserError
from penstock.mock_server.behaviour import FAULTS, Behaviour, describe, read_header, read_options, write_options
from penstock.mock_server.mock_process import parse_mock_url
from penstock.mock_server.options import OPTIONS


def test_option_table_matches_the_behaviour_struct() -> None:
    assert [option.name for option in OPTIONS] == list(Behaviour.__struct_fields__)
    for fault in FAULTS:
        assert getattr(Behaviour(), f"{fault}_rate") == 1.0


def test_mock_url_is_parsed_into_a_behaviour() -> None:
    behaviour = parse_mock_url("mock://?ttft=50&itl=2.5&separate&usage=always&content_type=text%2Fplain")
    assert behaviour == Behaviour(ttft=50, itl=2.5, separate=True, usage="always", content_type="text/plain")
    assert parse_mock_url("mock://") == parse_mock_url("Mock:///?") == Behaviour()


@pytest.mark.parametrize(
    ("url", "fragments"),
    [
        ("mock://?tfft=50", ["'tfft'", "did you mean ttft?"]),
        ("mock://?ttft=soon", ["ttft", "milliseconds", "'soon'"]),
        ("mock://?ttft=-1", ["ttft", "0 or more"]),
        ("mock://?ttft=nan", ["ttft", "milliseconds"]),
        ("mock://?tokens=0", ["tokens", "1 or more"]),
        ("mock://?usage=perhaps", ["usage", "asked, always, never"]),
        ("mock://?separate=maybe", ["separate", "on or off"]),
        ("mock://?error=200", ["error", "400 to 599"]),
        ("mock://?error_rate=0.5", ["error_rate", "needs error"]),
        ("mock://?error=500&error_rate=2", ["error_rate", "0 to 1"]),
        ("mock://?slow_head=inf", ["slow_head", "seconds"]),
        ("mock://?tools=on&refusal=on", ["tools", "refusal", "exclude"]),
        ("mock://?slots=0", ["slots", "requests from 1", "'0'"]),
        ("mock://?prefix_cache=all", ["prefix_cache", "blocks from 1", "'all'"]),
        ("mock://?prefix-cache=9", ["'prefix-cache'", "did you mean prefix_cache?"]),
        ("mock://?block_size=16", ["block_size", "needs prefix_cache"]),
        ("mock://host:80/?ttft=1", ["mock://"]),
        ("http://x", ["not a mock URL"]),
    ],
)
def test_invalid_option_is_named_in_the_error(url: str, fragments: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_mock_url(url)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_header_changes_only_the_options_it_names() -> None:
    base = Behaviour(ttft=5, error=500, error_rate=0.5)
    assert read_header(" itl=3 ; crlf ; error=off;", base) == Behaviour(ttft=5, itl=3, crlf=True, error_rate=0.5)
    assert read_header("error_rate=0.1", base).error_rate == 0.1
    for option in ("idle_close=5", "slots=5", "prefix_cache=5", "block_size=5"):
        with pytest.raises(UserError, match="belongs to the whole server"):
            read_header(option, base)


def test_written_options_are_read_back_unchanged() -> None:
    behaviour = Behaviour(ttft=0.1, stall=math.inf, done=False, tools=True, cut=0, content_type="a/b; c=d", seed=9)
    assert read_options([(o.partition("=")[0], o.partition("=")[2]) for o in write_options(behaviour)]) == behaviour
    assert write_options(Behaviour()) == []


def test_description_lists_options_that_differ_from_their_defaults() -> None:
    assert describe(Behaviour()) == "ttft 0 ms, itl 0 ms, 100 tokens"
    description = describe(Behaviour(ttft=50, itl=2.5, error=429, error_rate=0.25, stall=math.inf, finish=False))
    assert description == (
        "ttft 50 ms, itl 2.5 ms, 100 tokens, finish off, error 429 for 0.25 of the requests, a stall of inf s"
    )
