"""Records by hand, in milliseconds where people think in milliseconds."""

from typing import Any

from penstock.records.record import Record

MS = 1_000_000


def made(**changes: Any) -> Record:
    """A streamed reply: five tokens at 50, 60, 75, 80 and 100 ms, on a connection that was already open."""
    fields: dict[str, Any] = {
        "phase": 0,
        "number": 0,
        "conversation": 0,
        "turn": 0,
        "payload": 0,
        "worker": 0,
        "url": 0,
        "request_id": "r",
        "correlation_id": "c",
        "intended": 1000 * MS,
        "issued": 1002 * MS,
        "start": 1005 * MS,
        "end": 1110 * MS,
        "sent": 1006 * MS,
        "first_byte": 1045 * MS,
        "status": 200,
        "streamed": True,
        "bytes_sent": 512,
        "bytes_received": 4096,
        "reads": 7,
        "stamps": [50 * MS, 60 * MS, 75 * MS, 80 * MS, 100 * MS],
        "pieces": [1, 1, 1, 1, 1],
        "first_output": 0,
        "outputs": ["one two three four five"],
        "head_outputs": "one",
        "finish": ["stop"],
    }
    return Record(**(fields | changes))
