"""Fills the payload store from a dataset: with bodies built here, or with the index of bodies in the input files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.datasets.cache_bust import IN_SYSTEM_PROMPT, CacheBust
from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.jsonl import FileErrors
from penstock.datasets.load import Dataset
from penstock.datasets.media.duration import audio_seconds
from penstock.datasets.media.files import MediaFiles
from penstock.datasets.recording import Recording, RecordingOptions
from penstock.endpoints.base import Endpoint, History
from penstock.errors import UserError
from penstock.records.payloads import BodyParts, PayloadWriter
from penstock.records.prompt_reuse import PromptReuse
from penstock.runs.choose_models import choose_models
from penstock.runs.indexer import FIRST_BYTES, Indexer, InputFiles
from penstock.schedule.phase import Phase
from penstock.settings.endpoint_types import Input, types_that_take
from penstock.settings.schema import ScheduleSettings, Settings

__all__ = ["StoredPayloads", "build_payloads"]

Progress = Callable[[int, int], None]

_FIRST_BODY_BYTES = 1 << 20
"""Bytes of bodies that are built before the first request of a large trace: 0.1 s."""
_FLUSH_EVERY = 500
"""Conversations between flushes: few enough that their index never fills its buffer and is written before the bodies."""
_FLUSH_BYTES = 1 << 20
"""Bytes of bodies between flushes."""

_CHANGING_FLAGS = (
    ("output_tokens_mean", "--osl"),
    ("output_tokens_stddev", "--osl-stddev"),
    ("system", "--system-prompt"),
    ("cache_bust", "--cache-bust"),
)


class StoredPayloads(NamedTuple):
    bodies: int | None
    """Number of bodies; None while it is not known."""
    conversations: int | None
    files: tuple[str, ...] = ()
    """Input files that bodies are read from."""
    input_files: InputFiles | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the user about the input."""


def build_payloads(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    dataset: Dataset,
    phases: Sequence[Phase],
    progress: Progress | None,
    *,
    in_background: bool = True,
) -> StoredPayloads:
    """Fill the payload store in folder `log`. With `in_background`, the rest of a large file may be indexed during the run."""
    if dataset.recording is not None:
        _refuse_changes(settings, endpoint, dataset)
        return _index(log, settings, endpoint, dataset, dataset.recording, phases if in_background else None, progress)
    if settings.input.sessions:
        raise UserError("--sessions selects conversations of a replay (inputs_json, raw_payload, mooncake_trace) only.")
    return _build(log, settings, endpoint, dataset, phases if in_background else None, progress)


def _build(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    dataset: Dataset,
    phases: Sequence[Phase] | None,
    progress: Progress | None,
) -> StoredPayloads:
    """Build the bodies: the first of a large trace, or all without `phases`."""
    writer = PayloadWriter(log)
    large = dataset.large_trace
    limited = phases and large is not None and settings.input.sampling == "sequential"
    builder = PayloadBuilder(
        writer,
        settings,
        endpoint,
        dataset,
        max_conversations=_max_conversations(phases) if phases and limited else None,
    )
    if dataset.synthetic:
        progress = None  # generating the prompts has shown its own progress
    builder.advance(_FIRST_BODY_BYTES if limited else None, progress)
    builder.errors.raise_any()
    if builder.done or large is None:
        writer.close()
        return StoredPayloads(writer.count, writer.conversations, notes=tuple(builder.notes()))
    bodies = sum(dataset.turns) if dataset.turns and settings.load.recorded is None else None
    return StoredPayloads(bodies, None, input_files=InputFiles(builder, large.files))


class PayloadBuilder:
    """Builds the bodies of a dataset and writes them to the payload store, step by step."""

    def __init__(
        self,
        writer: PayloadWriter,
        settings: Settings,
        endpoint: Endpoint,
        dataset: Dataset,
        *,
        max_conversations: int | None = None,
    ) -> None:
        """`max_conversations` is how many conversations of a large trace the run can need."""
        self.errors = FileErrors(dataset.name)
        self.done = False
        self._writer = writer
        self._settings = settings
        self._endpoint = endpoint
        self._dataset = dataset
        self._max_conversations = max_conversations
        self._media = MediaFiles()
        self._reuse = PromptReuse()
        target = settings.input.cache_bust
        self._cache_bust = None if target == "none" else CacheBust(target, secrets.token_hex(6))
        self._conversations = zip(self._read(), choose_models(settings), strict=False)

    def _read(self) -> Iterator[Conversation]:
        dataset, schedule = self._dataset, self._settings.load.recorded
        if dataset.large_trace is not None:
            conversations = dataset.large_trace.conversations(self.errors, schedule)
            return conversations if dataset.edit is None else map(dataset.edit, conversations)
        if schedule is not None:
            return iter(_on_schedule(dataset.conversations, schedule))
        return iter(dataset.conversations)

    def advance(self, until: int | None, progress: Progress | None = None, *, only_needed: bool = False) -> None:
        """Build until the bodies have `until` bytes, or to the end; with `only_needed`, no more than the run can need.

        After the first error nothing is written, and the rest is only read for more errors.
        """
        del only_needed  # nothing else is built
        writer = self._writer
        flushed = writer.size
        for conversation, model in self._conversations:
            if not self.errors.count:
                self._write(conversation, model)
            if writer.conversations % _FLUSH_EVERY == 0 or writer.size - flushed >= _FLUSH_BYTES:
                flushed = writer.size
                self._flush()
                if progress is not None and self._dataset.turns:
                    progress(writer.conversations, len(self._dataset.turns))
            if writer.conversations == self._max_conversations:
                break
            if until is not None and writer.size >= until:
                self._flush()
                return
        self._check_any()
        self._flush()
        self.done = True

    def _flush(self) -> None:
        self._writer.flush()
        self._reuse.counts.save(self._writer.folder)

    def _check_any(self) -> None:
        if not self._writer.conversations and not self.errors.count and self._dataset.large_trace is not None:
            raise UserError("No conversation lies between the start and the end of the schedule that were given.")

    def notes(self) -> list[str]:
        return [] if self._dataset.large_trace is None else self._dataset.large_trace.notes()

    def _write(self, conversation: Conversation, model: str) -> None:
        dataset, settings, endpoint, writer = self._dataset, self._settings, self._endpoint, self._writer
        media = self._media
        history = History(conversation.system, conversation.context)
        images, seconds = 0, 0.0
        turns = (
            conversation.turns if dataset.write_prompt is None else tuple(map(dataset.write_prompt, conversation.turns))
        )
        self._reuse.add(_prompt(*self._marked(conversation, turns[0])))
        for turn in turns:
            _check_messages(turn, settings, endpoint)
            accumulate = conversation.accumulate and len(conversation.turns) > 1
            if accumulate or self._cache_bust is not None:
                self._check_markable(conversation, turn)
                endpoint.build(turn, model, settings.endpoint)  # raises now, not during the run, if it cannot
                _check_inputs(conversation, turn, settings, endpoint)
                inlined = media.inlined(turn)
                # A body has the media of the earlier turns, too.
                images, seconds = images * accumulate, seconds * accumulate
                images, seconds = images + len(inlined.images), seconds + _audio_seconds(inlined)
                parts = BodyParts(
                    inlined,
                    model,
                    conversation.system,
                    conversation.context,
                    self._cache_bust,
                    not accumulate,
                )
                writer.add_parts(parts, images=images, audio_seconds=seconds)
                continue
            inlined = media.inlined(turn)
            if settings.tokenizer.apply_chat_template and not dataset.synthetic:
                inlined = msgspec.structs.replace(inlined, input_tokens=None)  # counted with the template after the run
            body = endpoint.encode(endpoint.build(inlined, model, settings.endpoint, history))
            _check_inputs(conversation, turn, settings, endpoint)
            writer.add_body(
                body,
                input_tokens=inlined.input_tokens,
                output_tokens=inlined.output_tokens,
                timestamp_ms=inlined.timestamp_ms,
                delay_ms=inlined.delay_ms,
                images=len(inlined.images),
                audio_seconds=_audio_seconds(inlined),
            )
        writer.end_conversation(conversation.id)

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


def _prompt(conversation: Conversation, first: Turn) -> bytes:
    """Return the texts of the first request, as far as they are compared with those of other conversations."""
    texts = [text for text in (conversation.system, conversation.context, *first.texts) if text is not None]
    if "messages" in first.extra:
        texts.append(repr(first.extra["messages"]))
    media = [each.path or each.data for each in (*first.images, *first.audios)]
    return "\n".join([*texts, *media]).encode(errors="surrogatepass")


def _check_inputs(conversation: Conversation, turn: Turn, settings: Settings, endpoint: Endpoint) -> None:
    """Raise UserError for content of a turn that the requests of this endpoint type cannot carry."""
    inputs: tuple[tuple[Input, str, bool], ...] = (
        ("images", "images", bool(turn.images)),
        ("audio", "audio", bool(turn.audios)),
        ("system", "system prompts", conversation.system is not None),
        ("turns", "conversations of several turns", conversation.accumulate and len(conversation.turns) > 1),
    )
    for input_, noun, present in inputs:
        if present and input_ not in endpoint.declaration.inputs:
            *others, last = types_that_take(input_)
            raise UserError(
                f"The dataset has {noun}, which --endpoint-type {settings.endpoint.type} cannot carry; "
                f"use {', '.join(others)} or {last}."
            )


def _audio_seconds(turn: Turn) -> float:
    """Return the length of the clips; 0 if that of one is not known."""
    lengths = [audio_seconds(audio) for audio in turn.audios]
    return sum(length for length in lengths if length) if all(lengths) else 0.0


def _check_messages(turn: Turn, settings: Settings, endpoint: Endpoint) -> None:
    """Raise UserError for the messages of a trace if the endpoint's requests have none."""
    if not turn.texts and "messages" in turn.extra and endpoint.declaration.body_key != "messages":
        raise UserError(
            f"The trace has 'messages', which --endpoint-type {settings.endpoint.type} cannot carry; use chat."
        )


def _on_schedule(conversations: Iterable[Conversation], schedule: ScheduleSettings) -> list[Conversation]:
    """Return the conversations within the selected part of the schedule, in order of time."""
    conversations = list(conversations)
    if any(conversation.turns[0].timestamp_ms is None for conversation in conversations):
        raise UserError(
            "--fixed-schedule sends at recorded times, and this dataset has conversations without a 'timestamp'."
        )
    first = schedule.start_ms or 0.0
    last = float("inf") if schedule.end_ms is None else schedule.end_ms
    selected = sorted((c for c in conversations if first <= _start_ms(c) <= last), key=_start_ms)
    if not selected:
        raise UserError("No conversation lies between the start and the end of the schedule that were given.")
    offset = schedule.start_ms
    if offset is None:
        offset = _start_ms(selected[0]) if schedule.auto_offset else 0.0

    def shifted(turn: Turn) -> Turn:
        timestamp = None if turn.timestamp_ms is None else turn.timestamp_ms - offset
        return msgspec.structs.replace(turn, timestamp_ms=timestamp, delay_ms=turn.delay_ms / schedule.speedup)

    return [msgspec.structs.replace(c, turns=tuple(map(shifted, c.turns))) for c in selected]


def _start_ms(conversation: Conversation) -> float:
    return conversation.turns[0].timestamp_ms or 0.0


def _index(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    dataset: Dataset,
    recording: Recording,
    phases: Sequence[Phase] | None,
    progress: Progress | None,
) -> StoredPayloads:
    """Index a recording: its beginning and what the phases need, or without `phases` all of it."""
    data = settings.input
    writer = PayloadWriter(log)
    indexer = Indexer(
        writer,
        recording,
        RecordingOptions(endpoint.declaration.body_key, settings.load.recorded, data.conversation.delay_ratio),
        name=dataset.name,
        sessions=data.sessions,
        max_conversations=_max_conversations(phases) if phases and data.sampling == "sequential" else None,
    )
    index_all = phases is None or data.sampling != "sequential" or bool(data.sessions)
    indexer.advance(None if index_all else FIRST_BYTES, progress)
    if indexer.errors.count:
        indexer.advance(None, progress)
        indexer.errors.raise_any()
    done = indexer.done
    if done:
        writer.close()
    return StoredPayloads(
        writer.count if done else None,
        writer.conversations if done else None,
        indexer.files,
        InputFiles(indexer, recording.files),
    )


def _max_conversations(phases: Sequence[Phase]) -> int | None:
    """Return how many conversations the run can need; None if a phase has no limit of requests or conversations."""
    total = 0
    for phase in phases:
        limits = [count for count in (phase.requests, phase.conversations) if count is not None]
        if not limits:
            return None
        total += -(-min(limits) // phase.servers.copies)
    return total


def _refuse_changes(settings: Settings, endpoint: Endpoint, dataset: Dataset) -> None:
    """Raise UserError for a flag that would change bodies which are sent unchanged."""
    extra = [name for name in settings.endpoint.extra if name not in endpoint.declaration.reply_options]
    flags = [flag for field, flag in _CHANGING_FLAGS if getattr(settings.input, field) not in (None, 0, "none")]
    if extra:
        flags.append(f"--extra-inputs {extra[0]}")
    if settings.endpoint.legacy_max_tokens:
        flags.append("--use-legacy-max-tokens")
    if not flags:
        return
    advice = "leave it out, or edit the file"
    if extra == ["response_field"]:
        advice = "it tells --endpoint-type raw how to read replies, so name that type or leave it out"
    raise UserError(
        f"{flags[0]} would change the payloads of '{dataset.name}', and {dataset.format} sends them byte for byte; "
        f"{advice}."
    )
