"""The resource file, taken again when it changes or when we are told to: whole, or not at all."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from penstock.gateway.observe.exposition import ConfigState
from penstock.gateway.resources.file import ResourceErrors, parse_resources, read_resources
from penstock.gateway.resources.snapshot import Snapshot
from penstock.gateway.serving.runtime import Runtime

__all__ = ["Reloader", "checked", "counts_text"]

POLL_S = 0.2

Signature = tuple[int, int, int]


class Reloader:
    """A thread of the main process; `status` may be asked from any other."""

    def __init__(self, path: str, runtime: Runtime, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._path = path
        self._runtime = runtime
        self._environment = environment
        self._say = say
        self._wake = threading.Event()
        self._stopping = False
        self._asked = False
        self._signature: Signature | None = None
        self._refused = ""
        """Hash of the file that was rejected last: it is not read again and again."""
        self._generation = 0
        self._snapshot = Snapshot()
        self._loaded_at = 0.0
        self._reloads = 0
        self._failures = 0
        self._failure: dict[str, object] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="penstock-reload", daemon=True)

    def first(self) -> Snapshot:
        """Load it for the first time; raises ResourceErrors."""
        self._signature = self._look()
        snapshot = self._load(read_resources(self._path))
        self._accept(snapshot)
        return snapshot

    def start(self) -> None:
        self._thread.start()

    def ask(self) -> None:
        """Reload now, whether or not the file is watched. For signal handlers."""
        self._asked = True
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        changed: Signature | None = None
        while True:
            self._wake.wait(POLL_S)
            self._wake.clear()
            if self._stopping:
                return
            seen = self._look()
            if self._asked:
                self._asked = False
                self._signature = seen
                self._reload(asked=True)
            elif self._runtime.config.watch and seen != self._signature:
                # A file that is still being written is left alone until two looks find it the same.
                if seen != changed:
                    changed = seen
                    continue
                self._signature = seen
                self._reload(asked=False)

    def _look(self) -> Signature | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self, data: bytes) -> Snapshot:
        return checked(parse_resources(data, self._environment, source=self._path))

    def _reload(self, *, asked: bool) -> None:
        digest = ""
        try:
            data = read_resources(self._path)
            digest = hashlib.sha256(data).hexdigest()
            if not asked and digest == (self._snapshot.hash if self._failure is None else self._refused):
                return
            self._accept(self._load(data))
        except ResourceErrors as error:
            self._reject(error.errors, digest)
            return
        except Exception as error:  # a fault of ours must not end the watch
            self._reject([f"Penstock failed to read it: {type(error).__name__}"], digest)
            return
        with self._lock:
            self._reloads += 1
        self._say(f"reloaded {self._path}: {counts_text(self._snapshot)} (generation {self._generation})")

    def _accept(self, snapshot: Snapshot) -> None:
        self._runtime.publish(snapshot, self._generation + 1)
        with self._lock:
            self._generation += 1
            self._snapshot = snapshot
            self._loaded_at = time.time()
            self._failure = None
            self._refused = ""

    def _reject(self, errors: list[str], digest: str) -> None:
        with self._lock:
            self._failures += 1
            self._refused = digest
            self._failure = {"at": time.time(), "hash": digest, "errors": errors}
        listed = "".join(f"\n  {error}" for error in errors)
        self._say(f"rejected {self._path}, the last good one keeps serving:{listed}")

    def metrics(self) -> ConfigState:
        with self._lock:
            return ConfigState(
                hash=self._snapshot.hash,
                successful=self._failure is None,
                succeeded_at=self._loaded_at,
                reloads=self._reloads,
                failures=self._failures,
            )

    def status(self) -> dict[str, object]:
        board, workers = self._runtime.board, self._runtime.config.listen.workers
        slots = [board.slot(number) for number in range(workers)]
        with self._lock:
            return {
                "state": "synced" if self._failure is None else "degraded",
                "source": self._path,
                "watched": self._runtime.config.watch,
                "applied": {
                    "generation": self._generation,
                    "hash": self._snapshot.hash,
                    "at": self._loaded_at,
                    "counts": counts(self._snapshot),
                },
                "reloads": self._reloads,
                "failures": self._failures,
                "last_failure": self._failure,
                "workers": [msgspec.to_builtins(slot) for slot in slots],
            }


def checked(snapshot: Snapshot) -> Snapshot:
    """Whether what the file says can be compiled, which its reader does not try."""
    if snapshot.guardrails:
        from penstock.gateway.guardrails import guardrail_errors

        if problems := [problem for spec in snapshot.guardrails for problem in guardrail_errors(spec)]:
            raise ResourceErrors(snapshot.source, problems)
    return snapshot


def counts(snapshot: Snapshot) -> dict[str, int]:
    return {
        "provider_keys": len(snapshot.provider_keys),
        "models": len(snapshot.models),
        "api_keys": len(snapshot.caller_keys),
        "guardrails": len(snapshot.guardrails),
        "rate_limit_policies": len(snapshot.policies),
    }


def counts_text(snapshot: Snapshot) -> str:
    return ", ".join(f"{number} {_words(name, number)}" for name, number in counts(snapshot).items())


def _words(collection: str, number: int) -> str:
    words = collection.replace("_", " ")
    if number != 1:
        return words
    return f"{words[:-3]}y" if words.endswith("ies") else words[:-1]
