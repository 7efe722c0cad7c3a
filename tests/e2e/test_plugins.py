"""An endpoint in another package, which consists of a module and of metadata with an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.programs import Capture, Program

MODULE = """\
from penstock.endpoints.chat import Chat


class Shout(Chat):
    name = "chat in capitals"
    path = "/v1/shout"

    def build(self, turn, model, settings, history=None):
        body = super().build(turn, model, settings) if history is None else super().build(turn, model, settings, history)
        return body | {"loud": True}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    about = folder / "shouting-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "shouting.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[penstock.endpoints]\nshout = shouting:Shout\n")
    return folder


def test_endpoint_of_another_package_is_found_by_name(program: Program, capture: Capture, package: Path) -> None:
    done = program.profile(capture.url, "--endpoint-type", "Shout", PYTHONPATH=str(package))
    assert done.status == 0, done
    assert [path for path, _, _ in capture.requests] == ["/v1/shout"] * 3
    assert all(body["loud"] for body in capture.bodies)
    assert done.summary["input_config"]["endpoint"]["type"] == "shout"
    again = program.run("report", done.folder, PYTHONPATH=str(package))
    assert again.status == 0, again


def test_endpoint_of_another_package_is_listed_and_suggested(program: Program, capture: Capture, package: Path) -> None:
    done = program.profile(capture.url, "--endpoint-type", "shuot", PYTHONPATH=str(package))
    assert done.status == 2
    assert "template, shout, not 'shuot' (did you mean shout?)" in done.err


def test_endpoint_without_its_package_is_unknown(program: Program, capture: Capture) -> None:
    done = program.profile(capture.url, "--endpoint-type", "shout")
    assert done.status == 2
    assert "--endpoint-type must be one of chat," in done.err


def test_package_that_cannot_be_imported_is_named(program: Program, capture: Capture, package: Path) -> None:
    (package / "shouting.py").write_text("import no_such_module")
    done = program.profile(capture.url, "--endpoint-type", "shout", PYTHONPATH=str(package))
    assert done.status == 2
    assert "'shout' of the package shouting cannot be loaded (ModuleNotFoundError: No module" in done.err
    assert done.err.count("\n") == 1
