"""The datasets of a run, each in a payload store of its log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from penstock.datasets import load as datasets
from penstock.datasets.dataset import Dataset, StoredDataset
from penstock.endpoints.base import Endpoint, endpoint_named
from penstock.errors import UserError
from penstock.records.header import RunHeader
from penstock.records.log import LoggedData
from penstock.records.payloads import PayloadStore, PayloadWriter
from penstock.runs.input_files import InputFiles
from penstock.runs.observer import Observer
from penstock.runs.payload_builder import FIRST_BYTES, PayloadBuilder
from penstock.schedule.phase import Phase
from penstock.schedule.phases import default_conversations
from penstock.settings.schema import Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

_AGAIN = "data-again"
"""Folder in the log for the input that is read again."""
_ENTRIES_OF_A_DURATION = 100
_MAX_MEDIA_ENTRIES = 1000
"""Default limit of distinct bodies with images or audio, which need much disk space."""
_CHANGING_FLAGS = (
    ("output_tokens_mean", "--osl"),
    ("output_tokens_stddev", "--osl-stddev"),
    ("system", "--system-prompt"),
    ("cache_bust", "--cache-bust"),
)


class StoredData(NamedTuple):
    """A dataset with its payload store."""

    dataset: Dataset
    logged: LoggedData
    bodies: int | None
    """None while the dataset is still being read."""
    conversations: int | None
    """None while the dataset is still being read."""
    input_files: InputFiles | None = None
    """The input files, if bodies are read from them."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about the input."""


def default_entries(settings: Settings) -> int:
    """Return the default number of distinct synthetic conversations: one for each that the run needs, or 100 for a duration.

    The warmup has its own, so that a server that caches prompts has seen none of those that are measured.
    """
    load = settings.load
    count = load.conversations if load.conversations is not None else load.requests
    if count is None:
        count = _ENTRIES_OF_A_DURATION if load.duration_s is not None else default_conversations(load)
    if settings.warmup.on:
        warmup = settings.warmup
        count += warmup.conversations or warmup.requests or _ENTRIES_OF_A_DURATION
    has_media = settings.input.images.per_turn or settings.input.audio.per_turn
    return min(count, _MAX_MEDIA_ENTRIES) if has_media else count


def load_dataset(
    settings: Settings, seed: int, tokenizer: LazyTokenizer, observer: Observer, task: str | None = None
) -> Dataset:
    """Load the dataset of the settings. `seed` is used if they have none."""
    data = settings.input if settings.input.seed is not None else replace(settings.input, seed=seed)
    return datasets.load(
        data,
        default_entries(settings),
        tokenizer.get,
        observer.step(task or datasets.task(data)),
        schedule=settings.load.recorded,
        body_key=endpoint_named(settings.endpoint.type, settings.endpoint).declaration.body_key,
    )


def fill_store(
    log: str,
    folder: str,
    settings: Settings,
    dataset: Dataset,
    observer: Observer,
    *,
    phases: Sequence[Phase] | None = None,
) -> StoredData:
    """Write the bodies of a dataset, or where they are, to a payload store in this folder of the log.

    With `phases`, a large file is only begun; a companion reads what these phases need while the run sends."""
    endpoint = endpoint_named(settings.endpoint.type, settings.endpoint)
    if dataset.verbatim:
        _refuse_changes(settings, endpoint, dataset)
    elif settings.input.sessions:
        raise UserError("--sessions selects conversations of a replay (inputs_json, raw_payload, mooncake_trace) only.")
    path = os.path.join(log, folder)
    if folder:
        shutil.rmtree(path, ignore_errors=True)  # left by a run that was killed before it used it
        os.mkdir(path)
    in_order = settings.input.sampling == "sequential" and not settings.input.sessions
    grows = phases is not None and dataset.reads_on and in_order
    writer = PayloadWriter(path, trees=dataset.has_trees)
    most = _max_conversations(phases) if grows and phases is not None else None
    builder = PayloadBuilder(writer, settings, endpoint, dataset, max_conversations=most)
    # Generating synthetic prompts has shown its own progress.
    progress = None if dataset.synthetic else observer.step(f"Reading {dataset.name}")
    builder.advance(FIRST_BYTES if grows else None, progress)
    if builder.errors.count:
        builder.advance(None, progress)
        builder.errors.raise_any()
    logged = LoggedData(folder, builder.files)
    if not builder.done:
        files = InputFiles(builder, dataset.files)
        return StoredData(dataset, logged, sum(dataset.turns) or None, None, files)
    writer.close()
    stored = StoredData(dataset, logged, writer.count, writer.conversations)
    if builder.files:
        return stored._replace(input_files=InputFiles(builder, dataset.files))
    return stored._replace(notes=tuple(builder.notes()))


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


def read_stored(log: str, logged: LoggedData, header: RunHeader) -> StoredData:
    """Return a dataset that an earlier process has stored. `header` is that of the run."""
    store = PayloadStore(os.path.join(log, logged.folder), logged.files)
    bodies, conversations = len(store), store.conversations
    turns = [1] if bodies == conversations else [len(store.turns(number)) for number in range(conversations)]
    store.close()
    synthetic = header.dataset == "synthetic"
    name = "synthetic" if synthetic else os.path.basename(header.settings.input.file or header.dataset)
    dataset = StoredDataset(name, turns, None if synthetic else header.dataset)
    return StoredData(dataset, logged, bodies, conversations)


def read_again(
    log: str, header: RunHeader, settings: Settings, tokenizer: LazyTokenizer, observer: Observer
) -> StoredData:
    """Read the input of a run that had not been read to its end when the run was killed. Records name conversations by their
    numbers, so raise UserError if those that were read before are others now."""
    dataset = load_dataset(settings, header.seed, tokenizer, observer)
    stored = fill_store(log, _AGAIN, settings, dataset, observer)
    folder = os.path.join(log, _AGAIN)
    if not _begins_with(os.path.join(folder, "payloads.idx"), os.path.join(log, "payloads.idx")):
        shutil.rmtree(folder)
        raise UserError(
            f"{settings.input.file} has changed since the run began, so the run cannot be resumed; start it again without "
            "--resume."
        )
    for name in os.listdir(folder):
        os.replace(os.path.join(folder, name), os.path.join(log, name))
    os.rmdir(folder)
    return stored._replace(logged=LoggedData("", stored.logged.files))


def _begins_with(path: str, other: str) -> bool:
    """Return whether a file begins with the contents of another one."""
    with open(path, "rb") as longer, open(other, "rb") as shorter:
        return all(longer.read(len(block)) == block for block in iter(lambda: shorter.read(1 << 20), b""))


def data_key(settings: Settings, *, synthetic: bool, depends_on_seed: bool) -> Hashable:
    """Return what the dataset of a point depends on, of all that can differ between the points of an experiment."""
    data = settings.input
    drawn = (
        depends_on_seed or data.output_tokens_stddev or data.distributions or settings.model_selection != "round_robin"
    )
    if not drawn:
        data = replace(data, seed=0)  # it decides the order only
    entries = default_entries(settings) if synthetic and data.entries is None else None
    return data, entries, settings.load.schedule
