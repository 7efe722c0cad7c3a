"""The server: it accepts connections, decides what each request gets, and counts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from time import monotonic_ns, time_ns
from typing import Literal

import msgspec

from penstock.errors import UserError
from penstock.mock import registry
from penstock.mock.behaviour import Behaviour, read_header
from penstock.mock.compiled_behaviour import CompiledBehaviour, Delivery
from penstock.mock.connection import SO_TIMESTAMPNS, STAMPED, Connection
from penstock.mock.dialect import BadRequest, Dialect, Say, complaint, error_body
from penstock.mock.pacer import Pacer
from penstock.mock.reply import JSON, Reply, delimited, error_type
from penstock.mock.request import MockRequest
from penstock.mock.request_log import RequestLog
from penstock.mock.vocabulary import VARIANTS

__all__ = ["Server"]

ACCEPTS = 256
"""Connections taken in one turn of the loop."""
BACKLOG = 65_535
BLOCK_TOKENS = 8192
"""Longer replies are written in steps, so that neither memory nor other streams suffer from them."""
CACHED_ROUTES = 1024
CACHED_PROFILES = 256

Route = Dialect | Literal["models", "health", "stats"] | None


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
        self.profile = CompiledBehaviour(behaviour)
        self.idle_ns = round((behaviour.idle_close or 0) * 1e6)
        self.began = time_ns()
        self.arrivals = 0
        self.active = 0
        self.requests = 0
        self.tokens = 0
        self.images = self.audios = 0
        """In the requests to the model."""
        self.statuses: Counter[int] = Counter()
        self.ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.connections: set[Connection] = set()
        self.accepted = 0
        self._routes: dict[bytes, Route] = {}
        self._profiles: dict[bytes, CompiledBehaviour | str] = {}
        # Ids of two servers on one host do not meet.
        self._nonce = (os.getpid() & 0xFFFF) << 48 | (self.began // 1_000_000_000 & 0xFFFF) << 32
        self._listener = listener
        listener.setblocking(False)
        if STAMPED:
            # Connections inherit it, so that even a request that waits to be accepted has its stamp.
            listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        listener.listen(BACKLOG)
        loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Out of descriptors: the client waits in the backlog, and the loop must not spin on it.
                self.loop.remove_reader(self._listener.fileno())
                self.loop.call_later(0.1, self.loop.add_reader, self._listener.fileno(), self._accept)
                return
            self.accepted += 1
            connection = Connection(self, sock, self.accepted)
            self.connections.add(connection)
            if self.idle_ns:
                self.pacer.push(monotonic_ns() + self.idle_ns, connection)

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def close(self) -> None:
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in list(self.connections):
            connection.lose()
        self.pacer.close()
        if self.log is not None:
            self.log.close()

    # what a request gets

    def answer(self, call: MockRequest) -> None:
        self.active += 1
        try:
            route = self._routes[call.url]
        except KeyError:
            route = self._route(call.url)
        if route is None or isinstance(route, str) or call.method != b"POST" or call.wrong is not None:
            self._answer_other(call, route)
            return
        number = call.number = self.arrivals
        self.arrivals = number + 1
        profile = self.profile
        chosen = call.headers.get(b"x-mock")
        if chosen is not None:
            found = self._profile(chosen)
            if isinstance(found, str):
                self._refuse(call, 400, found, "X-Mock")
                return
            profile = found
        try:
            ask = route.read(call.body)
        except (BadRequest, msgspec.DecodeError, UnicodeDecodeError) as wrong:
            self._refuse(call, 400, *complaint(wrong))
            return
        say = call.say = Say(ask, profile.behaviour, number % VARIANTS, kinds=route.kinds)
        delivery = profile.delivery(ask.stream, call.keep)
        call.keep = not delivery.close
        mark = route.stamp(say, self._nonce + number, call.arrived // 1_000_000_000)
        reply = Reply(profile, route, say, delivery, number=number, mark=mark)
        if self.log is not None and self.log.writes:
            call.writes = []
            call.write_tokens = []
        if profile.plain and say.completion <= BLOCK_TOKENS:
            call.send(reply.whole(), say.completion)
            return
        if reply.struck:
            call.fault = "+".join(reply.struck)
            if "error" in reply.struck:
                call.status = profile.behaviour.error or 500
        call.play(reply.steps())

    def _route(self, url: bytes) -> Route:
        path = url.partition(b"?")[0].decode("latin-1").rstrip("/")
        route: Route = registry.find(path)
        if path.endswith("/models"):
            route = "models"
        elif path.endswith("/health"):
            route = "health"
        elif path.endswith("/mock/stats"):
            route = "stats"
        if len(self._routes) >= CACHED_ROUTES:
            self._routes.clear()
        self._routes[url] = route
        return route

    def _profile(self, header: bytes) -> CompiledBehaviour | str:
        """The profile that an X-Mock header asks for, or what is wrong with it."""
        found = self._profiles.get(header)
        if found is None:
            try:
                found = CompiledBehaviour(read_header(header.decode("latin-1"), self.profile.behaviour))
            except UserError as wrong:
                found = str(wrong)
            if len(self._profiles) >= CACHED_PROFILES:
                self._profiles.clear()
            self._profiles[header] = found
        return found

    def _answer_other(self, call: MockRequest, route: Route) -> None:
        """Everything but a request to the model."""
        method = call.method.decode("latin-1")
        path = call.url.decode("latin-1")
        if call.wrong is not None:
            call.arrived = time_ns()
            self._refuse(call, 400, call.wrong)
        elif route is None:
            served = ", ".join(["/v1" + dialect.path for dialect in registry.DIALECTS])
            self._refuse(call, 404, f"there is no {path} here: the mock serves {served}, /v1/models and /health")
        elif not isinstance(route, str):
            self._refuse(call, 405, f"{path} takes POST, not {method}", allow="POST")
        elif method not in ("GET", "HEAD"):
            self._refuse(call, 405, f"{path} takes GET, not {method}", allow="GET")
        else:
            self._send(call, delimited(self._facts(route), JSON, Delivery("length", not call.keep)))

    def _refuse(
        self, call: MockRequest, status: int, message: str, param: str | None = None, *, allow: str = ""
    ) -> None:
        call.status = status
        body = error_body(message, error_type(status), param)
        extra = (("Allow", allow),) if allow else ()
        self._send(call, delimited(body, JSON, Delivery("length", not call.keep), status, extra))

    def _send(self, call: MockRequest, data: bytes) -> None:
        call.send(data[: data.index(b"\r\n\r\n") + 4] if call.method == b"HEAD" else data)

    def _facts(self, route: str) -> bytes:
        if route == "health":
            return b'{"status":"ok"}'
        if route == "models":
            model = {"id": self.profile.behaviour.model, "object": "model", "created": self.began // 1_000_000_000}
            return msgspec.json.encode({"object": "list", "data": [model | {"owned_by": "penstock"}]})
        facts = {
            "requests": self.requests,
            "active": self.active - 1,
            "connections": {"open": len(self.connections), "accepted": self.accepted},
            "tokens": self.tokens,
            "images": self.images,
            "audios": self.audios,
            "statuses": self.statuses,
            "ends": self.ends,
            "faults": self.faults,
        }
        return msgspec.json.encode(facts)

    def done(self, call: MockRequest, end: str) -> None:
        """Count and log a call that is over."""
        self.active -= 1
        route = self._routes.get(call.url)
        if route == "stats":
            return
        self.requests += 1
        self.tokens += call.tokens
        if call.say is not None:
            self.images += call.say.ask.images
            self.audios += call.say.ask.audios
        self.statuses[call.status] += 1
        self.ends[end] += 1
        if call.fault is not None:
            for name in call.fault.split("+"):
                self.faults[name] += 1
        if self.log is not None:
            self.log.add(call.truth(end))
