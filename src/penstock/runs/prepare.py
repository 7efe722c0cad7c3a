"""Preparation of a run: its targets, the phases of its points, and the number and the job of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.datasets.dataset import Dataset
from penstock.endpoints.base import Endpoint
from penstock.errors import UserError
from penstock.records.header import RunHeader, Variation, new_header
from penstock.records.log import LoggedResume
from penstock.runs.stored_data import StoredData
from penstock.schedule.phase import Phase
from penstock.schedule.phases import make_phases
from penstock.schedule.users import UserArrivals
from penstock.settings.redact import redacted
from penstock.settings.schema import LoadSettings, Settings
from penstock.workers.job import Job, Target, targets
from penstock.workers.local_processes import choose_cluster_workers, choose_workers, max_workers, raise_file_limit

_WATCHED_FLUSH_NS = 50_000_000
"""Longest time for which records are buffered if a rule reads them while the run sends."""

_PRECONNECT_SECONDS = 0.1


class Prepared(msgspec.Struct):
    """A run that is ready to start."""

    job: Job
    targets: tuple[Target, ...]
    data: StoredData
    """The first dataset."""
    phases: Sequence[Phase]
    """Those of the first point."""
    expected: list[int | None]
    """Requests of each phase; None where the number is not known."""
    epoch: int
    """Monotonic ns; the times in records are relative to it."""
    workers: int
    open_files: int
    """Open files that a worker needs."""
    companion_notes: list[str] = []
    """Sentences of companions for the user."""
    settings_notes: tuple[str, ...] = ()
    """Sentences for the user about the arguments."""

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about the input files and of companions. Some appear during the run."""
        from_files = [] if self.data.input_files is None else self.data.input_files.notes
        return [*self.settings_notes, *self.data.notes, *from_files, *self.companion_notes]


def resolve_targets(settings: Settings, endpoint: Endpoint, *, raise_limit: bool = True) -> tuple[Target, ...]:
    """Resolve the targets and check the limit of open files. Call this before generating prompts, which can take minutes.

    With `raise_limit`, raise the limit of this process."""
    result = targets(settings.endpoint, endpoint.request_path(settings.endpoint), endpoint.declaration)
    check_file_limit(settings, raise_limit=raise_limit)
    return result


def check_streams(settings: Settings, dataset: Dataset) -> None:
    """Raise UserError if --until or --slo needs a metric of streamed replies, and requests do not ask for them. The bodies of a
    recording may ask for them by themselves."""
    endpoint = settings.endpoint
    if not settings.watches_records or endpoint.streaming or "stream" in endpoint.extra or dataset.verbatim:
        return
    from penstock.metrics.capacity import parse_slo
    from penstock.metrics.catalogue import CATALOGUE
    from penstock.metrics.precision import parse_precision

    needed = [("--slo", text, parse_slo(text).metric) for text in settings.experiment.slos]
    if settings.until:
        needed.append(("--until", settings.until, parse_precision(settings.until).metric))
    for flag, text, metric in needed:
        if CATALOGUE[metric].streamed:
            raise UserError(
                f"{flag} '{text}': only streamed replies have {metric}; add --streaming, or choose another metric."
            )


def check_file_limit(settings: Settings, *, raise_limit: bool = True) -> None:
    """Raise UserError if the system does not allow the connections of a load."""
    for load in phase_loads(settings):
        if load.concurrency is not None:
            slots = load.concurrency if load.requests is None else min(load.concurrency, load.requests)
            raise_file_limit(slots, slots, max_workers(settings.workers_max), only_check=not raise_limit)


def phase_loads(settings: Settings) -> list[LoadSettings]:
    """Return the loads of the phases, in their order."""
    warmup = settings.warmup.load(settings.load)
    return [settings.load] if warmup is None else [warmup, settings.load]


def plan_phases(settings: Settings, dataset: Dataset, seed: int, servers: int = 1) -> list[Phase]:
    """Return the phases of a point. `servers` is the number of servers that a comparison sends each conversation to."""
    _check_turns(settings, dataset)
    return make_phases(
        settings.load,
        settings.warmup,
        synthetic=dataset.synthetic,
        seed=seed,
        servers=servers,
        several_turns=max(dataset.turns, default=1) > 1,
    )


def prepare(
    log: str,
    settings: Settings,
    targets: tuple[Target, ...],
    data: StoredData,
    phases: Sequence[Phase],
    seed: int,
    *,
    points: Sequence[Settings] = (),
    in_caller: bool = True,
    cpus: Sequence[int] = (),
    resumed: LoggedResume | None = None,
) -> Prepared:
    """Size the workers of a run, and return what they need to start.

    `points` are the settings of an experiment's largest points, for which the workers are sized. Without `in_caller`, the limit
    of open files of this process is only checked. `cpus` are those of each node of a cluster. A run that is resumed has as many
    workers as before.
    """
    expected = expected_requests(phases, data.bodies, data.dataset.turns, settings.input.sampling)
    # Workers and connections are those of the largest phase.
    own_sizes = _sizes(settings, phases, expected, cpus)
    sizes = [*own_sizes]
    for point in points:
        of_point = make_phases(
            point.load, point.warmup, synthetic=data.dataset.synthetic, seed=seed, servers=phases[-1].servers.copies
        )
        sizes += _sizes(point, of_point, [phase.requests for phase in of_point], cpus)
    workers = max(size.workers for size in sizes) if resumed is None else resumed.workers
    open_files = _raise_file_limit(sizes, workers, only_check=not in_caller)
    job = Job(
        log=log,
        settings=settings.endpoint,
        files=data.logged.files,
        sampling=settings.input.sampling,
        seed=seed,
        preconnect=max(size.connections for size in own_sizes),
        first_worker=0 if resumed is None else resumed.first_worker,
        growing=data.input_files is not None and data.conversations is None,
        keep_replies=settings.output.keeps_replies,
        **({"flush_ns": _WATCHED_FLUSH_NS} if settings.watches_records else {}),
    )
    return Prepared(
        job, targets, data, phases, expected, monotonic_ns(), workers, open_files, settings_notes=settings.notes
    )


def _check_turns(settings: Settings, dataset: Dataset) -> None:
    """Raise UserError for a load of users without conversations of several turns, or with conversations that start others. A
    file that is still being read has no turns."""
    if settings.load.users is None and settings.warmup.users is None:
        return
    if dataset.has_trees:
        raise UserError(
            f"--user-centric-rate is a load of users with one request at a time, and conversations in {settings.input.file} "
            "start others; use --concurrency or --request-rate."
        )
    if (turns := dataset.turns) and max(turns) < 2:
        raise UserError(
            f"--user-centric-rate is a load of conversations, but those in {settings.input.file} have one turn each; use "
            "--request-rate."
        )


class _Size(NamedTuple):
    """The resources that a phase needs."""

    workers: int
    connections: int
    """Connections to open before its first request."""
    in_flight: int | None
    """Most requests in flight; None if there is no limit."""


def _sizes(
    settings: Settings, phases: Sequence[Phase], expected: Sequence[int | None], cpus: Sequence[int]
) -> list[_Size]:
    def workers(slots: int | None, rate: float | None, requests: int | None) -> int:
        if cpus:
            return choose_cluster_workers(slots, rate, requests, settings.workers_max, cpus)
        return choose_workers(slots, rate, requests, settings.workers_max)

    rates = [load.arrival_rate for load in phase_loads(settings)]
    return [
        _Size(
            workers(_slots(phase), rate, requests),
            connections_to_open(phase, rate, requests),
            _max_in_flight(_slots(phase), requests),
        )
        for phase, rate, requests in zip(phases, rates, expected, strict=True)
    ]


def _raise_file_limit(sizes: Sequence[_Size], workers: int, *, only_check: bool) -> int:
    limits = [size.in_flight for size in sizes]
    in_flight = None if None in limits else max(limit for limit in limits if limit is not None)
    return raise_file_limit(in_flight, max(size.connections for size in sizes), workers, only_check=only_check)


def expected_requests(
    phases: Sequence[Phase], bodies: int | None, turns: Sequence[int], sampling: str
) -> list[int | None]:
    """Return how many requests each phase sends; None where that is not known."""
    return [
        _expected_requests(phase, bodies, turns, sampling, known=_position_is_known(phases[:number], turns))
        for number, phase in enumerate(phases)
    ]


def _position_is_known(before: Sequence[Phase], turns: Sequence[int]) -> bool:
    """Return whether the number of conversations that the earlier phases send is known."""
    return all(phase.duration_s is None and (phase.requests is None or (turns and max(turns) == 1)) for phase in before)


def _expected_requests(
    phase: Phase, bodies: int | None, turns: Sequence[int], sampling: str, *, known: bool
) -> int | None:
    """Return how many requests the phase sends; None if that is not known. `known` says whether its start in the dataset is."""
    limits = [phase.requests]
    if phase.whole:
        limits.append(None if bodies is None else bodies * phase.servers.copies)
    if phase.conversations is not None and turns and phase.duration_s is None:
        limits.append(_requests_of_conversations(phase, turns, known and sampling == "sequential"))
    return min((n for n in limits if n is not None), default=None)


def _requests_of_conversations(phase: Phase, turns: Sequence[int], known: bool) -> int | None:
    """Return the number of turns of the phase's conversations; None if they differ and it is not known which they are."""
    copies = phase.servers.copies
    count = -(-(phase.conversations or 0) // copies)
    if isinstance(phase.arrivals, UserArrivals):
        return _requests_of_users(phase, phase.arrivals, turns, known)
    if len(set(turns)) == 1:
        return turns[0] * count * copies
    if not known:
        return None
    rounds, rest = divmod(count, len(turns))
    first = phase.first % len(turns)
    last_round = [turns[(first + n) % len(turns)] for n in range(rest)]
    return (rounds * sum(turns) + sum(last_round)) * copies


def _requests_of_users(phase: Phase, users: UserArrivals, turns: Sequence[int], known: bool) -> int | None:
    if len(set(turns)) > 1 and not known:
        return None
    positions = (phase.first + number // phase.servers.copies for number in range(phase.conversations or 0))
    return sum(users.turns_of(number, turns[at % len(turns)]) for number, at in enumerate(positions))


def _slots(phase: Phase) -> int | None:
    """Return the largest number of slots that the phase has; None for no limit."""
    return None if phase.slots is None else phase.slots.maximum


def _max_in_flight(slots: int | None, expected: int | None) -> int | None:
    """Return the maximum number of requests in flight; None if there is none."""
    return min(slots, expected) if slots is not None and expected is not None else slots


def connections_to_open(phase: Phase, rate: float | None, expected: int | None) -> int:
    """Return how many connections to open before the first request: one per slot or user, or those for 0.1 s of arrivals."""
    slots = _slots(phase)
    if slots is None and isinstance(phase.arrivals, UserArrivals):
        slots = phase.arrivals.users
    count = slots or 1 if rate is None or slots is not None else max(1, round(rate * _PRECONNECT_SECONDS))
    return min(count, expected or count)


def make_header(
    prepared: Prepared, settings: Settings, prompt_tokenizer: tuple[str, str] | None, variations: Sequence[Variation]
) -> RunHeader:
    """Return the header of a new run. `prompt_tokenizer` is the name and source of the tokenizer for synthetic prompts;
    `variations` are what the points of an experiment are made from."""
    data, phase = prepared.data, prepared.phases[-1]
    dataset = data.dataset
    return new_header(
        settings,
        epoch=prepared.epoch,
        seed=prepared.job.seed,
        workers=prepared.workers,
        prompt_tokenizer=prompt_tokenizer if dataset.synthetic or dataset.writes_prompts else None,
        servers=phase.servers.copies,
        depends_on_seed=dataset.depends_on_seed,
        variations=[replace(each, settings=redacted(each.settings)) for each in variations],
        **header_fields(data, phase),
    )


def header_fields(data: StoredData, phase: Phase) -> dict[str, Any]:
    """Return what the header of a run or point says about its dataset and its profiling phase."""
    return {
        "dataset": "synthetic" if data.dataset.synthetic else data.dataset.format or "file",
        "context_mode": data.dataset.context_mode,
        "payload_files": list(data.logged.files),
        "conversations": data.conversations,
        "concurrency": _slots(phase),
        "requests": phase.requests,
    }
