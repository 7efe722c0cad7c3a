"""Preparation of a run: fill the payload store, write the header of the log, and return the job for the workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import NamedTuple

from penstock.datasets.dataset import Dataset
from penstock.endpoints.base import Endpoint
from penstock.errors import UserError
from penstock.records.header import RunHeader, new_header
from penstock.records.log import RunLog
from penstock.runs.build_payloads import StoredPayloads, build_payloads
from penstock.runs.input_files import InputFiles
from penstock.schedule.phase import Phase
from penstock.schedule.phases import default_conversations, make_phases
from penstock.schedule.users import UserArrivals
from penstock.settings.schema import LoadSettings, Settings
from penstock.workers.job import Job, Target, targets
from penstock.workers.local_processes import choose_cluster_workers, choose_workers, max_workers, raise_file_limit

__all__ = [
    "Prepared",
    "check_file_limit",
    "check_streams",
    "connections_to_open",
    "default_entries",
    "expected_requests",
    "phase_loads",
    "prepare",
    "resolve_targets",
]

_WATCHED_FLUSH_NS = 50_000_000
"""Longest time for which records are buffered if a rule reads them while the run sends."""

_PRECONNECT_SECONDS = 0.1
_ENTRIES_OF_A_DURATION = 100
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
        bodies: int | None = None,
        notes: tuple[str, ...] = (),
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
        self.companion_notes: list[str] = []
        """Sentences of companions for the user."""
        self.bodies = bodies
        """Number of bodies in the payload store; None while the dataset is still being indexed."""
        self._notes = notes

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about the input files and of companions. Some appear during the run."""
        from_files = [] if self.input_files is None else self.input_files.notes
        return [*self._notes, *from_files, *self.companion_notes]


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
    points: Sequence[Settings] = (),
    cpus: Sequence[int] = (),
) -> Prepared:
    """Prepare a run whose log goes to the empty folder `log`.

    `prompt_tokenizer` is the name and source of the tokenizer that generated the synthetic prompts. `servers` is the number
    of servers that a comparison sends each conversation to. Without `in_caller`, this process is neither forked nor are its
    limits changed: input files are indexed to their end, and its limit of open files is only checked. `points` are the
    settings of an experiment's largest points, for which the workers are sized; the input is then indexed to its end, too.
    `cpus` are those of each node of a cluster.
    """
    seed = settings.input.seed if settings.input.seed is not None else secrets.randbits(32)
    turns = dataset.turns
    _check_turns(settings, turns)
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
    stored = build_payloads(log, settings, endpoint, dataset, phases, progress, in_background=in_caller and not points)
    expected = expected_requests(phases, stored.bodies, turns, settings.input.sampling)
    # Workers and connections are those of the largest phase.
    own_sizes = _sizes(settings, phases, expected, cpus)
    sizes = [*own_sizes]
    for point in points:
        of_point = make_phases(point.load, point.warmup, synthetic=dataset.synthetic, seed=seed, servers=servers)
        sizes += _sizes(point, of_point, [phase.requests for phase in of_point], cpus)
    workers = max(size.workers for size in sizes)
    preconnect = max(size.connections for size in own_sizes)
    open_files = _raise_file_limit(sizes, workers, only_check=not in_caller)
    job = Job(
        log=log,
        settings=settings.endpoint,
        files=stored.files,
        sampling=settings.input.sampling,
        seed=seed,
        preconnect=preconnect,
        growing=stored.input_files is not None and stored.conversations is None,
        keep_replies=settings.output.keeps_replies,
        **({"flush_ns": _WATCHED_FLUSH_NS} if settings.watches_records else {}),
    )
    epoch = monotonic_ns()
    if not dataset.synthetic and not dataset.writes_prompts:
        prompt_tokenizer = None
    RunLog.write_header(log, _header(settings, dataset, stored, phases[-1], seed, workers, epoch, prompt_tokenizer))
    return Prepared(
        job,
        targets,
        phases,
        epoch,
        workers,
        open_files,
        expected,
        stored.conversations,
        stored.input_files,
        stored.bodies,
        stored.notes,
    )


def _check_turns(settings: Settings, turns: Sequence[int]) -> None:
    """Raise UserError for a load of users without conversations of several turns. A file that is still being read has none."""
    if settings.load.users is not None and turns and max(turns) < 2:
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
