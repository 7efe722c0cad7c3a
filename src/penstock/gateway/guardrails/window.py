"""The stream guard of `stream_mode: window`, which releases events as soon as they are clean.

Events are released whole and in order, each as soon as all of its text is decided (see `streamed_texts`) and no earlier
event is held. Nothing is released before the first text is decided or the first heartbeat is due, so that an early block is
an HTTP error and not the end of a started stream. The held text and bytes are bounded; leading events without text are
released when they alone reach the bound.

The end of a text may be the beginning of a match that the next part of the message completes. It is held until that part,
or the next item, has begun (see `streamed_texts`).

When a chat switches away from a field whose end is undecided, later events do not wait for it: the undecided piece is
removed from its event and detached as an event of its own, which is released when the field continues or ends.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable
from typing import Any

from penstock.gateway.dialects.event_texts import EventTexts
from penstock.gateway.dialects.sse_frames import Frame, Part
from penstock.gateway.dialects.texts import Address, TextRef
from penstock.gateway.guardrails.chain import Chain
from penstock.gateway.guardrails.delta_template import DeltaTemplate
from penstock.gateway.guardrails.incremental_search import StreamSearch
from penstock.gateway.guardrails.inspection import Blocked, MatchCounts
from penstock.gateway.guardrails.offload import INLINE_BYTES, run_in_thread
from penstock.gateway.guardrails.search_budget import SearchBudgets
from penstock.gateway.guardrails.streamed_texts import StreamedText, StreamedTexts
from penstock.gateway.guardrails.streams import MAX_HELD_BYTES, Event, MonitorGuard, StreamGuard
from penstock.gateway.ledger.entry import GuardrailHit
from penstock.gateway.resources.config import GuardrailMode
from penstock.gateway.routes import Route

_MAX_TEMPLATES = 16
"""How often a stream may make a template. Templates are useless if the events also differ in other values."""
_LOOP_SHARE = 0.25
"""Share of `max_inspection_ms` for streams that are searched as they arrive, because most searches block the event loop."""


class _Segment:
    """A piece of a streamed text and its end position in the text."""

    def __init__(self, address: Address, streamed_text: StreamedText, ref: TextRef, text: str) -> None:
        self.address = address
        self.streamed_text = streamed_text
        self.ref = ref
        self.text = text
        self.own_chunk: dict[str, Any] | None = None
        """The piece as an event of its own, if the stream has switched away from its text. Then nothing waits for it."""
        self.end = streamed_text.end

    def decided(self) -> bool:
        return self.streamed_text.decided >= self.end <= self.streamed_text.held_from

    def release(self) -> None:
        """Apply the masks to the piece. Must be called in stream order."""
        streamed_text, end, text = self.streamed_text, self.end, self.text
        start = end - len(text)
        if streamed_text.masking.overlaps(start, end):
            masked = streamed_text.masking.apply(text, start)
            if masked != text:
                self.ref.replacement = masked
        streamed_text.released = end


class _HeldEvent:
    """An event that waits for its segments to be decided."""

    def __init__(self, event: Event, segments: list[_Segment]) -> None:
        self.event = event
        self.segments = segments
        self.size = len(event.frame.raw)
        self.text_size = sum([len(segment.text) for segment in segments])

    def decided(self) -> bool:
        return all(map(_Segment.decided, self.segments))

    def ready(self) -> bool:
        """Return True if every segment is decided or can be detached."""
        return all(segment.own_chunk is not None or segment.decided() for segment in self.segments)

    def split(self, event_texts: EventTexts) -> list[_HeldEvent]:
        """Remove the undecided segments and return each as an event of its own."""
        waiting = [segment for segment in self.segments if not segment.decided()]
        self.segments = [segment for segment in self.segments if segment not in waiting]
        pieces: list[_HeldEvent] = []
        for segment in waiting:
            event = Event(Frame(f"data: {json.dumps(segment.own_chunk)}\n\n".encode()), event_texts)
            segment.ref.replacement = ""
            segment.ref = event.texts.pieces[0][1]
            pieces.append(_HeldEvent(event, [segment]))
        return pieces

    def release(self) -> bytes:
        for segment in self.segments:
            segment.release()
        return self.event.raw


class WindowGuard(StreamGuard):
    """Releases events as soon as their text is decided. `monitor` gets all events."""

    def __init__(self, chain: Chain, route: Route, mode: GuardrailMode, monitor: MonitorGuard | None) -> None:
        super().__init__(chain, route, mode)
        self._budgets = SearchBudgets(mode.max_inspection_ms / 1000 * _LOOP_SHARE, stream=True)
        self._monitor = monitor
        self._streamed_texts = StreamedTexts(StreamSearch(chain, self._match_counts, self._budgets), self._event_texts)
        self._held: deque[_HeldEvent] = deque()
        self._detached: list[_HeldEvent] = []
        """Pieces removed from released events. Those of one text are in order, and precede its held pieces."""
        self._size = self._text_size = 0
        self._started = False
        """True once text has been released."""
        self._template: tuple[DeltaTemplate, Address, StreamedText] | None = None
        """What the next event probably looks like, and its text."""
        self._templates = 0
        self.heartbeat_s = mode.heartbeat_s or None

    @property
    def hits(self) -> list[GuardrailHit]:
        counts = MatchCounts("output")
        counts.add_all(self._match_counts)
        if self._monitor is not None:
            counts.add_all(self._monitor._match_counts)
        return counts.hits()

    @property
    def waiting(self) -> bool:
        return bool(self._held or self._detached)

    @property
    def held_bytes(self) -> int:
        return self._size

    def feed(self, frames: list[Frame], pending: int) -> bytes | Awaitable[bytes]:
        del pending  # an event above `max_event_bytes` arrives as a Part
        if frames and isinstance(frames[-1], Part):
            raise self._too_long("window")
        if self._monitor is not None:
            self._monitor.feed(frames, 0)
        # The end of a held text is a search of all of it.
        size = len(frames[0].raw) if len(frames) == 1 else sum([len(frame.raw) for frame in frames])
        if self._size + size > INLINE_BYTES:
            return run_in_thread(lambda: self._feed(frames))
        return self._feed(frames)

    def _feed(self, frames: list[Frame]) -> bytes:
        passed: list[bytes] = []
        last_released = self._last_released
        try:
            for frame in frames:
                if not self._started or self._held or self._detached:
                    self._inspect(self._event(frame))
                elif clean := self._pass_if_clean(frame):
                    passed.append(clean)
                    continue
                # The next event can be passed if none is held, which takes a fifth of the time.
                passed.append(self._release(split=False))
            if self._held or self._detached:
                passed.append(self._release())
                if self._is_over_limit():
                    passed.append(self._release_over_limit())
        except Blocked:
            self._last_released = last_released  # nothing of `passed` is sent
            raise
        return passed[0] if len(passed) == 1 else b"".join(passed)

    async def finish(self, rest: Frame | None) -> bytes:
        released = await run_in_thread(lambda: self._finish(rest)) if self._size > INLINE_BYTES else self._finish(rest)
        if self._monitor is not None:
            await self._monitor.finish(rest)
        return released

    def _finish(self, rest: Frame | None) -> bytes:
        event = self._last_event(rest)
        if event is not None:
            self._inspect(event)
        self._streamed_texts.close(())
        self._started = True
        return self._release()

    def heartbeat(self) -> bytes:
        """Release the head of the stream, which is held for the first text, or else a comment."""
        self._started = True
        return self._release() or super().heartbeat()

    def _is_over_limit(self) -> bool:
        return self._size > MAX_HELD_BYTES or self._text_size > self._mode.max_buffer_bytes

    def _pass_if_clean(self, frame: Frame) -> bytes:
        """Return the event if it has exactly one piece, which is clean; otherwise hold it. The fast path of a stream."""
        if self._template is not None:
            template, address, streamed_text = self._template
            found = template.match(frame.raw)
            if found is not None:
                text = streamed_text.add(found[0])
                if self._passes(streamed_text):
                    self._last_released = {self._event_texts.sequence_key: found[1]} if found[1] >= 0 else None
                    return frame.raw
                event = self._event(frame)
                self._hold(event, [_Segment(address, streamed_text, event.texts.pieces[0][1], text)])
                return b""
        event = self._event(frame)
        texts = event.texts
        if len(texts.pieces) != 1 or texts.complete or texts.ended or texts.switched:
            self._inspect(event)
            return b""
        address, ref = texts.pieces[0]
        streamed_text = self._streamed_texts.get(address, ref.kind)
        text = streamed_text.add(ref.text)
        if self._passes(streamed_text):
            self._last_released = event.payload
            if self._template is None or self._template[1] != address:
                self._learn(event, frame, address, streamed_text)
            return event.raw_unmasked
        self._hold(event, [_Segment(address, streamed_text, ref, text)])
        return b""

    def _passes(self, streamed_text: StreamedText) -> bool:
        """Return True, and count the new text as released, if it is decided and clean."""
        end = streamed_text.end
        if not streamed_text.fully_decided or streamed_text.masking.overlaps(streamed_text.released, end):
            return False
        streamed_text.released = end
        return True

    def _learn(self, event: Event, frame: Frame, address: Address, streamed_text: StreamedText) -> None:
        """Make a template of an event that was passed unchanged."""
        self._template = None
        ref = event.texts.pieces[0][1]
        if self._templates < _MAX_TEMPLATES and event.raw_unmasked is frame.raw and type(ref.key) is str:
            self._templates += 1
            template = DeltaTemplate.of(frame.raw, event.payload, self._event_texts, ref)
            if template is not None:
                self._template = template, address, streamed_text

    def _inspect(self, event: Event) -> None:
        if self.response_id is None:
            self._identify(event.payload)
        texts = event.texts
        if texts.ended or texts.switched or len(texts.pieces) != 1:
            self._template = None  # the same bytes may mean something else now
        segments: list[_Segment] = []
        for address, ref in texts.pieces:
            streamed_text = self._streamed_texts.get(address, ref.kind)
            text = streamed_text.add(ref.text)
            segments.append(_Segment(address, streamed_text, ref, text))
        if texts.complete:
            self._chain.inspect(texts.complete, self._match_counts, self._budgets)
        for prefix in texts.ended:
            self._streamed_texts.close(prefix)
        for address in texts.switched:
            left = self._streamed_texts.find(address)
            if left is not None and not left.held_whole:
                self._detach(left)
        self._hold(event, segments)

    def _detach(self, streamed_text: StreamedText) -> None:
        """Mark the trailing undecided segments of a text that the stream has switched away from as detachable."""
        for held in reversed(self._held):
            for segment in reversed(held.segments):
                if segment.streamed_text is streamed_text:
                    if segment.own_chunk is not None or segment.decided():
                        return
                    segment.own_chunk = self._event_texts.separate(
                        held.event.payload, segment.address, segment.ref.text
                    )

    def _hold(self, event: Event, segments: list[_Segment]) -> None:
        held = _HeldEvent(event, segments)
        self._held.append(held)
        self._count(held, 1)

    def _count(self, held: _HeldEvent, sign: int) -> None:
        self._size += sign * held.size
        self._text_size += sign * held.text_size

    def _release(self, *, split: bool = True) -> bytes:
        """Return the events that can be released. Without `split`, none is split: the next event may decide its text."""
        held = self._held
        if not self._started and not self._can_start():
            return b""
        out = self._release_detached() if self._detached else []
        while held and (held[0].ready() if split else held[0].decided()):
            first = held.popleft()
            self._count(first, -1)
            if not first.decided():
                pieces = first.split(type(self._event_texts)())
                self._detached += pieces
                for piece in pieces:
                    self._count(piece, 1)
            out.append(first.release())
            if first.event.payload is not None:
                self._last_released = first.event.payload
        return out[0] if len(out) == 1 else b"".join(out)

    def _release_detached(self) -> list[bytes]:
        out: list[bytes] = []
        waiting: list[_HeldEvent] = []
        for held in self._detached:
            if held.decided():
                self._count(held, -1)
                out.append(held.release())
            else:
                waiting.append(held)
        self._detached = waiting
        return out

    def _can_start(self) -> bool:
        for held in self._held:
            if not held.ready():
                return False
            if any(map(_Segment.decided, held.segments)) or held.event.has_complete_text:
                self._started = True
                return True
        return False

    def _release_over_limit(self) -> bytes:
        """Release leading events without text, the only ones that may pass undecided. Raises if that is not enough."""
        if not all(map(_HeldEvent.ready, self._held)):
            raise self._too_long("window")
        self._started = True
        released = self._release()
        if self._is_over_limit():
            raise self._too_long("window")
        return released
