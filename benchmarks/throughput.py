"""Requests per second of the real command, all metrics and artifacts included, against AIPerf 0.13.0.

AIPerf's own figures on two shared cores, same far end, same load: 107 to 156 streaming, 220 to 342 not streaming. Give the
path of an installed AIPerf as REFERENCE_AIPERF, and a tokenizer that it can load, to measure it in the same run instead:

    python -m benchmarks.throughput
    REFERENCE_AIPERF=/path/to/other/venv/bin/aiperf REFERENCE_TOKENIZER=/path/to/tokenizer python -m benchmarks.throughput

(Not AIPERF_TOKENIZER: AIPerf reads everything that begins with AIPERF_ as a setting of its own.)
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


def reference(url: str, streaming: bool, more: tuple[str, ...] = ()) -> float:
    """AIPerf's requests per second, measured now."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--streaming"] if streaming else []
        tokenizer = os.environ.get("REFERENCE_TOKENIZER", "builtin")
        command = [os.environ["REFERENCE_AIPERF"], "profile", "--model", "m", "--tokenizer", tokenizer]
        command += ["--url", url, "--request-count", "4000", "--artifact-dir", folder, "--quiet"]
        done = subprocess.run([*command, *_PROMPTS, *flags, *more], capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        found = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        return float(found["request_throughput"]["avg"])


def run(streaming: bool, requests: int, more: tuple[str, ...] = (), what: str = "") -> bool:
    """`more` are flags for both programs, and `what` says in words what they change.

    Both have the two cores and share them with the far end. The machine's speed changes from minute to minute, so ours runs
    before and after theirs, and the mean counts.
    """
    flags = (*_PROMPTS, *more, *(["--streaming"] if streaming else []), "--workers-max", "2")
    rates = []
    theirs, how = _RECORDED[streaming], "recorded"
    with far_end(100) as server:
        for turn in range(2):
            with profile(server.url, *flags, "--request-count", str(requests)) as ours:
                rates.append(ours.value("request_throughput"))
            if turn == 0 and os.environ.get("REFERENCE_AIPERF"):
                theirs, how = reference(server.url, streaming, more), "measured now"
    rate = sum(rates) / len(rates)
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
