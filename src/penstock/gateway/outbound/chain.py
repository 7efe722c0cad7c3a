"""The chain of filters that a reply passes on its way to the caller.

    upstream ─▶ [ read usage │ bind id │ restore model │ redact │ inspect │ send ] ─▶ caller

The upstream attempt feeds the chain with the bytes of a successful reply. They are split into frames: the events of a
stream, or one frame for a whole reply. Each filter gets the frames that the one before has released. A filter may return
an awaitable instead of frames: a verdict that is not there yet, a caller that does not read. The chain then pauses the
upstream and queues what still arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol

from penstock.gateway.dialects.base import StreamReader
from penstock.gateway.dialects.sse_frames import FRAME_BYTES, Frame, Frames, WholeReply
from penstock.gateway.guardrails import Blocked
from penstock.gateway.inbound.large_bodies import join
from penstock.gateway.memory import Holding

MAX_REPLY = 256 << 20
"""The largest whole reply in bytes."""

Released = list[Frame] | Awaitable[list[Frame]]


class Filter(Protocol):
    """One step on the way back."""

    reads_only: bool
    """True if the filter is also needed when nothing is sent any more."""

    @property
    def held_bytes(self) -> int:
        """The size of the frames that the filter holds back."""

    def feed(self, frames: list[Frame]) -> Released:
        """Return the frames to pass on. Must not be called again before an awaitable is done."""

    def finish(self) -> Released:
        """Return the frames that are left at the end of the reply."""


class Source(Protocol):
    """What feeds the chain."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def fail(self, error: Exception) -> None:
        """End the exchange after an internal error, which `run` raises."""


class WholeBody:
    """Collects a whole reply, which is one frame."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[Frame]:
        self._pieces.append(data)
        self.held_bytes += len(data)
        return []

    def __len__(self) -> int:
        return 0

    async def last(self) -> Frame | None:
        pieces, self._pieces = self._pieces, []
        return WholeReply(await join(pieces))


class ReplyChain:
    """Passes one reply through its filters."""

    _held = 0
    _last: Frame | None = None
    _waiting: asyncio.Future[list[Frame]] | None = None
    """What a filter waits for."""
    _starved = False
    """True while the reply waits for memory."""

    def __init__(
        self,
        filters: list[Filter],
        splitter: Frames | WholeBody,
        reader: StreamReader,
        source: Source,
        holding: Holding,
        on_block: Callable[[Blocked], None],
    ) -> None:
        """`reader` is the one of the first filter. `on_block` is called when a filter blocks the rest
        of a stream while it arrives."""
        self._filters = filters
        self.splitter = splitter
        self._reader = reader
        self._source = source
        self.max_bytes = MAX_REPLY if isinstance(splitter, WholeBody) else inf
        """A longer reply is an error."""
        self._holding = holding
        self._on_block = on_block
        self._queued: list[bytes] = []
        """Data that arrived meanwhile."""

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    @property
    def complete(self) -> bool:
        """True if the end of the stream has passed, and nothing of it is held."""
        return self._reader.terminal and self._waiting is None and not any(step.held_bytes for step in self._filters)

    # -- data ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Pass data of the upstream on. Raises what a filter raises, apart from a block."""
        if self._waiting is not None:
            self._queued.append(data)
            return
        self._pass(self.splitter.feed(data), 0)
        self._count()

    def _pass(self, frames: list[Frame], first: int) -> None:
        """Pass frames through the filters from number `first` on."""
        try:
            for number in range(first, len(self._filters)):
                if not frames:
                    return
                released = self._filters[number].feed(frames)
                if not isinstance(released, list):
                    self._wait(released, number + 1)
                    return
                frames = released
        except Blocked as blocked:
            self._on_block(blocked)

    def _wait(self, released: Awaitable[list[Frame]], following: int) -> None:
        waiting = self._waiting = asyncio.ensure_future(released)
        waiting.add_done_callback(lambda done: self._continue(done, following))
        self._source.pause()

    def _continue(self, done: asyncio.Future[list[Frame]], following: int) -> None:
        if done.cancelled() or self._waiting is not done:
            return  # the chain was reduced meanwhile
        self._waiting = None
        try:
            self._pass(done.result(), following)
            self._pass_queued()
        except Blocked as blocked:
            self._on_block(blocked)
        except Exception as error:
            self._source.fail(error)
        self._resume()

    def _pass_queued(self) -> None:
        while self._queued and self._waiting is None:
            self._pass(self.splitter.feed(self._queued.pop(0)), 0)

    def _resume(self) -> None:
        if self._waiting is None and not self._starved:
            self._source.resume()

    # -- memory -------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count what is held, and pause the upstream while the worker holds too much."""
        held = self.splitter.held_bytes
        if self.max_bytes == inf:  # no filter gets a whole reply before its end
            for step in self._filters:
                held += step.held_bytes
        if held == self._held:
            return
        self._held = held
        if not self._holding.set_reply(held, self._on_free) and not self._starved:
            self._starved = True
            self._source.pause()

    def _on_free(self) -> None:
        self._starved = False
        self._resume()

    # -- the end ------------------------------------------------------------------------------------------------------

    def read_only(self) -> None:
        """Send nothing more: keep only the filters that read, for the usage at the end of the stream."""
        self._filters = [step for step in self._filters if step.reads_only]
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
        if isinstance(self.splitter, Frames):
            self.splitter.limit = FRAME_BYTES
        self._pass_queued()
        self._starved = False
        self._resume()

    async def settle(self) -> None:
        """Wait until no filter waits."""
        while self._waiting is not None:
            await asyncio.wait((self._waiting,))

    @property
    def ends_within_event(self) -> bool:
        """True if the stream ended in the middle of an event, which the caller may have been sent in part."""
        return self._last is not None or len(self.splitter) > 0

    async def read_last(self) -> None:
        """Read what is left after the end of the upstream's reply: a whole reply, or an event without its blank line."""
        await self.settle()
        self._last = await self.splitter.last()
        if self._last is not None:
            await self._pass_all([self._last], self._filters, reads=True)

    async def finish(self, *, sends: bool = True) -> None:
        """Pass on what is left, after `read_last`, but not to the last filter if `sends` is False. Raises what a filter
        raises, also a block."""
        steps = self._filters if sends else self._filters[:-1]
        await self._pass_all([] if self._last is None else [self._last], steps, reads=False)

    async def _pass_all(self, frames: list[Frame], steps: list[Filter], *, reads: bool) -> None:
        for step in steps:
            if step.reads_only is reads:
                if frames:
                    passed = step.feed(frames)
                    frames = passed if isinstance(passed, list) else await passed
                if left := step.finish():
                    frames = [*frames, *(left if isinstance(left, list) else await left)]
