"""Check the compatibility with an installed AIPerf: run command lines and its configuration templates against the mock server,
and load the files that the runs write with AIPerf's own models.

    python scripts/peer-check.py PYTHON      PYTHON is that of a virtual environment with aiperf==0.13.0

`make peer-check` makes the environment and runs this. AIPerf is used to check only; nothing of it is part of Penstock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from glob import glob
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from penstock import mock as mock_server

HERE = Path(__file__).parent
AIPERF = Path(sys.executable).parent / "aiperf"
FILES = (
    "profile_export_aiperf.json",
    "profile_export.jsonl",
    "profile_export_raw.jsonl",
    "inputs.json",
    "server_metrics_export.json",
    "server_metrics_export.jsonl",
    "gpu_telemetry_export.jsonl",
)
LIMIT_S = 60
AFTER_SENDING_S = 3
MOCK = "mock://?ttft=5&itl=1"

INPUTS = {
    "single.jsonl": ['{"texts": ["Hello!"]}', '{"texts": ["Tell me a joke."]}'],
    "multi.jsonl": ['{"session_id": "a", "turns": [{"text": "Hi"}, {"text": "And then?", "delay": 5}]}'],
    "pool.jsonl": ['{"text": "One."}', '{"text": "Two."}'],
    "raw.jsonl": ['{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}'],
    "trace.jsonl": [
        f'{{"timestamp": {20 * n}, "input_length": 40, "output_length": 4, "hash_ids": [{n}]}}' for n in range(8)
    ],
    "text_trace.jsonl": [
        f'{{"timestamp": {20 * n}, "text_input": "Question {n}", "output_length": 4}}' for n in range(8)
    ],
}
GPU_PAGE = (
    'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0",pci_bus_id="00000000:01:00.0",device="nvidia0",'
    'modelName="NVIDIA H100",Hostname="node"} 300\n'
)

COMMANDS = (
    "--request-count 6",
    "--streaming --request-count 6 --isl 30 --osl 5",
    "--streaming --concurrency 3 --request-count 9 --warmup-request-count 2",
    "--request-rate 50 --request-count 10",
    "--request-rate 50 --arrival-pattern constant --benchmark-duration 0.3",
    "--concurrency 2 --benchmark-duration 0.3 --benchmark-grace-period 1",
    "--user-centric-rate 20 --num-users 2 --session-turns-mean 3 --session-turns-stddev 0 --num-sessions 4",
    "--conversation-num 4 --conversation-turn-mean 2 --conversation-turn-stddev 0 --conversation-turn-delay-mean 5",
    "--request-count 20 --request-cancellation-rate 50 --request-cancellation-delay 0",
    "--goodput 'time_to_first_token:100 request_latency:1000' --streaming --request-count 6",
    "--slice-duration 0.1 --streaming --request-count 10",
    "--sequence-distribution '64,10:50;32,8:50' --request-count 8",
    "--shared-system-prompt-length 20 --request-count 4",
    "--num-prefix-prompts 2 --prefix-prompt-length 10 --request-count 4",
    "--image-width-mean 16 --image-height-mean 16 --request-count 3",
    "--audio-length-mean 1 --request-count 3",
    "--input-file single.jsonl --custom-dataset-type single_turn --request-count 4",
    "--input-file single.jsonl --custom-dataset-type single_turn --osl 50 --request-count 4",
    "--input-file multi.jsonl --custom-dataset-type multi_turn",
    "--input-file pool.jsonl --custom-dataset-type random_pool --request-count 4",
    "--input-file raw.jsonl --custom-dataset-type raw_payload --request-count 2",
    "--input-file trace.jsonl --custom-dataset-type mooncake_trace --fixed-schedule",
    "--input-file text_trace.jsonl --custom-dataset-type mooncake_trace --fixed-schedule --synthesis-speedup-ratio 2.0",
    "--endpoint-type completions --request-count 4",
    "--endpoint-type responses --streaming --request-count 4",
    "--endpoint-type messages --streaming --request-count 4",
    "--endpoint-type embeddings --request-count 4 --batch-size 2",
    "--endpoint-type nim_rankings --request-count 4",
    "--endpoint-type cohere_rankings --request-count 4",
    "--endpoint-type hf_tei_rankings --request-count 4",
    "--endpoint-type huggingface_generate --request-count 4",
    "--endpoint-type image_generation --request-count 2",
    "--endpoint-type audio_transcription --audio-length-mean 1 --request-count 2",
    "--endpoint-type chat_embeddings --request-count 3",
    "--endpoint-type nim_embeddings --request-count 3",
    "--endpoint-type image_edit --request-count 2 --image-width-mean 16 --image-height-mean 16",
    "--endpoint-type image_retrieval --request-count 2 --image-width-mean 16 --image-height-mean 16",
    "--endpoint-type raw --input-file raw.jsonl --custom-dataset-type raw_payload --request-count 2 --url {path}",
    """--endpoint-type template \
    --extra-inputs 'payload_template:{"model": "m", "messages": [{"role": "user", "content": {{ text|tojson }}}]}' \
    --extra-inputs response_field:choices[0].message.content --request-count 2 --url {path}""",
    "--export-level raw --streaming --request-count 3 --header X-Tracking:7",
    "--server-metrics --server-metrics-formats json csv jsonl --streaming --request-count 5",
    "--gpu-telemetry {gpu} --request-count 5",
    "--concurrency 1,2 --request-count 4",
    "--num-profile-runs 2 --request-count 4",
    "--concurrency 1,2 --num-profile-runs 2 --request-count 4",
    "--concurrency 1,2 --num-profile-runs 2 --request-count 4 --parameter-sweep-mode independent",
    "--num-profile-runs 3 --request-count 4 --convergence-metric request_latency",
    "--request-rate-mode constant --concurrency 5 --benchmark-duration 0.3",
    "--record-processors 2 --stats-interval 1 --request-count 4",
    "--server-metrics-formats jsonl --request-count 4 --warmup-request-count 2",
    "--export-level summary --request-count 4 --no-server-metrics",
)


@contextlib.contextmanager
def serve(page: str) -> Iterator[str]:
    """Serve a page at every path, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Check(NamedTuple):
    name: str
    files: int
    errors: list[str]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [AIPERF, "profile", *words, "--ui", "none"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def load(python: str, folder: Path) -> tuple[int, list[str]]:
    """Return how many files a run has, and an error for each that AIPerf's models refuse."""
    paths = sorted(path for name in FILES for path in glob(str(folder / "**" / name), recursive=True))
    found = subprocess.run([python, HERE / "peer_models.py", *paths], capture_output=True, text=True, check=False)
    if found.returncode:
        return len(paths), [found.stderr]
    errors = json.loads(found.stdout.splitlines()[-1])
    return len(paths), [
        f"{os.path.relpath(path, folder)}: {error}" for path, error in zip(paths, errors, strict=True) if error
    ]


def check_command(python: str, folder: Path, number: int, line: str, urls: dict[str, str]) -> Check:
    into = folder / f"run-{number}"
    words = shlex.split(line)
    common = ["--model", "m", "--tokenizer", "builtin", "--artifact-dir", str(into)]
    url = [] if "--url" in words else ["--url", MOCK]
    done = run(folder, *common, *url, *(urls.get(word, word) for word in words))
    if done.returncode:
        return Check(line, 0, [f"exit status {done.returncode}: {done.stderr.strip()[-400:]}"])
    return Check(line, *load(python, into))


def check_template(path: Path, folder: Path) -> Check:
    """Start the run of a template. Some take an hour, so one that has sent and goes on has passed."""
    into = folder / f"template-{path.stem}"
    url = ["--url", "mock://?ttft=2&itl=0", "--tokenizer", "builtin", "--ui", "none"]
    command = [AIPERF, "profile", "--config", str(path), *url, "--artifact-dir", str(into)]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        sent, end = False, time.monotonic() + LIMIT_S
        while process.poll() is None and not sent and time.monotonic() < end:
            time.sleep(0.2)
            sent = any(file.stat().st_size for file in into.rglob("worker-*.log"))
        try:
            _, err = process.communicate(timeout=AFTER_SENDING_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Check(path.name, 0, [] if sent else [f"nothing was sent within {LIMIT_S} s"])
    return Check(path.name, 0, [] if process.returncode == 0 else [err.strip()[-300:]])


REFUSED = {"public_dataset.yaml", "speed_bench_sweep.yaml", "trace_replay.yaml"}
"""Templates that are refused: they need a hub's data or a format that is not read, or their own file contradicts itself."""


def report(title: str, checks: list[Check]) -> int:
    for check in checks:
        for error in check.errors:
            print(f"{'refused' if check.name in REFUSED else 'FAILED'} {check.name}\n    {error}")
    failed = sum(bool(check.errors) for check in checks)
    files = sum(check.files for check in checks)
    print(f"{title}: {len(checks) - failed} of {len(checks)}" + (f", {files} files" if files else ""))
    return sum(bool(check.errors) and check.name not in REFUSED for check in checks)


def main() -> int:
    python = os.path.abspath(sys.argv[1])
    code = "import aiperf, os; print(os.path.dirname(aiperf.__file__))"
    package = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, lines in INPUTS.items():
            (folder / file).write_text("\n".join(lines) + "\n")
        with serve(GPU_PAGE) as gpu_url, mock_server() as mock_url:
            urls = {"{gpu}": f"{gpu_url}/metrics", "{path}": f"{mock_url}/v1/chat/completions"}
            commands = [check_command(python, folder, n, line, urls) for n, line in enumerate(COMMANDS)]
        shutil.copytree(package / "config" / "templates" / "data", folder / "data")
        templates = sorted(package.glob("config/templates/*.yaml"))
        return report("Command lines", commands) + report("Templates", [check_template(t, folder) for t in templates])


if __name__ == "__main__":
    sys.exit(main())
