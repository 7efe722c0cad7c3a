"""The mover: a thread of the main process that moves entries from the spool into the ledger.

The position in a segment advances after the ledger has committed the entries. A segment is removed when all its entries
are moved and no worker owns it. After a crash, entries may be inserted again; the ledger ignores them because their
request ids exist. Positions are therefore kept in memory only. Requests that a killed worker was serving get an entry, too
(`ledger.live_requests`).

While the database is unavailable, the mover retries at growing intervals without end, and the spool grows on disk. If the
database rejects an entry, the mover repairs it. If it is rejected again, the mover writes it to `refused.frames` in the
spool folder and continues with the next entry.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from penstock import frames
from penstock.gateway.ledger.entry import Entry, repair_entry, repair_fields
from penstock.gateway.ledger.ledger import (
    EntryRefusedError,
    Ledger,
    LedgerUnavailableError,
    check_url,
    open_ledger,
    purge_all,
)
from penstock.gateway.ledger.live_requests import live_paths, orphaned, read_lost
from penstock.gateway.ledger.spool import ENTRY, PendingCounter, Segment, prepare_folder, segment_paths
from penstock.gateway.operator_log import OperatorLog, log_operator_message
from penstock.plural import counted

BATCH = 1000
MAX_BATCHES = 50
"""Batches moved from one segment before the next segment. A full segment has fewer."""
POLL_S = 0.25
PURGE_EVERY_S = 3600.0
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0
REFUSED_FILE = "refused.frames"


class MoverState(msgspec.Struct, kw_only=True):
    """The metrics of the mover, without the prefix `ledger_` of their names (see `observe.families`)."""

    pending_entries: int = 0
    pending_bytes: int = 0
    up: int = 1
    moved_entries_total: int = 0
    failures_total: int = 0
    refused_entries_total: int = 0
    torn_bytes_total: int = 0


class Mover:
    """Moves entries from the spool in `folder` into the ledger at `url`."""

    def __init__(
        self, folder: str, url: str, log: OperatorLog = log_operator_message, *, retention_s: float = 0.0
    ) -> None:
        """Delete entries that are older than `retention_s`, unless that is 0. Raise UserError if the folder cannot be used
        or the URL is invalid."""
        check_url(url)
        prepare_folder(folder)
        self._folder = folder
        self._url = url
        self._log = log
        self._decode = msgspec.msgpack.Decoder(Entry).decode
        self._ledger: Ledger | None = None
        self._segments: dict[str, Segment] = {}
        self._moved_by_path: dict[str, tuple[int, int]] = {}  # path -> entries and bytes that are in the ledger
        self._pending = PendingCounter()
        self._pending_lock = threading.Lock()
        self._counters = MoverState()
        self._unavailable_since: float | None = None
        self._retention_s = retention_s
        self._next_purge = 0.0
        self._stop = threading.Event()
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="penstock-ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> int:
        """Move the remaining entries, stop, and return how many entries stay in the spool. Call this after the workers
        have ended."""
        self._deadline = time.monotonic() + timeout_s
        self._stop.set()
        if self._thread.is_alive():
            # A thread that hangs in the database driver ends with the process.
            self._thread.join(timeout_s + 0.5)
        remaining = self.state().pending_entries
        if remaining:
            self._log(
                f"{remaining:,} usage entries wait in {self._folder}; the next start moves them into the ledger.",
                "warning",
            )
        return remaining

    def state(self) -> MoverState:
        """Return the counters. Any thread may call this; it does not wait for the database."""
        with self._pending_lock:
            pending = self._pending.count(segment_paths(self._folder), self._moved_by_path)
        up = int(self._unavailable_since is None)
        return replace(self._counters, pending_entries=pending.entries, pending_bytes=pending.bytes, up=up)

    def _run(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # lowers only this thread: requests come first
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        retry_s = FIRST_RETRY_S
        pause_s = 0.0
        while True:
            stopping = self._stop.wait(pause_s)
            try:
                more = self._move_segments()
                self._purge()
                self._on_success()
                retry_s, pause_s = FIRST_RETRY_S, 0.0 if more else POLL_S
                if stopping and not more:
                    break
            except Exception as error:  # entries stay in the spool, and the thread must survive
                self._on_failure(error)
                pause_s = retry_s * random.uniform(0.8, 1.2)
                retry_s = min(retry_s * 2, LAST_RETRY_S)
            if stopping:
                remaining_s = self._deadline - time.monotonic()
                if remaining_s <= 0:
                    break
                time.sleep(min(pause_s, POLL_S, remaining_s))
                pause_s = 0.0
        self._close()

    def _move_segments(self) -> bool:
        """Move entries one segment after another, which limits the number of open files. Return whether more entries
        may be available."""
        if self._ledger is None and not self._stop.is_set():
            # Create the ledger before the first entry arrives, so that `penstock usage` finds it.
            self._ledger = open_ledger(self._url)
        more = False
        # Check before the segments are read: they then contain all entries of these workers.
        orphans = [path for path in live_paths(self._folder) if orphaned(path)]
        paths = segment_paths(self._folder)
        for removed in self._segments.keys() - set(paths):
            self._close_segment(removed)
        for path in paths:
            try:
                batches = 0
                while self._move_from(path):
                    batches += 1
                    if self._overdue() or batches == MAX_BATCHES:
                        more = True
                        break
            except FileNotFoundError:
                self._close_segment(path)
            if self._overdue():
                break
        if not more and not self._overdue():
            self._store_lost(orphans)
        return more

    def _store_lost(self, paths: Sequence[str]) -> None:
        """Insert entries for the requests that workers were serving when they were killed."""
        for path in paths:
            try:
                lost = read_lost(path)
            except FileNotFoundError:
                continue  # another process has moved them
            if lost:
                self._insert(lost)
                self._log(f"A worker was killed while it served {counted(len(lost), 'request')}.", "warning")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _purge(self) -> None:
        if self._retention_s and self._ledger is not None and time.monotonic() >= self._next_purge:
            purge_all(self._ledger, time.time() - self._retention_s)
            self._next_purge = time.monotonic() + PURGE_EVERY_S

    def _overdue(self) -> bool:
        return self._stop.is_set() and time.monotonic() >= self._deadline

    def _move_from(self, path: str) -> bool:
        segment = self._segments.get(path)
        if segment is None:
            segment = self._segments[path] = Segment(path)
        batch = segment.read(BATCH)
        if batch.frames:
            entries, unreadable = self._decode_frames(batch.frames)
            if entries:
                self._insert(entries)
            for kind, data, reason in unreadable:
                self._store_refused(kind, data, reason)
            moved, _ = self._moved_by_path.get(path, (0, 0))
            self._moved_by_path[path] = (moved + len(batch.frames), batch.end)
            segment.position = batch.end
        if batch.last:
            self._finish(segment, batch.incomplete_bytes)
        return len(batch.frames) == BATCH

    def _finish(self, segment: Segment, incomplete_bytes: int) -> None:
        if incomplete_bytes:
            self._counters.torn_bytes_total += incomplete_bytes
            path = segment.mark_damaged()
            self._log(
                f"The last {incomplete_bytes:,} bytes of {path} are not a usage entry: a worker was killed while writing, "
                "or the file is damaged.",
                "error",
            )
        else:
            segment.remove()
        self._close_segment(segment.path)

    def _decode_frames(self, batch: Sequence[tuple[int, bytes]]) -> tuple[list[Entry], list[tuple[int, bytes, str]]]:
        entries: list[Entry] = []
        unreadable: list[tuple[int, bytes, str]] = []
        for kind, data in batch:
            if kind != ENTRY:
                unreadable.append((kind, data, f"unknown frame kind {kind}"))
                continue
            try:
                entries.append(self._decode(data))
            except msgspec.MsgspecError as error:
                try:
                    entries.append(repair_fields(msgspec.msgpack.decode(data)))
                except (msgspec.MsgspecError, ValueError, AttributeError):
                    unreadable.append((kind, data, str(error)))
        return entries, unreadable

    def _insert(self, entries: Sequence[Entry]) -> None:
        if self._ledger is None:
            self._ledger = open_ledger(self._url)
        try:
            self._counters.moved_entries_total += self._ledger.insert(entries)
        except EntryRefusedError as refused:
            if len(entries) > 1:
                half = len(entries) // 2
                self._insert(entries[:half])
                self._insert(entries[half:])
                return
            try:
                self._counters.moved_entries_total += self._ledger.insert([repair_entry(entries[0])])
            except (EntryRefusedError, ValueError):
                self._store_refused(ENTRY, msgspec.msgpack.encode(entries[0]), str(refused))

    def _store_refused(self, kind: int, data: bytes, reason: str) -> None:
        self._counters.refused_entries_total += 1
        path = os.path.join(self._folder, REFUSED_FILE)
        with open(path, "ab") as file:
            file.write(frames.pack(kind, data))
        self._log(f"The ledger refused a usage entry, which is kept in {path} ({reason}).", "error")

    def _on_failure(self, error: Exception) -> None:
        self._counters.failures_total += 1
        if self._ledger is not None:
            with contextlib.suppress(Exception):  # the connection may be broken
                self._ledger.close()
            self._ledger = None
        if self._unavailable_since is None:
            self._unavailable_since = time.monotonic()
            known = isinstance(error, LedgerUnavailableError)
            cause = error if known else f"Usage entries cannot be moved ({type(error).__name__}: {error})."
            self._log(f"{cause} Usage entries wait in {self._folder} until it works again.", "error")

    def _on_success(self) -> None:
        if self._unavailable_since is not None:
            outage_s = time.monotonic() - self._unavailable_since
            self._unavailable_since = None
            self._log(f"The ledger works again after {outage_s:.0f} s.")

    def _close_segment(self, path: str) -> None:
        segment = self._segments.pop(path, None)
        if segment is not None:
            segment.close()
        self._moved_by_path.pop(path, None)

    def _close(self) -> None:
        for segment in self._segments.values():
            segment.close()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
