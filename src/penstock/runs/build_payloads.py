"""Fills the payload store from a dataset before a run, as far as the run needs it to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.datasets.dataset import Dataset, Progress
from penstock.endpoints.base import Endpoint
from penstock.errors import UserError
from penstock.records.payloads import PayloadWriter
from penstock.runs.input_files import InputFiles
from penstock.runs.payload_builder import FIRST_BYTES, PayloadBuilder
from penstock.schedule.phase import Phase
from penstock.settings.schema import Settings

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
    """Fill the payload store in folder `log`. With `in_background`, the rest of a large file may be read during the run."""
    if dataset.verbatim:
        _refuse_changes(settings, endpoint, dataset)
    elif settings.input.sessions:
        raise UserError("--sessions selects conversations of a replay (inputs_json, raw_payload, mooncake_trace) only.")
    in_order = settings.input.sampling == "sequential" and not settings.input.sessions
    grows = in_background and dataset.reads_on and in_order
    writer = PayloadWriter(log)
    builder = PayloadBuilder(
        writer, settings, endpoint, dataset, max_conversations=_max_conversations(phases) if grows else None
    )
    if dataset.synthetic:
        progress = None  # generating the prompts has shown its own progress
    builder.advance(FIRST_BYTES if grows else None, progress)
    if builder.errors.count:
        builder.advance(None, progress)
        builder.errors.raise_any()
    if not builder.done:
        return StoredPayloads(sum(dataset.turns) or None, None, builder.files, InputFiles(builder, dataset.files))
    writer.close()
    if builder.files:
        return StoredPayloads(writer.count, writer.conversations, builder.files, InputFiles(builder, dataset.files))
    return StoredPayloads(writer.count, writer.conversations, notes=tuple(builder.notes()))


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
