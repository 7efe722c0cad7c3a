"""Requests that the mock's dialects besides the OpenAI text APIs refuse."""

from __future__ import annotations

import pytest

from penstock.mock_server.dialect import BadRequest
from penstock.mock_server.dialect_table import find_dialect


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/ranking", b'{"query":{"text":"q"},"passages":[{"text":"a"}]}', "model is required"),
        ("/v1/ranking", b'{"model":"m","passages":[{"text":"a"}]}', "query is required"),
        (
            "/v2/rerank",
            b'{"model":"m","query":"q","documents":[]}',
            "documents is required and must hold at least one text",
        ),
        ("/rerank", b'{"query":"q"}', "texts is required and must hold at least one text"),
        ("/generate", b'{"inputs":""}', "inputs is required"),
        ("/generate_stream", b'{"inputs":"a","parameters":{"max_new_tokens":0}}', "max_new_tokens must be from 1 to"),
        ("/v1/images/generations", b'{"model":"m"}', "prompt is required"),
        ("/v1/images/generations", b'{"model":"m","prompt":"a","n":0}', "n must be from 1 to 128"),
        ("/v1/embeddings", b'{"model":"m"}', "input is required"),
        (
            "/v1/embeddings",
            b'{"model":"m","input":["a data:image/png;base64,AAAA"]}',
            "not hold an image of a known format",
        ),
        ("/v1/infer", b'{"input":[]}', "input is required and must hold at least one image"),
        ("/v1/infer", b'{"input":[{"type":"text","url":"a"}]}', "the only type of an input is image_url"),
        ("/v1/images/edits", b'--b\r\nx; name="model"\r\n\r\nm\r\n--b--\r\n', "prompt is required"),
        (
            "/v1/images/edits",
            b'--b\r\nx; name="model"\r\n\r\nm\r\n--b\r\nx; name="prompt"\r\n\r\np\r\n--b--\r\n',
            "image is required and must hold at least one image",
        ),
        (
            "/v1/images/edits",
            (
                b'--b\r\nx; name="model"\r\n\r\nm\r\n--b\r\nx; name="prompt"\r\n\r\np\r\n--b\r\n'
                b'x; name="image"\r\n\r\nGIF\r\n--b--\r\n'
            ),
            "image must be an image of a known format",
        ),
        ("/v1/audio/transcriptions", b"{}", "the body is not a form"),
        (
            "/v1/audio/transcriptions",
            b'--b\r\nx; name="model"\r\n\r\nm\r\n--b--\r\n',
            "file is required and must be audio",
        ),
    ],
)
def test_incomplete_request_is_refused(path: str, body: bytes, message: str) -> None:
    dialect = find_dialect(path)
    assert dialect is not None
    with pytest.raises(BadRequest) as refused:
        dialect.parse(body)
    assert message in str(refused.value)
