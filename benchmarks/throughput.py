"""Requests per second of the real command, all metrics and artifacts included, against AIPerf 0.13.0.

AIPerf's own figures on two shared cores, same far end, same load: 107 to 156 streaming, 220 to 342 not streaming. Give the
path of an installed AIPerf as AIPERF_REFERENCE to measure it in the same run instead:

    python -m benchmarks.throughput
    AIPERF_REFERENCE=/path/to/other/venv/bin/aiperf python -m benchmarks.throughput
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.far_end import far_end, line, profile

_PROMPTS = ("--isl", "50", "--num-dataset-entries", "100", "--osl", "100", "--concurrency", "64", "--random-seed", "1")
_RECORDED = {True: 156.0, False: 342.0}
_WANTED = {True: 30.0, False: 50.0}


def reference(url: str, streaming: bool, more: tuple[str, ...] = ()) -> tuple[float, str]:
    """AIPerf's requests per second, measured now or recorded (the better of its two)."""
    program = os.environ.get("AIPERF_REFERENCE")
    if not program:
        return _RECORDED[streaming], "recorded"
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--streaming"] if streaming else []
        command = [program, "profile", "--model", "m", "--tokenizer", os.environ.get("AIPERF_TOKENIZER", "builtin")]
        command += ["--url", url, "--request-count", "1500", "--artifact-dir", folder, "--ui", "none"]
        subprocess.run([*command, *_PROMPTS, *flags, *more], check=True, capture_output=True, timeout=600)
        found = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        return float(found["request_throughput"]["avg"]), "measured now"


def run(streaming: bool, requests: int, more: tuple[str, ...] = (), what: str = "") -> bool:
    """`more` are flags for both programs, and `what` says in words what they change."""
    flags = ["--streaming"] if streaming else []
    with far_end(100) as server:
        theirs, how = reference(server.url, streaming, more)
        with profile(server.url, *_PROMPTS, *flags, *more, "--request-count", str(requests)) as ours:
            rate = ours.value("request_throughput")
    wanted = _WANTED[streaming]
    name = f"{what}{'streaming' if streaming else 'not streaming'}, 100 tokens a reply, concurrency 64"
    ratio = rate / theirs
    line(
        name,
        f"{rate:,.0f} req/s",
        f"AIPerf {theirs:,.0f} ({how})",
        f"{ratio:.0f} times (at least {wanted:.0f})",
        ratio >= wanted,
    )
    return ratio >= wanted


def main() -> bool:
    return all([run(True, 40_000), run(False, 80_000)])


if __name__ == "__main__":
    raise SystemExit(not main())
