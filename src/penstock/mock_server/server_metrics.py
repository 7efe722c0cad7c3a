"""`GET /metrics`: what the server did, in the Prometheus text format and with vLLM's names.

Finished requests are counted when they end, and requests in progress are added when the page is rendered. All times are
those of the request log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.mock_server.dialect import PlannedReply
    from penstock.mock_server.request import MockRequest
    from penstock.mock_server.server import Server

    InProgress = tuple[MockRequest, PlannedReply]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The bounds are vLLM's.
TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
FAILURES = frozenset(("error", "empty", "html", "stream_error", "failed"))
"""The faults after which a request counts as failed, even if its reply was written in full."""


class Histogram:
    """Counts of durations in nanoseconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._bounds_ns = [round(bound * 1e9) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        """The number of durations between each two bounds, and above the last."""
        self.total = 0

    def add(self, ns: int, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds_ns, ns)] += count
        self.total += ns * count

    def copy(self) -> Histogram:
        other = Histogram(self.bounds)
        other._counts, other.total = self._counts.copy(), self.total
        return other

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def cumulative(self) -> list[int]:
        """The number of durations up to each bound, and in all."""
        return list(accumulate(self._counts))


class ServerMetrics:
    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.ttft = Histogram(TTFT_BOUNDS)
        self.latency = Histogram(LATENCY_BOUNDS)
        self.queue_time = Histogram(LATENCY_BOUNDS)
        """Requests that did not wait are added when the page is rendered."""

    def add(self, request: MockRequest, planned: PlannedReply, end: str) -> None:
        """Count a request that has ended."""
        if request.first_write_ns is not None:
            self.prompt_tokens += planned.request.prompt_tokens
            self.ttft.add(request.first_write_ns - request.arrived_ns)
        if end == "complete" and (request.fault is None or FAILURES.isdisjoint(request.fault.split("+"))):
            self.finished["length" if planned.finish_reason == "length" else "stop"] += 1
            self.latency.add(request.ended_ns - request.arrived_ns)
            if request.queue_ns:
                self.queue_time.add(request.queue_ns)
            if not planned.tokens:  # embeddings
                self.prompt_tokens += planned.request.prompt_tokens
        else:
            self.finished["abort" if end == "aborted" else "error"] += 1

    def render(self, server: Server) -> bytes:
        in_progress = list(server.requests_in_progress())
        page = Page(server.compiled.behaviour.model)
        self._add_state(page, server, in_progress)
        self._add_tokens(page, server, in_progress)
        page.add_by_label("request_success_total", "Requests that ended.", "finished_reason", self.finished)
        page.add("counter", "num_preemptions_total", "Preempted requests; the mock preempts none.", 0)
        self._add_times(page, in_progress)
        return page.text()

    def _add_state(self, page: Page, server: Server, in_progress: list[InProgress]) -> None:
        slots, cache = server.slots, server.prefix_cache
        running = [pair for pair in in_progress if slots is None or pair[0].has_slot]
        page.add("gauge", "num_requests_running", "Requests that are processed.", len(running))
        waiting = 0 if slots is None else slots.waiting
        page.add("gauge", "num_requests_waiting", "Requests that wait for a slot.", waiting)
        usage = 0.0 if cache is None else min(1.0, used_blocks(running, cache.block_size) / cache.capacity)
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            page.add("gauge", name, "Blocks of running requests, as a share of the prefix cache.", usage)

    def _add_tokens(self, page: Page, server: Server, in_progress: list[InProgress]) -> None:
        cache = server.prefix_cache
        queried, hit = (0, 0) if cache is None else (cache.queried_tokens, cache.hit_tokens)
        page.add("counter", "prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", queried)
        page.add("counter", "prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", hit)
        started = [planned for request, planned in in_progress if request.first_write_ns is not None]
        prompt = self.prompt_tokens + sum(planned.request.prompt_tokens for planned in started)
        page.add("counter", "prompt_tokens_total", "Prompt tokens of requests with a first token.", prompt)
        generated = server.tokens + sum(request.tokens for request, _ in in_progress)
        page.add("counter", "generation_tokens_total", "Tokens written.", generated)

    def _add_times(self, page: Page, in_progress: list[InProgress]) -> None:
        ttft = self.ttft.copy()
        for request, _ in in_progress:
            if request.first_write_ns is not None:
                ttft.add(request.first_write_ns - request.arrived_ns)
        page.add_histogram("time_to_first_token_seconds", "Time from arrival to the first token's write.", ttft)
        latency = self.latency
        page.add_histogram("e2e_request_latency_seconds", "Time from arrival to the end of the reply.", latency)
        queue_time = self.queue_time.copy()
        queue_time.add(0, latency.count - queue_time.count)
        page.add_histogram("request_queue_time_seconds", "Time from arrival to a free slot.", queue_time)


def used_blocks(running: Iterable[InProgress], block_size: int) -> int:
    """Return the number of blocks that hold the tokens of these requests. Equal prefixes share their blocks."""
    shared: set[int] = set()
    others = 0
    for request, planned in running:
        full = [block for prompt in planned.prompts for block in prompt.hashes]
        shared.update(full)
        tokens = planned.request.prompt_tokens + request.tokens
        others += -(-tokens // block_size) - len(full)
    return len(shared) + others


class Page:
    """Families of metrics in the Prometheus text format."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", r"\\").replace('"', r"\"")
        self._labels = f'engine="0",model_name="{escaped}"'
        self._lines: list[str] = []

    def add(self, kind: str, name: str, meaning: str, value: float) -> None:
        self._add_family(kind, name, meaning, [f"{{{self._labels}}} {value}"])

    def add_by_label(self, name: str, meaning: str, label: str, values: dict[str, int]) -> None:
        samples = [f'{{{self._labels},{label}="{key}"}} {value}' for key, value in values.items()]
        self._add_family("counter", name, meaning, samples)

    def add_histogram(self, name: str, meaning: str, histogram: Histogram) -> None:
        self._add_family("histogram", name, meaning, self._histogram_samples(histogram))

    def text(self) -> bytes:
        return "".join(line + "\n" for line in self._lines).encode()

    def _histogram_samples(self, histogram: Histogram) -> Iterator[str]:
        cumulative = histogram.cumulative
        for bound, count in zip((*histogram.bounds, "+Inf"), cumulative, strict=True):
            yield f'_bucket{{{self._labels},le="{bound}"}} {count}'
        yield f"_sum{{{self._labels}}} {histogram.total / 1e9}"
        yield f"_count{{{self._labels}}} {cumulative[-1]}"

    def _add_family(self, kind: str, name: str, meaning: str, samples: Iterable[str]) -> None:
        self._lines += [f"# HELP vllm:{name} {meaning}", f"# TYPE vllm:{name} {kind}"]
        self._lines += [f"vllm:{name}{sample}" for sample in samples]
