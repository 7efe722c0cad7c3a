"""What endpoints declare, and what follows from it for the settings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.endpoints.base import Declaration, Endpoint
from penstock.errors import UserError
from penstock.settings.endpoint_types import BUILTIN, DEFAULT, load_endpoint, types_that_take
from penstock.settings.parse import parse
from penstock.settings.resolve import resolve
from penstock.settings.schema import Settings

SOURCE = Path(penstock.__file__).parent
SERVERS = ("mock", "gateway")
"""Packages of servers, whose routes have names of their own."""


class Small(Endpoint):
    name = "small"
    path = "/small"
    declaration = Declaration(
        credential_header="x-api-key", credential="{}", streams=False, inputs=frozenset(), length_limits=("limit",)
    )


class Undeclared:
    name = "undeclared"
    path = "/undeclared"


def resolved(monkeypatch: pytest.MonkeyPatch, *flags: str, type_: str = f"{__name__}:Small") -> Settings:
    """Return the settings of an endpoint type that a line of the registry adds."""
    monkeypatch.setitem(BUILTIN, "small", type_)
    parsed = parse(PROFILE, ["--model", "m", *flags])
    parsed.values["endpoint.type"] = "small"  # the flag has read the registry when it was imported
    return resolve(parsed)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--streaming", "--streaming asks for streamed replies, which --endpoint-type small does not have; leave the"),
        (
            "--image-width-mean 8 --image-height-mean 8",
            "adds an image to each request, which --endpoint-type small cannot",
        ),
        ("--audio-length-mean 1", "--endpoint-type small cannot carry; use chat, responses or audio_transcription."),
        (
            "--shared-system-prompt-length 5",
            "--endpoint-type small sends one prompt; use chat, responses, messages or chat_embeddings.",
        ),
        (
            "--conversation-turn-mean 2",
            "--endpoint-type small cannot send earlier turns; use chat, responses or messages.",
        ),
        ("--use-legacy-max-tokens", "small has one name for the length limit (limit), so leave the flag out."),
        ("--per-chunk-usage --streaming --use-server-token-count", "does not have; leave the flag out."),
        (
            "--api-key k --header X-Api-Key:v",
            "The x-api-key header is set twice, by --api-key and by an X-Api-Key header",
        ),
        (
            "--header Authorization:v --url u:p@host",
            "The Authorization header is set twice, by an Authorization header",
        ),
    ],
)
def test_flag_that_the_declaration_excludes_is_refused(
    monkeypatch: pytest.MonkeyPatch, flags: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        resolved(monkeypatch, *flags.split())
    assert message in str(refused.value)


def test_key_in_a_header_of_its_own_can_be_sent_with_another_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = resolved(monkeypatch, "--api-key", "k", "--header", "Authorization:v", "--url", "http://host/")
    assert settings.endpoint.api_key is not None
    assert [name for name, _ in settings.endpoint.headers] == ["Authorization"]


@pytest.mark.parametrize(("name", "url"), [("chat", "http://host/a"), ("raw", "http://host/a/")])
def test_url_is_complete_for_a_type_without_a_path(name: str, url: str) -> None:
    words = ["--model", "m", "--endpoint-type", name, "--url", "http://host/a/"]
    assert resolve(parse(PROFILE, words)).endpoint.urls == (url,)


def test_only_types_with_a_path_of_their_own_are_alternatives() -> None:
    takes_images = ["chat_embeddings", "nim_embeddings", "image_edit", "image_retrieval"]
    assert types_that_take("images") == ["chat", "responses", "messages", *takes_images]


def test_plugin_that_declares_nothing_has_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plugin:
        def load(self) -> type[Undeclared]:
            return Undeclared

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Plugin()])
    loaded = load_endpoint("undeclared")
    assert (loaded.path, loaded.declaration) == ("/undeclared", DEFAULT)
    assert loaded.decode(loaded.encode({"a": "é"})) == {"a": "é"}


def test_endpoint_names_are_compared_nowhere_else() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in (*SERVERS, "endpoints")]
    names = set(BUILTIN) - {"messages"}  # a field of bodies, too
    compared = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in files
        # Some keys of the configuration file and the name of an artifact are the same words.
        if path.name not in ("endpoint_types.py", "keys.py", "artifacts.py")
        for node in comparisons(ast.parse(path.read_text()))
        if any(isinstance(part, ast.Constant) and part.value in names for part in ast.walk(node))
    ]
    assert len(files) > 100
    assert compared == []


def comparisons(tree: ast.AST) -> Iterator[Any]:
    """Yield comparisons, patterns, and tables with keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            yield node
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
