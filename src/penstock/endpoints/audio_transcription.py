"""POST /v1/audio/transcriptions. The request is a form with the bytes of one audio file; the reply is its transcript.

`build` returns the fields of the form, in which the file is base64, and `encode` writes the form.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import orjson

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, Endpoint, History
from penstock.endpoints.json_replies import UNREADABLE, error_failure, excerpt, not_json, parse_json
from penstock.endpoints.messages_replies import read_any_usage
from penstock.endpoints.reply import Failure, Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings

_BOUNDARY = "penstock-58f1d0c3a94e4b6f8a27c6e5b1d93f40"
"""128 random bits after the name, so that no file contains it."""
_TYPES = {"mp3": "mpeg", "m4a": "mp4"}
"""Media types that differ from the name of the format."""


class AudioTranscription(Endpoint):
    name = "audio_transcription"
    path = "/v1/audio/transcriptions"
    declaration = Declaration(
        content_type=f"multipart/form-data; boundary={_BOUNDARY}",
        streams=False,
        inputs=frozenset({"audio"}),
        input_tokens=False,
        output_tokens=False,
        title="Audio Transcription Metrics",
        operation="transcription",
    )

    def build(self, turn: Turn, model: str, settings: EndpointSettings, history: History = NO_HISTORY) -> Body:
        if len(turn.audios) != 1:
            raise UserError(
                f"--endpoint-type audio_transcription sends one audio clip in each request, not {len(turn.audios)}; give "
                '--audio-length-mean, or a file with lines such as {"audio": "speech.wav"}.'
            )
        (audio,) = turn.audios
        if audio.data.startswith(("http://", "https://")):
            raise UserError(
                "--endpoint-type audio_transcription sends the bytes of a clip, not its URL; download it, and name the file."
            )
        file = {
            "filename": f"audio.{audio.format}",
            "type": f"audio/{_TYPES.get(audio.format, audio.format)}",
            "data": audio.data,
        }
        return {"file": file, "model": model} | settings.extra | turn.extra

    def encode(self, body: Body) -> bytes:
        parts: list[bytes] = []
        for name, value in body.items():
            parts += [b"--%b\r\n" % _BOUNDARY.encode(), *_part(name, value), b"\r\n"]
        return b"".join([*parts, b"--%b--\r\n" % _BOUNDARY.encode()])

    def decode(self, body: bytes) -> Any:
        boundary = b"--" + _BOUNDARY.encode()
        fields: dict[str, Any] = {}
        for part in body.removeprefix(boundary).split(b"\r\n" + boundary)[:-1]:
            head, _, value = part.partition(b"\r\n\r\n")
            _, name, *rest = head.decode().split('"')
            if len(rest) < 3:
                fields[name] = value.decode()
                continue
            type_ = head.decode().rpartition("Content-Type: ")[2]
            fields[name] = {"filename": rest[1], "type": type_, "data": b64encode(value).decode()}
        if not fields:
            raise ValueError("the body is not a form")
        return fields

    def input_text(self, body: Body) -> list[str]:
        return []

    def read_body(self, body: bytes) -> Reply:
        """Read an object with `text`, or plain text, which the extra input `response_format` can ask for."""
        try:
            value = parse_json(body)
        except UNREADABLE:
            value = body.decode("utf-8", "replace")
        if not body.strip() or (body.lstrip().startswith((b"<", b"{")) and isinstance(value, str)):
            return Reply(not_json(body))
        # A transcript such as `1984` is plain text, and JSON too.
        text = body.decode() if isinstance(value, int | float | None) else value
        reply = Reply()
        if isinstance(value, dict):
            if value.get("error"):
                return Reply(error_failure(value["error"]))
            text = value.get("text")
            reply.usage = read_any_usage(value.get("usage"))
        if not isinstance(text, str):
            return Reply(Failure("InvalidReply", f"The reply has no transcript: {excerpt(body)}", "server"))
        reply.outputs = [text] if text else []
        reply.vectors = 1  # an empty transcript is one, too: synthetic clips contain no speech
        reply.done = True
        return reply


def _part(name: str, value: Any) -> list[bytes]:
    if isinstance(value, dict) and value.keys() == {"filename", "type", "data"}:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{value["filename"]}"\r\n'
        return [f"{head}Content-Type: {value['type']}\r\n\r\n".encode(), b64decode(value["data"])]
    text = value.encode() if isinstance(value, str) else orjson.dumps(value)
    return [f'Content-Disposition: form-data; name="{name}"\r\n\r\n'.encode(), text]
