"""Measure the cost of the gateway: requests sent directly and through it in one run, and compared with LiteLLM's proxy.

LiteLLM's recorded figures on two shared cores: 53 requests/s, 17 ms added latency, 11 to 17 s to start, 340 MB. To measure
it in the same run instead, set REFERENCE_LITELLM to the path of an installed proxy (`benchmarks.versions` compares with other
versions of Penstock):

    python -m benchmarks.gateway
    REFERENCE_LITELLM=/path/to/other/venv/bin/litellm python -m benchmarks.gateway

On a machine with at least eight cores, gateways, model server and client run on cores of their own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.far_end import FarEnd, far_end, line, profile
from benchmarks.pinning import CLIENT, GATEWAY, SERVER, pinned_to

KEY = "sk-benchmark"
_RECORDED_RATE = 53.0
MAX_ADDED_MS, MAX_ADDED_TTFT_MS = 0.5, 0.6
_PROMPTS = (
    "--endpoint-type",
    "responses",
    "--isl",
    "50",
    "--osl",
    "20",
    "--num-dataset-entries",
    "50",
    "--random-seed",
    "1",
)
_COMMON = (*_PROMPTS, "--api-key", KEY, "--use-server-token-count")

_RESOURCES = """\
_format_version: "1"
provider_keys:
  - {{display_name: up, provider: openai, adapter: openai, api_key: sk-up, api_base: "{url}/v1"}}
models:
  - {{display_name: m, provider: openai, model_name: m, provider_key: up}}
api_keys:
  - {{display_name: bench, key_env: BENCH_KEY, allowed_models: ["*"]}}
{guardrails}
"""
_GUARDRAIL = """\
guardrails:
  - {name: words, kind: keyword, hook_point: both, patterns: [{kind: literal, value: FORBIDDEN-PHRASE}]}
"""
_CONFIG = """\
listen: {{port: {port}, status_port: {status}, drain_notice_s: 0, workers: 1}}
ledger: {{url: "sqlite:///{folder}/usage.db", spool: "{folder}/spool"}}
access_log: "off"
guardrails: {{stream_mode: window}}
"""


class Server:
    """A running proxy. Its processes are those of one session."""

    def __init__(self, url: str, started_s: float, session: int) -> None:
        self.url = url
        self.started_s = started_s
        self.memory_mb = _memory_mb(session)
        self._session = session

    def cpu_s(self) -> float:
        """Return the CPU time of all processes so far."""
        ticks = sum([int(fields[11]) + int(fields[12]) for _, fields in _processes(self._session)])
        return ticks / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def model_server(tokens: int, ttft_us: int = 0, itl_us: int = 0) -> Iterator[FarEnd]:
    with ExitStack() as stack:
        with pinned_to(SERVER):
            server = stack.enter_context(far_end(tokens, ttft_us, itl_us))
        yield server


def penstock_command(program: str = "") -> tuple[list[str], dict[str, str]]:
    """Return the command of a Penstock, and its environment. `program` is an executable, or a checkout that runs with the
    packages of this environment; without it, the command is this Penstock."""
    environment = {**os.environ, "BENCH_KEY": KEY}
    if not program:
        return [str(Path(sys.executable).parent / "penstock")], environment
    if not Path(program, "src", "penstock").is_dir():
        return [program], environment
    environment["PYTHONPATH"] = str(Path(program, "src").resolve())
    return [sys.executable, "-m", "penstock"], environment


@contextmanager
def gateway(upstream: str, *, guardrail: bool = False, program: str = "") -> Iterator[Server]:
    command, environment = penstock_command(program)
    with tempfile.TemporaryDirectory() as folder:
        port, status = _free_port(), _free_port()
        resources = Path(folder, "resources.yaml")
        resources.write_text(_RESOURCES.format(url=upstream, guardrails=_GUARDRAIL if guardrail else ""))
        config = Path(folder, "gateway.yaml")
        config.write_text(_CONFIG.format(port=port, status=status, folder=folder))
        command += ["gateway", "--resources", str(resources), "--config", str(config)]
        with _started(command, f"http://127.0.0.1:{port}", "/livez", environment) as server:
            yield server


@contextmanager
def litellm(upstream: str) -> Iterator[Server]:
    program = os.environ["REFERENCE_LITELLM"]
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        config = Path(folder, "config.yaml")
        config.write_text(
            "model_list:\n- model_name: m\n  litellm_params:\n"
            f"    model: openai/m\n    api_base: {upstream}/v1\n    api_key: sk-up\n"
            f"general_settings:\n  master_key: {KEY}\n"
        )
        command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        with _started(command, f"http://127.0.0.1:{port}", "/health/liveliness", dict(os.environ)) as server:
            yield server


@contextmanager
def _started(command: list[str], url: str, probe: str, environment: dict[str, str]) -> Iterator[Server]:
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        with pinned_to(GATEWAY):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            while not _is_up(url + probe):
                if process.poll() is not None or time.monotonic() - began > 120:
                    log.seek(0)
                    raise SystemExit(f"{command[0]} did not start: {log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.02)
            started = time.monotonic() - began
            time.sleep(1)
            yield Server(url, started, process.pid)
        finally:
            with suppress(ProcessLookupError):  # it has ended; its output is in the exception
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _processes(session: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder in /proc of each process of a session, and the fields of its `stat` that follow its name."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    yield entry, fields


def _memory_mb(session: int) -> float:
    """Return the proportional memory (PSS) of all processes of a session."""
    total = 0.0
    for entry, _ in _processes(session):
        with suppress(OSError, StopIteration):
            rollup = (entry / "smaps_rollup").read_text()
            total += next(int(row.split()[1]) for row in rollup.splitlines() if row.startswith("Pss:")) / 1024
    return total


def rate(url: str, requests: int, concurrency: int, *flags: str) -> float:
    with (
        pinned_to(CLIENT),
        profile(url, *_COMMON, *flags, "--concurrency", str(concurrency), "--request-count", str(requests)) as run,
    ):
        return run.value("request_throughput")


def latency(url: str, tag: str, *flags: str, requests: int = 3000) -> float:
    with (
        pinned_to(CLIENT),
        profile(url, *_COMMON, *flags, "--concurrency", "1", "--request-count", str(requests)) as run,
    ):
        return run.value(tag, "p50")


def throughput() -> bool:
    with model_server(20) as server:
        reference_rate, source = _RECORDED_RATE, "recorded"
        if os.environ.get("REFERENCE_LITELLM"):
            with litellm(server.url) as proxy:
                reference_rate, source = rate(proxy.url, 400, 8), "measured now"
        with gateway(server.url) as proxied:
            own_rate = rate(proxied.url, 20_000, 32)
            started, memory = proxied.started_s, proxied.memory_mb
    ratio = own_rate / reference_rate
    text = f"{ratio:.0f} times (at least 60)"
    line(
        "/v1/responses through one worker",
        f"{own_rate:,.0f} req/s",
        f"LiteLLM {reference_rate:,.0f} ({source})",
        text,
        ratio >= 60,
    )
    line("start to the first answer", f"{started:.2f} s", "at most 1.5 s", f"{started / 1.5:.2f} of it", started < 1.5)
    line(
        "memory at rest, all processes", f"{memory:.0f} MB", "at most 100 MB", f"{memory / 100:.2f} of it", memory < 100
    )
    return ratio >= 60 and started < 1.5 and memory < 100


def added_latency() -> bool:
    with model_server(20) as server, gateway(server.url) as proxied:
        whole = _added(server.url, proxied.url, "request_latency", "latency", MAX_ADDED_MS)
        first = _added(server.url, proxied.url, "time_to_first_token", "TTFT", MAX_ADDED_TTFT_MS, "--streaming")
    return whole and first


def _added(direct_url: str, url: str, tag: str, name: str, limit: float, *flags: str) -> bool:
    direct = latency(direct_url, tag, *flags)
    added = latency(url, tag, *flags) - direct
    text = f"{added / limit:.2f} of {limit} ms"
    line(f"added {name} at concurrency 1, p50", f"{added:.3f} ms", f"direct {direct:.3f} ms", text, added <= limit)
    return added <= limit


def guarded_stream() -> bool:
    """Check that a keyword guardrail in window mode delays the first token by less than one event (5 ms here)."""
    with model_server(40, 20_000, 5_000) as server, gateway(server.url, guardrail=True) as proxied:
        flags = ("--streaming",)
        direct = latency(server.url, "time_to_first_token", *flags, requests=60)
        through = latency(proxied.url, "time_to_first_token", *flags, requests=60)
    added = through - direct
    line(
        "added TTFT with a guardrail in a window",
        f"{added:.3f} ms",
        f"direct {direct:.3f} ms",
        f"{added / 5:.2f} events",
        added < 5,
    )
    return added < 5


def liveness() -> bool:
    """Check that a worker answers /livez while it inspects the body that costs most: many values, just below the limit."""
    body = b'{"model":"m","input":[%b"a"]}' % (b'"a",' * 98_000)
    worst = 0.0
    with model_server(20) as server, gateway(server.url, guardrail=True) as proxied:
        sender = threading.Thread(target=_post, args=(f"{proxied.url}/v1/responses", body))
        sender.start()
        while sender.is_alive():
            began = time.perf_counter()
            _is_up(f"{proxied.url}/livez")
            worst = max(worst, time.perf_counter() - began)
        sender.join()
    added = worst * 1000
    line(
        "slowest /livez while a body is inspected",
        f"{added:.1f} ms",
        "at most 50 ms",
        f"{added / 50:.2f} of it",
        added < 50,
    )
    return added < 50


def _post(url: str, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with suppress(urllib.error.URLError):
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).close()


def main() -> bool:
    return all([throughput(), added_latency(), guarded_stream(), liveness()])


if __name__ == "__main__":
    raise SystemExit(not main())
