"""Who made a stored response: a durable map from response ids to the caller's key and the upstream account.

    response-ids.db               SQLite, shared by all workers; or PostgreSQL, shared by several gateways
    response-ids-TIME-PID.log     what a worker has recorded since, one JSON line for each id, then zeros

A worker adds an id to its log before the first byte of the response leaves. The log is mapped memory, so that takes no
system call, while a transaction would take longer and wait for the other workers. A thread moves full logs into the
database, and those of workers that have ended: a worker owns its log while it lives (`gateway.owned_file`), because a new
worker starts before the one that it replaces has finished its requests. Files survive the death of a process, but there is
no fsync, so a power cut can lose the newest ids.

A lookup, which few requests need, reads the logs of all workers, and then the database. Each has a thread of its own, so an
unreachable database delays neither the ids in the logs nor another lookup by more than `LOOKUP_S`. Requests that ask for the
same id share a lookup. With PostgreSQL, the logs are moved every second, and a lookup waits that long for an id that is not
known yet: another gateway may have made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import orjson

from penstock.gateway.operator_log import log_operator_message
from penstock.gateway.refusal import Refusal
from penstock.gateway.storage import owned_file
from penstock.gateway.storage.id_databases import LOOKUP_S, MOVE_S, IdDatabase, PostgresIds, SqliteIds, parse_line

LOG_BYTES = 1 << 20
"""Size of a log; a full one is moved into the database."""
LOG_S = 60.0
"""Age at which a log is moved into the database."""
SHARED_LOG_S = 1.0
"""Age at which a log is moved if other gateways use the database."""
SHARED_WAIT_S = 2.0
"""How long a lookup waits before it looks again for an id that another gateway may have made."""
_PIECE_BYTES = 1 << 14
"""A database gets about this much of a log at once: SQLite takes several times the memory to parse it."""


class ResponseOwner(NamedTuple):
    key_id: str
    """The caller's key; empty if nobody may use the response."""
    account: str
    """The provider key with which the response was made."""
    alias: str
    """The model that the caller named; empty for responses of version 0.2."""


class _Log:
    """What a lookup has read of a log."""

    def __init__(self) -> None:
        self.offset = 0
        self.owners: dict[str, ResponseOwner] = {}


class _Lookup:
    """A lookup that one or more requests wait for."""

    def __init__(self, task: asyncio.Task[ResponseOwner | None]) -> None:
        self.task = task
        self.waiting = 0


class ResponseIds:
    """The map, as one worker uses it. `record` is for the event loop, and never raises."""

    def __init__(self, folder: str, ttl_s: float, shared_url: str | None = None) -> None:
        """`shared_url` names a PostgreSQL database that other gateways use too."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owned_file.remove_abandoned(folder)
        self._folder = folder
        self._ttl_s = ttl_s
        self._shared = shared_url is not None
        self._log_s = SHARED_LOG_S if self._shared else LOG_S
        self._database = self._open_database(shared_url, MOVE_S)
        self._lookup_database = self._open_database(shared_url, LOOKUP_S)
        self._thread = ThreadPoolExecutor(1, "response-ids")
        self._log_thread = ThreadPoolExecutor(1, "response-id-logs")
        self._lookup_thread = ThreadPoolExecutor(1, "response-id-lookups")
        self._lookups: dict[str, _Lookup] = {}
        self._lookup_failed = False
        self._logs: dict[str, _Log] = {}
        self._log: mmap.mmap | None = None
        self._path = ""
        self._size = 0
        self._began = 0.0
        self._failed = False
        self._move_failed = False
        # Also without logs: opening the database now keeps its memory out of the time under load.
        self._last_move = self._thread.submit(self._move)

    def _open_database(self, shared_url: str | None, timeout_s: float) -> IdDatabase:
        if shared_url is not None:
            return PostgresIds(shared_url, timeout_s)
        return SqliteIds(os.path.join(self._folder, "response-ids.db"), timeout_s)

    def record(self, response_id: str, owner: ResponseOwner, now: float) -> None:
        """Record who made a response. The newest record of an id counts."""
        values = (response_id, owner.key_id, owner.account, now, owner.alias)
        line = orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)
        try:
            if self._log is None or self._size + len(line) > LOG_BYTES or self._is_old(now):
                self._rotate()
                self._log = self._open()
        except OSError as error:
            if not self._failed:
                reason = error.strerror or error
                log_operator_message(f"response ids cannot be recorded in {self._folder}: {reason}", "error")
            self._failed = True
            return
        end = self._size + len(line)
        self._log[self._size : end] = line
        self._size = end
        self._failed = False

    async def owner(self, response_id: str) -> ResponseOwner | None:
        """Return who made a response; None if it is not known. Raise Refusal if that cannot be found out."""
        lookup = self._lookups.get(response_id)
        if lookup is None:
            lookup = self._lookups[response_id] = _Lookup(asyncio.create_task(self._look_up(response_id)))
        lookup.waiting += 1
        try:
            return await asyncio.shield(lookup.task)
        except OSError:
            raise Refusal(503, "storage_unavailable", "The gateway cannot look up stored responses.") from None
        finally:
            lookup.waiting -= 1
            if not lookup.waiting:
                del self._lookups[response_id]
                lookup.task.cancel()

    async def _look_up(self, response_id: str) -> ResponseOwner | None:
        try:
            owner = await self._find(response_id)
            if owner is None and self._shared:
                await asyncio.sleep(SHARED_WAIT_S)
                owner = await self._find(response_id)
        except OSError as error:
            if not self._lookup_failed:
                reason = str(error) or f"no answer within {LOOKUP_S:g} s"
                log_operator_message(f"response ids cannot be looked up: {reason}", "error")
            self._lookup_failed = True
            raise
        self._lookup_failed = False
        return owner

    async def _find(self, response_id: str) -> ResponseOwner | None:
        """Read the logs and then the database: a log disappears only after its ids are in there."""
        loop = asyncio.get_running_loop()
        owner = await loop.run_in_executor(self._log_thread, self._find_in_logs, response_id)
        if owner is not None:
            return owner
        async with asyncio.timeout(LOOKUP_S):
            row = await loop.run_in_executor(self._lookup_thread, self._lookup_database.find, response_id)
        if row is None or row[2] < time.time() - self._ttl_s:
            return None
        return ResponseOwner(row[0], row[1], row[3])

    def tick(self, now: float) -> None:
        """Move the log into the database if it is old. Call this about once a second with the Unix time."""
        if self._is_old(now):
            self._rotate()
        elif self._move_failed:
            self._start_move()

    def close(self) -> None:
        """Move what this worker has recorded into the database."""
        self._rotate()
        for thread in (self._log_thread, self._lookup_thread):
            thread.shutdown(wait=False, cancel_futures=True)
        self._thread.shutdown()

    # -- the worker's own log -----------------------------------------------------------------------------------------

    def _open(self) -> mmap.mmap:
        self._path = owned_file.new_path(self._folder, "response-ids", ".log")
        # The bytes reserve the space: a write to a mapped hole fails with a signal.
        file = owned_file.create(self._path, bytes(LOG_BYTES))
        try:
            log = mmap.mmap(file, LOG_BYTES)  # with a duplicate of the descriptor: owns the file until it is closed
        finally:
            os.close(file)
        self._began = time.time()
        return log

    def _is_old(self, now: float) -> bool:
        """Return whether to move the log because of its age. While the database is unavailable it is filled first: a log
        takes a megabyte and, when it is moved, a descriptor."""
        return now - self._began > self._log_s and not self._move_failed

    def _rotate(self) -> None:
        log, self._log, self._size = self._log, None, 0
        if log is not None:
            log.close()
            self._start_move()

    def _start_move(self) -> None:
        # A move that has not begun takes all logs, so moves do not queue up while the database is slow.
        if self._last_move.running() or self._last_move.done():
            self._last_move = self._thread.submit(self._move)

    def _log_paths(self) -> list[str]:
        """Return the paths of all logs, the oldest first."""
        return owned_file.paths(self._folder, "response-ids", ".log")

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move the logs that no worker owns into the database."""
        orphans: list[str] = []
        try:
            with contextlib.ExitStack() as opened:
                self._database.add(lambda: self._orphan_logs(orphans, opened), time.time() - self._ttl_s)
                for path in orphans:
                    os.unlink(path)
            self._move_failed = False
        except OSError as error:
            # The logs stay, and lookups read them. The next move takes them.
            if not self._move_failed:
                log_operator_message(f"response ids cannot be moved into the database: {error}", "error")
            self._move_failed = True

    def _orphan_logs(self, orphans: list[str], opened: contextlib.ExitStack) -> Iterator[bytes]:
        """Yield the lines of the logs that no worker owns in pieces, and add the paths of these logs to `orphans`."""
        for path in self._log_paths():
            try:
                file = opened.enter_context(open(path, "rb"))  # noqa: SIM115
            except FileNotFoundError:
                continue  # another worker has moved it
            if owned_file.is_orphan(file.fileno()) and os.fstat(file.fileno()).st_nlink:
                orphans.append(path)
                while lines := file.readlines(_PIECE_BYTES):
                    yield b"".join(line for line in lines if line.endswith(b"\n"))

    def _find_in_logs(self, response_id: str) -> ResponseOwner | None:
        logs = {path: self._read_log(path) for path in self._log_paths()}
        self._logs = {path: log for path, log in logs.items() if log is not None}
        for log in reversed(self._logs.values()):
            if (owner := log.owners.get(response_id)) is not None:
                return owner
        return None

    def _read_log(self, path: str) -> _Log | None:
        """Read what was appended to a log since the last lookup."""
        log = self._logs.get(path) or _Log()
        try:
            with open(path, "rb") as file:
                file.seek(log.offset)
                data = file.read()
        except FileNotFoundError:
            return None
        complete = data[: data.rfind(b"\n") + 1]
        log.offset += len(complete)
        for line in complete.splitlines():
            if (row := parse_line(line)) is not None:
                log.owners[row[0]] = ResponseOwner(row[1], row[2], row[4])
        return log
