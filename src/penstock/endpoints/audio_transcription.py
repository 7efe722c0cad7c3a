"""POST /v1/audio/transcriptions. The request is a form with the bytes of one audio file; the reply is its transcript."""

from __future__ import annotations

from penstock.datasets.conversation import Turn
from penstock.endpoints.base import NO_HISTORY, Body, Declaration, History
from penstock.endpoints.form import CONTENT_TYPE, FormEndpoint, form_file
from penstock.endpoints.json_replies import UNREADABLE, error_failure, excerpt, not_json, parse_json
from penstock.endpoints.messages_replies import read_any_usage
from penstock.endpoints.reply import Failure, Reply
from penstock.errors import UserError
from penstock.settings.schema import EndpointSettings

_TYPES = {"mp3": "mpeg", "m4a": "mp4"}
"""Media types that differ from the name of the format."""


class AudioTranscription(FormEndpoint):
    name = "audio_transcription"
    path = "/v1/audio/transcriptions"
    declaration = Declaration(
        content_type=CONTENT_TYPE,
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
        file = form_file(f"audio.{audio.format}", f"audio/{_TYPES.get(audio.format, audio.format)}", audio.data)
        return {"file": file, "model": model} | settings.extra | turn.extra

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
