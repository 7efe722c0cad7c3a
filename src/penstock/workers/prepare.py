"""From settings to a job: the dataset becomes bodies in the payload store, and the log says what is about to run."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any

from penstock import __version__
from penstock.datasets.load import Dataset
from penstock.endpoints.base import Endpoint
from penstock.records.log import Phase, RunHeader, RunLog
from penstock.schedule.phases import PhasePlan, phases
from penstock.secrets import redact_url
from penstock.settings.input_config import input_config
from penstock.settings.schema import Settings
from penstock.workers.build_payloads import Stored, store
from penstock.workers.indexer import Sources
from penstock.workers.job import Job, Target, targets
from penstock.workers.local_processes import choose_workers, most_workers, raise_file_limit

__all__ = ["Prepared", "default_entries", "prepare", "reach"]

_AHEAD_SECONDS = 0.1
_MEDIA_ENTRIES = 1000
"""Bodies with images or sound take up the disk: more than this many different ones are made only when asked for."""


class Prepared:
    """A run that is ready to start."""

    def __init__(
        self, job: Job, workers: int, expected: list[int | None], conversations: int | None, sources: Sources | None
    ) -> None:
        self.job = job
        self.workers = workers
        self.expected = expected
        """Requests of each phase, where that is known beforehand."""
        self.conversations = conversations
        """None while the dataset is still being read."""
        self.sources = sources
        """The user's files, when the bodies lie in them."""


def default_entries(settings: Settings) -> int:
    """How many distinct synthetic conversations a run has when nobody says: one for each that it needs, or 100; those of the
    warmup are others, so that a server that caches prompts has seen none of the ones that are measured."""
    load = settings.load
    count = load.conversations if load.conversations is not None else load.requests
    if count is None:
        count = 100 if load.duration_s is not None else max(10, 2 * (load.concurrency or 1))
    count += settings.warmup.requests
    heavy = settings.input.images.per_turn or settings.input.audio.per_turn
    return min(count, _MEDIA_ENTRIES) if heavy else count


def reach(settings: Settings, endpoint: Endpoint) -> tuple[Target, ...]:
    """Where to send. What is wrong with that, and more connections than there can be, is told before prompts are made, which
    may take minutes."""
    found = targets(settings.endpoint, settings.endpoint.path or endpoint.path)
    load = settings.load
    if load.concurrency is not None:
        slots = load.concurrency if load.requests is None else min(load.concurrency, load.requests)
        raise_file_limit(slots, slots, most_workers(settings.workers_max))
    return found


def prepare(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    targets: tuple[Target, ...],
    dataset: Dataset,
    progress: Callable[[int, int], None] | None = None,
    *,
    prompt_tokenizer: tuple[str, str] | None = None,
    arms: int = 1,
) -> Prepared:
    """`log` is an empty folder; `prompt_tokenizer` is the name and source of the one that synthetic prompts are made with;
    `arms` is how many servers each conversation goes to, when they are compared."""
    seed = settings.input.seed if settings.input.seed is not None else secrets.randbits(32)
    turns = dataset.turns
    plans = tuple(
        phases(
            settings.load,
            settings.warmup,
            synthetic=dataset.synthetic,
            seed=seed,
            arms=arms,
            several_turns=max(turns, default=1) > 1,
        )
    )
    stored = store(log, settings, endpoint, dataset, plans, progress)
    expected = [_expected(plan, stored.sends, turns, settings.input.sampling) for plan in plans]
    load = settings.load
    workers = choose_workers(plans[-1].slots, load.rate, expected[-1], settings.workers_max)
    ahead = _ahead(plans[-1], expected[-1])
    raise_file_limit(_at_once(plans[-1], expected[-1]), ahead, workers)
    job = Job(
        log=log,
        endpoint=settings.endpoint.type,
        settings=settings.endpoint,
        files=stored.files,
        targets=targets,
        phases=plans,
        sampling=settings.input.sampling,
        seed=seed,
        timeout_ns=round(settings.endpoint.timeout_s * 1e9),
        reuse=settings.endpoint.connections == "pooled",
        open_ahead=ahead,
        epoch=monotonic_ns(),
    )
    maker = prompt_tokenizer if dataset.synthetic else None
    RunLog.write_header(log, _header(settings, dataset, stored, plans, seed, workers, job.epoch, maker))
    return Prepared(job, workers, expected, stored.conversations, stored.sources)


def _expected(plan: PhasePlan, sends: int | None, turns: list[int], sampling: str) -> int | None:
    """How many requests a phase sends, when that is known."""
    known = [plan.requests]
    if plan.whole:
        known.append(None if sends is None else sends * plan.arms)
    if plan.conversations is not None and turns and plan.duration_s is None:
        known.append(_turns_of(plan, turns, sampling))
    return min((n for n in known if n is not None), default=None)


def _turns_of(plan: PhasePlan, turns: list[int], sampling: str) -> int | None:
    """The requests of the phase's conversations; which ones they are is known only when they are taken in order."""
    count = -(-(plan.conversations or 0) // plan.arms)
    if len(set(turns)) == 1:
        return turns[0] * count * plan.arms
    if sampling != "sequential":
        return None
    rounds, rest = divmod(count, len(turns))
    begin = plan.first % len(turns)
    last = [turns[(begin + at) % len(turns)] for at in range(rest)]
    return (rounds * sum(turns) + sum(last)) * plan.arms


def _at_once(plan: PhasePlan, expected: int | None) -> int | None:
    """The most requests in flight; None where nobody knows."""
    return min(plan.slots, expected) if plan.slots is not None and expected is not None else plan.slots


def _ahead(plan: PhasePlan, expected: int | None) -> int:
    """Connections to open before the first request: all slots, or for an open loop a tenth of a second of arrivals."""
    wanted = plan.slots if plan.rate is None or plan.slots is not None else max(1, round(plan.rate * _AHEAD_SECONDS))
    return min(wanted or 1, expected or wanted or 1)


def _header(
    settings: Settings,
    dataset: Dataset,
    stored: Stored,
    plans: tuple[PhasePlan, ...],
    seed: int,
    workers: int,
    epoch: int,
    prompt_tokenizer: tuple[str, str] | None,
) -> RunHeader:
    load, output = settings.load, settings.output
    return RunHeader(
        penstock_version=__version__,
        benchmark_id=secrets.token_hex(6),
        epoch_wall_ns=time_ns() - (monotonic_ns() - epoch),
        phases=[Phase(plan.name, plan.kind) for plan in plans],
        endpoint=settings.endpoint.type,
        streaming=settings.endpoint.streaming,
        server_token_count=settings.endpoint.server_token_count,
        models=list(settings.models),
        urls=[redact_url(url) for url in settings.endpoint.urls],
        dataset="synthetic" if dataset.synthetic else dataset.format or "file",
        context_mode=dataset.context_mode,
        payload_files=list(stored.files),
        conversations=stored.conversations,
        sampling=settings.input.sampling,
        seed=settings.input.seed,
        plan_seed=seed,
        concurrency=plans[-1].slots,
        rate=load.rate,
        arrivals="recorded" if load.recorded is not None else load.arrivals,
        requests=plans[-1].requests,
        duration_s=load.duration_s,
        workers=workers,
        tokenizer=settings.tokenizer.name,
        tokenizer_revision=settings.tokenizer.revision,
        prompt_tokenizer=prompt_tokenizer,
        level=output.level,
        prefix=output.prefix,
        http_trace=output.http_trace,
        command=settings.command,
        input_config=input_config(settings),
        machine=_machine(),
    )


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
