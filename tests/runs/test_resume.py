"""What the log of a run says that is left to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import UserError
from penstock.records.log import STOP_RULE, Decision, LogWriter, RunLog, RunnerLog
from penstock.records.worker_report import WorkerReport
from penstock.runs.resume import LoggedRun
from penstock.settings.schema import LoadSettings
from support.records import make_record
from support.runs import BODY, PROFILING, make_settings, write_log

CONVERSATIONS = [(f"session-{number}", [BODY] * 3) for number in range(4)]


def left(folder: Path, load: LoadSettings, turns: list[tuple[int, int]], **fields: Any) -> LoggedRun:
    """Return what is left of a run that was killed after these turns, as pairs of a session and a turn."""
    records = [make_record(number=number, conversation=number, turn=turn) for number, turn in turns]
    settings = replace(make_settings(), load=load)
    log = write_log(folder, records, conversations=CONVERSATIONS, settings=settings, dataset="multi_turn", **fields)
    return LoggedRun(RunLog(log), "run")


def test_requests_of_conversations_that_begin_again_are_sent_again(tmp_path: Path) -> None:
    turns = [(0, 0), (1, 0), (0, 1), (0, 2), (3, 0), (1, 1)]
    begun = left(tmp_path, LoadSettings(concurrency=2, requests=10), turns).begun
    assert begun is not None
    assert begun.phases is not None
    (phase,) = begun.phases
    assert phase.resumed is not None
    assert (phase.resumed.unfinished, phase.resumed.next_number) == ((1, 2, 3), 4)
    assert phase.requests == 10 - 3


def test_user_who_sends_only_the_rest_of_a_conversation_has_ended(tmp_path: Path) -> None:
    """Of four users, those in the places 0 to 3 send 3, 1, 2 and 3 turns at first."""
    turns = [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1)]
    begun = left(tmp_path, LoadSettings(users=4, user_rate=10.0, conversations=8), turns).begun
    assert begun is not None
    assert begun.phases is not None
    assert begun.phases[0].resumed is not None
    assert begun.phases[0].resumed.unfinished == (0, 3)


def test_run_that_a_rule_has_ended_is_complete(tmp_path: Path) -> None:
    log = write_log(tmp_path, [make_record()], phases=[PROFILING])
    worker = LogWriter(log, 0)
    worker.record(make_record())
    worker.report(WorkerReport(0, 0, stopped=True))
    worker.close()
    assert LoggedRun(RunLog(log), "run").begun is not None
    runner = RunnerLog(log)
    runner.decision(Decision(STOP_RULE, 0, 0, {}))
    runner.close()
    with pytest.raises(UserError, match=r"The run in run is complete: there is nothing to resume\.$"):
        LoggedRun(RunLog(log), "run")
