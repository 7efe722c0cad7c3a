"""A phase of a run: one load, its data and its end, as plain data that can be sent to workers and written to the log."""

from __future__ import annotations

from random import Random

import msgspec

from penstock.schedule.arrivals import Arrivals, Continued, ContinuedRecording, Recorded
from penstock.schedule.limits import SlotLimit
from penstock.schedule.server_assignment import RoundRobin, ServerAssignment
from penstock.schedule.share import Share
from penstock.schedule.turn_timing import AfterReply, AtRecordedTimes, TurnTiming
from penstock.schedule.users import UserArrivals


class Cancellation(msgspec.Struct, frozen=True, tag="cancellation"):
    """Cancel a random share of the requests, `delay_s` after each was sent."""

    share: float
    delay_s: float = 0.0

    def applies(self, number: int, turn: int, seed: int) -> bool:
        """Return whether to cancel a turn of session `number`. It is a pure function of the seed."""
        return Random(f"{seed}/cancellation/{number}/{turn}").random() < self.share


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """The state from which a phase continues that an earlier process began. Sessions keep the numbers that they had then."""

    unfinished: tuple[int, ...] = ()
    """Numbers of the sessions that were started or skipped and did not end; they begin again, at their first turn."""
    next_number: int = 0
    """Number of the first session after them."""
    active_ns: int = 0
    """How long the phase has run, up to its last record."""
    arrived_ns: int = 0
    """How much of the arrival process is over."""

    def number(self, position: int) -> int:
        """Return the number of a session by its position in the resumed phase: first those that begin again."""
        first = len(self.unfinished)
        return self.unfinished[position] if position < first else self.next_number + position - first


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    """`warmup` or `profiling`."""
    first: int = 0
    """Position in the order of the dataset at which the phase starts: profiling continues where the warmup stopped."""
    arrivals: Arrivals | None = None
    """When requests are due; None for a closed loop, in which a request is due when a slot becomes free."""
    slots: SlotLimit | None = None
    """Conversations that may be active at once; None for no limit."""
    prefill_slots: SlotLimit | None = None
    """Requests that may wait for their first content at once; None for no limit."""
    turn_timing: TurnTiming = AfterReply()
    servers: ServerAssignment = RoundRobin()
    requests: int | None = None
    """Stop after this many requests."""
    conversations: int | None = None
    """Stop after starting this many conversations, and finish them."""
    duration_s: float | None = None
    """Stop sending after this time."""
    whole: bool = False
    """Send the whole dataset once."""
    grace_s: float | None = None
    """Time for the requests in flight after `duration_s`; then they are cancelled. None for no limit."""
    cancellation: Cancellation | None = None
    seed: int = 0
    point: int = 0
    """Which point of an experiment the phase measures."""
    resumed: Resumed | None = None
    """The state from which the phase continues, if an earlier process has run a part of it."""

    def starting_at(self, position: int) -> Phase:
        """Return the same phase from this position in the order of the dataset; the whole dataset always starts at 0."""
        if self.whole:
            return self
        servers = RoundRobin(position) if isinstance(self.servers, RoundRobin) else self.servers
        return msgspec.structs.replace(self, first=position, servers=servers)

    def continued(self, resumed: Resumed, requests: int) -> Phase:
        """Return the rest of the phase, of which `requests` have been recorded. Ramps of limits begin again; the arrivals go
        on where they were."""
        arrivals, timing = self.arrivals, self.turn_timing
        if isinstance(arrivals, Recorded):
            arrivals = ContinuedRecording(arrivals, resumed.arrived_ns, len(resumed.unfinished), resumed.next_number)
        elif isinstance(arrivals, UserArrivals):
            arrivals = msgspec.structs.replace(
                arrivals,
                after_ns=resumed.arrived_ns,
                unfinished=resumed.unfinished,
                next_number=resumed.next_number,
            )
        elif arrivals is not None:
            arrivals = Continued(arrivals, resumed.arrived_ns)
        if isinstance(timing, AtRecordedTimes):
            timing = msgspec.structs.replace(timing, after_ns=resumed.arrived_ns)
        return msgspec.structs.replace(
            self,
            resumed=resumed,
            arrivals=arrivals,
            turn_timing=timing,
            requests=None if self.requests is None else max(0, self.requests - requests),
            duration_s=None if self.duration_s is None else max(0.0, self.duration_s - resumed.active_ns / 1e9),
        )

    def working_share(self, share: Share) -> Share | None:
        """Return the share of a worker among those that have slots in this phase; None if it has none."""
        workers = share.workers
        for limit in (self.slots, self.prefill_slots):
            if limit is not None:
                workers = min(workers, max(1, limit.maximum))
        return Share(share.worker, workers) if share.worker < workers else None
