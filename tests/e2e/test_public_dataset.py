"""--public-dataset with the real command and a hub on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from support.programs import MockServer, Program

ENTRIES = [
    {"conversations": [{"from": "human", "value": f"Name {n} rivers."}, {"from": "gpt", "value": "Nile. " * n}]}
    for n in range(4, 8)
]
DATA = json.dumps(ENTRIES).encode()


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA)))
        self.send_header("X-Repo-Commit", "c0ffee")
        self.send_header("ETag", '"abc"')
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(DATA)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_prompts_of_the_hub_are_sent(hub: str, program: Program, mock: Callable[..., MockServer]) -> None:
    server = mock()
    env = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(program.folder / "home")}
    flags = ("--public-dataset", "sharegpt", "--tokenizer", "builtin", "--num-dataset-entries", 3, "--request-count", 3)
    done = program.profile(server.url, *flags, texts=None, **env)
    assert done.status == 0, done
    assert [body["messages"][0]["content"] for body in done.inputs] == [f"Name {n} rivers." for n in (4, 5, 6)]
    (dataset,) = done.summary["input_config"]["datasets"]
    assert (dataset["type"], dataset["dataset"]) == ("public", "sharegpt")
