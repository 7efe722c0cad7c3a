"""What a user may write on the command line, and is told when it cannot be sent."""

from __future__ import annotations

import pytest

from programs import Capture, Program


@pytest.mark.parametrize(
    ("path", "flags"),
    [("/caf\u00e9", []), ("/?q=\u4e2d", []), ("", ["--custom-endpoint", "/v1/\u4e2d"])],
    ids=["latin", "query", "endpoint"],
)
def test_what_a_request_line_cannot_carry(program: Program, capture: Capture, path: str, flags: list[str]) -> None:
    done = program.profile(capture.url + path, *flags)
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "which a request cannot carry; write it as %" in done.err


def test_home_is_found_where_the_shell_leaves_it(program: Program, capture: Capture) -> None:
    """HOME is the program's folder here."""
    prompts = program.prompts(2)
    done = program.profile(capture.url, f"--input-file=~/{prompts.name}", "--use-server-token-count", texts=None)
    assert done.status == 0, done
    assert len(capture.requests) == 2


def test_a_mock_in_capitals(program: Program) -> None:
    done = program.profile("MOCK://?ttft=1")
    assert done.status == 0, done
    assert len(done.records) == 3
