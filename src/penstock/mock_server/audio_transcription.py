"""POST /v1/audio/transcriptions: a form with an audio file. The text has `tokens` tokens and is sent as a whole."""

from __future__ import annotations

import re

import msgspec

from penstock.mock_server.dialect import BadRequest, Dialect, ParsedRequest, PlannedReply, plain_text, required
from penstock.mock_server.media import AUDIO_TOKENS

encode = msgspec.json.encode
NAME = re.compile(rb'name="([^"]*)"')
SIGNATURES = (b"RIFF", b"ID3", b"\xff", b"fLaC", b"OggS")


class AudioTranscription(Dialect):
    name = "audio_transcription"
    path = "/audio/transcriptions"

    def parse(self, body: bytes) -> ParsedRequest:
        fields = form_fields(body)
        model = required(text_field(fields, b"model"), "model")
        file = fields.get(b"file", [b""])[0]
        if not file.startswith(SIGNATURES) and file[4:8] != b"ftyp":
            raise BadRequest("file is required and must be audio", "file")
        return ParsedRequest(model, AUDIO_TOKENS, audios=1)

    def body_prefix(self, reply: PlannedReply) -> bytes:
        return b'{"text":' + encode(plain_text(reply, 0, reply.tokens))

    def usage(self, reply: PlannedReply) -> bytes:
        tokens = reply.completion_tokens
        usage = {"type": "tokens", "input_tokens": AUDIO_TOKENS, "output_tokens": tokens}
        return encode(usage | {"total_tokens": AUDIO_TOKENS + tokens})


def form_fields(body: bytes) -> dict[bytes, list[bytes]]:
    """Return the values of the fields of a form by name; the first line is the boundary."""
    boundary = body.partition(b"\r\n")[0]
    if not boundary.startswith(b"--"):
        raise BadRequest("the body is not a form (multipart/form-data)")
    fields: dict[bytes, list[bytes]] = {}
    for part in body.removeprefix(boundary).split(b"\r\n" + boundary):
        head, separator, value = part.partition(b"\r\n\r\n")
        if separator and (name := NAME.search(head)):
            fields.setdefault(name[1], []).append(value)
    return fields


def text_field(fields: dict[bytes, list[bytes]], name: bytes) -> str:
    """Return the value of a field of a form; empty if it is missing."""
    return fields.get(name, [b""])[0].decode("utf-8", "replace")
