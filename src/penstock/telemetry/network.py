"""The round trip to the servers: TCP connections that are opened and closed during a run, and their mean.

A handshake is one round trip without work of the server, so it measures the network alone. On Linux the round trip is the
kernel's own measurement of the handshake, which a busy client does not prolong.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from time import monotonic_ns
from typing import NamedTuple

import msgspec

from penstock.records.log import Sample
from penstock.telemetry.scrape import Observation
from penstock.wire.connection import Origin
from penstock.wire.kernel_stamps import round_trip_and_retransmits, tcp_info

NETWORK = "network"
"""Source of the samples."""
_TIMEOUT_S = 2.0


class ProbedUrl(NamedTuple):
    url: str
    """Without credentials."""
    origin: Origin


class NetworkProbes:
    """A source that opens a connection to each server."""

    def __init__(self, urls: Iterable[ProbedUrl]) -> None:
        self._urls = list(urls)

    def collect(self) -> list[Observation]:
        return [_probe(url) for url in self._urls]

    def close(self) -> None:
        pass


def _probe(url: ProbedUrl) -> Observation:
    origin = url.origin
    began = monotonic_ns()
    fields = {"url": url.url, "host": origin.host, "port": origin.port}
    try:
        with socket.socket(origin.family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(origin.address)
            elapsed = monotonic_ns() - began
            info = tcp_info(connection)
    except OSError as error:
        return Observation(NETWORK, began, {**fields, "error": error.strerror or "the connection timed out"})
    measured = round_trip_and_retransmits(info)[0] * 1000 if info else 0
    return Observation(NETWORK, began, {**fields, "rtt_ns": measured or elapsed})


class NetworkLatency(msgspec.Struct):
    rtt_ms: float | None = None
    """The mean round trip; None if no probe succeeded."""
    probes: int = 0
    """Probes that succeeded."""
    failed: int = 0
    error: str = ""
    """The last error."""
    given: bool = False
    """True if the user gave the round trip, so that there were no probes."""
    clamped: tuple[str, ...] = ()
    """Metrics with requests that took less than the round trip."""


class NetworkLatencyBuilder:
    """Computes the mean over all probes up to the end of the phases."""

    def __init__(self, stop: int, given_ms: float | None, *, probed: bool) -> None:
        """`given_ms` is the round trip that the user gave, `probed` whether there are probes."""
        self._stop = stop
        self._given_ms = given_ms
        self._probed = probed
        self._total = self._probes = self._failed = 0
        self._error = ""

    def add(self, sample: Sample) -> None:
        if sample.source != NETWORK or sample.at > self._stop:
            return
        if "rtt_ns" in sample.values:
            self._total += sample.values["rtt_ns"]
            self._probes += 1
        else:
            self._failed += 1
            self._error = sample.values["error"]

    def result(self) -> NetworkLatency | None:
        if self._given_ms is not None:
            return NetworkLatency(self._given_ms, given=True)
        if not self._probed:
            return None
        mean = self._total / self._probes / 1e6 if self._probes else None
        return NetworkLatency(mean, self._probes, self._failed, self._error)
