"""What --require-valid says about a run, and the exit status."""

from __future__ import annotations

import msgspec
import pytest

from penstock.cli.exit_status import EXIT_FAILED
from penstock.cli.run_report import parse_assertions, print_errors
from penstock.errors import UserError
from penstock.metrics.certificate import UNOBSERVABLE, Certificate, Judgement
from support.records import make_record
from support.runs import make_settings, report_run

LATE, HIDDEN = "The client was late.", "The tokens arrived together."
VERDICTS = {
    "time_to_first_token": Judgement("VALID"),
    "request_latency": Judgement("INVALID", [LATE]),
    "inter_token_latency": Judgement(UNOBSERVABLE, [HIDDEN]),
}
INVALID = Certificate("INVALID", [LATE], {}, load=Judgement("VALID"), metrics=VERDICTS)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    return report_run(tmp_path_factory.mktemp("run"), [make_record()], certificate=INVALID).summary


@pytest.mark.parametrize(
    ("required", "sentence"),
    [
        (False, None),
        (True, f"The certificate is INVALID, and --require-valid was given: {LATE}"),
        (("time_to_first_token",), None),
        (("output_sequence_length",), None),
        (("request_latency",), f"--require-valid request_latency: the certificate is INVALID for it. {LATE}"),
        (
            ("inter_token_latency",),
            f"--require-valid inter_token_latency: the certificate is UNOBSERVABLE for it. {HIDDEN}",
        ),
        (("goodput",), "--require-valid goodput: the run has no goodput."),
    ],
)
def test_exit_status_depends_on_the_verdicts_that_are_required(summary, capsys, required, sentence):
    status = print_errors(summary, 0.0, required)
    assert status == (0 if sentence is None else EXIT_FAILED)
    assert capsys.readouterr().err == ("" if sentence is None else f"{sentence}\n")


def test_reasons_on_the_screen_are_not_repeated(summary, capsys):
    assert print_errors(summary, 0.0, True, reasons_shown=True) == EXIT_FAILED
    assert capsys.readouterr().err == "The certificate is INVALID, and --require-valid was given.\n"


def test_disturbed_load_fails_a_required_metric(summary, capsys):
    disturbed = msgspec.structs.replace(INVALID, load=Judgement("DEGRADED", ["Sending waited."]))
    changed = msgspec.structs.replace(summary, certificate=disturbed)
    assert print_errors(changed, 0.0, ("time_to_first_token",)) == EXIT_FAILED
    assert "the certificate is DEGRADED for it. Sending waited." in capsys.readouterr().err


def test_unknown_name_is_refused_before_the_run():
    settings = msgspec.structs.replace(make_settings(), require_valid=("itl",))
    with pytest.raises(UserError, match="--require-valid: there is no metric itl; did you mean inter_token_latency"):
        parse_assertions(settings)
