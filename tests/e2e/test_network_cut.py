"""A run between two hosts in network namespaces whose connection is cut for ten seconds."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from support.network_hosts import Host, why_no_hosts
from support.programs import BIN, LIMIT_S, wait_for

CUT_S = 10.0


@pytest.mark.slow
def test_network_that_is_cut_for_ten_seconds_fails_no_request_and_is_told(tmp_path: Path) -> None:
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    prompts, run = tmp_path / "prompts.jsonl", tmp_path / "run"
    prompts.write_text('{"text": "Hello."}\n')
    with Host("server", "10.77.0.1", bridge=True) as server, Host("client", "10.77.0.2") as client:
        client.connect(server)
        mock = server.start(
            BIN / "aiperf", "mock", "--host", server.address, "--ttft", 200, "--tokens", 2, stdout=subprocess.PIPE
        )
        assert mock.stdout is not None
        assert mock.stdout.readline()  # it listens
        benchmark = client.start(
            *(BIN / "aiperf", "profile", "-m", "m", "--url", f"http://{server.address}:8000", "--artifact-dir", run),
            *("--input-file", prompts, "--use-server-token-count", "--concurrency", 8, "--request-count", 300),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        log = run / "log" / "worker-0.log"
        wait_for(lambda: log.exists() and log.stat().st_size, what="the first records")
        server.unplug(client)
        time.sleep(CUT_S)  # the length of the cut
        server.plug(client)
        output, _ = benchmark.communicate(timeout=LIMIT_S)
        assert benchmark.returncode == 0, output
    summary = json.loads((run / "profile_export_aiperf.json").read_text())
    assert summary["request_count"]["avg"] == 300
    (note,) = [note for note in summary["reply_notes"] if note.startswith("No reply ended from")]
    times = re.search(r"from ([0-9.]+) s after the start to ([0-9.]+) s, while [0-9]+ requests waited", note)
    assert times is not None, note
    assert float(times[2]) - float(times[1]) > CUT_S - 1
    assert summary["request_latency"]["max"] > 1000 * (CUT_S - 1)
