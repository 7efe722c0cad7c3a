"""From settings to a job: the dataset becomes bodies in the payload store, and the log says what is about to run."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Any

import orjson

from penstock import __version__
from penstock.datasets.load import Dataset
from penstock.drive.job import Job, targets
from penstock.drive.local import choose_workers, raise_file_limit
from penstock.endpoints.base import Endpoint, History
from penstock.errors import UserError
from penstock.plan.phases import PhasePlan, phases
from penstock.records.log import Phase, RunHeader, RunLog
from penstock.records.payloads import Parts, PayloadWriter
from penstock.settings.describe import input_config
from penstock.settings.model import Settings

__all__ = ["LOG_FOLDER", "Prepared", "default_entries", "prepare"]

LOG_FOLDER = "log"
_AHEAD_SECONDS = 0.1


class Prepared:
    """A run that is ready to start."""

    def __init__(self, job: Job, workers: int, expected: list[int | None]) -> None:
        self.job = job
        self.workers = workers
        self.expected = expected
        """Requests of each phase, where that is known beforehand."""


def default_entries(settings: Settings) -> int:
    """How many distinct synthetic prompts a run has when nobody says: one for each request, or 100."""
    load = settings.load
    if load.requests is not None:
        return load.requests
    return 100 if load.duration_s is not None else max(10, 2 * (load.concurrency or 1))


def prepare(
    settings: Settings,
    endpoint: Endpoint,
    dataset: Dataset,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    log = _fresh_folder(os.path.join(settings.output.folder, LOG_FOLDER))
    sends = _store(log, settings, endpoint, dataset, progress)
    seed = settings.input.seed if settings.input.seed is not None else secrets.randbits(32)
    plans = tuple(phases(settings.load, settings.warmup, synthetic=dataset.synthetic, seed=seed))
    expected = [sends if plan.whole else plan.requests for plan in plans]
    load = settings.load
    workers = choose_workers(plans[-1].slots, load.rate, expected[-1], settings.workers_max)
    ahead = _ahead(plans[-1], expected[-1])
    raise_file_limit(plans[-1].slots or ahead, workers)
    job = Job(
        log=log,
        endpoint=endpoint.name,
        settings=settings.endpoint,
        files=(),
        targets=targets(settings.endpoint, settings.endpoint.path or endpoint.path),
        phases=plans,
        sampling=settings.input.sampling,
        seed=seed,
        timeout_ns=round(settings.endpoint.timeout_s * 1e9),
        reuse=settings.endpoint.connections == "pooled",
        open_ahead=ahead,
        epoch=monotonic_ns(),
    )
    RunLog.write_header(log, _header(settings, dataset, plans, seed, workers, job.epoch))
    return Prepared(job, workers, expected)


def _fresh_folder(path: str) -> str:
    try:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The artifact folder {path} cannot be written: {error.strerror}; choose --artifact-dir."
        ) from None
    return path


def _store(
    log: str,
    settings: Settings,
    endpoint: Endpoint,
    dataset: Dataset,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Writes the body of every turn; returns how many there are."""
    models = settings.models
    writer = PayloadWriter(log)
    total = len(dataset.conversations)
    for number, conversation in enumerate(dataset.conversations):
        model = models[number % len(models)]
        history = History(conversation.system, conversation.context)
        for turn in conversation.turns:
            if conversation.accumulate and len(conversation.turns) > 1:
                writer.parts(Parts(turn, model, conversation.system, conversation.context))
                continue
            writer.body(
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
    return writer.count


def _ahead(plan: PhasePlan, expected: int | None) -> int:
    """Connections to open before the first request: all slots, or for an open loop a tenth of a second of arrivals."""
    wanted = plan.slots if plan.rate is None or plan.slots is not None else max(1, round(plan.rate * _AHEAD_SECONDS))
    return min(wanted or 1, expected or wanted or 1)


def _header(
    settings: Settings, dataset: Dataset, plans: tuple[PhasePlan, ...], seed: int, workers: int, epoch: int
) -> RunHeader:
    load, output = settings.load, settings.output
    return RunHeader(
        penstock_version=__version__,
        benchmark_id=secrets.token_hex(6),
        epoch_wall_ns=time_ns() - (monotonic_ns() - epoch),
        epoch_monotonic_ns=epoch,
        phases=[Phase(plan.name, plan.kind) for plan in plans],
        endpoint=settings.endpoint.type,
        streaming=settings.endpoint.streaming,
        server_token_count=settings.endpoint.server_token_count,
        models=list(settings.models),
        urls=list(settings.endpoint.urls),
        dataset="synthetic" if dataset.synthetic else dataset.format or "file",
        conversations=len(dataset.conversations),
        sampling=settings.input.sampling,
        seed=settings.input.seed,
        concurrency=plans[-1].slots,
        rate=load.rate,
        arrivals=load.arrivals,
        requests=plans[-1].requests,
        duration_s=load.duration_s,
        workers=workers,
        tokenizer=settings.tokenizer.name,
        tokenizer_revision=settings.tokenizer.revision,
        level=output.level,
        prefix=output.prefix,
        http_trace=output.http_trace,
        command=settings.command,
        input_config=input_config(settings),
        machine=_machine(seed),
    )


def _machine(seed: int) -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "plan_seed": seed,
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
