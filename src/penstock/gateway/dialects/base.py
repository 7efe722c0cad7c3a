"""The interface of a dialect, and the parts that its replies consist of. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from penstock.gateway.dialects.event_texts import EventTexts
from penstock.gateway.dialects.field_map import FREE, LABEL, TEXT, UNKNOWN, FieldMap
from penstock.gateway.dialects.media_parts import ENCODED, MediaKind, MediaParts, find_media, part_pattern
from penstock.gateway.dialects.sse_frames import Frame
from penstock.gateway.dialects.texts import JoinedText, TextRef, Texts, walk
from penstock.gateway.dialects.token_estimate import TextEstimate, estimate_tokens
from penstock.gateway.refusal import Refusal

NO_RAW = msgspec.Raw(b"")
MAX_OUTPUT_TOKENS = 100_000_000
"""Upper bound of the output tokens reserved for a request, with all its replies; no model writes more."""
_MAX_TOKENS = 10**12
_MAX_TEXT_CHARS = 256
"""Bounds for numbers and texts of an upstream."""
_MAX_WALKED_BYTES = 1 << 17
"""A larger body is estimated by its length: walking its strings on the event loop takes up to 0.1 s for each megabyte."""


class RequestMembers(msgspec.Struct):
    """The members of a request that the gateway reads; msgspec skips the others at about 2 GB/s."""

    model: msgspec.Raw = NO_RAW
    stream: Any = None


class Usage:
    """Token counts as the provider reported them."""

    def __init__(self, input_: int, output: int, reasoning: int, cached: int) -> None:
        self.input = input_
        self.output = output
        self.reasoning = reasoning
        self.cached = cached


class Reply(msgspec.Struct):
    """The members of a whole reply that the gateway reads. The values of an upstream may have any type."""

    id: Any = None
    usage: Any = None
    error: Any = None
    model: msgspec.Raw = NO_RAW

    @property
    def reply_id(self) -> str | None:
        """The provider's id of the reply."""
        return short_text(self.id)

    @property
    def finish(self) -> str | None:
        """Why the reply ended."""
        raise NotImplementedError

    @property
    def failed(self) -> bool:
        """True if the reply reports a failure, whatever its status."""
        return bool(self.error)

    @property
    def unfinished(self) -> bool:
        """True if the provider goes on to generate after this reply."""
        return False

    @property
    def reported(self) -> Usage | None:
        raise NotImplementedError


class StreamReader:
    """Reads a stream frame by frame; its attributes hold what it has read so far."""

    events = 0
    id: str | None = None
    usage: Usage | None = None
    usage_at_start: Usage | None = None
    """The usage at the beginning of the stream: its output is not complete."""
    finish: str | None = None
    terminal = False
    """True once the event that ends the stream has passed."""
    sequence = -1
    """The highest sequence number so far."""

    def __init__(self) -> None:
        self._text = TextEstimate()

    @property
    def tokens(self) -> int:
        """Estimated output tokens so far."""
        return self._text.tokens

    @property
    def failed(self) -> bool:
        """True if the stream itself reports a failure."""
        return self.finish == "error"

    def read(self, frame: Frame) -> bool:
        """Read a frame. Return True if it holds nothing but usage."""
        raise NotImplementedError


class WholeReplyReader(StreamReader):
    """Reads a whole reply, which is a stream of one frame. `read` raises ValueError if it is not JSON."""

    _failed = False
    _tokens = 0
    unfinished = False
    """True if the provider goes on to generate after this reply."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def failed(self) -> bool:
        return self._failed

    def read(self, frame: Frame) -> bool:
        reply = self._dialect.read_reply(frame.raw)
        self.id, self.finish, self.usage = reply.reply_id, reply.finish, reply.reported
        self._failed, self.unfinished = reply.failed, reply.unfinished
        if self.usage is None and not self.unfinished:
            self._tokens = self._dialect.output_tokens(frame.raw)
        self.terminal = True
        return False


class Dialect:
    """One API route. An instance has no state."""

    name: str
    """The route in the ledger and the logs."""
    path: str
    """Path after a provider's base URL, and after the gateway's own prefix."""
    body: type[RequestMembers] = RequestMembers
    reply: type[Reply]
    provider: str | None = None
    """The provider that a target needs; None if every target with the adapter can serve the route."""
    adapter = "openai"
    default_base: str | None = None
    """Base URL of `provider` for keys without `api_base`."""
    api_name = ""
    """The name of the API in messages to callers, for routes that need a provider."""
    request_fields = FieldMap()
    reply_fields = FieldMap()
    """The maps of a request and of a whole reply (see `field_map`)."""
    event_texts: type[EventTexts] = EventTexts
    """Finds the texts in a stream."""
    media_types: Mapping[str, MediaKind] = {
        "input_image": "images",
        "image_url": "images",
        "computer_screenshot": "images",
        "input_audio": "audio",
        "audio_url": "audio",
        "input_file": "files",
        "file": "files",
        "video_url": "files",
    }
    """The kind of the content parts with media, by their `type`."""
    restores_model = False
    """True if the `model` in replies is the requested alias."""
    event_model_path: tuple[str, ...] = ("model",)
    """Where the name of the model is in an event."""
    stores_replies = False
    """True if a later request can refer to a reply by its id."""
    reference_members: tuple[str, ...] = ()
    """Members of a request that refer to stored replies."""
    id_headers: tuple[str, ...] = ("x-penstock-request-id", "x-request-id")
    """Headers of a reply with the id of the request. The clients of OpenAI read `x-request-id`."""
    has_done_marker = False
    """True if a stream ends with `[DONE]`, which some providers leave out."""

    def __init__(self) -> None:
        self.parse_body = msgspec.json.Decoder(self.body).decode
        """Parses a request body; raises a msgspec error if it is no JSON object."""
        self.reference_keys = tuple((name, b'"%b"' % name.encode()) for name in self.reference_members)
        """The names in `reference_members`, each with its usual spelling in a body."""
        self.misspelled_key = _misspelled_key(self.body.__struct_fields__)
        """Finds a key that differs in its case only from a member of `body`."""
        self._decode_reply = msgspec.json.Decoder(self.reply).decode
        self._media_pattern = part_pattern(self.media_types)

    # -- requests -----------------------------------------------------------------------------------------------------

    def check_body(self, body: Any) -> None:
        """Raise Refusal for a body that no upstream would accept."""

    def output_limit(self, body: Any, default: int) -> int:
        """Return the most output tokens that a request allows; `default` for each reply that is not limited."""
        raise NotImplementedError

    def input_tokens(self, body: bytes) -> int:
        """Estimate the input tokens from the strings of a request, without those of `media_parts`."""
        if len(body) > _MAX_WALKED_BYTES:
            return estimate_tokens(len(ENCODED.sub(b"", body)))
        try:
            request = orjson.loads(body)
        except orjson.JSONDecodeError:
            return estimate_tokens(len(body))
        if not isinstance(request, dict):
            return 0
        members = self.request_fields.members
        content = {key: value for key, value in request.items() if members.get(key) != LABEL}
        return _estimate(walk(content, self.request_fields, "request"))

    def media_parts(self, body: bytes) -> MediaParts:
        return find_media(body, self._media_pattern, self.media_types)

    def references(self, body: Any) -> list[tuple[str, str]]:
        """Return the ids of stored replies that a request refers to, each with the name of its member."""
        del body
        return []

    def usage_request(self, body: Any) -> dict[str, Any] | None:
        """Return the `stream_options` with which a stream reports its usage, if the caller did not ask for it."""
        del body
        return None

    def credential_headers(self, secret: str) -> list[tuple[str, str]]:
        """Return the headers with the provider's secret."""
        return [("Authorization", f"Bearer {secret}")]

    def default_headers(self) -> list[tuple[str, str]]:
        """Return further headers, which the provider key can replace."""
        return []

    def reply_map(self, body: Any) -> FieldMap:
        """Return the map of a whole reply."""
        del body
        return self.reply_fields

    # -- replies ------------------------------------------------------------------------------------------------------

    def read_reply(self, body: bytes) -> Reply:
        """Parse a whole reply. Raise ValueError if it is not JSON; return an empty Reply for JSON of another shape."""
        try:
            return self._decode_reply(body)
        except msgspec.ValidationError:
            orjson.loads(body)
            return self.reply()
        except (msgspec.DecodeError, RecursionError):
            raise ValueError("not JSON") from None

    def output_tokens(self, body: bytes) -> int:
        """Estimate the output tokens of a whole reply that reports no usage."""
        if len(body) > _MAX_WALKED_BYTES:
            return estimate_tokens(len(body))
        try:
            reply = orjson.loads(body)
        except orjson.JSONDecodeError:
            return 0
        return _estimate(walk(reply, self.reply_map(reply), "reply"))

    def stream_reader(self) -> StreamReader:
        raise NotImplementedError

    # -- errors -------------------------------------------------------------------------------------------------------

    def error_body(self, refusal: Refusal) -> bytes:
        return refusal.body()

    def error_event(self, kind: str, message: str, sequence: int, code: str | None = None) -> bytes:
        """Return the event that ends an incomplete stream whose head has been sent."""
        del sequence
        error = {"message": message, "type": kind, "code": code or kind}
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"

    def block_event(
        self, kind: str, message: str, sequence: int, response_id: str | None, model: str, code: str | None
    ) -> bytes:
        """Return the event that ends a stream whose rest is blocked."""
        del response_id, model
        return self.error_event(kind, message, sequence, code)


def _misspelled_key(names: tuple[str, ...]) -> re.Pattern[bytes]:
    exact = "|".join(names)
    any_case = exact.replace("k", "(?:k|\u212a)").replace("s", "(?:s|\u017f)")
    return re.compile(rb'"(?!(?:%b)")(?i:%b)"\s*:' % (exact.encode(), any_case.encode()))


def _estimate(found: Texts) -> int:
    """Estimate the tokens of texts, free-form JSON and unknown fields."""
    texts = [text for text in found.complete if isinstance(text, TextRef)]
    texts += [ref for text in found.complete if isinstance(text, JoinedText) for part in text.parts for ref in part]
    return sum([estimate_tokens(ref.text) for ref in texts if ref.kind in (TEXT, FREE, UNKNOWN)])


def positive(value: object) -> int:
    """Return a positive integer of a caller, or 0 for anything else."""
    return min(value, MAX_OUTPUT_TOKENS) if type(value) is int and value > 0 else 0


def token_count(value: object) -> int:
    """Return a number of tokens of an upstream; 0 for anything else."""
    if type(value) is not int or value < 0:
        return 0
    return value if value <= _MAX_TOKENS else _MAX_TOKENS


def short_text(value: object) -> str | None:
    """Return the beginning of a text of an upstream; None for anything else."""
    return value[:_MAX_TEXT_CHARS] if type(value) is str else None
