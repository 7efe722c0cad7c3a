"""Reads the bodies that a run sent, and the replies that it kept."""

from __future__ import annotations

import os

from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.records.payloads import Payload, PayloadStore
from penstock.records.raw_replies import RawReply, ReplyReader
from penstock.records.record import Record


class BodyReader:
    """Reads bodies and replies by their records. Files of workers are opened when they are read."""

    def __init__(self, log: RunLog) -> None:
        """Raise UserError if the log has no payload store, or several."""
        self._folder = folder = log.folder
        datasets = {covered.data for covered in log.covered_phases} or {None}
        if len(datasets) > 1:
            raise UserError(f"{folder} holds phases with different datasets; each has a report in a folder of its own.")
        data = datasets.pop()
        try:
            if data is None:
                self.payloads = PayloadStore(folder, log.header.payload_files)
            else:
                self.payloads = PayloadStore(os.path.join(folder, data.folder), data.files)
        except FileNotFoundError as error:
            raise UserError(f"{folder} is incomplete: {os.path.basename(error.filename)} is missing.") from None
        self._built: dict[int, PayloadStore] = {}
        self._replies: dict[int, ReplyReader] = {}

    def entry(self, record: Record) -> Payload:
        store, number = self._location(record)
        return store.entry(number)

    def body(self, record: Record) -> bytes:
        """Return the body that was sent for this record."""
        store, number = self._location(record)
        return store.body(number)

    def raw_reply(self, record: Record) -> RawReply | None:
        """Return the reply to this record, if replies were kept and there is one."""
        if record.raw_reply is None:
            return None
        reader = self._replies.get(record.worker)
        if reader is None:
            reader = self._replies[record.worker] = ReplyReader(self._folder, record.worker)
        return reader.read(record.raw_reply)

    def built_by(self, worker: int) -> PayloadStore:
        """Return the store of the bodies that a worker built."""
        store = self._built.get(worker)
        if store is None:
            store = self._built[worker] = PayloadStore(self._folder, worker=worker)
        return store

    def _location(self, record: Record) -> tuple[PayloadStore, int]:
        if record.built is None:
            return self.payloads, record.payload
        return self.built_by(record.worker), record.built

    def close(self) -> None:
        for store in (self.payloads, *self._built.values()):
            store.close()
        for reader in self._replies.values():
            reader.close()

    def __enter__(self) -> BodyReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
