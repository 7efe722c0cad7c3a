"""Credentials on the command line are sent to the server, but never printed or written to a file."""

from __future__ import annotations

import pytest

from support.programs import Capture, Outcome, Program

SECRET = "hunter2"
PLACES = {
    "custom-endpoint": ("", "--custom-endpoint", f"/v1/chat/completions?api_key={SECRET}"),
    "endpoint": ("", "--endpoint", f"/v1/chat/completions?x-amz-signature={SECRET}"),
    "url": (f"/v1/chat/completions?subscription-key={SECRET}",),
}


def shown(done: Outcome) -> list[str]:
    """Return the files and streams that contain the secret."""
    places = [path.name for path in done.files() if SECRET.encode() in path.read_bytes()]
    return places + [name for name in ("out", "err") if SECRET in getattr(done, name)]


@pytest.mark.parametrize("place", PLACES)
def test_secret_in_a_query_is_sent_and_not_shown(program: Program, capture: Capture, place: str) -> None:
    query, *flags = PLACES[place]
    done = program.profile(capture.url + query, *flags)
    assert done.status == 0, done
    assert all(path.endswith(f"={SECRET}") for path, _, _ in capture.requests)
    assert shown(done) == []


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_comparison_of_servers_does_not_show_a_secret_in_a_query(
    program: Program, capture: Capture, form: tuple[str, ...]
) -> None:
    urls = [f"{capture.url}/{server}/v1/chat/completions?api_key={SECRET}" for server in "ab"]
    folder = program.folder / "compared"
    arguments = (
        "--model",
        "m",
        "--input-file",
        program.prompts(20),
        "--use-server-token-count",
        "--artifact-dir",
        folder,
    )
    done = program.run("compare", "--url", urls[0], "--url", urls[1], *arguments, *form)
    assert done.status == 0, done
    assert "<redacted>" in done.out
    assert "<redacted>" in (folder / "compare.json").read_text()
    done.folder = folder
    assert shown(done) == []
