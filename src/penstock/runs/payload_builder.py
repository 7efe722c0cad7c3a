"""Writes the conversations of a dataset to the payload store: bodies built here, or the locations of bodies in files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import msgspec

from penstock.datasets.cache_bust import IN_SYSTEM_PROMPT, CacheBust
from penstock.datasets.conversation import BodyLocation, Conversation, Turn
from penstock.datasets.dataset import Dataset, Progress
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.media.duration import audio_seconds
from penstock.datasets.media.files import MediaFiles
from penstock.endpoints.base import Endpoint, History
from penstock.errors import UserError
from penstock.records.payloads import BodyParts, MissingBody, PayloadFiles, PayloadWriter
from penstock.records.prompt_reuse import PromptReuse
from penstock.runs.choose_models import choose_models
from penstock.settings.endpoint_types import Input, types_that_take
from penstock.settings.schema import Settings

FIRST_BYTES = int(os.environ.get("PENSTOCK_FIRST_BYTES", str(64 << 20)))
"""Bytes of the input that are read before the first request. The environment variable is for tests, which have no large
files."""
_FIRST_BODY_BYTES = 1 << 20
"""Bytes of bodies that are built before the first request: 0.1 s."""
_FLUSH_EVERY = 1000
"""Conversations between flushes: few enough that their index never fills its buffer and is written before the bodies."""
_MAX_BODY = 0x7FFFF000
"""Most bytes that one read returns on Linux."""


class PayloadBuilder:
    """Fills the payload store from a dataset, step by step. About 100,000 recorded bodies are located per second."""

    def __init__(
        self,
        writer: PayloadWriter,
        settings: Settings,
        endpoint: Endpoint,
        dataset: Dataset,
        *,
        max_conversations: int | None = None,
        flush_bytes: int = 1 << 20,
        max_files: int = 0xFFFF,
    ) -> None:
        """`max_conversations` is how many conversations the run can need. `flush_bytes` are the bytes that are built between
        flushes, or a quarter of those that are read. File numbers in the index have 16 bits, so the bodies of a folder with
        more than `max_files` files are copied."""
        self.errors = FileErrors(dataset.name)
        self.done = False
        self._writer = writer
        self._settings = settings
        self._endpoint = endpoint
        self._dataset = dataset
        self._max_conversations = max_conversations
        self._flush_bytes = flush_bytes
        self._total = sum(file.identity.size for file in dataset.files)
        self._copying = len(dataset.files) > max_files
        self._source = PayloadFiles([file.path for file in dataset.files])
        self._prompt_key = f'"{endpoint.declaration.body_key or "messages"}"'.encode()
        self._media = MediaFiles()
        self._reuse = PromptReuse()
        target = settings.input.cache_bust
        self._cache_bust = None if target == "none" else CacheBust(target, secrets.token_hex(6))
        self._missing = set(settings.input.sessions)
        """Selected sessions that have not been found yet."""
        conversations = dataset.conversations(self.errors)
        if self._missing:
            conversations = _select_sessions(conversations, frozenset(self._missing))
        self._conversations = zip(conversations, choose_models(settings), strict=False)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that bodies are read from."""
        return tuple(file.path for file in self._dataset.files) if self._dataset.verbatim and not self._copying else ()

    def advance(self, until: int | None, progress: Progress | None = None, *, only_needed: bool = False) -> None:
        """Write until `until` bytes are read or 1 MB is built, or to the end; with `only_needed`, only what the run can need.

        After the first error nothing is written, and the rest is only read for more errors.
        """
        dataset, writer = self._dataset, self._writer
        only_needed = only_needed or not dataset.verbatim
        flushed = writer.size + dataset.scanned // 4
        for number, (conversation, model) in enumerate(self._conversations, 1):
            self._missing.discard(conversation.id)
            if not self.errors.count and not self._full:
                self._write(conversation, model)
            work = writer.size + dataset.scanned // 4
            if number % _FLUSH_EVERY == 0 or work - flushed >= self._flush_bytes:
                flushed = work
                self._flush()
                self._tell_progress(progress)
            if only_needed and self._full:
                break
            if until is not None and (dataset.scanned >= until or writer.size >= _FIRST_BODY_BYTES):
                self._flush()
                self.done = self._full
                return
        else:
            self._check_sessions()
        self._flush()
        self.done = True
        if progress is not None and self._total:
            progress(self._total, self._total)

    def notes(self) -> list[str]:
        return self._dataset.notes()

    @property
    def _full(self) -> bool:
        return self._writer.conversations == self._max_conversations

    def _flush(self) -> None:
        self._writer.flush()
        self._reuse.counts.save(self._writer.folder)

    def _tell_progress(self, progress: Progress | None) -> None:
        if progress is None:
            return
        if self._dataset.turns:
            progress(self._writer.conversations, len(self._dataset.turns))
        else:
            progress(self._dataset.scanned, self._total)

    def _check_sessions(self) -> None:
        if self.errors.count:  # an error may be the reason why a session is missing
            return
        for name in sorted(self._missing):
            self.errors.add(1, f"there is no session {name!r} in it (--sessions)")

    def _write(self, conversation: Conversation, model: str) -> None:
        if self._dataset.verbatim:
            for turn in conversation.turns:
                if turn.body is not None:
                    self._write_recorded(turn, turn.body, is_first=turn is conversation.turns[0])
        else:
            self._write_built(conversation, model)
        self._writer.end_conversation(conversation.id, conversation.tree)

    def _write_recorded(self, turn: Turn, place: BodyLocation, *, is_first: bool) -> None:
        if place.length > _MAX_BODY:
            self.errors.add(1, f"a payload of {place.length:,} bytes is larger than the 2 GB that can be sent")
            return
        copied = self._copying or place.padding is not None
        body = self._read(place) if is_first or copied else b""
        if is_first:
            self._reuse.add(body[max(0, body.find(self._prompt_key)) :])
        if copied:
            before, after = place.padding or (b"", b"")
            body = before + body + after
            self._writer.add_body(body, timestamp_ms=turn.timestamp_ms, delay_ms=turn.delay_ms)
        else:
            location = (place.file + 1, place.offset, place.length)
            self._writer.add_reference(*location, timestamp_ms=turn.timestamp_ms, delay_ms=turn.delay_ms)

    def _read(self, place: BodyLocation) -> bytes:
        try:
            return self._source.read(place.file, place.length, place.offset)
        except MissingBody:  # the check of the files reports a change
            return b""

    def _write_built(self, conversation: Conversation, model: str) -> None:
        settings, endpoint, writer = self._settings, self._endpoint, self._writer
        history = History(conversation.system, conversation.context)
        accumulate = conversation.accumulate and len(conversation.turns) > 1
        images, seconds = 0, 0.0
        self._reuse.add(_prompt(*self._marked(conversation, conversation.turns[0])))
        for turn in conversation.turns:
            self._check_inputs(conversation, turn)
            inlined = self._media.inlined(turn)
            # A body has the media of the earlier turns, too.
            images, seconds = images * accumulate, seconds * accumulate
            images, seconds = images + len(inlined.images), seconds + _audio_seconds(inlined)
            if accumulate or self._cache_bust is not None:
                self._check_markable(conversation, turn)
                endpoint.build(turn, model, settings.endpoint)  # raises now, not during the run, if it cannot
                system, context = conversation.system, conversation.context
                parts = BodyParts(inlined, model, system, context, self._cache_bust, not accumulate)
                writer.add_parts(parts, images=images, audio_seconds=seconds)
                continue
            if settings.tokenizer.apply_chat_template and not self._dataset.synthetic:
                inlined = msgspec.structs.replace(inlined, input_tokens=None)  # counted with the template after the run
            writer.add_body(
                endpoint.encode(endpoint.build(inlined, model, settings.endpoint, history)),
                input_tokens=inlined.input_tokens,
                output_tokens=inlined.output_tokens,
                timestamp_ms=inlined.timestamp_ms,
                delay_ms=inlined.delay_ms,
                images=images,
                audio_seconds=seconds,
            )

    def _check_inputs(self, conversation: Conversation, turn: Turn) -> None:
        """Raise UserError for content of a turn that the requests of this endpoint type cannot carry."""
        type_, declaration = self._settings.endpoint.type, self._endpoint.declaration
        if turn.messages and "messages" not in declaration.inputs:
            raise UserError(
                f"The dataset has turns with 'messages', which --endpoint-type {type_} cannot carry; use "
                f"{_listed(types_that_take('messages'))}."
            )
        if not turn.texts and "messages" in turn.extra and declaration.body_key != "messages":
            raise UserError(f"The trace has 'messages', which --endpoint-type {type_} cannot carry; use chat.")
        inputs: tuple[tuple[Input, str, bool], ...] = (
            ("images", "images", bool(turn.images)),
            ("audio", "audio", bool(turn.audios)),
            ("system", "system prompts", conversation.system is not None),
            ("turns", "conversations of several turns", conversation.accumulate and len(conversation.turns) > 1),
        )
        for input_, noun, present in inputs:
            if present and input_ not in declaration.inputs:
                raise UserError(
                    f"The dataset has {noun}, which --endpoint-type {type_} cannot carry; use "
                    f"{_listed(types_that_take(input_))}."
                )

    def _marked(self, conversation: Conversation, first: Turn) -> tuple[Conversation, Turn]:
        """Return a conversation and its first turn with a marker like the one that is sent."""
        if (bust := self._cache_bust) is None:
            return conversation, first
        marker = bust.marker(0, self._writer.conversations, warmup=False)
        system = bust.mark_system(conversation.system, marker)
        return msgspec.structs.replace(conversation, system=system), bust.mark_turn(first, marker)

    def _check_markable(self, conversation: Conversation, turn: Turn) -> None:
        """Raise UserError if the marker of --cache-bust has no place in a request."""
        if self._cache_bust is None:
            return
        target = self._cache_bust.target
        if target in IN_SYSTEM_PROMPT and conversation.system is None:
            raise UserError(
                f"--cache-bust {target} puts a marker into the system prompt, and the conversation '{conversation.id}' has "
                "none; add --system-prompt, or mark the first turn."
            )
        if target not in IN_SYSTEM_PROMPT and not turn.texts:
            raise UserError(
                f"--cache-bust {target} puts a marker into the text of a prompt, and a request of '{conversation.id}' has none."
            )


def _listed(types: list[str]) -> str:
    *others, last = types
    return f"{', '.join(others)} or {last}"


def _prompt(conversation: Conversation, first: Turn) -> bytes:
    """Return the texts of the first request, as far as they are compared with those of other conversations."""
    texts = [text for text in (conversation.system, conversation.context, *first.texts) if text is not None]
    if first.messages:
        texts.append(repr(first.messages))
    if "messages" in first.extra:
        texts.append(repr(first.extra["messages"]))
    media = [each.path or each.data for each in (*first.images, *first.audios)]
    return "\n".join([*texts, *media]).encode(errors="surrogatepass")


def _audio_seconds(turn: Turn) -> float:
    """Return the length of the clips; 0 if that of one is not known."""
    lengths = [audio_seconds(audio) for audio in turn.audios]
    return sum(length for length in lengths if length) if all(lengths) else 0.0


def _select_sessions(conversations: Iterator[Conversation], sessions: frozenset[str]) -> Iterator[Conversation]:
    """Yield the conversations with one of these names. A conversation without a name gets one from its number."""
    for number, conversation in enumerate(conversations):
        name = conversation.id or f"session_{number:06d}"
        if name in sessions:
            yield msgspec.structs.replace(conversation, id=name)
