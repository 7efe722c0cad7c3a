"""The server: it accepts connections, answers each request, and counts requests."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Iterator
from time import monotonic_ns, time_ns
from typing import Literal

import msgspec

from penstock.errors import UserError
from penstock.mock_server.behaviour import Behaviour, read_header
from penstock.mock_server.compiled_behaviour import CompiledBehaviour, Delivery
from penstock.mock_server.connection import Connection
from penstock.mock_server.dialect import BadRequest, Dialect, PlannedReply, describe_error, error_body
from penstock.mock_server.dialect_table import DIALECTS, find_dialect
from penstock.mock_server.pacer import Pacer
from penstock.mock_server.prefix_cache import PrefixCache
from penstock.mock_server.reply import JSON, Reply, error_type, http_response
from penstock.mock_server.request import MockRequest
from penstock.mock_server.request_log import RequestLog
from penstock.mock_server.server_metrics import CONTENT_TYPE, ServerMetrics
from penstock.mock_server.slots import Slots
from penstock.mock_server.vocabulary import VARIANTS
from penstock.wire import kernel_stamps

ACCEPTS = 256
"""Connections accepted in one iteration of the event loop."""
BACKLOG = 65_535
WHOLE_REPLY_TOKENS = 8192
"""Longer replies are sent in steps, to limit the memory for them and the delay of other streams."""
CACHED_ROUTES = 1024
CACHED_BEHAVIOURS = 256

Page = Literal["models", "health", "stats", "metrics"]
Call = Literal["reset_prefix_cache", "start_profile", "stop_profile"]
Route = Dialect | Page | Call | None
CALLS: tuple[Call, ...] = ("reset_prefix_cache", "start_profile", "stop_profile")
"""Calls of vLLM that are no requests to the model."""
PAGES: dict[str, Page | Call] = {
    "/models": "models",
    "/health": "health",
    "/mock/stats": "stats",
    "/metrics": "metrics",
    **{f"/{call}": call for call in CALLS},
}
"""What is served at paths with these ends, besides the dialects."""


class Server:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        behaviour: Behaviour,
        log: RequestLog | None = None,
    ) -> None:
        self.loop = loop
        self.log = log
        self.pacer = Pacer(loop)
        self.compiled = CompiledBehaviour(behaviour)
        self.slots = None if behaviour.slots is None else Slots(behaviour.slots, self._start)
        self.prefix_cache: PrefixCache | None = None
        if behaviour.prefix_cache is not None:
            self.prefix_cache = PrefixCache(behaviour.prefix_cache, behaviour.block_size)
        self.metrics = ServerMetrics()
        self.idle_ns = round((behaviour.idle_close or 0) * 1e6)
        self.started_ns = time_ns()
        self.model_requests = 0
        """Requests to the dialects, including those that are rejected."""
        self.active = 0
        self.requests = 0
        self.tokens = 0
        self.images = self.audios = 0
        self.statuses: Counter[int] = Counter()
        self.ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.profiling = False
        """True between the calls that start and stop the profiler."""
        self.connections: set[Connection] = set()
        self.accepted = 0
        self._routes: dict[bytes, Route] = {}
        self._compiled_by_header: dict[bytes, CompiledBehaviour | str] = {}
        # Reply ids are unique among the servers on one host.
        self._first_id = (os.getpid() & 0xFFFF) << 48 | (self.started_ns // 1_000_000_000 & 0xFFFF) << 32
        self._listener = listener
        listener.setblocking(False)
        if kernel_stamps.AVAILABLE:
            # Connections inherit the option, so requests that arrive before accept() are timestamped too.
            listener.setsockopt(socket.SOL_SOCKET, kernel_stamps.SO_TIMESTAMPNS, 1)
        listener.listen(BACKLOG)
        loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of file descriptors: leave the client in the backlog and retry later, to avoid a busy loop.
                self.loop.remove_reader(self._listener.fileno())
                self.loop.call_later(0.1, self.loop.add_reader, self._listener.fileno(), self._accept)
                return
            self.accepted += 1
            connection = Connection(self, sock, self.accepted)
            self.connections.add(connection)
            if self.idle_ns:
                self.pacer.push(monotonic_ns() + self.idle_ns, connection)

    def close(self) -> None:
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if self.slots is not None:
            self.slots.close()
        for connection in list(self.connections):
            connection.close()
        self.pacer.close()
        if self.log is not None:
            self.log.close()

    # answering requests

    def answer(self, request: MockRequest) -> None:
        self.active += 1
        try:
            route = self._routes[request.url]
        except KeyError:
            route = self._find_route(request.url)
        if route is None or isinstance(route, str) or request.method != b"POST" or request.parse_error is not None:
            self._answer_other(request, route)
            return
        number = request.number = self.model_requests
        self.model_requests = number + 1
        compiled = self.compiled
        header = request.headers.get(b"x-mock")
        if header is not None:
            compiled_or_error = self._behaviour_of_header(header)
            if isinstance(compiled_or_error, str):
                self._send_error(request, 400, compiled_or_error, "X-Mock")
                return
            compiled = compiled_or_error
        try:
            parsed = route.parse(request.body)
        except (BadRequest, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._send_error(request, 400, *describe_error(error))
            return
        planned = request.planned = PlannedReply(
            parsed, compiled.behaviour, number % VARIANTS, has_output_kinds=route.has_output_kinds
        )
        if self.prefix_cache is not None:
            planned.prompts = route.prompts(request.body, self.prefix_cache.block_size)
        delivery = compiled.delivery(parsed.stream, request.keep_alive)
        request.keep_alive = not delivery.close
        reply_id = route.reply_id(planned, self._first_id + number, request.arrived_ns // 1_000_000_000)
        reply = Reply(compiled, route, planned, delivery, number=number, reply_id=reply_id)
        if self.log is not None and self.log.writes:
            request.write_ns = []
            request.write_tokens = []
        if self.slots is None or reply.replaced:
            self._start(request, reply)
        else:
            self.slots.enter(request, reply)

    def _start(self, request: MockRequest, reply: Reply) -> None:
        """Begin to process a request."""
        compiled, planned = reply.compiled, reply.planned
        if planned.prompts and self.prefix_cache is not None and not reply.replaced:
            planned.cached_tokens = self.prefix_cache.use(planned.prompts)
        if compiled.immediate and planned.completion_tokens <= WHOLE_REPLY_TOKENS:
            request.send(reply.whole(), planned.completion_tokens)
            return
        if reply.faults:
            request.fault = "+".join(reply.faults)
            if "error" in reply.faults:
                request.status = compiled.behaviour.error or 500
        request.send_steps(reply.steps())

    def _find_route(self, url: bytes) -> Route:
        path = url.partition(b"?")[0].decode("latin-1").rstrip("/")
        route: Route = next((PAGES[end] for end in PAGES if path.endswith(end)), None) or find_dialect(path)
        if len(self._routes) >= CACHED_ROUTES:
            self._routes.clear()
        self._routes[url] = route
        return route

    def _behaviour_of_header(self, header: bytes) -> CompiledBehaviour | str:
        """Return the behaviour that an X-Mock header asks for, or an error message."""
        result = self._compiled_by_header.get(header)
        if result is None:
            try:
                result = CompiledBehaviour(read_header(header.decode("latin-1"), self.compiled.behaviour))
            except UserError as error:
                result = str(error)
            if len(self._compiled_by_header) >= CACHED_BEHAVIOURS:
                self._compiled_by_header.clear()
            self._compiled_by_header[header] = result
        return result

    def _answer_other(self, request: MockRequest, route: Route) -> None:
        """Answer a request that is not a valid POST to a dialect."""
        method = request.method.decode("latin-1")
        path = request.url.decode("latin-1")
        if request.parse_error is not None:
            request.arrived_ns = time_ns()
            self._send_error(request, 400, request.parse_error)
        elif route is None:
            paths = ", ".join([dialect.base + dialect.path for dialect in DIALECTS])
            self._send_error(request, 404, f"there is no {path} here: the mock serves {paths}, /v1/models and /health")
        elif not isinstance(route, str):
            self._send_error(request, 405, f"{path} takes POST, not {method}", allow="POST")
        elif route in CALLS:
            self._answer_call(request, route, method)
        elif method not in ("GET", "HEAD"):
            self._send_error(request, 405, f"{path} takes GET, not {method}", allow="GET")
        else:
            delivery = Delivery("length", not request.keep_alive)
            if route == "metrics":
                self._send(request, http_response(self.metrics.render(self), CONTENT_TYPE, delivery))
            else:
                self._send(request, http_response(self._page(route), JSON, delivery))

    def _answer_call(self, request: MockRequest, call: str, method: str) -> None:
        """Clear the prefix cache, or start or stop the profiler, which does nothing but count."""
        if method != "POST":
            self._send_error(request, 405, f"/{call} takes POST, not {method}", allow="POST")
            return
        if call == "reset_prefix_cache":
            if self.prefix_cache is not None:
                self.prefix_cache.clear()
        elif self.profiling is (call == "start_profile"):
            self._send_error(request, 409, f"the profiler is {'running' if self.profiling else 'not running'}")
            return
        else:
            self.profiling = not self.profiling
        self.calls[call] += 1
        self._send(request, http_response(b"{}", JSON, Delivery("length", not request.keep_alive)))

    def _send_error(
        self, request: MockRequest, status: int, message: str, param: str | None = None, *, allow: str = ""
    ) -> None:
        request.status = status
        body = error_body(message, error_type(status), param)
        extra = (("Allow", allow),) if allow else ()
        self._send(request, http_response(body, JSON, Delivery("length", not request.keep_alive), status, extra))

    def _send(self, request: MockRequest, data: bytes) -> None:
        request.send(data[: data.index(b"\r\n\r\n") + 4] if request.method == b"HEAD" else data)

    def _page(self, route: str) -> bytes:
        if route == "health":
            return b'{"status":"ok"}'
        if route == "models":
            created = self.started_ns // 1_000_000_000
            model = {"id": self.compiled.behaviour.model, "object": "model", "created": created, "owned_by": "penstock"}
            return msgspec.json.encode({"object": "list", "data": [model]})
        stats = {
            "requests": self.requests,
            "active": self.active - 1,
            "connections": {"open": len(self.connections), "accepted": self.accepted},
            "tokens": self.tokens,
            "images": self.images,
            "audios": self.audios,
            "statuses": self.statuses,
            "ends": self.ends,
            "faults": self.faults,
            "calls": self.calls,
        }
        return msgspec.json.encode(stats)

    def requests_in_progress(self) -> Iterator[tuple[MockRequest, PlannedReply]]:
        """Return the requests to a model that have not ended, with their replies."""
        for connection in self.connections:
            request = connection.active
            if request is not None and request.planned is not None:
                yield request, request.planned

    def record_end(self, request: MockRequest, end: str) -> None:
        """Count and log a request that has ended."""
        self.active -= 1
        planned = request.planned
        if planned is None and self._routes.get(request.url) in ("stats", "metrics"):
            return
        self.requests += 1
        self.tokens += request.tokens
        if planned is not None:
            self.images += planned.request.images
            self.audios += planned.request.audios
            self.metrics.add(request, planned, end)
            if self.slots is not None:
                self.slots.leave(request)
        self.statuses[request.status] += 1
        self.ends[end] += 1
        if request.fault is not None:
            for name in request.fault.split("+"):
                self.faults[name] += 1
        if self.log is not None:
            self.log.add(request.log_entry(end))
