"""Measure how long `/livez` takes while a worker of the gateway works on a large request.

Each request has 57 MiB. A process of its own asks for `/livez` every few milliseconds; the figure is the longest reply. The
scheduler delays single replies on shared cores, so each request is sent several times, and the best of them counts. The
reference is the longest reply without a large request.

    python -m benchmarks.liveness
"""

from __future__ import annotations

import http.client
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from benchmarks.far_end import line
from benchmarks.gateway import KEY, gateway, model_server

_TARGET_MS = 50.0
_ROUNDS = 5
_PAUSE_S = 0.003
_BYTES = 57 << 20
_QUIET_S = 1.0


def _body(unit: bytes, frame: bytes = b"[%b1]") -> bytes:
    return b'{"model":"m","max_output_tokens":1,"input":%b}' % (frame % (unit * (_BYTES // len(unit))))


_BODIES = {
    "texts of one letter": _body(b'"a",'),
    "numbers": _body(b"1,"),
    "one text": _body(b"some words ", b'"%b"'),
    "one Cyrillic text": _body("слова ".encode(), b'"%b"'),
    "one text of escapes": _body(b"\\u0061", b'"%b"'),
}


def _poll(port: int, pipe: Connection) -> None:
    """Ask for `/livez` until the other side sends something, and send the longest time in ms."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    longest = 0.0
    while not pipe.poll():
        began = time.perf_counter()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        longest = max(longest, time.perf_counter() - began)
        time.sleep(_PAUSE_S)
    pipe.send(longest * 1000)


def _longest_ms(port: int, body: bytes | None) -> float:
    """Return the longest time of `/livez` in ms, during a request if there is a body."""
    here, there = multiprocessing.Pipe()
    poller = multiprocessing.get_context("fork").Process(target=_poll, args=(port, there))
    poller.start()
    if body is None:
        time.sleep(_QUIET_S)
    else:
        _send(port, body)
    here.send(None)
    longest: float = here.recv()
    poller.join()
    return longest


def _send(port: int, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/responses", body, {"Authorization": f"Bearer {KEY}"})
    response = connection.getresponse()
    response.read()
    connection.close()
    if response.status not in (200, 413, 422):
        raise SystemExit(f"The gateway answered with status {response.status}.")


def _measure(*, guardrail: bool) -> bool:
    passed = True
    with model_server(1) as upstream, gateway(upstream.url, guardrail=guardrail) as server:
        port = urlsplit(server.url).port
        assert port is not None
        quiet = min(_longest_ms(port, None) for _ in range(_ROUNDS))
        for name, body in _BODIES.items():
            longest = min(_longest_ms(port, body) for _ in range(_ROUNDS))
            line(
                f"/livez during 57 MiB: {name}{', inspected' if guardrail else ''}",
                f"{longest:.1f} ms",
                f"{quiet:.1f} ms without a request",
                f"at most {_TARGET_MS:.0f} ms",
                longest <= _TARGET_MS,
            )
            passed = passed and longest <= _TARGET_MS
    return passed


def main() -> bool:
    plain, inspected = _measure(guardrail=False), _measure(guardrail=True)
    return plain and inspected


if __name__ == "__main__":
    sys.exit(not main())
