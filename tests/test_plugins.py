"""Plugins of other packages: how they are found, and errors in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import UserError
from penstock.plugins import FORMATS, load_plugins


def write_package(folder: Path, source: str, entry_points: str, name: str = "odd") -> None:
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)
    (folder / "odd_plugin_module.py").write_text(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [("import no_such_module", "ModuleNotFoundError: No module named"), ("FORMAT = 1", "TypeError: it is not a str")],
)
def test_plugin_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    write_package(tmp_path, source, f"[{FORMATS}]\nodd = odd_plugin_module:FORMAT\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_plugin_module", raising=False)
    with pytest.raises(UserError) as refused:
        load_plugins(FORMATS, str, "dataset format")
    assert f"The dataset format 'odd' of the package odd cannot be loaded ({reason}" in str(refused.value)


def test_plugins_of_two_packages_may_have_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("odd", "even"):
        write_package(
            tmp_path, "o = 'of odd'\ne = 'of even'", f"[{FORMATS}]\nlines = odd_plugin_module:{package[0]}\n", package
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_plugin_module", raising=False)
    assert sorted(load_plugins(FORMATS, str, "dataset format")) == [("lines", "of even"), ("lines", "of odd")]


def test_packages_are_not_searched_without_a_plugin() -> None:
    program = (
        "import sys; before = set(sys.modules); import penstock.metrics.catalogue; "
        "from penstock.datasets.formats import formats; formats(); print('importlib.metadata' in set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
