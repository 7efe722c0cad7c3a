"""From the spool into the ledger: a thread of the main process.

An entry counts as moved when the ledger has committed it; only then does the position advance, and a segment is removed
when all of it is moved and its worker has let go of it. A crash in between means that entries are offered again, which
changes nothing: the ledger knows them by their request id. So positions live in memory only.

A database that is away is tried for ever, at growing intervals, and meanwhile the spool grows on the disk. An entry that
the database does not take by itself is repaired, and if that does not help it goes to `refused.frames` in the spool
folder, so that one bad entry never holds up the others.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from penstock import frames
from penstock.gateway.ledger.entry import Entry
from penstock.gateway.ledger.ledger import EntryRefusedError, Ledger, LedgerAwayError, check_url, open_ledger
from penstock.gateway.ledger.repair import repair, repaired
from penstock.gateway.ledger.segment import Backlog, Segment
from penstock.gateway.ledger.spool import ENTRY, open_folder, segment_paths
from penstock.gateway.operator_log import say

__all__ = ["Mover", "MoverState"]

BATCH = 1000
BATCHES = 50
"""Of one segment before the others have their turn; more than a full one holds."""
POLL_S = 0.25
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
REFUSED = "refused.frames"


class MoverState(msgspec.Struct, frozen=True, kw_only=True):
    pending_entries: int
    pending_bytes: int
    moved: int
    """Entries that this process put into the ledger."""
    failures: int
    """Attempts that the database did not serve."""
    refused: int
    """Entries set aside because nothing can make sense of them."""
    torn_bytes: int
    """What writers that were killed left behind in mid-write."""
    away: bool


class Mover:
    def __init__(self, folder: str, url: str, say: Callable[[str], None] = say) -> None:
        """Raises UserError for a folder or a url that cannot work."""
        check_url(url)
        open_folder(folder)
        self._folder = folder
        self._url = url
        self._say = say
        self._decode = msgspec.msgpack.Decoder(Entry).decode
        self._ledger: Ledger | None = None
        self._segments: dict[str, Segment] = {}
        self._done: dict[str, tuple[int, int]] = {}  # path -> entries and bytes that are in the ledger
        self._backlog = Backlog()
        self._counting = threading.Lock()
        self._moved = self._failures = self._refused = self._torn = 0
        self._away_since: float | None = None
        self._stop = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="penstock-ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float = 5.0) -> int:
        """To be called when the workers have ended. Returns how many entries stay in the spool for the next start."""
        self._deadline = time.monotonic() + within_s
        self._stop.set()
        if self._thread.is_alive():
            # One that hangs in the database's driver is left to the end of the process.
            self._thread.join(within_s + 0.5)
        left = self.state().pending_entries
        if left:
            self._say(f"{left:,} usage entries wait in {self._folder}; the next start moves them into the ledger.")
        return left

    def state(self) -> MoverState:
        """For any thread; it does not wait for the database."""
        with self._counting:
            waiting = self._backlog.waiting(segment_paths(self._folder), self._done)
        return MoverState(
            pending_entries=waiting.entries,
            pending_bytes=waiting.bytes,
            moved=self._moved,
            failures=self._failures,
            refused=self._refused,
            torn_bytes=self._torn,
            away=self._away_since is not None,
        )

    def _run(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # of this thread alone: requests come first
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        retry_s = FIRST_RETRY_S
        pause_s = 0.0
        while True:
            stopping = self._stop.wait(pause_s)
            try:
                more = self._move()
                self._back()
                retry_s, pause_s = FIRST_RETRY_S, 0.0 if more else POLL_S
                if stopping and not more:
                    break
            except Exception as error:  # whatever it is, entries wait and the thread lives
                self._away(error)
                pause_s = retry_s * random.uniform(0.8, 1.2)
                retry_s = min(retry_s * 2, LAST_RETRY_S)
            if stopping:
                left_s = self._deadline - time.monotonic()
                if left_s <= 0:
                    break
                time.sleep(min(pause_s, POLL_S, left_s))
                pause_s = 0.0
        self._close()

    def _move(self) -> bool:
        """What is there, segment after segment, so that few are open however many wait. Returns whether more may be
        had at once."""
        if self._ledger is None and not self._stop.is_set():
            # Before there is anything to move: whoever asks for usage finds a ledger, be it an empty one.
            self._ledger = open_ledger(self._url)
        more = False
        paths = segment_paths(self._folder)
        for gone in self._segments.keys() - set(paths):
            self._forget(gone)
        for path in paths:
            try:
                batches = 0
                while self._move_from(path):
                    batches += 1
                    if self._overdue() or batches == BATCHES:
                        more = True
                        break
            except FileNotFoundError:
                self._forget(path)
            if self._overdue():
                break
        return more

    def _overdue(self) -> bool:
        return self._stop.is_set() and time.monotonic() >= self._deadline

    def _move_from(self, path: str) -> bool:
        segment = self._segments.get(path)
        if segment is None:
            segment = self._segments[path] = Segment(path)
        piece = segment.read(BATCH)
        if piece.entries:
            entries, unreadable = self._decoded(piece.entries)
            if entries:
                self._insert(entries)
            for kind, data, why in unreadable:
                self._set_aside(kind, data, why)
            moved, _ = self._done.get(path, (0, 0))
            self._done[path] = (moved + len(piece.entries), piece.end)
            segment.position = piece.end
        if piece.last:
            self._finish(segment, piece.torn)
        return len(piece.entries) == BATCH

    def _finish(self, segment: Segment, torn: int) -> None:
        if torn:
            self._torn += torn
            aside = segment.set_aside()
            self._say(f"{torn:,} bytes at the end of {aside} are no usage entry: a worker was killed as it wrote them.")
        else:
            segment.remove()
        self._forget(segment.path)

    def _decoded(self, pieces: Sequence[tuple[int, bytes]]) -> tuple[list[Entry], list[tuple[int, bytes, str]]]:
        entries: list[Entry] = []
        unreadable: list[tuple[int, bytes, str]] = []
        for kind, data in pieces:
            if kind != ENTRY:
                unreadable.append((kind, data, f"frames of kind {kind} are unknown here"))
                continue
            try:
                entries.append(self._decode(data))
            except msgspec.MsgspecError as wrong:
                try:
                    entries.append(repair(msgspec.msgpack.decode(data)))
                except (msgspec.MsgspecError, ValueError, AttributeError):
                    unreadable.append((kind, data, str(wrong)))
        return entries, unreadable

    def _insert(self, entries: Sequence[Entry]) -> None:
        if self._ledger is None:
            self._ledger = open_ledger(self._url)
        try:
            self._moved += self._ledger.insert(entries)
        except EntryRefusedError as refused:
            if len(entries) > 1:
                half = len(entries) // 2
                self._insert(entries[:half])
                self._insert(entries[half:])
                return
            try:
                self._moved += self._ledger.insert([repaired(entries[0])])
            except (EntryRefusedError, ValueError):
                self._set_aside(ENTRY, msgspec.msgpack.encode(entries[0]), str(refused))

    def _set_aside(self, kind: int, data: bytes, why: str) -> None:
        self._refused += 1
        path = os.path.join(self._folder, REFUSED)
        with open(path, "ab") as file:
            file.write(frames.pack(kind, data))
        self._say(f"A usage entry that the ledger does not take is kept in {path}: {why}.")

    def _away(self, error: Exception) -> None:
        self._failures += 1
        if self._ledger is not None:
            with contextlib.suppress(Exception):  # it may be gone already
                self._ledger.close()
            self._ledger = None
        if self._away_since is None:
            self._away_since = time.monotonic()
            other = f"Usage entries cannot be moved ({type(error).__name__}: {error})."
            what = str(error) if isinstance(error, LedgerAwayError) else other
            self._say(f"{what} Usage entries wait in {self._folder} until it works again.")

    def _back(self) -> None:
        if self._away_since is not None:
            lost_s = time.monotonic() - self._away_since
            self._away_since = None
            self._say(f"The ledger works again after {lost_s:.0f} s.")

    def _forget(self, path: str) -> None:
        segment = self._segments.pop(path, None)
        if segment is not None:
            segment.close()
        self._done.pop(path, None)

    def _close(self) -> None:
        for segment in self._segments.values():
            segment.close()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
