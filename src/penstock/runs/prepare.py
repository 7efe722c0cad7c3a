"""Preparation of a run: fill the payload store, write the header of the log, and return the job for the workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from time import monotonic_ns

from penstock.datasets.load import Dataset
from penstock.endpoints.base import Endpoint
from penstock.records.header import RunHeader, new_header
from penstock.records.log import RunLog
from penstock.runs.build_payloads import StoredPayloads, build_payloads
from penstock.runs.indexer import InputFiles
from penstock.schedule.phase import Phase
from penstock.schedule.phases import phases as make_phases
from penstock.settings.schema import Settings
from penstock.workers.job import Job, Target, targets
from penstock.workers.local_processes import choose_workers, max_workers, raise_file_limit

__all__ = ["Prepared", "default_entries", "prepare", "resolve_targets"]

_PRECONNECT_SECONDS = 0.1
_MAX_MEDIA_ENTRIES = 1000
"""Default limit of distinct bodies with images or audio, which need much disk space."""


class Prepared:
    """A run that is ready to start."""

    def __init__(
        self,
        job: Job,
        targets: tuple[Target, ...],
        phases: tuple[Phase, ...],
        epoch: int,
        workers: int,
        open_files: int,
        expected: list[int | None],
        conversations: int | None,
        input_files: InputFiles | None,
    ) -> None:
        self.job = job
        self.targets = targets
        self.phases = phases
        self.epoch = epoch
        """Monotonic ns; the times in records are relative to it."""
        self.workers = workers
        self.open_files = open_files
        """Open files that a worker needs."""
        self.expected = expected
        """Requests of each phase; None where the number is not known."""
        self.conversations = conversations
        """None while the dataset is still being indexed."""
        self.input_files = input_files
        """The input files, if bodies are read from them."""


def default_entries(settings: Settings) -> int:
    """Return the default number of distinct synthetic conversations: one for each that the run needs, or 100 for a duration.

    The warmup has its own, so that a server that caches prompts has seen none of those that are measured.
    """
    load = settings.load
    count = load.conversations if load.conversations is not None else load.requests
    if count is None:
        count = 100 if load.duration_s is not None else max(10, 2 * (load.concurrency or 1))
    count += settings.warmup.requests
    has_media = settings.input.images.per_turn or settings.input.audio.per_turn
    return min(count, _MAX_MEDIA_ENTRIES) if has_media else count


def resolve_targets(settings: Settings, endpoint: Endpoint, *, raise_limit: bool = True) -> tuple[Target, ...]:
    """Resolve the targets and check the limit of open files. Call this before generating prompts, which can take minutes.

    With `raise_limit`, raise the limit of this process."""
    result = targets(settings.endpoint, endpoint.request_path(settings.endpoint), endpoint.declaration)
    load = settings.load
    if load.concurrency is not None:
        slots = load.concurrency if load.requests is None else min(load.concurrency, load.requests)
        raise_file_limit(slots, slots, max_workers(settings.workers_max), only_check=not raise_limit)
    return result


def prepare(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    targets: tuple[Target, ...],
    dataset: Dataset,
    progress: Callable[[int, int], None] | None = None,
    *,
    prompt_tokenizer: tuple[str, str] | None = None,
    servers: int = 1,
    in_caller: bool = True,
) -> Prepared:
    """Prepare a run whose log goes to the empty folder `log`.

    `prompt_tokenizer` is the name and source of the tokenizer that generated the synthetic prompts. `servers` is the number
    of servers that a comparison sends each conversation to. Without `in_caller`, this process is neither forked nor are its
    limits changed: input files are indexed to their end, and its limit of open files is only checked.
    """
    seed = settings.input.seed if settings.input.seed is not None else secrets.randbits(32)
    turns = dataset.turns
    phases = tuple(
        make_phases(
            settings.load,
            settings.warmup,
            synthetic=dataset.synthetic,
            seed=seed,
            servers=servers,
            several_turns=max(turns, default=1) > 1,
        )
    )
    stored = build_payloads(log, settings, endpoint, dataset, phases, progress, in_background=in_caller)
    expected = [_expected_requests(phase, stored.bodies, turns, settings.input.sampling) for phase in phases]
    last, slots = phases[-1], _slots(phases[-1])
    workers = choose_workers(slots, settings.load.arrival_rate, expected[-1], settings.workers_max)
    preconnect = _connections_to_open(last, settings.load.arrival_rate, expected[-1])
    in_flight = _max_in_flight(slots, expected[-1])
    open_files = raise_file_limit(in_flight, preconnect, workers, only_check=not in_caller)
    job = Job(
        log=log,
        settings=settings.endpoint,
        files=stored.files,
        sampling=settings.input.sampling,
        seed=seed,
        preconnect=preconnect,
        growing=stored.input_files is not None and stored.conversations is None,
    )
    epoch = monotonic_ns()
    if not dataset.synthetic:
        prompt_tokenizer = None
    RunLog.write_header(log, _header(settings, dataset, stored, last, seed, workers, epoch, prompt_tokenizer))
    return Prepared(
        job, targets, phases, epoch, workers, open_files, expected, stored.conversations, stored.input_files
    )


def _expected_requests(phase: Phase, bodies: int | None, turns: list[int], sampling: str) -> int | None:
    """Return how many requests the phase sends; None if that is not known."""
    limits = [phase.requests]
    if phase.whole:
        limits.append(None if bodies is None else bodies * phase.servers.copies)
    if phase.conversations is not None and turns and phase.duration_s is None:
        limits.append(_requests_of_conversations(phase, turns, sampling))
    return min((n for n in limits if n is not None), default=None)


def _requests_of_conversations(phase: Phase, turns: list[int], sampling: str) -> int | None:
    """Return the number of turns of the phase's conversations; None if sampling makes it unpredictable."""
    copies = phase.servers.copies
    count = -(-(phase.conversations or 0) // copies)
    if len(set(turns)) == 1:
        return turns[0] * count * copies
    if sampling != "sequential":
        return None
    rounds, rest = divmod(count, len(turns))
    first = phase.first % len(turns)
    last_round = [turns[(first + n) % len(turns)] for n in range(rest)]
    return (rounds * sum(turns) + sum(last_round)) * copies


def _slots(phase: Phase) -> int | None:
    """Return the largest number of slots that the phase has; None for no limit."""
    return None if phase.slots is None else phase.slots.maximum


def _max_in_flight(slots: int | None, expected: int | None) -> int | None:
    """Return the maximum number of requests in flight; None if there is none."""
    return min(slots, expected) if slots is not None and expected is not None else slots


def _connections_to_open(phase: Phase, rate: float | None, expected: int | None) -> int:
    """Return how many connections to open before the first request: one per slot, or those for 0.1 s of arrivals."""
    slots = _slots(phase)
    count = slots or 1 if rate is None or slots is not None else max(1, round(rate * _PRECONNECT_SECONDS))
    return min(count, expected or count)


def _header(
    settings: Settings,
    dataset: Dataset,
    stored: StoredPayloads,
    phase: Phase,
    seed: int,
    workers: int,
    epoch: int,
    prompt_tokenizer: tuple[str, str] | None,
) -> RunHeader:
    return new_header(
        settings,
        epoch=epoch,
        dataset="synthetic" if dataset.synthetic else dataset.format or "file",
        context_mode=dataset.context_mode,
        payload_files=list(stored.files),
        conversations=stored.conversations,
        seed=seed,
        concurrency=_slots(phase),
        requests=phase.requests,
        workers=workers,
        prompt_tokenizer=prompt_tokenizer,
    )
