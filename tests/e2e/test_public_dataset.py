"""--public-dataset with the real command and a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from support.http_server import HttpReply, HttpServer
from support.programs import MockServer, Program

ENTRIES = [
    {"conversations": [{"from": "human", "value": f"Name {n} rivers."}, {"from": "gpt", "value": "Nile. " * n}]}
    for n in range(4, 8)
]
DATA = json.dumps(ENTRIES).encode()


@pytest.fixture
def hub() -> Iterator[str]:
    reply = HttpReply(DATA, headers={"X-Repo-Commit": "c0ffee", "ETag": '"abc"'})
    with HttpServer(lambda *_: reply) as server:
        yield server.url


def test_prompts_of_the_hub_are_sent(hub: str, program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock()
    env = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(program.folder / "home")}
    flags = ("--public-dataset", "sharegpt", "--tokenizer", "builtin", "--num-dataset-entries", 3, "--request-count", 3)
    done = program.profile(server.url, *flags, texts=None, **env)
    assert done.status == 0, done
    assert [body["messages"][0]["content"] for body in done.inputs] == [f"Name {n} rivers." for n in (4, 5, 6)]
    (dataset,) = done.summary["input_config"]["datasets"]
    assert (dataset["type"], dataset["dataset"]) == ("public", "sharegpt")
