"""A Worker and the scripted servers that it sends to, in one process and on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, NamedTuple

import uvloop

from penstock.records.log import RunLog
from penstock.records.payloads import BodyParts, PayloadWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.schedule.phases import PhasePlan
from penstock.schedule.scheduler import Share
from penstock.settings.schema import EndpointSettings
from penstock.workers.job import Job, targets
from penstock.workers.phase_controller import PhaseController
from penstock.workers.shared_state import SharedState
from penstock.workers.worker import Worker
from support.runs import make_header

LIMIT_S = 60.0
"""No worker in a test runs longer, unless it hangs."""


class Request(NamedTuple):
    number: int
    """Order of arrival, over all servers."""
    server: int
    connection: int
    """Number of the connection at its server."""
    headers: dict[str, str]
    body: dict[str, Any]
    arrived_ns: int
    path: str


class Connection:
    """The server's side of a connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """Send the parts, each in a segment of its own if there is a pause between them."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Answer = Callable[[Request, Connection], Awaitable[None]]


def http_reply(body: bytes, content_type: str = "application/json", status: str = "200 OK", length: int = 0) -> bytes:
    """Return a reply; `length` adds to its Content-Length."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body) + length}\r\n\r\n"
    return head.encode() + body


def chat_reply(text: str = "Yes", **fields: Any) -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return http_reply(json.dumps({"choices": [choice], **fields}).encode())


def chat_event(text: str | None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    return b"data: " + json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def chunked(*parts: bytes) -> bytes:
    """Return a stream with one chunk for each part."""
    return STREAM_HEAD + b"".join(map(chunk, parts)) + STREAM_END


def chat_stream(*texts: str) -> bytes:
    return chunked(*map(chat_event, texts), chat_event(None, "stop"), DONE)


def always(data: bytes) -> Answer:
    """Answer every request with `data`."""

    async def answer(_: Request, connection: Connection) -> None:
        await connection.send(data)

    return answer


class Outcome(NamedTuple):
    records: list[Record]
    """In the order in which they were sent."""
    report: WorkerReport
    requests: list[Request]
    """What the servers received."""
    controller: PhaseController


class Harness:
    """Runs one worker against servers that answer with `answers`, one server per answer."""

    def __init__(self, folder: Path, *answers: Answer) -> None:
        self._answers = answers
        self._folder = folder / "log"
        self._folder.mkdir()
        self._servers: list[asyncio.Server] = []
        self.requests: list[Request] = []
        self.connections = [0] * len(answers)
        self.shared = SharedState(1)
        self.controller = PhaseController(self.shared, 1, None)
        self.worker: Worker | None = None
        self.on_tick: Callable[[], None] | None = None
        self.close_servers = False
        """Close the servers before the worker starts."""

    def run(
        self,
        conversations: Sequence[Sequence[Any]] = (({"messages": []},),),
        *,
        streaming: bool = False,
        timeout_s: float = LIMIT_S,
        reuse: bool = True,
        preconnect: int = 1,
        **phase: Any,
    ) -> Outcome:
        """Send conversations, whose turns are bodies or `BodyParts`; `phase` are fields of the PhasePlan."""
        fields = {"slots": 1, "rate": None, "pattern": "constant", "seed": 1, "whole": True} | phase
        if {"requests", "conversations", "duration_s"} & phase.keys():
            fields["whole"] = phase.get("whole", False)
        plan = PhasePlan(name="profiling", kind="profiling", first=0, **fields)
        self._write_payloads(conversations)
        return uvloop.run(self._run(plan, streaming, timeout_s, reuse, preconnect))

    def _write_payloads(self, conversations: Sequence[Sequence[Any]]) -> None:
        writer = PayloadWriter(str(self._folder))
        for turns in conversations:
            for turn in turns:
                if isinstance(turn, BodyParts):
                    writer.add_parts(turn)
                else:
                    timing = {name: turn[name] for name in ("delay_ms", "timestamp_ms") if name in turn}
                    writer.add_body(json.dumps(turn).encode(), **timing)
            writer.end_conversation(None)
        writer.close()

    async def _run(self, plan: PhasePlan, streaming: bool, timeout_s: float, reuse: bool, preconnect: int) -> Outcome:
        loop = asyncio.get_running_loop()
        for number in range(len(self._answers)):
            self._servers.append(await asyncio.start_server(self._serving(number), "127.0.0.1", 0))
        urls = tuple(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in self._servers)
        if self.close_servers:
            for server in self._servers:
                server.close()
                await server.wait_closed()
        settings = EndpointSettings(urls=urls, streaming=streaming)
        job = Job(
            log=str(self._folder),
            endpoint="chat",
            settings=settings,
            files=(),
            targets=targets(settings, "/v1/chat/completions"),
            phases=(plan,),
            sampling="sequential",
            seed=1,
            timeout_ns=round(timeout_s * 1e9),
            reuse_connections=reuse,
            preconnect=preconnect,
            epoch=monotonic_ns(),
        )
        RunLog.write_header(str(self._folder), make_header())
        self.worker = Worker(job, Share(), self.shared, loop, self._tick)
        await asyncio.wait_for(self.worker.run(), LIMIT_S)
        for server in self._servers:
            server.close()
        log = RunLog(str(self._folder))
        (report,) = log.reports()
        records = sorted(log.records(), key=lambda record: record.start)
        log.close()
        return Outcome(records, report, self.requests, self.controller)

    def _tick(self) -> None:
        self.controller.step()
        if self.on_tick is not None:
            self.on_tick()

    def _serving(self, server: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = self.connections[server]
            self.connections[server] += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                    headers = {name.lower(): value for name, value in pairs}
                    body = json.loads(await reader.readexactly(int(headers["content-length"])))
                    request = Request(
                        len(self.requests), server, number, headers, body, monotonic_ns(), head.split(" ")[1]
                    )
                    self.requests.append(request)
                    await self._answers[server](request, Connection(writer))

        return serve
