"""Rules that end a phase early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.runs.phase_runner import RunningPhase, RunProgress
from penstock.settings.schema import LoadSettings

_MIN_REQUESTS = 10
"""Requests, or the concurrency if that is more, before --failed-request-threshold can end a run."""


class StopRule(Protocol):
    @property
    def kind(self) -> str | None:
        """Kind of the decision in the log that has its facts; None for none."""
        ...

    def is_met(self, running: RunningPhase) -> bool:
        """Return whether to end the phase. It is called about every 10 ms."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what the log keeps about the rule, after the end of the phase."""
        ...


class CallerRule:
    """Ends a phase when a function of the caller returns True."""

    kind = None

    def __init__(self, until: Callable[[RunProgress], bool]) -> None:
        self._until = until

    def is_met(self, running: RunningPhase) -> bool:
        return self._until(running.progress)

    def facts(self) -> dict[str, Any]:
        return {}


class FailureRule:
    """Ends a phase when too large a share of its requests has failed (`--failed-request-threshold`)."""

    def __init__(self, load: LoadSettings, before: RunProgress) -> None:
        """`before` is the progress at the start of the phase."""
        self._limit = load.max_failed_share
        self._minimum = max(_MIN_REQUESTS, load.concurrency or 0)
        self._ended, self._failed = before.ended, before.failed
        self.reason: str | None = None
        """Why the phase was ended; None if it was not."""

    def is_met(self, running: RunningPhase) -> bool:
        if self._limit is None:
            return False
        ended, failed = running.progress.ended - self._ended, running.progress.failed - self._failed
        if ended < self._minimum or failed / ended <= self._limit:
            return False
        self.reason = (
            f"The run was ended because {failed} of its first {ended} requests failed, more than --failed-request-threshold "
            f"{self._limit:g} allows."
        )
        return True


class Watch:
    """The rules of a phase: that about failed requests, and those of its own."""

    def __init__(self, failures: FailureRule, rules: Sequence[StopRule]) -> None:
        self._failures = failures
        self.rules = rules
        self.ended_by_rule = False

    @property
    def failed(self) -> str | None:
        """Why too many failed requests ended the phase; None if they did not."""
        return self._failures.reason

    def is_met(self, running: RunningPhase) -> bool:
        """Return whether to end the phase."""
        if self._failures.is_met(running):
            return True
        self.ended_by_rule = any(rule.is_met(running) for rule in self.rules)
        return self.ended_by_rule
