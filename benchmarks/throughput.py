"""Requests per second of the whole command, with all metrics and artifacts, compared with AIPerf 0.13.0.

AIPerf reached 107 to 156 requests per second with streaming and 220 to 342 without, on two shared cores with the same server
and load. To measure it in the same run instead, set REFERENCE_AIPERF to the path of an installed AIPerf, and
REFERENCE_TOKENIZER to a tokenizer that it can load:

    python -m benchmarks.throughput
    REFERENCE_AIPERF=/path/to/other/venv/bin/aiperf REFERENCE_TOKENIZER=/path/to/tokenizer python -m benchmarks.throughput

The names do not start with AIPERF_, because AIPerf reads such variables as its settings.
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
_MIN_RATIO = {True: 30.0, False: 50.0}


def reference(url: str, streaming: bool, more: tuple[str, ...] = ()) -> float:
    """Measure and return AIPerf's requests per second."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--streaming"] if streaming else []
        tokenizer = os.environ.get("REFERENCE_TOKENIZER", "builtin")
        command = [os.environ["REFERENCE_AIPERF"], "profile", "--model", "m", "--tokenizer", tokenizer]
        command += ["--url", url, "--request-count", "4000", "--artifact-dir", folder, "--ui", "none"]
        done = subprocess.run([*command, *_PROMPTS, *flags, *more], capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
        summary = json.loads((Path(folder) / "profile_export_aiperf.json").read_text())
        return float(summary["request_throughput"]["avg"])


def run(streaming: bool, requests: int, more: tuple[str, ...] = (), what: str = "") -> bool:
    """Compare the throughput of both programs. `more` are flags for both, and `what` describes them in the output.

    Both programs share the two cores with the server. The speed of the machine changes from minute to minute, so Penstock runs
    before and after AIPerf, and the mean counts.
    """
    flags = (*_PROMPTS, *more, *(["--streaming"] if streaming else []), "--workers-max", "2")
    rates = []
    reference_rate, source = _RECORDED[streaming], "recorded"
    with far_end(100) as server:
        for turn in range(2):
            with profile(server.url, *flags, "--request-count", str(requests)) as penstock:
                rates.append(penstock.value("request_throughput"))
            if turn == 0 and os.environ.get("REFERENCE_AIPERF"):
                reference_rate, source = reference(server.url, streaming, more), "measured now"
    rate = sum(rates) / len(rates)
    min_ratio = _MIN_RATIO[streaming]
    name = f"{what}{'streaming' if streaming else 'not streaming'}, 100 tokens per reply, concurrency 64"
    ratio = rate / reference_rate
    line(
        name,
        f"{rate:,.0f} req/s",
        f"AIPerf {reference_rate:,.0f} ({source})",
        f"{ratio:.0f} times (at least {min_ratio:.0f})",
        ratio >= min_ratio,
    )
    return ratio >= min_ratio


def main() -> bool:
    return all([run(True, 40_000), run(False, 80_000)])


if __name__ == "__main__":
    raise SystemExit(not main())
