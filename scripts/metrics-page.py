"""Writes docs/metrics.md from the catalogue, so that page and code cannot differ. A test runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.metrics.catalogue import CATALOGUE

HEAD = """\
# What each metric means

`start` is just before the request's first byte is handed to the socket; `first`, `last` and `stamp[i]` are arrivals of content
(by the kernel's clock on Linux); `end` is the reply's last byte. Statistics: avg, min, max, sum, population std, and the
percentiles p1 to p99 by linear interpolation. A record metric has one value a request, a list several, a run metric one in all;
they cover the successful requests of the profiling phase.

Role-only, empty, usage and `[DONE]` events are not tokens. Pieces that arrived in one segment share a stamp and make no gaps of
zero. A reply that came with a single stamp has a TTFT but no second token, gaps or inter-token latency; how many such there
were is counted.
"""

KINDS = {"record": "Per request", "list": "Several a request", "run": "Per run"}


def page() -> str:
    parts = [HEAD]
    for kind, title in KINDS.items():
        parts.append(f"\n## {title}\n\n| tag | name | unit | formula, and what it does not see |\n|---|---|---|---|\n")
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
