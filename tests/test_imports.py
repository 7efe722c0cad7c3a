"""Which room imports which: as the source says it, and as the table in CONTRIBUTING.md does."""

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
ROOMS = {path.parent.name for path in SOURCE.glob("*/*.py")}
EVERYTHING = "all of them"

_ROW = re.compile(r"^\| `(\w+)/` \|.*\|([^|]*)\|$", re.MULTILINE)


class Import(NamedTuple):
    room: str
    """The folder of the importing file; a module that stands beside the rooms has its own name here."""
    of: str
    where: str

    def __str__(self) -> str:
        return f"{self.where} imports {self.of}/"


def documented() -> dict[str, set[str]]:
    rows = _ROW.findall(PAGE.read_text())
    return {room: ROOMS if EVERYTHING in said else set(re.findall(r"`(\w+)/`", said)) for room, said in rows}


@cache
def imports() -> list[Import]:
    """From one room to another, also those within functions and for the type checker alone."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        within = path.relative_to(SOURCE)
        room = within.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            for of in imported(node) & ROOMS - {room}:
                found.append(Import(room, of, f"{within}:{getattr(node, 'lineno', 0)}"))
    return found


def imported(node: ast.AST) -> set[str]:
    """The names right under `penstock` in what a statement imports."""
    names: Iterator[str] = iter(())
    if isinstance(node, ast.Import):
        names = (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        names = (f"{node.module}.{alias.name}" for alias in node.names)
    return {parts[1] for name in names if (parts := name.split("."))[0] == "penstock" and len(parts) > 1}


def test_the_table_has_every_room():
    assert set(documented()) == ROOMS


def test_no_room_imports_what_the_table_does_not_allow():
    allowed = documented()
    wrong = [each for each in imports() if each.room in allowed and each.of not in allowed[each.room]]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_table_allows_nothing_that_is_not_needed():
    needed = {(each.room, each.of) for each in imports()}
    allowed = {(room, of) for room, several in documented().items() if room != "cli" for of in several}
    assert allowed - needed == set()


def test_there_is_no_circle():
    assert len(list(TopologicalSorter(documented() | {"cli": ROOMS - {"cli"}}).static_order())) == len(ROOMS)


def test_what_stands_beside_the_rooms_is_named_and_knows_none_of_them():
    beside = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert set(re.findall(r"`(\w+\.py)`", PAGE.read_text())) & beside == beside
    assert {each.where for each in imports() if each.room not in ROOMS} == {
        "__main__.py:5"
    }  # which is the command line


def test_only_the_command_line_prints():
    """And the programs that a command starts, which tell it where they are."""
    printing = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if prints(path)}
    assert {path for path in printing if not path.startswith("cli/")} == {"mock/__main__.py"}


def prints(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(isinstance(called, ast.Name) and called.id == "print" for called in calls)
