"""Imports between the packages of Penstock, checked against the table in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import penstock

SOURCE = Path(penstock.__file__).parent
PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
PACKAGES = {path.parent.name for path in SOURCE.glob("*/*.py")}
EVERYTHING = re.compile(r"\b(?:all|every)\b")
"""Marks a package that may import every other one."""

_ROW = re.compile(r"^\| `(\w+)/` \|.*\|([^|]*)\|$", re.MULTILINE)


class Import(NamedTuple):
    importer: str
    """The package of the importing file, or the name of a top-level module."""
    imported: str
    location: str

    def __str__(self) -> str:
        return f"{self.location} imports {self.imported}/"


def documented() -> dict[str, set[str]]:
    rows = _ROW.findall(PAGE.read_text())
    return {
        package: PACKAGES if EVERYTHING.search(imports) else set(re.findall(r"`(\w+)/`", imports))
        for package, imports in rows
    }


@cache
def imports() -> list[Import]:
    """Return the imports between packages, including those in functions and under TYPE_CHECKING."""
    result = []
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        importer = relative.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            for package in imported_names(node) & PACKAGES - {importer}:
                result.append(Import(importer, package, f"{relative}:{getattr(node, 'lineno', 0)}"))
    return result


def imported_names(node: ast.AST, root: str = "penstock") -> set[str]:
    """Return the packages and modules directly under `root` that a statement imports."""
    names: Iterator[str] = iter(())
    if isinstance(node, ast.Import):
        names = (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = (f"{node.module}.{alias.name}" for alias in node.names)
    return {name.removeprefix(f"{root}.").split(".")[0] for name in names if name.startswith(f"{root}.")}


def test_table_lists_every_package():
    assert set(documented()) == PACKAGES


def test_packages_import_only_what_the_table_allows():
    allowed = documented()
    forbidden = [row for row in imports() if row.importer in allowed and row.imported not in allowed[row.importer]]
    assert not forbidden, "\n".join(map(str, forbidden))


def test_table_allows_only_imports_that_exist():
    existing = {(row.importer, row.imported) for row in imports()}
    allowed = {(package, other) for package, others in documented().items() if package != "cli" for other in others}
    assert allowed - existing == set()


def test_imports_have_no_cycle():
    assert len(list(TopologicalSorter(documented() | {"cli": PACKAGES - {"cli"}}).static_order())) == len(PACKAGES)


def test_packages_of_the_gateway_import_each_other_in_one_direction():
    folder = SOURCE / "gateway"
    graph: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        importer = path.relative_to(folder).parts[0].removesuffix(".py")
        names = {
            name for node in ast.walk(ast.parse(path.read_text())) for name in imported_names(node, "penstock.gateway")
        }
        graph.setdefault(importer, set()).update(names - {importer})
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def test_top_level_modules_are_documented_and_import_no_package():
    modules = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert set(re.findall(r"`(\w+\.py)`", PAGE.read_text())) & modules == modules
    importing = {row.location for row in imports() if row.importer not in PACKAGES}
    assert importing == {"__main__.py:5", "__init__.py:8"}  # which call cli and name the API for type checkers


def test_only_cli_prints():
    """`python -m penstock.mock_server` is an exception: it prints its port for the process that started it."""
    printing = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if prints(path)}
    assert {path for path in printing if not path.startswith("cli/")} == {"mock_server/__main__.py"}


def prints(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(isinstance(called, ast.Name) and called.id == "print" for called in calls)
