"""The HTTP phases of a request, which do not overlap, and the bytes of it."""

from __future__ import annotations

import numpy as np

from penstock.metrics.batch import Batch, CountColumns, MeasureTable
from penstock.metrics.metric import MetricGroup, read_metrics
from penstock.records.record import Record

_METRICS = read_metrics(
    """\
http_req_blocked | HTTP Blocked | ms | order=2000
    start - slot free - dns_lookup - connecting, at least 0: the wait after a slot was assigned.
http_req_dns_lookup | HTTP DNS Lookup | ms | order=2010
    Name resolution that this request waited for.
http_req_connecting | HTTP Connecting | ms | order=2020
    TCP and TLS set-up that this request waited for, excluding DNS.
http_req_sending | HTTP Sending | ms | order=2030
    From start to the return of the last write, or to the reply's first byte if that is earlier.
http_req_waiting | HTTP Waiting (TTFB) | ms | order=2040
    From the end of sending to the reply's first byte.
http_req_receiving | HTTP Receiving | ms | order=2050
    From the reply's first byte to its last.
http_req_connection_reused | HTTP Connection Reused | ratio | order=2060
    1 on a pooled connection, 0 on a new one.
http_req_data_sent | HTTP Data Sent | KB | order=2070
    Bytes sent / 1024.
http_req_chunks_sent | HTTP Chunks Sent | count | order=2080
    Always 1: a request is sent in one piece.
http_req_data_received | HTTP Data Received | KB | order=2090
    Bytes of the reply / 1024.
http_req_chunks_received | HTTP Chunks Received | count | order=2100
    Socket reads that the reply took.
http_req_connection_overhead | HTTP Connection Overhead | ms | order=2110
    blocked + dns_lookup + connecting.
http_req_duration | HTTP Duration (excl. conn) | ms | order=2120
    sending + waiting + receiving.
http_req_total | HTTP Total Time | ms | order=2130
    blocked + dns_lookup + connecting + sending + waiting + receiving. The phases do not overlap.
""",
    "record",
    "http",
)


def http_phases(record: Record) -> tuple[int, int, int, int, int, int] | None:
    """Return blocked, DNS, connecting, sending, waiting and receiving time in ns; None if no reply byte arrived."""
    first_byte = record.first_byte
    if first_byte is None or record.sent is None:
        return None
    # A reply can arrive before the last write has returned.
    sent = min(record.sent, first_byte)
    dns, connect = record.dns_ns, record.connect_ns
    blocked = max(0, record.start - record.issued - dns - connect)
    return blocked, dns, connect, sent - record.start, first_byte - sent, record.end - first_byte


def _measure(batch: Batch, _counts: CountColumns, table: MeasureTable) -> None:
    first_byte, dns, connect = batch.get("first_byte"), batch.get("dns_ns"), batch.connect
    ok = batch.succeeded & ~np.isnan(first_byte + batch.sent)
    sent = np.minimum(batch.sent, first_byte)
    blocked = np.maximum(0, batch.start - batch.issued - dns - connect)
    sending, waiting, receiving = sent - batch.start, first_byte - sent, batch.end - first_byte
    overhead = blocked + dns + connect
    duration = sending + waiting + receiving
    reused = batch.get("reused")
    table.put("http_req_blocked", blocked / 1e6, ok)
    table.put("http_req_dns_lookup", dns / 1e6, ok)
    table.put("http_req_connecting", connect / 1e6, ok)
    table.put("http_req_sending", sending / 1e6, ok)
    table.put("http_req_waiting", waiting / 1e6, ok)
    table.put("http_req_receiving", receiving / 1e6, ok)
    table.put("http_req_connection_reused", reused, ok, whole=True)
    table.put("http_req_data_sent", batch.bytes_sent / 1024, ok)
    table.put("http_req_chunks_sent", np.ones(batch.size), ok, whole=True)
    table.put("http_req_data_received", batch.get("bytes_received") / 1024, ok)
    table.put("http_req_chunks_received", batch.get("reads"), ok, whole=True)
    table.put("http_req_connection_overhead", overhead / 1e6, ok)
    table.put("http_req_duration", duration / 1e6, ok)
    table.put("http_req_total", (overhead + duration) / 1e6, ok)


GROUP = MetricGroup(_METRICS, measure_batch=_measure)
