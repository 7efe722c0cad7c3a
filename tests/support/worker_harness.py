"""A worker in this process, the runner that drives it, and scripted servers in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import Any, NamedTuple

from penstock.records.log import RunLog
from penstock.records.payloads import BodyParts, PayloadWriter
from penstock.records.record import Record
from penstock.records.worker_report import WorkerReport
from penstock.runs.phase_runner import PhaseResult, PhaseRunner, RunningPhase, RunProgress
from penstock.schedule.arrivals import Constant, Recorded
from penstock.schedule.limits import Fixed, SlotLimit
from penstock.schedule.phase import Phase
from penstock.schedule.server_assignment import EachServer
from penstock.schedule.turn_timing import AtRecordedTimes
from penstock.settings.schema import EndpointSettings
from penstock.workers.in_process import InProcess
from penstock.workers.job import Job, targets
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
    reports: list[WorkerReport]
    """One for each phase."""
    requests: list[Request]
    """What the servers received."""
    runner: PhaseRunner
    results: list[PhaseResult]

    @property
    def report(self) -> WorkerReport:
        (report,) = self.reports
        return report


def make_phase(
    *,
    slots: int | SlotLimit | None = 1,
    rate: float | None = None,
    scale: float | None = None,
    servers: int = 1,
    **fields: Any,
) -> Phase:
    """Return a phase with slots of a fixed number. With `scale` conversations follow their recorded times."""
    changes: dict[str, Any] = {"slots": Fixed(slots) if isinstance(slots, int) else slots}
    if rate is not None:
        changes["arrivals"] = Constant(rate)
    if scale is not None:
        changes |= {"arrivals": Recorded(scale, servers), "turn_timing": AtRecordedTimes(scale)}
    if servers > 1:
        changes["servers"] = EachServer(servers)
    if not {"requests", "conversations", "duration_s", "whole"} & fields.keys():
        changes["whole"] = True
    return Phase(**{"name": "profiling", "kind": "profiling", "seed": 1} | changes | fields)


class Harness:
    """Runs one worker against servers that answer with `answers`, one server per answer."""

    def __init__(self, folder: Path, *answers: Answer) -> None:
        self._answers = answers
        self._folder = folder / "log"
        self._folder.mkdir()
        self.requests: list[Request] = []
        self.connections = [0] * len(answers)
        self.runner: PhaseRunner | None = None
        self.on_tick: Callable[[PhaseRunner], None] | None = None
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
        """Send conversations, whose turns are bodies or `BodyParts`; `phase` are arguments of `make_phase`."""
        settings = {"streaming": streaming, "timeout_s": timeout_s, "connections": "pooled" if reuse else "never"}
        return self.run_phases(conversations, [make_phase(**phase)], preconnect=preconnect, **settings)

    def run_phases(
        self,
        conversations: Sequence[Sequence[Any]],
        phases: Iterable[Phase],
        *,
        drain: bool = True,
        lead_s: float = 0.0,
        **options: Any,
    ) -> Outcome:
        """Run phases one after the other. Without `drain`, the next one starts `lead_s` after the one before."""

        def run(runner: PhaseRunner) -> Iterator[PhaseResult | None]:
            running = []
            for phase in phases:
                if drain:
                    yield runner.run(phase)
                elif (started := runner.start(phase, drain=False)) is not None:
                    started.poll(lead_s)
                    running.append(started)
            for started in running:
                yield started.wait()

        return self._execute(conversations, run, **options)

    def run_until(
        self,
        conversations: Sequence[Sequence[Any]],
        phase: Phase,
        until: Callable[[RunningPhase], bool],
        grace_s: float,
    ) -> Outcome:
        """Run a phase that a rule stops."""

        def run(runner: PhaseRunner) -> Iterator[PhaseResult | None]:
            running = runner.start(phase)
            yield None if running is None else running.wait(until, grace_s=grace_s)

        return self._execute(conversations, run)

    def run_experiment(
        self, conversations: Sequence[Sequence[Any]], experiment: Generator[Phase, PhaseResult, None], **options: Any
    ) -> Outcome:
        """Run the phases that a generator yields, and send it the result of each."""

        def run(runner: PhaseRunner) -> Iterator[PhaseResult | None]:
            phase: Phase | None = next(experiment)
            while phase is not None and (result := runner.run(phase)) is not None:
                yield result
                try:
                    phase = experiment.send(result)
                except StopIteration:
                    phase = None

        return self._execute(conversations, run, **options)

    def _execute(
        self,
        conversations: Sequence[Sequence[Any]],
        run: Callable[[PhaseRunner], Iterator[PhaseResult | None]],
        *,
        preconnect: int = 1,
        **settings: Any,
    ) -> Outcome:
        self._write_payloads(conversations)
        with self._serving_all() as urls:
            endpoint = EndpointSettings(urls=urls, **settings)
            job = Job(
                log=str(self._folder), settings=endpoint, files=(), sampling="sequential", seed=1, preconnect=preconnect
            )
            RunLog.write_header(str(self._folder), make_header())
            epoch = monotonic_ns()
            backend = InProcess(job, targets(endpoint, "/v1/chat/completions"), epoch)
            runner = self.runner = PhaseRunner(backend, job.log, epoch=epoch, on_progress=self._tick)
            with runner:
                results = [result for result in run(runner) if result is not None]
        log = RunLog(str(self._folder))
        records = sorted(log.records(), key=lambda record: record.start)
        reports = log.reports()
        return Outcome(records, reports, self.requests, runner, results)

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

    @contextlib.contextmanager
    def _serving_all(self) -> Iterator[tuple[str, ...]]:
        """Serve in a thread, and yield the URLs."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        servers: list[asyncio.Server] = []

        async def start() -> tuple[str, ...]:
            for number in range(len(self._answers)):
                servers.append(await asyncio.start_server(self._serving(number), "127.0.0.1", 0))
            urls = tuple(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers)
            if self.close_servers:
                for server in servers:
                    server.close()
            return urls

        async def stop() -> None:
            for server in servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            yield asyncio.run_coroutine_threadsafe(start(), loop).result(LIMIT_S)
        finally:
            asyncio.run_coroutine_threadsafe(stop(), loop).result(LIMIT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(LIMIT_S)
            loop.close()

    def _tick(self, _: RunProgress) -> None:
        if self.on_tick is not None and self.runner is not None:
            self.on_tick(self.runner)

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
            writer.close()  # the client has closed its side

        return serve
