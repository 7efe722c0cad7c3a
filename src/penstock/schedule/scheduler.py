"""The scheduler of one phase on one worker: it decides when to send, does no I/O and reads no clock.

    next(now) ─▶ Send       send a turn of a session now; it was due at `intended`
                 Wait       nothing can be sent before `until`, or before an event if that is None
                 STARVED    a request is due, and its conversation is not indexed yet
                 CUT_OFF    the grace period is over: cancel the requests in flight
                 OVER       nothing is active and nothing more will be sent

Session n belongs to worker n mod workers, and the slots are split as evenly as possible, so workers exchange no messages. With
`UserArrivals`, the places of the users are split instead. Workers without a slot have no sessions. A request that is due while
all slots are in use is sent late; none is dropped. In a closed loop (no arrivals) a session is due when its slot becomes free.

A conversation may start others (`penstock.trees`). Such a tree has one number and one slot, until the last of its conversations
has ended; each of them is a session of its own, with its own turn in flight.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from penstock.schedule.conversations import Conversations
from penstock.schedule.limits import Fixed, SlotLimit
from penstock.schedule.phase import Phase
from penstock.schedule.share import Share, split
from penstock.schedule.tree_progress import TreeProgress
from penstock.schedule.turn_timing import TurnEnd
from penstock.schedule.users import UserArrivals, UserStart
from penstock.trees import AT_START, Node

_NEVER = 1 << 62


class ScheduledSession:
    """An active conversation."""

    tree: TreeProgress | None = None
    """The progress of the tree to which it belongs; None if it starts no others."""
    node = 0
    """Its number in the tree."""

    def __init__(self, number: int, conversation: int, turns: range, server: int) -> None:
        self.number = number
        """Position in the schedule of the phase, over all workers."""
        self.conversation = conversation
        self.turns = turns
        self.turn = 0
        self.server = server
        self.intended = 0
        """When the current turn was due."""
        self.prefilling = False
        """True while the current turn has a prefill slot."""

    @property
    def has_next(self) -> bool:
        return self.turn + 1 < (len(self.turns) if self.tree is None else self.tree.tree.nodes[self.node].end)

    @property
    def continues(self) -> bool:
        """True if another turn, or another conversation, follows the current turn."""
        return self.has_next or (self.tree is not None and self.turn in self.tree.tree.starts)

    def start_from(self, parent: ScheduledSession, node: Node) -> None:
        """Begin as a node of the same tree. A class that keeps more about a conversation extends this."""
        self.turn = node.first - 1  # `_send_turn` sends the next one
        self.intended = parent.intended


class Send(NamedTuple):
    session: ScheduledSession
    intended: int
    """When the request was due."""
    slot_free_at: int
    """When it was due and had a free slot. Any later delay is the sender's."""
    cancel_after_s: float | None = None
    """Cancel the request this long after it was sent."""


class Wait(NamedTuple):
    until: int | None = None


class State(Enum):
    STARVED = "starved"
    CUT_OFF = "cut off"
    OVER = "over"


STARVED, CUT_OFF, OVER = State.STARVED, State.CUT_OFF, State.OVER
Decision = Send | Wait | State

_EVENT = Wait()
_NO_USER = UserStart(_NEVER, _NEVER, 0)


class _Slots:
    """One worker's part of a limit: how many are in use, and since when each of the others is free."""

    def __init__(self, limit: SlotLimit | None, share: Share) -> None:
        self._limit = limit
        self._share = share
        self._start = 0
        self.total = _NEVER if limit is None else 0
        self.used = 0
        self.free: deque[int] | None = None if limit is None else deque()
        """When each free slot became free, oldest first."""
        self.changes_at = _NEVER

    def begin(self, now: int) -> None:
        self._start = now
        if self._limit is not None:
            self.update(now)

    def set(self, limit: SlotLimit, now: int) -> None:
        self._limit = limit
        self._resize(split(limit.at(now - self._start), self._share), now)
        self._plan_change(now)

    def update(self, now: int) -> None:
        """Apply the changes of the limit up to now, each at its own time."""
        if self._limit is None:
            return
        at = self._start if self.changes_at == _NEVER else self.changes_at
        while at <= now:
            self._resize(split(self._limit.at(at - self._start), self._share), at)
            self._plan_change(at)
            at = self.changes_at

    def _plan_change(self, now: int) -> None:
        change = None if self._limit is None else self._limit.next_change(now - self._start)
        self.changes_at = _NEVER if change is None else self._start + change

    def _resize(self, total: int, now: int) -> None:
        self.total = total
        if self.free is not None:
            while len(self.free) + self.used < total:
                self.free.append(now)
            while self.free and len(self.free) + self.used > total:
                self.free.pop()

    def take(self) -> int:
        """Take a slot and return since when it was free; 0 without a limit."""
        self.used += 1
        return self.free.popleft() if self.free else 0

    def release(self, at: int) -> None:
        self.used -= 1
        if self.free is not None and len(self.free) + self.used < self.total:
            self.free.append(at)


class Scheduler:
    def __init__(
        self,
        phase: Phase,
        share: Share,
        conversations: Conversations,
        *,
        servers: int = 1,
        session_type: type[ScheduledSession] = ScheduledSession,
    ) -> None:
        """`servers` is the number of servers; sessions are made by `session_type`, which may add attributes."""
        working = phase.working_share(share)
        self._phase = phase
        self._share = working or share
        self._conversations = conversations
        self._servers = servers
        self._session_type = session_type
        self._slots = _Slots(phase.slots, self._share)
        self._prefill = None if phase.prefill_slots is None else _Slots(phase.prefill_slots, self._share)
        self._arrivals: Iterator[int | None] | None = None
        self._users: Iterator[UserStart | None] | None = None
        self._due: Iterator[int | None] | None = None
        """A second iterator over the arrivals, with which `waiting` counts those up to now; None if no arrival can wait."""
        self._next_due: int | None = None
        self._due_count = self._taken = 0
        """Arrivals that were read from it, and arrivals for which requests were sent."""
        self._user_turns: int | None = None
        """Turns of the next session, if its user sends only some of them."""
        self._copies = phase.servers.copies
        self._requests_left = None if phase.requests is None else split(phase.requests, self._share)
        if isinstance(phase.arrivals, UserArrivals):
            self._users = phase.arrivals.starts(self._share, conversations, phase.first, self._copies)
            if phase.requests is not None:
                self._requests_left = phase.arrivals.requests_of(self._share, phase.requests)
        elif phase.arrivals is not None:
            self._arrivals = phase.arrivals.times(self._share, phase.seed, conversations)
            if phase.slots is not None:
                self._due = phase.arrivals.times(self._share, phase.seed, conversations)
        self._arrival: int | None = None
        """The next arrival; None if it is not known yet."""
        self._timing = phase.turn_timing
        self._turns: list[tuple[int, int, int, int, ScheduledSession]] = []
        """Heap of (time from which it can be sent, session number, turn, due, session): next turns that wait for their time."""
        self._size_unknown = phase.whole
        self._conversations_limit = _NEVER if phase.conversations is None else phase.conversations
        """Sessions of all workers have numbers below this one."""
        self._began_at = 0
        self._ends_at = _NEVER
        self._position = share.worker
        """Position of the next session of this worker in the order of the phase."""
        self._resumed = phase.resumed
        self._number = self._position if phase.resumed is None else phase.resumed.number(self._position)
        """Number of the next session of this worker."""
        self._started = 0 if phase.resumed is None else phase.resumed.next_number
        self._stopped = working is None

    # -- the phase ----------------------------------------------------------------------------------------------------

    def begin(self, now: int, carried: int = 0) -> None:
        """Start the phase. `carried` sessions of the previous phase are still active and occupy slots until they end."""
        self._began_at = now
        if self._phase.duration_s is not None:
            self._ends_at = now + round(self._phase.duration_s * 1e9)
        self._slots.begin(now)
        if self._prefill is not None:
            self._prefill.begin(now)
        for _ in range(carried):
            self._slots.take()
        if self._phase.arrivals is not None:
            self._advance()

    @property
    def active(self) -> int:
        """Number of sessions that have started and not ended, including carried ones."""
        return self._slots.used

    @property
    def next_number(self) -> int:
        """One more than the number of the last session that this worker has started."""
        return self._started

    def waiting(self, now: int) -> int:
        """Return how many requests are due and wait for a slot. With `UserArrivals`, only further turns are counted."""
        if self._stopped or self._requests_left == 0 or now >= self._ends_at:
            return 0
        turns = sum(turn[0] <= now for turn in self._turns) if self._turns and self._turns[0][0] <= now else 0
        arrived = 0
        if self._due is not None and not self._exhausted():
            while self._next_due is None or self._next_due <= now:
                offset = next(self._due, _NEVER)
                self._next_due = None if offset is None else self._began_at + offset
                if offset is None:
                    break
                self._due_count += 1
            unknown = self._next_due is None
            arrived = max(0, self._due_count - (not unknown) - self._taken)
        waiting = arrived if self._timing.takes_arrivals else turns + arrived
        return waiting if self._requests_left is None else min(waiting, self._requests_left)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def set_limits(self, now: int, *, slots: int | None = None, prefill_slots: int | None = None) -> None:
        """Change the limits of all workers together; None leaves a limit as it is. The limit must exist already."""
        for value, held in ((slots, self._slots), (prefill_slots, self._prefill)):
            if value is not None and held is not None:
                held.set(Fixed(value), now)

    # -- events -------------------------------------------------------------------------------------------------------

    def first_content(self, session: ScheduledSession, at: int) -> None:
        """Free the prefill slot of a request whose reply has begun."""
        if session.prefilling and self._prefill is not None:
            session.prefilling = False
            self._prefill.release(at)

    def ended(self, session: ScheduledSession, at: int, *, more: bool = True) -> None:
        """Handle the end of a turn. The session ends too if it has no other turn, after `stop`, or without `more`."""
        if session.prefilling:
            self.first_content(session, at)
        more = more and not self._stopped
        if session.tree is not None:
            self._turn_of_tree_ended(session, session.tree, at, more)
        elif more and session.has_next:
            self._wait_for_turn(session, at)
        else:
            self._slots.release(at)

    def _turn_of_tree_ended(self, session: ScheduledSession, tree: TreeProgress, at: int, more: bool) -> None:
        if more:
            for number in tree.tree.starts.get(session.turn, ()):
                self._start_node(session, tree, number, at)
        if not more or not session.has_next:
            for freed in tree.end(session.node):
                self._wait_for_turn(freed, at)
        elif not tree.hold(session):
            self._wait_for_turn(session, at)
        if not tree.active:
            self._slots.release(at)

    def _start_node(self, parent: ScheduledSession, tree: TreeProgress, number: int, at: int) -> None:
        session = self._session_type(parent.number, parent.conversation, parent.turns, parent.server)
        session.tree, session.node = tree, number
        session.start_from(parent, tree.tree.nodes[number])
        tree.start(number)
        self._wait_for_turn(session, at)

    def _wait_for_turn(self, session: ScheduledSession, at: int) -> None:
        """Wait for the time of the next turn of a session. `at` is the end of what it follows."""
        turn, conversation = session.turn + 1, session.conversation
        end = TurnEnd(
            at,
            session.intended,
            self._conversations.delay_ns(conversation, turn),
            self._conversations.recorded_ns(conversation, turn),
            self._began_at,
        )
        due = self._timing.due(end)
        heapq.heappush(self._turns, (max(at, due), session.number, turn, due, session))

    def carried_ended(self, at: int) -> None:
        """Free the slot of a session of an earlier phase."""
        self._slots.release(at)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def next(self, now: int) -> Decision:
        slots, prefill = self._slots, self._prefill
        if now >= slots.changes_at:
            slots.update(now)
        if prefill is not None and now >= prefill.changes_at:
            prefill.update(now)
        if self._stopped or self._requests_left == 0 or now >= self._ends_at:
            return self._drain(now)
        if now < self._began_at:
            return Wait(self._began_at)
        if prefill is not None and prefill.used >= prefill.total:
            return self._wait(now)
        if self._turns and not self._timing.takes_arrivals and self._turns[0][0] <= now:
            ready, _, _, due, session = heapq.heappop(self._turns)
            return self._send_turn(session, due, ready)
        return self._next_of_closed_loop(now) if self._phase.arrivals is None else self._next_of_arrivals(now)

    def _next_of_closed_loop(self, now: int) -> Decision:
        slots = self._slots
        if slots.used >= slots.total or self._exhausted():
            return self._wait(now)
        session = self._new_session(now)
        if session is None:
            return self._wait(now) if self._exhausted() else STARVED
        due = slots.take()
        return self._send(session, due, due)

    def _next_of_arrivals(self, now: int) -> Decision:
        slots, turns_take_arrivals = self._slots, self._timing.takes_arrivals
        while True:
            exhausted = self._exhausted()
            if exhausted and not (turns_take_arrivals and slots.used):
                return self._wait(now)
            if self._arrival is None and not self._advance():
                return STARVED
            arrival = self._arrival
            assert arrival is not None
            if arrival > now:
                return self._wait(now, arrival)
            if turns_take_arrivals and self._turns and self._turns[0][0] <= now:
                ready, _, _, _, session = heapq.heappop(self._turns)
                self._advance()
                return self._send_turn(session, arrival, max(arrival, ready))
            if exhausted:
                self._advance()  # no turn is ready for this arrival, and no conversation may start
                continue
            if slots.used >= slots.total:
                return self._wait(now)
            found = self._new_session(now)
            if found is None:
                return self._wait(now) if self._exhausted() else STARVED
            free_since = slots.take()
            self._advance()
            return self._send(found, arrival, max(arrival, free_since))

    def _advance(self) -> bool:
        """Read the next arrival; return whether it is known."""
        if self._users is not None:
            return self._advance_users(self._users)
        assert self._arrivals is not None
        if self._arrival is not None:
            self._taken += 1
        offset = next(self._arrivals, _NEVER)
        self._arrival = None if offset is None else self._began_at + offset
        return offset is not None

    def _advance_users(self, users: Iterator[UserStart | None]) -> bool:
        start = next(users, _NO_USER)
        self._arrival = None if start is None else self._began_at + start.at
        if start is not None:
            self._number, self._user_turns = start.number, start.turns
        return start is not None

    def _exhausted(self) -> bool:
        """Return whether no new conversation may start."""
        if self._size_unknown and self._conversations.size is not None:
            self._size_unknown = False
            self._conversations_limit = min(self._conversations_limit, self._conversations.size * self._copies)
        return self._number >= self._conversations_limit

    def _new_session(self, now: int) -> ScheduledSession | None:
        """Return the next session; None if its conversation is not indexed yet, or if there is none."""
        number = self._number
        conversation = self._conversations.pick(self._phase.first + number // self._copies)
        if conversation is None or (self._size_unknown and self._exhausted()):
            return None
        self._started = max(self._started, number + 1)
        if self._users is None:
            self._position += self._share.workers
            self._number = self._position if self._resumed is None else self._resumed.number(self._position)
        server = self._phase.servers.server(number, self._servers, self._phase.seed)
        turns = self._conversations.turns(conversation)
        if self._user_turns is not None:
            turns = turns[: self._user_turns]
        session = self._session_type(number, conversation, turns, server)
        tree = self._conversations.tree(conversation)
        if tree is not None:
            session.tree = progress = TreeProgress(tree)
            for node in tree.starts.get(AT_START, ()):
                self._start_node(session, progress, node, now)
        return session

    def _send_turn(self, session: ScheduledSession, intended: int, slot_free_at: int) -> Send:
        session.turn += 1
        return self._send(session, intended, slot_free_at)

    def _send(self, session: ScheduledSession, intended: int, slot_free_at: int) -> Send:
        if self._requests_left is not None:
            self._requests_left -= 1
        session.intended = intended
        if self._prefill is not None:
            session.prefilling = True
            slot_free_at = max(slot_free_at, self._prefill.take())
        cancellation = self._phase.cancellation
        if cancellation is None or not cancellation.applies(session.number, session.turn, self._phase.seed):
            return Send(session, intended, slot_free_at)
        return Send(session, intended, slot_free_at, cancellation.delay_s)

    def _wait(self, now: int, arrival: int = _NEVER) -> Decision:
        """Return the decision when nothing can be sent now: wait for the next arrival, turn, change of a limit or end."""
        limits = self._slots.changes_at
        if self._prefill is not None:
            limits = min(limits, self._prefill.changes_at)
        if not self._slots.used and (self._exhausted() or min(arrival, limits) >= self._ends_at):
            return OVER  # nothing is active, so no event will come
        until = min(arrival, limits, self._ends_at)
        if self._turns and self._turns[0][0] > now and not (self._timing.takes_arrivals and arrival != _NEVER):
            until = min(until, self._turns[0][0])
        return _EVENT if until >= _NEVER else Wait(until)

    def _drain(self, now: int) -> Decision:
        """Return the decision when nothing more is sent: wait for the active sessions, and cut them off at last."""
        while self._turns:
            *_, session = heapq.heappop(self._turns)
            if session.tree is None or session.tree.leave():
                self._slots.release(now)
        if not self._slots.used:
            return OVER
        grace = self._phase.grace_s
        if grace is None or self._ends_at == _NEVER:
            return _EVENT
        cut_off = self._ends_at + round(grace * 1e9) if grace < 1e9 else _NEVER
        return CUT_OFF if now >= cut_off else Wait(cut_off)
