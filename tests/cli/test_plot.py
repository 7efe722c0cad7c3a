"""`penstock plot`."""

import os

import pytest

from penstock.cli import main
from support.records import make_record
from support.runs import report_run

pytest.importorskip("matplotlib", reason="matplotlib is not installed.")


def test_runs_are_plotted_one_by_one_and_together(tmp_path, capsys):
    folders = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        folders.append(report_run(tmp_path / name, [make_record(streamed=False, stamps=[], pieces=[])]).folder)
    os.rename(folders[1], tmp_path / "b" / "again")
    folders[1] = str(tmp_path / "b" / "again")
    out = tmp_path / "plots"
    assert main.main(["plot", *folders, "--output-dir", str(out), "--format", "svg"]) == 0
    assert {"out", "again", "runs-latency-cdf.svg"} == set(os.listdir(out))
    assert "latency-cdf.svg" in os.listdir(out / "again")
    assert f"1 file written to {out}/" in capsys.readouterr().out


def test_charts_of_runs_with_equal_names_do_not_replace_each_other(tmp_path):
    folders = []
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        folders.append(report_run(tmp_path / name, [make_record(streamed=False, stamps=[], pieces=[])]).folder)
    out = tmp_path / "plots"
    assert main.main(["plot", *folders, "--output-dir", str(out), "--format", "svg"]) == 0
    for name in ("before", "after"):
        assert "latency-cdf.svg" in os.listdir(out / name / "out")


def test_folder_of_paths_stands_for_the_runs_in_it(tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        report_run(tmp_path / name, [make_record(streamed=False, stamps=[], pieces=[])])
    out = tmp_path / "plots"
    assert main.main(["plot", "--paths", str(tmp_path), "--output-dir", str(out), "--format", "svg"]) == 0
    for name in ("before", "after"):
        assert "latency-cdf.svg" in os.listdir(out / name)


def test_help_names_the_runs_once(capsys):
    assert main.main(["plot", "--help"]) == 0
    assert capsys.readouterr().out.count("artifact folders of runs") == 1


def test_wrong_format_and_missing_run_are_errors_of_the_user(tmp_path, capsys):
    assert main.main(["plot", str(tmp_path), "--format", "gif"]) == 2
    assert "must be png or svg" in capsys.readouterr().err
    assert main.main(["plot", str(tmp_path)]) == 2
    assert "contains no run" in capsys.readouterr().err


def test_missing_package_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("penstock.extras.find_spec", lambda _: None)
    assert main.main(["plot", str(tmp_path)]) == 2
    assert "pip install 'penstock[plot]'" in capsys.readouterr().err
