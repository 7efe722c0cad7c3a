"""Run the `bash` blocks of the README and of each page in docs/, from top to bottom, in an empty folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.commands import AIPERF_COMMANDS
from penstock.datasets.formats import FORMATS, PLANNED
from penstock.settings.flags import ENDPOINT_TYPES, FLAGS, UNSUPPORTED_FLAGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BASH_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return BASH_BLOCK.findall(page.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_all_commands_of_a_page_succeed(page: Path, tmp_path: Path) -> None:
    script = "set -euo pipefail\n" + "\n".join(blocks(page))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):  # end the servers of a page that failed
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{out[-3000:]}\n{err[-3000:]}"


@pytest.mark.slow
def test_examples_of_the_python_page_run(tmp_path: Path) -> None:
    script = "\n".join(PYTHON_BLOCK.findall((ROOT / "docs" / "python.md").read_text()))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "TTFT: " in done.stdout
    assert "There is no option --concurency; did you mean --concurrency?" in done.stdout


@pytest.mark.parametrize("script", ["metrics-page.py", "flags-page.py"])
def test_generated_page_is_up_to_date(script: str) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], check=True)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name


def test_every_page_is_in_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    assert set(re.findall(r"- ([\w-]+\.md)", site)) == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_aiperf_page_lists_everything_unsupported() -> None:
    page = (ROOT / "docs" / "aiperf.md").read_text()
    table = page.partition("| group | flags |")[2].partition("Values of flags")[0]
    assert set(re.findall(r"`(--[\w-]+)`", table)) == {row.name for row in UNSUPPORTED_FLAGS}
    named = set(re.findall(r"`([\w-]+)`", page))
    assert {choice for flag in FLAGS for choice in flag.unsupported_choices} <= named
    assert {*PLANNED, *AIPERF_COMMANDS, *ENDPOINT_TYPES, *(format_.name for format_ in FORMATS)} <= named


def test_links_between_pages_are_valid() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"
