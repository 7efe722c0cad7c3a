"""Files and media in requests: what their content is decides whether they are inspected."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest

from penstock.gateway.routes import Route
from support.guardrail_streams import guards, keyword, pii

BLOCK = keyword("BLOCKME", "禁词")


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


TEXT = "Dear all,\nthis is BLOCKME, as you know.\n"
CONTENTS: dict[str, bytes] = {
    "UTF-8": TEXT.encode(),
    "UTF-8 with a byte-order mark": TEXT.encode("utf-8-sig"),
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16, little-endian": TEXT.encode("utf-16-le"),
    "UTF-16, big-endian": TEXT.encode("utf-16-be"),
    "UTF-16 with an odd byte": b"x" + TEXT.encode("utf-16-le"),
    "UTF-16 in Chinese": "这是禁词。".encode("utf-16-le"),
    "UTF-16 in Chinese, big-endian": "这是禁词。".encode("utf-16-be"),
    "one Latin-1 byte": b"caf\xe9: " + TEXT.encode(),
    "Windows-1252": "“BLOCKME” – 5 €".encode("cp1252"),
    "a NUL": b"\0" + TEXT.encode(),
    "NULs in a word": b"BLOC\0K\0ME",
    "text that begins like a PDF file": b"%PDF-1.7 " + TEXT.encode(),
    "text that begins like an image": b"GIF89a " + TEXT.encode(),
    "unknown binary data": bytes(range(256)) + TEXT.encode(),
}


def values(data: bytes) -> dict[str, str]:
    plain = encoded(data)
    return {
        "base64": plain,
        "a data URL of a text": f"data:text/plain;base64,{plain}",
        "a data URL of a PDF file": f"data:application/pdf;base64,{plain}",
        "a data URL of an image": f"data:image/png;base64,{plain}",
        "a data URL after a space": f" data:application/pdf;base64,{plain}",
        "a data URL without a type": f"data:;base64,{plain}",
        "URL-safe base64 without padding": plain.replace("+", "-").replace("/", "_").rstrip("="),
        "base64 in lines": "\r\n".join(plain[start : start + 76] for start in range(0, len(plain), 76)),
    }


def part(**members: Any) -> Any:
    return {"input": [{"role": "user", "content": [members]}]}


def chat_part(**members: Any) -> Any:
    return {"messages": [{"role": "user", "content": [members]}]}


def block(kind: str, **source: Any) -> Any:
    return {"messages": [{"role": "user", "content": [{"type": kind, "source": {"type": "base64", **source}}]}]}


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
def test_text_in_any_encoding_is_found_whatever_type_the_caller_names(data: bytes) -> None:
    for name, value in values(data).items():
        bodies: list[tuple[Route, Any]] = [
            ("responses", part(type="input_file", file_data=value)),
            ("responses", part(type="input_image", image_url=value)),
            ("chat", chat_part(type="file", file={"filename": "a.pdf", "file_data": value})),
            ("chat", chat_part(type="image_url", image_url={"url": value})),
            ("chat", chat_part(type="input_audio", input_audio={"format": "wav", "data": value})),
            ("messages", block("document", media_type="application/pdf", data=value)),
            ("messages", block("image", media_type="image/png", data=value)),
        ]
        for route, body in bodies:
            assert guards(BLOCK).request(route, body).blocked_by == "words", (name, body)


@pytest.mark.parametrize(
    "text",
    ["BLOCKME", "so BLOCKME now", " BLOCKME", "BLOCKME\nBLOCKME\n" * 9, "so, BLOCKME", "data:text/plain,so%20BLOCKME"],
)
def test_raw_text_in_place_of_the_data_of_a_file_is_found(text: str) -> None:
    assert guards(BLOCK).request("responses", part(type="input_file", file_data=text)).blocked_by == "words"
    assert (
        guards(BLOCK).request("messages", block("document", media_type="text/plain", data=text)).blocked_by == "words"
    )


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"tEXt", b"BLOCKME") + chunk(b"IEND", b"")


BINARY = {
    "PNG": png(),
    "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF\0BLOCKME",
    "GIF": b"GIF89a\x01\0\x01\0BLOCKME",
    "WAV": b"RIFF\x24\0\0\0WAVEfmt BLOCKME",
    "PDF": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\nBLOCKME",
    "DOCX": b"PK\x03\x04\x14\0\x06\0BLOCKME",
    "MP4": b"\0\0\0\x18ftypmp42BLOCKME\xff",
    "MP3": b"ID3\x04\0\0BLOCKME",
}


@pytest.mark.parametrize("data", BINARY.values(), ids=BINARY)
def test_known_binary_formats_are_not_inspected(data: bytes) -> None:
    for value in values(data).values():
        assert guards(BLOCK).request("responses", part(type="input_file", file_data=value)).blocked_by is None
        assert guards(BLOCK).request("responses", part(type="input_image", image_url=value)).blocked_by is None


def test_url_of_a_file_is_not_inspected() -> None:
    assert guards(BLOCK).request("responses", part(type="input_file", file_url="https://x/BLOCKME")).blocked_by is None


def test_mask_replaces_the_whole_text_of_a_file_whose_encoding_is_a_guess() -> None:
    for text in ("to joe@example.com".encode("utf-16-le"), b"caf\xe9 joe@example.com"):
        body = part(type="input_file", file_data=f"data:text/plain;base64,{encoded(text)}")
        inspection = guards(pii("email")).request("responses", body)
        assert inspection.changed
        assert body["input"][0]["content"][0]["file_data"] == f"data:text/plain;base64,{encoded(b'[REDACTED]')}"
