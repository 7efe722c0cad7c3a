"""Write docs/metrics.md from the metric catalogue. With --check, fail if the page is out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.metrics.catalogue import CATALOGUE

HEAD = """\
# What each metric means

Terms used below:

- `start`: the time just before the request's first byte is handed to the socket.
- `stamp[i]`: the time at which the i-th piece of content arrived (on Linux, the kernel's timestamp). `first` and `last` are the
  first and the last stamp. Pieces that arrive in one network segment share a stamp.
- `end`: the arrival of the reply's last byte.

Metrics cover the successful requests of the profiling phase, unless the note says otherwise. Statistics are avg, min, max,
sum, population std, and the percentiles p1 to p99 by linear interpolation. Role-only, empty, usage and `[DONE]` events are
not content. A reply whose content has a single stamp has a TTFT, but no second token, gaps or inter-token latency;
`single_stamp_request_count` counts such replies.

Requests and tokens over time (`effective_…`, `active_…`, `tokens_in_flight`) have avg, min, max, std and p50 to p99 weighted by
time: p90 is the lowest value that was not exceeded for 90 % of the time. Numbers of requests are exact. Throughput and tokens
are means over 10 ms (20 ms after 87 minutes, 40 ms after 3 hours, and so on). AIPerf takes the rate of each gap between two
chunks, which gives the same averages and larger maxima. The JSON and CSV files have these metrics, and the screen shows them
with `--verbose`.
"""

KINDS = {"record": "One value per request", "list": "Several values per request", "run": "One value per run"}


def page() -> str:
    parts = [HEAD]
    for kind, title in KINDS.items():
        parts.append(f"\n## {title}\n\n| tag | name | unit | formula and limits |\n|---|---|---|---|\n")
        for metric in CATALOGUE.values():
            if metric.kind == kind:
                note = metric.note.replace("|", "\\|")
                parts.append(f"| `{metric.tag}` | {metric.header} | {metric.unit} | {note} |\n")
    return "".join(parts)


if __name__ == "__main__":
    target = Path(__file__).parent.parent / "docs" / "metrics.md"
    if "--check" in sys.argv:
        raise SystemExit(target.read_text() != page())
    target.write_text(page())
