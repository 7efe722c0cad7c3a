"""Reload the resource file when it changes or on request: completely, or not at all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping

import msgspec

from penstock.gateway.observe.exposition import ConfigState
from penstock.gateway.operator_log import OperatorLog
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.resources.file import ResourceErrors, parse_resources, read_resources
from penstock.gateway.resources.snapshot import Snapshot
from penstock.gateway.serving.config_watch import FileWatch
from penstock.gateway.serving.runtime import Runtime, WorkerState

RETRY_S = 1.0
"""Delay before another attempt if the file could not be read or published. An invalid file is not retried."""
LAG_S = 5.0
"""Workers load new resources within 0.1 s. One that takes longer than this is reported."""


class Reloader:
    """Reloads the resource file in the main process. Other threads may read `status` and `state`."""

    def __init__(self, path: str, runtime: Runtime, environment: Mapping[str, str], log: OperatorLog) -> None:
        self._path = path
        self._runtime = runtime
        self._environment = environment
        self._log = log
        self._reload_requested = False
        self._watch = FileWatch(path)
        """Watches the resource file and the key files."""
        self._retry_at: float | None = None
        self._snapshot = Snapshot()
        self._failure: dict[str, object] | None = None
        self.state = ConfigState()

    def load_first(self) -> Snapshot:
        """Load the file for the first time; raise ResourceErrors if it is invalid."""
        self._watch.accept()
        snapshot = self._load(read_resources(self._path))
        self._accept(snapshot)
        return snapshot

    def request_reload(self) -> None:
        """Let the next `poll` reload, whether or not the file is watched. For signal handlers."""
        self._reload_requested = True

    def poll(self) -> None:
        """Reload if that is requested, or if a file has changed. Call this several times a second."""
        is_due = self._retry_at is not None and time.monotonic() >= self._retry_at
        if self._reload_requested or is_due or (self._runtime.config.watch and self._watch.changed()):
            self._reload_requested = False
            self._reload()

    def _load(self, data: bytes) -> Snapshot:
        try:
            snapshot = parse_resources(data, self._environment, source=self._path)
        except ResourceErrors as error:
            self._watch.watch_besides_first(error.key_files)
            raise
        self._watch.watch_besides_first(snapshot.key_files)
        for warning in unknown_guardrails(snapshot, self._runtime.config.guardrails):
            self._log(warning, "warning")
        return snapshot

    def _reload(self) -> None:
        self._watch.accept()  # before reading, so that a later change is noticed
        digest = ""
        self._retry_at = None
        try:
            data = read_resources(self._path)
            digest = hashlib.sha256(data).hexdigest()
            self._accept(self._load(data))
        except ResourceErrors as error:
            self._reject(error.errors, digest, retry=not digest)  # without a digest, the file could not be read
            return
        except Exception as error:  # such as a full /dev/shm; a bug must not end the gateway either
            self._reject([f"internal error: {type(error).__name__}"], digest, retry=True)
            return
        self.state.reloads_total += 1
        self._log(f"reloaded {self._path}: {counts_text(self._snapshot)} (generation {self.state.generation})")

    def _accept(self, snapshot: Snapshot) -> None:
        self._runtime.publish(snapshot, self.state.generation + 1)
        self.state.generation += 1
        self._snapshot = snapshot
        self.state.last_reload_success_timestamp_seconds = time.time()
        self._set_failure(None)

    def _set_failure(self, failure: dict[str, object] | None) -> None:
        self._failure = failure
        self.state.last_reload_successful = failure is None

    def _reject(self, errors: list[str], digest: str, *, retry: bool) -> None:
        if retry:
            self._retry_at = time.monotonic() + RETRY_S
        repeated = retry and self._failure is not None and self._failure["errors"] == errors
        self.state.reload_failures_total += 1
        self._set_failure({"at": time.time(), "hash": digest, "errors": errors})
        if not repeated:
            listed = "".join(f"\n  {error}" for error in errors)
            self._log(f"rejected {self._path}; the last valid version stays in use:{listed}", "error")

    @property
    def hash(self) -> str:
        return self._snapshot.hash

    def status(self) -> dict[str, object]:
        state, workers = self._runtime.state, self._runtime.config.listen.workers
        slots = [state.slot(number) for number in range(workers)]
        outdated = [number for number, slot in enumerate(slots) if self._is_outdated(slot)]
        return {
            "state": "synced" if self._failure is None and not outdated else "degraded",
            "source": self._path,
            "watched": self._runtime.config.watch,
            "applied": {
                "generation": self.state.generation,
                "hash": self._snapshot.hash,
                "at": self.state.last_reload_success_timestamp_seconds,
                "counts": counts(self._snapshot),
            },
            "reloads": self.state.reloads_total,
            "failures": self.state.reload_failures_total,
            "last_failure": self._failure,
            "outdated_workers": outdated,
            "workers": [msgspec.to_builtins(slot) for slot in slots],
        }

    def _is_outdated(self, slot: WorkerState) -> bool:
        """Return whether a worker serves older resources, because it cannot load the newest ones or does not respond."""
        state = self.state
        if not slot.pid or slot.generation == state.generation:
            return False
        lag_s = time.time() - state.last_reload_success_timestamp_seconds
        return slot.failed_generation == state.generation or lag_s > LAG_S


def unknown_guardrails(snapshot: Snapshot, mode: GuardrailMode) -> list[str]:
    """Return an error for each name in the configuration that is not a guardrail. A running gateway only logs them, since
    the two files change independently."""
    unknown = mode.max_lengths.keys() - {spec.name for spec in snapshot.guardrails}
    return [
        f"guardrails.max_lengths in gateway.yaml names '{name}', which is not a guardrail in {snapshot.source}"
        for name in sorted(unknown)
    ]


def counts(snapshot: Snapshot) -> dict[str, int]:
    return {
        "provider_keys": len(snapshot.provider_keys),
        "models": len(snapshot.models),
        "api_keys": len(snapshot.caller_keys),
        "guardrails": len(snapshot.guardrails),
        "rate_limit_policies": len(snapshot.policies),
    }


def counts_text(snapshot: Snapshot) -> str:
    return ", ".join(f"{number} {_noun(name, number)}" for name, number in counts(snapshot).items())


def _noun(collection: str, number: int) -> str:
    plural = collection.replace("_", " ")
    if number != 1:
        return plural
    return f"{plural[:-3]}y" if plural.endswith("ies") else plural[:-1]
