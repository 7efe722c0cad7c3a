"""The estimate of images, audio and files in requests."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from penstock.gateway.dialects.media_parts import MediaParts
from penstock.gateway.inbound.body import read_body
from penstock.gateway.routes import BY_NAME

DATA = base64.b64encode(bytes(range(256)) * 64).decode()
URL = f"data:image/png;base64,{DATA}"


def media(route: str, *parts: dict[str, Any]) -> MediaParts:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi."}, *parts]}]
    body = {"model": "m", "max_tokens": 5, "input": messages, "messages": messages}
    if route == "responses":
        del body["messages"]
    else:
        del body["input"]
    return read_body(json.dumps(body).encode(), BY_NAME[route], 0).media


@pytest.mark.parametrize(
    ("route", "part", "kind", "is_encoded"),
    [
        ("responses", {"type": "input_image", "image_url": URL}, "images", True),
        ("responses", {"type": "input_image", "image_url": "https://a.example/b.png"}, "images", False),
        ("responses", {"type": "input_image", "file_id": "file-1"}, "images", False),
        ("responses", {"type": "input_file", "filename": "a.pdf", "file_data": DATA}, "files", True),
        ("responses", {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}, "audio", True),
        ("chat", {"type": "image_url", "image_url": {"url": URL}}, "images", True),
        ("chat", {"type": "file", "file": {"file_data": URL}}, "files", True),
        ("chat", {"type": "input_audio", "input_audio": {"format": "wav", "data": DATA}}, "audio", True),
        (
            "messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
            "images",
            True,
        ),
        ("messages", {"type": "image", "source": {"type": "file", "file_id": "file-1"}}, "images", False),
        ("messages", {"type": "document", "source": {"type": "url", "url": "https://a.example/b"}}, "files", False),
    ],
)
def test_part_counts_once_and_without_its_bytes(route: str, part: dict[str, Any], kind: str, is_encoded: bool) -> None:
    found = media(route, part, part)
    assert {name: getattr(found, name) for name in ("images", "audio", "files")} == {
        "images": 0,
        "audio": 0,
        "files": 0,
        kind: 2,
    }
    assert (found.encoded_bytes > 2 * len(DATA)) is is_encoded
    assert found.encoded_bytes < 2 * len(DATA) + 100


@pytest.mark.parametrize("route", ["responses", "chat", "messages"])
def test_texts_count_with_their_bytes(route: str) -> None:
    quoted = json.dumps({"type": "input_image", "image_url": URL})
    for text in (URL, quoted, DATA, "data:" + "x" * 1000):
        assert media(route, {"type": "text", "text": text}) == MediaParts()


def test_text_beside_an_image_cannot_hide_behind_it() -> None:
    hidden = {"type": "input_text", "text": "data:," + "x" * 5000}
    found = media("responses", {"type": "input_image", "file_id": "f"}, hidden, hidden)
    assert 5000 < found.encoded_bytes < 5100
