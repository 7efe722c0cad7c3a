"""Cache effects with the real command: the mock's prefix cache finds what --cache-bust leaves."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from support.programs import MockServer, Program

SYSTEM = "You answer questions about rivers and lakes. " * 20


def test_marked_prompts_are_not_in_the_cache_of_the_server(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(prefix_cache=100_000, block_size=16)
    path = program.folder / "chats.jsonl"
    chat = {"turns": [{"text": "Name a river. " * 40}, {"text": "And a lake."}]}
    path.write_text(json.dumps(chat) + "\n")
    flags = ("--input-file", path, "--custom-dataset-type", "multi_turn", "--osl", 4, "--conversation-num", 3)
    flags = (*flags, "--concurrency", 1, "--system-prompt", SYSTEM, "--tokenizer", "builtin")
    done = program.profile(server.url, *flags, "--cache-bust", "system_prefix", texts=None)
    assert done.status == 0, done
    first, second, *others = server.logged_requests()
    assert len(others) == 4
    # The first turns of three conversations have nothing in common; a second turn finds the first one.
    assert [each["cached_tokens"] for each in (first, *others[::2])] == [0, 0, 0]
    assert all(each["cached_tokens"] > 300 for each in (second, *others[1::2]))
    assert done.summary["prompt_reuse"]["sent_again"] == 0
    assert done.summary["total_usage_prompt_cache_read_tokens"]["avg"] == sum(
        each["cached_tokens"] for each in server.logged_requests()
    )


def test_warmup_is_isolated(program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock(prefix_cache=100_000, block_size=16)
    flags = ("--isl", 200, "--osl", 2, "--num-dataset-entries", 1, "--tokenizer", "builtin", "--concurrency", 1)
    flags = (*flags, "--warmup-request-count", 2, "--request-count", 2)
    done = program.profile(server.url, *flags, "--cache-bust", "warmup_isolation_first_turn", texts=None)
    assert done.status == 0, done
    cached = [each["cached_tokens"] > 0 for each in server.logged_requests()]
    assert cached == [False, True, False, True]


@pytest.mark.parametrize(
    ("lines", "flags", "reason"),
    [
        ('{"text": "a"}', ("--cache-bust", "system_prefix"), "puts a marker into the system prompt"),
        ('{"messages": []}', ("--cache-bust", "first_turn_prefix"), "--cache-bust would change the payloads"),
    ],
)
def test_request_without_a_place_for_the_marker_is_refused(
    program: Program, mock: Callable[..., MockServer], lines: str, flags: tuple[str, ...], reason: str
) -> None:
    path = program.folder / "input.jsonl"
    path.write_text(lines)
    done = program.profile(mock().url, "--input-file", path, *flags, texts=None)
    assert (done.status, reason in done.err) == (2, True), done
