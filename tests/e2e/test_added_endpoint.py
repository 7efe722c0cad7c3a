"""An endpoint that is added by a module and a line of the registry, and differs from the others in all that it declares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from support.http_server import HttpReply, HttpServer

MODULE = """\
from urllib.parse import parse_qs, urlencode

import msgspec

from penstock.endpoints.base import Declaration, Endpoint
from penstock.endpoints.reply import Reply, Usage


class Rank(Endpoint):
    name = "rank"
    path = "/v9/rank"
    declaration = Declaration(
        method="PUT",
        content_type="application/x-www-form-urlencoded",
        accept="application/vnd.ranks+json",
        credential_header="x-api-key",
        credential="key={}",
        headers=(("x-version", "9"), ("x-kept", "declared")),
        streams=False,
        inputs=frozenset(),
        output_tokens=False,
    )

    def build(self, turn, model, settings, history=None):
        return {"model": model, "query": " ".join(turn.texts)}

    def encode(self, body):
        return urlencode(body).encode()

    def decode(self, body):
        return {name: value for name, (value,) in parse_qs(body.decode()).items()}

    def remember(self, history, turn, reply, settings):
        pass

    def input_text(self, body):
        return [body["query"]]

    def read_stream(self, body, *, timed):
        raise AssertionError("declared as not streaming")

    def read_body(self, body):
        reply = Reply()
        reply.vectors = len(msgspec.json.decode(body)["ranks"])
        reply.usage = Usage(prompt=3, completion=0, total=3)
        return reply
"""
PROGRAM = """\
import sys
from penstock.settings.endpoint_types import BUILTIN
BUILTIN["rank"] = "ranking:Rank"
from penstock.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    reply = HttpReply(b'{"ranks": [2, 0, 1]}', headers={"Content-Type": "application/vnd.ranks+json"})
    with HttpServer(lambda *_: reply) as server:
        yield server


@pytest.fixture(scope="module")
def folder(server: HttpServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the added endpoint against the server, and return the artifact folder."""
    packages = tmp_path_factory.mktemp("added")
    (packages / "ranking.py").write_text(MODULE)
    folder = packages / "artifacts"
    words = ["profile", "--endpoint-type", "rank", "--model", "m", "--url", server.url, "--request-count", "3"]
    words += [
        "--api-key",
        "sk-1",
        "--header",
        "x-kept:given",
        "--isl",
        "5",
        "--tokenizer",
        "builtin",
        "--no-server-metrics",
        "--random-seed",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--artifact-dir", str(folder)],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    return folder


def test_server_gets_what_the_endpoint_declares(server: HttpServer, folder: Path) -> None:
    assert len(server.received) == 3
    for method, path, headers, body in server.received:
        assert (method, path) == ("PUT", "/v9/rank")
        assert headers["content-type"] == "application/x-www-form-urlencoded"
        assert headers["accept"] == "application/vnd.ranks+json"
        assert (headers["x-api-key"], headers["x-version"]) == ("key=sk-1", "9")
        assert headers["x-kept"] == "given"
        assert "authorization" not in headers
        assert parse_qs(body.decode())["model"] == ["m"]


def test_metrics_that_do_not_fit_are_absent(folder: Path) -> None:
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert summary["request_count"]["avg"] == 3
    assert summary["request_latency"]["avg"] > 0
    assert summary["input_sequence_length"]["avg"] == 5
    assert summary["usage_prompt_tokens"]["avg"] == 3
    unfit = (
        "first_token",
        "inter_token",
        "output_token",
        "output_sequence",
        "osl",
        "usage_completion",
        "chunk_latency",
    )
    assert [tag for tag in summary if any(part in tag for part in unfit)] == []
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    assert len(records) == 3
    assert all("output_sequence_length" not in record["metrics"] for record in records)
    assert "Output Token" not in (folder / "profile_export_console.txt").read_text()


def test_inputs_are_kept_and_the_key_is_not(server: HttpServer, folder: Path) -> None:
    inputs = json.loads((folder / "inputs.json").read_text())["data"]
    sent = sorted(body.decode() for _, _, _, body in server.received)
    assert sorted(payload["body"] for session in inputs for payload in session["payloads"]) == sent
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"sk-1" not in written
