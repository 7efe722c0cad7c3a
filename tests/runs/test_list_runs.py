"""`penstock runs`."""

import json
import os

import pytest

from penstock.cli import main
from penstock.runs.list_runs import list_runs
from support.records import make_record
from support.runs import EPOCH, report_run, write_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with its summary, an older one that was killed, and a folder that is not a run."""
    top = tmp_path_factory.mktemp("artifacts")
    for name in ("second", "first", "other"):
        (top / name).mkdir()
    run = report_run(top / "second", [make_record(), make_record(number=1, at=100)])
    os.rename(top / "second" / "log", os.path.join(run.folder, "log"))
    write_log(top / "first", [make_record()], epoch_wall_ns=EPOCH - 1)
    return top


def test_runs_are_listed_in_order_of_time_with_their_figures(folder):
    first, second = list_runs(str(folder))
    assert [os.path.relpath(run.folder, folder) for run in (first, second)] == ["first", "second/out"]
    assert (first.complete, first.figures) == (None, {})
    assert second.complete
    assert second.figures["request_count_avg"] == 2
    assert second.figures["time_to_first_token_p50"] == 50
    assert (second.model, second.load) == ("mock", "c=1")


def test_command_prints_a_table_or_json(folder, capsys):
    assert main.main(["runs", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["started", "run", "model", "load"]
    assert lines[1].endswith("no summary")
    assert "second/out" in lines[2]
    assert "50.0" in lines[2]
    capsys.readouterr()


def test_missing_folder_is_an_error_of_the_user(tmp_path, capsys):
    assert main.main(["runs", str(tmp_path / "none")]) == 2
    assert "There is no folder" in capsys.readouterr().err


def test_folder_without_runs_says_so(tmp_path, capsys):
    assert main.main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"There are no runs in {tmp_path}.\n"


def test_json_list_has_the_figures(folder, capfdbinary):
    assert main.main(["runs", str(folder), "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)[1]["figures"]["request_count_avg"] == 2


def test_search_leaves_out_folders_that_hold_no_runs(tmp_path):
    record = [make_record()]
    deep = tmp_path.joinpath(*"abcdefgh")
    skipped = [tmp_path / ".hidden", tmp_path / "node_modules" / "x", tmp_path / "env" / "x", deep / "i"]
    for folder in (*skipped, deep, deep / "log.old"):
        folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    for folder in (*skipped, deep):
        write_log(folder, record)
    assert [os.path.relpath(run.folder, tmp_path) for run in list_runs(str(tmp_path))] == ["a/b/c/d/e/f/g/h"]


def test_folders_in_a_run_are_not_searched_unless_they_are_named(tmp_path):
    outer = tmp_path / "outer"
    for folder in (outer, outer / "inner"):
        folder.mkdir()
        write_log(folder, [make_record()])
    assert [run.folder for run in list_runs(str(tmp_path))] == [str(outer)]
    assert [run.folder for run in list_runs(str(outer))] == [str(outer), str(outer / "inner")]
