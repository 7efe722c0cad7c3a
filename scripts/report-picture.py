"""Take the pictures of report.html for the README and the docs: `python scripts/report-picture.py [NAME...]`.

It needs Chromium. Each picture is of real runs against the mock. As root, the runs have real-time priority, so that other
programs on the machine do not delay the client, and their certificates are VALID."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
COMMON = "--model Qwen/Qwen3-0.6B --tokenizer builtin --streaming --osl 48 --random-seed 1 --ui none"
RUNS = {
    # name: the mock, the flags, and the last element of the page that is in the picture
    "report": (
        "mock://?ttft=60&input_cost=300&itl=10&jitter=4&slots=5",
        "--isl 300 --isl-stddev 60 --request-rate 4 --request-count 400 --server-metrics --goodput time_to_first_token:400",
        "#chart-ttft-cdf",
    ),
    "sweep": (
        "mock://?ttft=80&itl=8&jitter=4&slots=8",
        "--isl 100 --request-rate 2,5,8,10,12,13 --benchmark-duration 16 --goodput time_to_first_token:300",
        "#chart-by-request-rate-output-token-throughput",
    ),
    "search": (
        "mock://?ttft=80&itl=8&jitter=4&slots=8",
        "--isl 100 --find-max concurrency --slo 'p90 time_to_first_token<300'",
        "#chart-misses-1",
    ),
}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in sys.argv[1:] or RUNS:
            take(name, browser)
        browser.close()
    return 0


def take(name: str, browser: Browser) -> None:
    url, flags, last = RUNS[name]
    priority = ["chrt", "--rr", "5"] if os.geteuid() == 0 and shutil.which("chrt") else []
    program = Path(sys.executable).with_name("penstock")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*shlex.split(f"{COMMON} {flags}"), "--url", url, "--artifact-dir", folder]
        subprocess.run([*priority, program, "profile", *arguments], check=True, stdout=subprocess.DEVNULL)
        page = browser.new_page(viewport={"width": 1240, "height": 1200})
        page.goto(f"file://{folder}/report.html")
        page.evaluate("plots.forEach((plot) => plot.u || drawPlot(plot))")
        verdicts = page.locator(".verdict strong, .status").all_text_contents()
        box = page.locator(last).bounding_box()
        assert box is not None
        clip = {"x": 0.0, "y": 0.0, "width": 1240.0, "height": box["y"] + box["height"] + 16}
        page.screenshot(path=str(FOLDER / f"{name}.png"), full_page=True, clip=clip)
        page.close()
    print(f"{FOLDER / name}.png: {', '.join(dict.fromkeys(verdicts))}")


if __name__ == "__main__":
    raise SystemExit(main())
