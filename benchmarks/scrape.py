"""Measure the CPU time of scraping ten endpoints each second, with pages as large as those of vLLM.

python -m benchmarks.scrape
"""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import count

import msgspec

from benchmarks.far_end import line
from penstock.records.log import Sample
from penstock.telemetry.scrape import MetricsUrl, Scraper
from penstock.telemetry.server_metrics import SOURCE
from penstock.wire.pool import resolve

_ENDPOINTS = 10
_ROUNDS = 20
_LIMIT = 0.01
"""Share of a core."""
_SERIES = 600
"""Lines of a page; half of them change between two scrapes."""


def serve() -> None:
    """Serve pages on a free port, and print the port."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    numbers = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open, as those of vLLM do

        def do_GET(self) -> None:
            n = next(numbers)
            labels = 'engine="0",model_name="Qwen/Qwen3-0.6B"'
            lines = [f'vllm:series_bucket{{{labels},le="{i}"}} {n if i % 2 else 7}.0' for i in range(_SERIES)]
            page = ("# TYPE vllm:series histogram\n" + "\n".join(lines) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def main() -> bool:
    command = [sys.executable, "-c", "from benchmarks.scrape import serve; serve()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            share = _share(port)
        finally:
            server.kill()
    line(
        "ten endpoints scraped each second",
        f"{share:.2%} of a core",
        "at most 1 %",
        f"{share / _LIMIT:.2f} of the limit",
        share < _LIMIT,
    )
    return share < _LIMIT


def _share(port: int) -> float:
    """Return the CPU time of a round of scrapes, including the samples for the log, as a share of one second."""
    origin = resolve("127.0.0.1", port, None)[0]
    urls = [MetricsUrl(f"http://127.0.0.1:{port}/{n}", origin, f"/{n}") for n in range(_ENDPOINTS)]
    scraper = Scraper(SOURCE, urls)
    scraper.collect()
    began = time.process_time()
    for _ in range(_ROUNDS):
        for observation in scraper.collect():
            assert "lines" in observation.values
            msgspec.msgpack.encode(Sample(*observation))
    share = (time.process_time() - began) / _ROUNDS
    scraper.close()
    return share


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
