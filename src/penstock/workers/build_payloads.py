"""From a dataset to the payload store: bodies that are built here, or the index of bodies that lie in the user's files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import orjson

from penstock.datasets.conversation import Conversation, Turn
from penstock.datasets.load import Dataset
from penstock.datasets.media.files import MediaFiles
from penstock.datasets.recording import Recording, RecordingOptions
from penstock.endpoints.base import Endpoint, History
from penstock.errors import UserError
from penstock.records.payloads import BodyParts, PayloadWriter
from penstock.schedule.phases import PhasePlan
from penstock.settings.schema import ScheduleSettings, Settings
from penstock.workers.indexer import FIRST_BYTES, Index, Sources

__all__ = ["Stored", "store"]

Progress = Callable[[int, int], None]

_CHANGES = (
    ("output_tokens_mean", "--osl"),
    ("output_tokens_stddev", "--osl-stddev"),
)


class Stored(NamedTuple):
    sends: int | None
    """How many bodies there are; None while that is not known."""
    conversations: int | None
    files: tuple[str, ...] = ()
    """The user's files in which bodies lie."""
    sources: Sources | None = None


def store(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    dataset: Dataset,
    plans: Sequence[PhasePlan],
    progress: Progress | None,
) -> Stored:
    if dataset.recording is not None:
        _refuse_changes(settings, dataset)
        return _indexed(log, settings, dataset, dataset.recording, plans, progress)
    if settings.input.sessions:
        raise UserError("--sessions picks conversations of a replay (inputs_json, raw_payload, mooncake_trace) only.")
    return _built(log, settings, endpoint, dataset, progress)


def _built(log: str, settings: Settings, endpoint: Endpoint, dataset: Dataset, progress: Progress | None) -> Stored:
    models = settings.models
    writer = PayloadWriter(log)
    conversations = dataset.conversations
    if settings.load.recorded is not None:
        conversations = _on_schedule(conversations, settings.load.recorded)
    total = len(dataset.turns)
    if dataset.synthetic:
        progress = None  # its making tells how far it is
    media = MediaFiles()
    for number, conversation in enumerate(conversations):
        model = models[number % len(models)]
        history = History(conversation.system, conversation.context)
        for turn in conversation.turns:
            if conversation.accumulate and len(conversation.turns) > 1:
                endpoint.build(turn, model, settings.endpoint)  # what it cannot carry it says now, not in mid-run
                writer.add_parts(BodyParts(media.inlined(turn), model, conversation.system, conversation.context))
                continue
            turn = media.inlined(turn)  # noqa: PLW2901 - from here on with what its files hold
            writer.add_body(
                orjson.dumps(endpoint.build(turn, model, settings.endpoint, history)),
                input_tokens=turn.input_tokens,
                output_tokens=turn.output_tokens,
                timestamp_ms=turn.timestamp_ms,
                delay_ms=turn.delay_ms,
            )
        writer.end_conversation(conversation.id)
        if progress is not None and number % 1000 == 0:
            progress(number, total)
    writer.close()
    return Stored(writer.count, writer.conversations)


def _on_schedule(conversations: Iterable[Conversation], schedule: ScheduleSettings) -> list[Conversation]:
    """Those that lie in the part of the schedule that was asked for, in the order of their times."""
    conversations = list(conversations)
    if any(each.turns[0].timestamp_ms is None for each in conversations):
        raise UserError(
            "--fixed-schedule sends at recorded times, and this dataset has conversations without a 'timestamp'."
        )
    times = {id(each): each.turns[0].timestamp_ms or 0.0 for each in conversations}
    first = schedule.start_ms or 0.0
    last = float("inf") if schedule.end_ms is None else schedule.end_ms
    kept = sorted(
        (each for each in conversations if first <= times[id(each)] <= last), key=lambda each: times[id(each)]
    )
    if not kept:
        raise UserError("No conversation lies in the part of the schedule that was asked for.")
    zero = schedule.start_ms
    if zero is None:
        zero = times[id(kept[0])] if schedule.auto_offset else 0.0

    def shifted(turn: Turn) -> Turn:
        at = None if turn.timestamp_ms is None else turn.timestamp_ms - zero
        return msgspec.structs.replace(turn, timestamp_ms=at, delay_ms=turn.delay_ms / schedule.speedup)

    return [msgspec.structs.replace(each, turns=tuple(map(shifted, each.turns))) for each in kept]


def _indexed(
    log: str,
    settings: Settings,
    dataset: Dataset,
    recording: Recording,
    plans: Sequence[PhasePlan],
    progress: Progress | None,
) -> Stored:
    data = settings.input
    writer = PayloadWriter(log)
    index = Index(
        writer,
        recording,
        RecordingOptions(settings.endpoint.type, settings.load.recorded, data.conversation.delay_ratio),
        name=dataset.name,
        sessions=data.sessions,
        most=_most(plans) if data.sampling == "sequential" else None,
    )
    whole = recording.needs_whole or data.sampling != "sequential" or bool(data.sessions)
    index.advance(None if whole else FIRST_BYTES, progress)
    if index.problems.count:
        index.advance(None, progress)
        index.problems.raise_any()
    known = index.done
    if known:
        writer.close()
    return Stored(
        writer.count if known else None,
        writer.conversations if known else None,
        index.files,
        Sources(index, recording.files),
    )


def _most(plans: Sequence[PhasePlan]) -> int | None:
    """How many conversations the run can need at most, when requests or conversations are counted."""
    total = 0
    for plan in plans:
        bounds = [count for count in (plan.requests, plan.conversations) if count is not None]
        if not bounds:
            return None
        total += -(-min(bounds) // plan.arms)
    return total


def _refuse_changes(settings: Settings, dataset: Dataset) -> None:
    """What the user asked to be changed in bodies that are sent as they are."""
    endpoint = settings.endpoint
    readers = endpoint.type in ("raw", "template")
    extra = [name for name in endpoint.extra if not (readers and name == "response_field")]
    found = [flag for field, flag in _CHANGES if getattr(settings.input, field)]
    if extra:
        found.append(f"--extra-inputs {extra[0]}")
    if endpoint.legacy_max_tokens:
        found.append("--use-legacy-max-tokens")
    if not found:
        return
    advice = "leave it out, or edit the file"
    if extra == ["response_field"]:
        advice = "it tells --endpoint-type raw how to read replies, so name that type or leave it out"
    raise UserError(
        f"{found[0]} would change the payloads of '{dataset.name}', and {dataset.format} sends them byte for byte; "
        f"{advice}."
    )
