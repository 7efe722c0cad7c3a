"""The datasets of a run, each in a payload store of its log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from penstock.datasets import load as datasets
from penstock.datasets.dataset import Dataset, StoredDataset
from penstock.endpoints.base import endpoint_named
from penstock.errors import UserError
from penstock.records.header import RunHeader
from penstock.records.log import LoggedData
from penstock.records.payloads import PayloadStore
from penstock.runs.build_payloads import build_payloads
from penstock.runs.input_files import InputFiles
from penstock.runs.observer import Observer
from penstock.schedule.phase import Phase
from penstock.schedule.phases import default_conversations
from penstock.settings.schema import Settings
from penstock.tokens.lazy_tokenizer import LazyTokenizer

_AGAIN = "data-again"
"""Folder in the log for the input that is read again."""
_ENTRIES_OF_A_DURATION = 100
_MAX_MEDIA_ENTRIES = 1000
"""Default limit of distinct bodies with images or audio, which need much disk space."""


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

    @property
    def several_turns(self) -> bool:
        return max(self.dataset.turns, default=1) > 1


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
    path = os.path.join(log, folder)
    if folder:
        shutil.rmtree(path, ignore_errors=True)  # left by a run that was killed before it used it
        os.mkdir(path)
    stored = build_payloads(
        path,
        settings,
        endpoint_named(settings.endpoint.type, settings.endpoint),
        dataset,
        phases or (),
        observer.step(f"Reading {dataset.name}"),
        in_background=phases is not None,
    )
    logged = LoggedData(folder, stored.files)
    return StoredData(dataset, logged, stored.bodies, stored.conversations, stored.input_files, stored.notes)


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
    drawn = depends_on_seed or data.output_tokens_stddev or settings.model_selection != "round_robin"
    if not drawn:
        data = replace(data, seed=0)  # it decides the order only
    entries = default_entries(settings) if synthetic and data.entries is None else None
    return data, entries, settings.load.schedule
