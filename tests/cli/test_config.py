"""The commands `config init`, `validate` and `expand`, in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.config_init import TEMPLATES
from penstock.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["config", *words])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_is_valid_and_is_written_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("artifacts/minimal").mkdir(parents=True)
    Path("artifacts/minimal/inputs.json").write_text('{"data": []}')
    assert call(capsys, "init", "--template", name, "-o", "run.yaml")[0] == 0
    assert call(capsys, "init", "-t", name)[1] == Path("run.yaml").read_text()
    assert call(capsys, "validate", "run.yaml") == (0, "run.yaml is valid.\n", "")
    status, _, err = call(capsys, "init", "-o", "run.yaml")
    assert (status, err) == (2, "penstock config: -o 'run.yaml' exists already; choose another name.\n")


def test_template_gets_the_model_and_the_url(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("init", "-t", "rate", "--model", "org/big: 7b", "--url", "http://host:1/v1", "-o", "run.yaml")
    assert call(capsys, *words)[0] == 0
    _, out, _ = call(capsys, "expand", "run.yaml")
    assert "org/big: 7b" in out
    assert "http://host:1/v1" in out


def test_list_names_every_template(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "init", "--list")
    assert [line.split()[0] for line in out.splitlines()] == list(TEMPLATES)


def test_flags_override_the_file_in_validate_and_expand(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text("benchmark: {model: m, profiling: {concurrency: 3}}")
    assert "concurrency: 7" in call(capsys, "expand", "run.yaml", "--concurrency", "7")[1]
    status, out, err = call(capsys, "validate", "run.yaml", "--prefill-concurrency", "9")
    assert (status, out) == (2, "")
    assert err.startswith("penstock config: --prefill-concurrency 9 is above --concurrency 3")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{accuracy: {benchmark: x}}", "run.yaml:1 benchmark.accuracy.benchmark is a key of AIPerf that"),
        ("{model: m, slos: {ttfx: 5}}", "run.yaml:1 benchmark.slos: 'ttfx' is not a metric of single requests"),
        (
            "{model: m, checks: {assert: [nonsense]}}",
            "run.yaml:1 benchmark.checks.assert 'nonsense' must be a statistic",
        ),
        (
            "{model: m, dataset: {path: run.yaml, format: single_tern}}",
            "There is no dataset format 'single_tern' (run.yaml:1 benchmark.dataset.format); did you mean single_turn?",
        ),
    ],
)
def test_validate_reports_what_a_run_would_report(text: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.yaml").write_text(f"benchmark: {text}")
    status, out, err = call(capsys, "validate", "run.yaml")
    assert (status, out) == (2, "")
    assert err.startswith(f"penstock config: {sentence}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "COMMAND is missing: name the command: init, validate or expand; see `penstock config --help`."),
        (("vaildate", "x"), "The config has no command 'vaildate'; did you mean validate?"),
        (("--", "x"), "config has no command 'x'; see `penstock config --help`."),
        (("init", "-t", "minimum"), "-t must be one of"),
        (("validate",), "FILE is missing: name the YAML file to check"),
        (("expand", "none.yaml"), "--config 'none.yaml' cannot be read: No such file or directory."),
        (("validate", "x.yaml", "--concurency", "3"), "There is no option --concurency; did you mean --concurrency?"),
    ],
)
def test_mistakes_are_refused(words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, *words)
    assert status == 2
    assert err.startswith(f"penstock config: {sentence}")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--concurrency", "1,2"), "run.yaml is valid. It has 2 points.\n"),
        (("--sweep", "auto", "--parameter-sweep-cooldown-seconds", "1"), "run.yaml is valid.\n"),
        (("--concurrency", "1,1"), "The sweep has concurrency 1 twice; its points must differ.\n"),
        (("--concurrency", "1,2", "--sweep", "auto"), "--sweep auto chooses the points by itself"),
        (("--concurrency", "1,2", "--isl", "1,2,3", "--sweep-type", "zip"), "needs lists of the same length"),
    ],
)
def test_sweep_is_checked_as_a_run_would(
    words: tuple[str, ...], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.yaml").write_text("benchmark: {model: m}")
    status, out, err = call(capsys, "validate", "run.yaml", *words)
    assert answer in out + err
    assert status == (0 if "is valid" in answer else 2)
