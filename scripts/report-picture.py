"""Take the picture of report.html for the README: `python scripts/report-picture.py`. It needs Chromium and a quiet machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "report.png"
FLAGS = (
    "--model Qwen/Qwen3-0.6B --tokenizer builtin --streaming --isl 200 --osl 48 --concurrency 8 --request-count 240 "
    "--warmup-request-count 8 --server-metrics --random-seed 1 --goodput time_to_first_token:120"
)
URL = "mock://?ttft=80&itl=8&jitter=4&slots=6"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(sys.executable).with_name("penstock")
        command = [program, "profile", *FLAGS.split(), "--url", URL, "--artifact-dir", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        PICTURE.parent.mkdir(exist_ok=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1240, "height": 1180})
            page.goto(f"file://{folder}/report.html")
            page.evaluate("plots.forEach((plot) => plot.u || drawPlot(plot))")
            verdict = page.locator(".verdict strong").text_content()
            page.screenshot(path=str(PICTURE))
            browser.close()
    print(f"{PICTURE}: {verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
