"""Compare the throughput of replay with that of synthetic prompts, and measure the time and memory to open large files.

python -m benchmarks.replay              files of 1 GB, in the folder for temporary files
python -m benchmarks.replay 5            files of 5 GB
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.far_end import AIPERF, anonymous_memory, far_end, line, profile

_LOAD = ("--concurrency", "64", "--request-count", "50000")
_SYNTHETIC = ("--isl", "50", "--num-dataset-entries", "1000", "--osl", "100", "--random-seed", "1")
_ROUNDS = 3
_MAX_OPEN_S = 2.0
_MAX_BYTES = 100e6
_TEXT = "an example of a sentence in a prompt, repeated to make the body long enough. " * 50


def throughput(streaming: bool) -> bool:
    """Send the same bytes from both sources in turn, so that other load on the machine affects both alike."""
    flags = ["--streaming"] if streaming else []
    rates: dict[str, list[float]] = {"synthetic": [], "replay": []}
    with tempfile.TemporaryDirectory() as folder:
        inputs = os.path.join(folder, "inputs.json")
        for _ in range(_ROUNDS):
            with far_end(100) as server, profile(server.url, *_LOAD, *_SYNTHETIC, *flags) as synthetic:
                rates["synthetic"].append(synthetic.value("request_throughput"))
                shutil.copy(os.path.join(synthetic.folder, "inputs.json"), inputs)
            with far_end(100) as server, profile(server.url, *_LOAD, "--input-file", inputs, *flags) as replay:
                rates["replay"].append(replay.value("request_throughput"))
    replayed, generated = (statistics.median(rates[name]) for name in ("replay", "synthetic"))
    ratio = replayed / generated
    passed = ratio >= 0.95  # runs on a shared machine differ by 5 %
    line(
        f"replay of inputs.json, {'streaming' if streaming else 'not streaming'}, concurrency 64",
        f"{replayed:,.0f} req/s",
        f"synthetic {generated:,.0f} req/s",
        f"{ratio:.2f} times (at least 0.95)",
        passed,
    )
    return passed


def opening(kind: str, gigabytes: float) -> bool:
    """Measure the time from the start of the command to its first request, and the peak memory of the run."""
    with tempfile.TemporaryDirectory() as folder, far_end(1) as server:
        path = Path(folder, "big.jsonl" if kind == "raw_payload" else "inputs.json")
        size = _write(path, kind, gigabytes * 1e9)
        out = Path(folder, "out")
        command = [AIPERF, "profile", "--model", "m", "--url", server.url, "--input-file", str(path), "--quiet"]
        command += ["--use-server-token-count", "--artifact-dir", str(out), "--benchmark-duration", "1"]
        began = time.time_ns()
        process = subprocess.Popen([*command, "--custom-dataset-type", kind])
        peak = 0
        while process.poll() is None:
            peak = max(peak, anonymous_memory(process.pid) + sum(map(anonymous_memory, _children(process.pid))))
            time.sleep(0.01)
        with open(out / "profile_export.jsonl", "rb") as file:
            first = min(json.loads(text)["metadata"]["request_start_ns"] for text in file)
    seconds = (first - began) / 1e9
    passed = seconds < _MAX_OPEN_S and peak < _MAX_BYTES
    line(
        f"opening {size / 1e9:.1f} GB of {kind}",
        f"{seconds:.2f} s",
        f"at most {_MAX_OPEN_S:.0f} s and {_MAX_BYTES / 1e6:.0f} MB",
        f"{_MAX_OPEN_S / seconds:.1f} times as fast; {peak / 1e6:.0f} MB anonymous",
        passed,
    )
    return passed


def _write(path: Path, kind: str, size: float) -> int:
    body = {"model": "m", "stream": False, "max_tokens": 1, "messages": [{"role": "user", "content": _TEXT}]}
    text = json.dumps(body).encode()
    written = number = 0
    with open(path, "wb", buffering=1 << 22) as file:
        if kind == "inputs_json":
            file.write(b'{"data":[')
        while written < size:
            if kind == "inputs_json":
                part = b'%b{"session_id":"s%d","payloads":[%b]}' % (b"," if number else b"", number, text)
            else:
                part = text + b"\n"
            written += file.write(part)
            number += 1
        if kind == "inputs_json":
            file.write(b"]}")
    return written


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def main(gigabytes: float = 1.0) -> bool:
    return all(
        [
            throughput(True),
            throughput(False),
            opening("raw_payload", gigabytes),
            opening("inputs_json", gigabytes),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(not main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
