"""The interface of backends, which start the workers of a run and pass messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.records.nodes import LoggedNode
from penstock.workers.messages import Command, Event

OnEvent = Callable[[int, Event], None]
"""Called with the number of a worker and its event."""


class Backend(Protocol):
    @property
    def workers(self) -> int: ...

    @property
    def lead_ns(self) -> int:
        """Time between the command to start a phase and its start, so that every worker has it before."""
        ...

    @property
    def nodes(self) -> Sequence[LoggedNode]:
        """The nodes that the workers run on; empty if that is this machine only."""
        ...

    def start(self, on_event: OnEvent) -> None:
        """Start the workers."""
        ...

    def send(self, command: Command) -> None:
        """Send a command to all workers."""
        ...

    def wait(self, step: Callable[[], bool]) -> None:
        """Pass messages until `step`, which is called about every 10 ms, returns True."""
        ...

    def kill(self, numbers: set[int]) -> None:
        """Kill the processes of these workers. Their ends are passed on as events."""
        ...

    def close(self) -> None:
        """End the workers, also those of a start that failed. Those that have been told to end have a minute for it, the others
        are killed at once."""
        ...
