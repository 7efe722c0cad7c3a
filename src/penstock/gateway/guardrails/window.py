"""Streams that are released as they become clean.

Events leave whole and in order, each as soon as all of its text is decided (see `channels`) and nothing before it waits.
Until the first text is decided nothing leaves at all, so that a block that comes early is still an error of its own and
not the end of a stream that has begun. What is held is bounded in bytes; events without any text that wait for a first
one are let go when they alone reach the bound.

Where a chat has moved on from a field whose end is not decided, nothing waits for that: when the turn of its event comes, the
piece is taken out of it and set aside as an event of its own, which leaves when the field goes on or ends.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from penstock.gateway.guardrails.chain import Blocked, Chain
from penstock.gateway.guardrails.channels import Channel, Channels
from penstock.gateway.guardrails.events import Key, Reader, alone
from penstock.gateway.guardrails.inspection import StreamBlocked
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.streams import Event, StreamGuard
from penstock.gateway.guardrails.texts import Slot
from penstock.gateway.routes import Route
from penstock.gateway.sse_frames import Frame, Part

__all__ = ["WindowGuard"]


class _Segment:
    """A piece of a text and its place in it."""

    __slots__ = ("_copies", "_folded_end", "alone", "channel", "end", "key", "slot", "text")

    def __init__(self, key: Key, channel: Channel, slot: Slot, text: str) -> None:
        self.key = key
        self.channel = channel
        self.slot = slot
        self.text = text
        self.alone: dict[str, Any] | None = None
        """What it says by itself, when the stream has moved away from its text: then nothing waits for it."""
        self.end = channel.end
        self._folded_end = channel.folded_end
        self._copies = channel.copy.ends() if channel.copy is not None else ()

    def decided(self) -> bool:
        channel = self.channel
        if channel.decided < self.end or channel.folded_decided < self._folded_end:
            return False
        return not self._copies or all(
            copy.decided >= end and copy.folded_decided >= folded_end for copy, end, folded_end in self._copies
        )

    def leave(self) -> None:
        """Puts the masked text in place, where there is any; called in order."""
        channel, end, text = self.channel, self.end, self.text
        start = end - len(text)
        if channel.masking.touches(start, end):
            masked = channel.masking.cut(text, start)
            if masked != text:
                self.slot.new = masked
        channel.released = end


class _Held:
    __slots__ = ("event", "segments", "size")

    def __init__(self, event: Event, segments: list[_Segment]) -> None:
        self.event = event
        self.segments = segments
        self.size = len(event.frame.raw)

    def decided(self) -> bool:
        return all(map(_Segment.decided, self.segments))

    def ready(self) -> bool:
        """Nothing in it has to be waited for."""
        return all(segment.alone is not None or segment.decided() for segment in self.segments)

    def split(self) -> list[_Held]:
        """Takes out what is not decided, each as an event of its own."""
        waiting = [segment for segment in self.segments if not segment.decided()]
        self.segments = [segment for segment in self.segments if segment not in waiting]
        pieces: list[_Held] = []
        for segment in waiting:
            event = Event(Frame(f"data: {json.dumps(segment.alone)}\n\n".encode()), Reader())
            segment.slot.new = ""
            segment.slot = event.reading[0][0][1]
            pieces.append(_Held(event, [segment]))
        return pieces

    def leave(self) -> bytes:
        for segment in self.segments:
            segment.leave()
        return self.event.raw


class WindowGuard(StreamGuard):
    def __init__(self, chain: Chain, route: Route, limit: int, patience: SearchBudgets) -> None:
        super().__init__(chain, route, patience)
        self._limit = limit
        self._channels = Channels(chain, self._tally, limit, patience)
        self._held: deque[_Held] = deque()
        self._aside: list[_Held] = []
        """Single pieces of events that have left: of one text they are in order, and before what is held."""
        self._size = 0
        self._begun = False
        """Text has been released."""

    @property
    def waiting(self) -> bool:
        return bool(self._held or self._aside)

    @property
    def held_bytes(self) -> int:
        return self._size

    def feed(self, frames: list[Frame], pending: int) -> bytes:
        del pending  # beyond the longest event there would be a part among the frames
        if frames and isinstance(frames[-1], Part):
            raise StreamBlocked(None)
        try:
            if len(frames) == 1 and self._begun and not self.waiting:
                released = self._at_once(frames[0])
                if released:
                    return released
            else:
                for frame in frames:
                    self._examine(self._event(frame))
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        released = self._release()
        if self._size > self._limit:
            released += self._relieve()
        return released

    def finish(self, rest: Frame | None, patience: SearchBudgets | None = None) -> bytes:
        del patience
        event = self._last_event(rest)
        try:
            if event is not None:
                self._examine(event)
            self._channels.close(())
        except Blocked as blocked:
            raise self._blocked(blocked) from None
        self._begun = True
        return self._release()

    def _at_once(self, frame: Frame) -> bytes:
        """One event with one piece of text that is clean, and nothing waits: what most of a stream is."""
        event = self._event(frame)
        pieces, whole, ended, moved = event.reading
        if len(pieces) != 1 or whole or ended or moved or event.beside is not None:
            self._examine(event)
            return b""
        key, slot = pieces[0]
        channel = self._channels.at(key)
        text = channel.add(slot.text)
        end = channel.end
        if channel.settled and not channel.masking.touches(channel.released, end):
            channel.released = end
            self._last = event.payload
            return event.frame.raw
        self._hold(event, [_Segment(key, channel, slot, text)])
        return b""

    def _examine(self, event: Event) -> None:
        if self.response_id is None:
            self._identify(event.payload)
        pieces, whole, ended, moved = event.reading
        self._examine_beside(event)
        segments: list[_Segment] = []
        for key, slot in pieces:
            channel = self._channels.at(key)
            text = channel.add(slot.text)
            segments.append(_Segment(key, channel, slot, text))
        if whole:
            self._chain.examine(whole, self._tally, self._patience)
        for beginning in ended:
            self._channels.close(beginning)
        for key in moved:
            self._set_aside(self._channels.at(key))
        self._hold(event, segments)

    def _set_aside(self, channel: Channel) -> None:
        """What is not decided of a text that the stream has left: its last pieces, back to where it did so before."""
        for held in reversed(self._held):
            for segment in reversed(held.segments):
                if segment.channel is channel:
                    if segment.alone is not None or segment.decided():
                        return
                    segment.alone = alone(held.event.payload, segment.key, segment.slot)

    def _hold(self, event: Event, segments: list[_Segment]) -> None:
        held = _Held(event, segments)
        self._held.append(held)
        self._size += held.size

    def _release(self) -> bytes:
        held = self._held
        if not self._begun and not self._may_begin():
            return b""
        out = self._release_aside() if self._aside else []
        while held and held[0].ready():
            first = held.popleft()
            self._size -= first.size
            if not first.decided():
                pieces = first.split()
                self._aside += pieces
                self._size += sum([piece.size for piece in pieces])
            out.append(first.leave())
            if first.event.payload is not None:
                self._last = first.event.payload
        return out[0] if len(out) == 1 else b"".join(out)

    def _release_aside(self) -> list[bytes]:
        out: list[bytes] = []
        waiting: list[_Held] = []
        for held in self._aside:
            if held.decided():
                self._size -= held.size
                out.append(held.leave())
            else:
                waiting.append(held)
        self._aside = waiting
        return out

    def _may_begin(self) -> bool:
        for held in self._held:
            if not held.ready():
                return False
            if held.event.reading[1] or any(map(_Segment.decided, held.segments)):
                self._begun = True
                return True
        return False

    def _relieve(self) -> bytes:
        """More is held than may be: only what has no text in it can go."""
        if not all(map(_Held.ready, self._held)):
            raise StreamBlocked(None)
        self._begun = True
        released = self._release()
        if self._size > self._limit:
            raise StreamBlocked(None)
        return released
