"""The package in examples/, installed beside Penstock: its endpoint, dataset format and metric."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.programs import Outcome, Program

EXAMPLE = Path(__file__).parents[2] / "examples" / "penstock-shouting"


def install(folder: Path) -> None:
    """Copy the module, and write the metadata that pip would write."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    shutil.copy(EXAMPLE / "penstock_shouting.py", folder)
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (about / "METADATA").write_text(metadata)
    lines: list[str] = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (about / "entry_points.txt").write_text("\n".join(lines))


def build_and_install(folder: Path) -> None:
    """Build a wheel of the package and install it into `folder`. pip fetches the build backend from PyPI."""
    work = folder.parent
    source = shutil.copytree(EXAMPLE, work / "source")  # the build writes into its folder
    python = Path(sys.executable)
    if find_spec("pip") is None:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(work / "venv")
        python = work / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wheels = str(work / "wheels")
    for words in (
        ["wheel", "--no-deps", "--wheel-dir", wheels, str(source)],
        ["install", "--no-deps", "--no-index", f"--find-links={wheels}", f"--target={folder}", "penstock-shouting"],
    ):
        done = subprocess.run([*pip, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_wheel_of_the_package_adds_the_same(tmp_path: Path) -> None:
    build_and_install(tmp_path / "packages")
    assert [path.name for path in (tmp_path / "packages").glob("*.dist-info")] == ["penstock_shouting-1.0.dist-info"]
    folder = tmp_path / "work"
    folder.mkdir()
    program = Program(folder)
    (folder / "hello.prompts").write_text("Say one.\n\nSay two.\n")
    flags = ("--endpoint-type", "shout", "--input-file", "hello.prompts", "--use-server-token-count")
    try:
        done = program.profile("mock://?tokens=7", *flags, texts=None, PYTHONPATH=str(tmp_path / "packages"))
    finally:
        program.end()
    assert done.status == 0, done
    assert {body["messages"][0]["content"] for body in done.inputs} == {"SAY ONE.", "SAY TWO."}
    assert min(done.values("reply_words")) > 0


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("example")
    install(folder / "packages")
    program = Program(folder)
    program.env["PYTHONPATH"] = str(folder / "packages")
    (folder / "hello.prompts").write_text("Say one.\n\nSay two.\n")
    return program


@pytest.fixture(scope="module")
def run(extended: Program) -> Outcome:
    flags = ("--endpoint-type", "shout", "--input-file", "hello.prompts", "--use-server-token-count")
    done = extended.profile("mock://?tokens=7", *flags, "--assert", "avg reply_words>0", texts=None)
    assert done.status == 0, done
    return done


def test_endpoint_and_format_of_the_package_are_used(run: Outcome) -> None:
    texts = {body["messages"][0]["content"] for body in run.inputs}
    assert texts == {"SAY ONE.", "SAY TWO."}
    assert run.summary["input_config"]["endpoint"]["type"] == "shout"


def test_metric_of_the_package_is_in_every_report(run: Outcome) -> None:
    values = run.values("reply_words")
    assert min(values) > 0
    assert run.summary["total_reply_words"] == {"unit": "words", "avg": sum(values)}
    assert run.csv["Reply Words (words)"]["max"] == f"{max(values):.2f}"
    assert " Reply Words (words) " in run.out


def test_format_of_the_package_is_found_by_name(extended: Program) -> None:
    (extended.folder / "plain.txt").write_text("Say three.\n")
    flags = ("--input-file", "plain.txt", "--custom-dataset-type", "Lines", "--use-server-token-count")
    done = extended.profile("mock://", *flags, "--request-count", 1, texts=None)
    assert done.status == 0, done
    assert done.inputs[0]["messages"][0]["content"] == "Say three."


def test_package_whose_metric_is_not_new_is_refused(extended: Program, tmp_path: Path) -> None:
    install(tmp_path / "packages")
    module = tmp_path / "packages" / "penstock_shouting.py"
    module.write_text(module.read_text().replace('"reply_words"', '"request_latency"'))
    done = extended.profile("mock://", "--request-count", 1, PYTHONPATH=str(tmp_path / "packages"))
    assert done.status == 2
    assert "The metric group 'words' of an installed package has a metric request_latency, which exists." in done.err
    assert "Traceback" not in done.err
