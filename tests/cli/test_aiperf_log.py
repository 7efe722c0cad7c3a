"""The sentence and the log file for scripts that were written for AIPerf."""

from __future__ import annotations

from penstock.cli.aiperf_log import AiperfLog


def test_log_of_each_point_has_the_lines_before_the_run_and_its_own(tmp_path):
    log = AiperfLog(str(tmp_path), "aiperf profile")
    log.add("early")
    assert not list(tmp_path.iterdir())
    assert not log.begin_point()
    log.next_folder = str(tmp_path / "one")
    assert log.begin_point()
    assert not log.begin_point()
    log.add("first")
    log.next_folder = str(tmp_path / "two")
    assert log.begin_point()
    log.add("second")
    assert _texts(tmp_path) == ["aiperf profile", "early", "first", "second"]
    assert _texts(tmp_path / "one") == ["aiperf profile", "early", "first"]
    assert _texts(tmp_path / "two") == ["aiperf profile", "early", "second"]


def _texts(folder):
    return [line.split(" - ")[-1] for line in (folder / "logs" / "aiperf.log").read_text().splitlines()]
