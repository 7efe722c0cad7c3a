"""Streams that are released as they become clean.

Events leave whole and in order, each as soon as all of its text is decided (see `channels`) and nothing before it waits.
Until the first text is decided nothing leaves at all, so that a block that comes early is still an error of its own and
not the end of a stream that has begun. What is held is bounded in bytes; events without any text that wait for a first
one are let go when they alone reach the bound.
"""

from __future__ import annotations

from collections import deque

from penstock.gateway.frames import Frame, Part
from penstock.gateway.guardrails.chain import Blocked, Chain
from penstock.gateway.guardrails.channels import Channel, Channels
from penstock.gateway.guardrails.inspection import StreamBlocked
from penstock.gateway.guardrails.streams import Event, StreamGuard
from penstock.gateway.guardrails.texts import Slot
from penstock.gateway.routes import Route

__all__ = ["WindowGuard"]


class _Segment:
    """A piece of a text and its place in it."""

    __slots__ = ("channel", "end", "folded_end", "slot", "text")

    def __init__(self, channel: Channel, slot: Slot, text: str) -> None:
        self.channel = channel
        self.slot = slot
        self.text = text
        self.end = channel.end
        self.folded_end = channel.folded_end

    def leave(self) -> bool:
        """Puts the masked text in place, where there is any; called in order."""
        channel, end, text = self.channel, self.end, self.text
        start = end - len(text)
        if channel.masking.touches(start, end):
            masked = channel.masking.cut(text, start)
            if masked != text:
                self.slot.write(masked)
        channel.released = end
        return self.slot.written


class _Held:
    __slots__ = ("event", "segments", "size")

    def __init__(self, event: Event, segments: list[_Segment]) -> None:
        self.event = event
        self.segments = segments
        self.size = len(event.frame.raw)

    def decided(self) -> bool:
        for segment in self.segments:
            channel = segment.channel
            if channel.decided < segment.end or channel.folded_decided < segment.folded_end:
                return False
        return True


class WindowGuard(StreamGuard):
    def __init__(self, chain: Chain, route: Route, limit: int) -> None:
        super().__init__(chain, route)
        self._limit = limit
        self._channels = Channels(chain, self._tally, limit)
        self._held: deque[_Held] = deque()
        self._size = 0
        self._begun = False
        """Text has been released."""

    @property
    def waiting(self) -> bool:
        return bool(self._held)

    @property
    def held_bytes(self) -> int:
        return self._size

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        del pending  # beyond the longest event there would be a part among the frames
        if frames and isinstance(frames[-1], Part):
            raise StreamBlocked(None)
        try:
            if len(frames) == 1 and self._begun and not self._held:
                released = self._at_once(frames[0])
                if released:
                    return released
            else:
                for frame in frames:
                    self._examine(Event(frame, self._reader))
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        released = self._release()
        if self._size > self._limit:
            released += self._relieve()
        return released

    def finish(self, rest: Frame | None) -> bytes:
        event, left = self._last_event(rest)
        try:
            if event is not None:
                self._examine(event)
            self._channels.close(())
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        self._begun = True
        return self._release() + left

    def _at_once(self, frame: Frame) -> bytes:
        """One event with one piece of text that is clean, and nothing waits: what most of a stream is."""
        event = Event(frame, self._reader)
        pieces, whole, ended = event.reading
        if len(pieces) != 1 or whole or ended:
            self._examine(event)
            return b""
        key, slot = pieces[0]
        channel = self._channels.at(key)
        text = channel.add(slot.text)
        end = channel.end
        if (
            channel.decided == end
            and channel.folded_decided == channel.folded_end
            and not channel.masking.touches(channel.released, end)
        ):
            channel.released = end
            self._last = event.payload
            return frame.raw
        self._hold(event, [_Segment(channel, slot, text)])
        return b""

    def _examine(self, event: Event) -> None:
        if self.response_id is None:
            self._identify(event.payload)
        pieces, whole, ended = event.reading
        segments: list[_Segment] = []
        for key, slot in pieces:
            channel = self._channels.at(key)
            text = channel.add(slot.text)
            segments.append(_Segment(channel, slot, text))
        if whole and self._chain.examine(whole, self._tally):
            event.changed = True
        for beginning in ended:
            self._channels.close(beginning)
        self._hold(event, segments)

    def _hold(self, event: Event, segments: list[_Segment]) -> None:
        held = _Held(event, segments)
        self._held.append(held)
        self._size += held.size

    def _release(self) -> bytes:
        held = self._held
        if not self._begun and not self._may_begin():
            return b""
        out: list[bytes] = []
        while held and held[0].decided():
            first = held.popleft()
            self._size -= first.size
            event = first.event
            for segment in first.segments:
                if segment.leave():
                    event.changed = True
            out.append(event.raw if event.changed else event.frame.raw)
            if event.payload is not None:
                self._last = event.payload
        return out[0] if len(out) == 1 else b"".join(out)

    def _may_begin(self) -> bool:
        for held in self._held:
            if not held.decided():
                return False
            if held.segments or held.event.reading[1]:
                self._begun = True
                return True
        return False

    def _relieve(self) -> bytes:
        """More is held than may be: only what has no text in it can go."""
        if not all(held.decided() for held in self._held):
            raise StreamBlocked(None)
        self._begun = True
        return self._release()
