"""Cooldowns: targets that failed recently and are not used for a while. All workers share them.

A target is ejected after consecutive failures of different requests, or at once for the time that the provider asks for
(`Retry-After`). The last healthy target of a group is never ejected: no other could serve the requests, and a provider that
refuses one of them, for example because it has many tokens, may serve the next one.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Sequence

import msgspec

from penstock.gateway.resources.snapshot import Model, ProviderKey, reveal_secret
from penstock.gateway.upstream.target import Target, UpstreamFailure

SLOTS = 1024
_PROBES = 8
_WORDS = 4
"""Words of a slot: its key, the number of consecutive failures, and the end of the cooldown in µs."""
_FAILURES, _UNTIL = 1, 2
_SIZE = SLOTS * _WORDS + 1
"""The last word is not 0 once a target has failed, which saves looking for slots before."""


def shared_words(path: str) -> memoryview:
    """Map the table of all workers, and create it if it does not exist."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(file, _SIZE * 8)
        return memoryview(mmap.mmap(file, _SIZE * 8)).cast("Q")
    finally:
        os.close(file)


class Cooldowns:
    """The health of targets. Workers write without a lock: a lost count delays an ejection by one failure."""

    def __init__(self, words: memoryview | None = None) -> None:
        self._words = words if words is not None else memoryview(bytearray(_SIZE * 8)).cast("Q")
        self._known: dict[str, tuple[Model, ProviderKey, int, int]] = {}
        """Model id -> the definitions that were used last, with the key and the offset of their slot. The key changes
        with the definitions, because a change may have fixed the target."""

    def cooling(self, target: Target, now: float) -> bool:
        return self.ends_at(target) > now

    def ends_at(self, target: Target) -> float:
        """Return the end of the cooldown of a target; 0 if it has none."""
        return self._words[self._slot(target) + _UNTIL] / 1e6

    def seconds_left(self, now: float) -> dict[str, float]:
        """Return the remaining cooldown of each target that this worker has used, by the name of its model."""
        if not self._words[-1]:
            return {}
        return {
            model.name: max(0.0, self._words[slot + _UNTIL] / 1e6 - now) for model, _, _, slot in self._known.values()
        }

    def failed(self, target: Target, failure: UpstreamFailure, now: float, group: Sequence[Target] = ()) -> None:
        """Record the failure of a request at a target of a group. Call this once for each request and target."""
        rules = target.model.cooldown
        if not rules.enabled or not _counts(failure, target.model):
            return
        has_other = self._has_other(target, group, now)
        slot = self._slot(target)
        self._words[slot + _FAILURES] += 1
        self._words[-1] = 1
        if not has_other:
            return
        if rules.honor_retry_after and failure.retry_after_s is not None:
            seconds = failure.retry_after_s
        elif self._words[slot + _FAILURES] >= rules.min_failures:
            seconds = rules.default_seconds
        else:
            return
        self._words[slot + _UNTIL] = int((now + min(seconds, rules.max_seconds)) * 1e6)

    def succeeded(self, target: Target) -> None:
        if not self._words[-1]:
            return
        slot = self._slot(target)
        if self._words[slot + _FAILURES]:
            self._words[slot + _FAILURES] = self._words[slot + _UNTIL] = 0

    def _has_other(self, target: Target, group: Sequence[Target], now: float) -> bool:
        """Return whether the group has another healthy target."""
        return any(other.model.id != target.model.id and not self.cooling(other, now) for other in group)

    def _slot(self, target: Target) -> int:
        model, key = target.model, target.key
        known = self._known.get(model.id)
        if known is None or known[0] is not model or known[1] is not key or self._words[known[3]] != known[2]:
            digest = _digest(model, key)
            known = self._known[model.id] = (model, key, digest, self._find(digest))
        return known[3]

    def _find(self, digest: int) -> int:
        """Return the slot of a key. A new key gets a free slot, or replaces the one whose cooldown ends first."""
        words = self._words
        offsets = [(digest + probe) % SLOTS * _WORDS for probe in range(_PROBES)]
        for offset in offsets:
            if words[offset] == digest:
                return offset
        free = min(offsets, key=lambda offset: (words[offset] != 0, words[offset + _UNTIL]))
        words[free + _FAILURES] = words[free + _UNTIL] = 0
        words[free] = digest
        return free


def _counts(failure: UpstreamFailure, model: Model) -> bool:
    """Return whether the failure is one that the model's cooldown names."""
    rules = model.cooldown
    triggers = {"timeout": rules.on_timeout, "transport": rules.on_transport, "aborted": rules.on_transport}
    return triggers.get(failure.error, failure.status in rules.statuses)


def _digest(model: Model, key: ProviderKey) -> int:
    """Return a number, never 0, that all workers compute from the same definitions."""
    data = msgspec.msgpack.encode((model, key), enc_hook=reveal_secret)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") | 1
