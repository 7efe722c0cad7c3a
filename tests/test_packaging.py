"""The files with which Penstock is built, released and deployed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.cli.profile import COMMAND_LINE
from penstock.errors import UserError
from penstock.runs.upload import check_results_url, upload
from penstock.settings.config import with_config
from penstock.settings.parse import parse

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))


def test_containerfile_has_no_lint() -> None:
    found = [
        path for path in (SCRIPTS / "hadolint", *Path(yaml.__file__).parents[4].glob("bin/hadolint")) if path.exists()
    ]
    if not found:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([found[0], ROOT / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_manifests_are_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    (ray_job,) = documents("rayjob.yaml")
    cluster = ray_job["spec"]["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **template} for template in templates]
    for document in (*documents("job.yaml"), *pods):
        validate(document, "1.30", strict=True)


def test_manifests_run_commands_that_exist(tmp_path: Path) -> None:
    config_map, _, job = documents("job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    config = tmp_path / "benchmark.yaml"
    config.write_text(config_map["data"]["benchmark.yaml"])
    arguments = [str(config) if word == "/config/benchmark.yaml" else word for word in container["args"]]
    assert arguments[0] == "profile"
    assert with_config(parse(COMMAND_LINE, arguments[1:])).values["load.concurrency"] == 64
    (ray_job,) = documents("rayjob.yaml")
    program, command, *arguments = shlex.split(ray_job["spec"]["entrypoint"])
    assert (program, command) == ("aiperf", "profile")
    assert parse(COMMAND_LINE, arguments).values["cluster"] == "auto"


def test_workflows_use_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = []
    for name in ("ci.yml", "release.yml"):
        workflow = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
        for job in workflow["jobs"].values():
            commands += [step["run"] for step in job["steps"] if "run" in step]
    used = [target for command in commands if command.startswith("make ") for target in command.split()[1:]]
    assert {"check", "test", "test-slow", "package"} <= set(used) <= targets


def test_results_are_copied_with_the_log(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    run = tmp_path / "run"
    (run / "log").mkdir(parents=True)
    (run / "summary.json").write_text("{}")
    (run / "log" / "worker-0.log").write_bytes(b"\x01")
    assert upload(str(run), f"memory://{tmp_path.name}/results") == 2
    copied = fsspec.filesystem("memory").find(f"/{tmp_path.name}/results")
    assert [path.partition("/results/")[2] for path in copied] == ["log/worker-0.log", "summary.json"]
    assert upload(str(run), f"file://{tmp_path}/copy") == 2
    assert (tmp_path / "copy" / "log" / "worker-0.log").read_bytes() == b"\x01"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("results", "--results-url results is not a URL such as s3://bucket/folder; --artifact-dir names a folder."),
        ("s4://bucket", "--results-url s4://bucket cannot be used: Protocol not known: s4."),
    ],
)
def test_unusable_results_url_is_refused_before_the_run(url: str, sentence: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UserError) as error:
        check_results_url(url)
    assert str(error.value) == sentence


@pytest.mark.slow
def test_wheel_and_source_distribution_install_and_run(tmp_path: Path) -> None:
    """The dependencies come from this environment, so that the test needs no network; `make package` installs them."""
    pytest.importorskip("hatchling")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", tmp_path], cwd=ROOT, check=True)
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        installed = {name for name in archive.namelist() if name.startswith("penstock/")}
    expected = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "penstock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert installed == expected
    # The source distribution builds the same wheel.
    with tarfile.open(source) as tar:
        tar.extractall(tmp_path / "source", filter="data")
    (unpacked,) = (tmp_path / "source").iterdir()
    again = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again"]
    subprocess.run(again, cwd=unpacked, check=True)
    with zipfile.ZipFile(tmp_path / "again" / wheel.name) as archive:
        assert {name for name in archive.namelist() if name.startswith("penstock/")} == expected
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=True)
    pip = [clean / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, wheel], check=True)
    (packages,) = clean.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(yaml.__file__).parents[1]))
    run = [clean / "bin" / "aiperf", "profile", "-m", "m", "--tokenizer", "builtin", "--url", "mock://"]
    run += ["--request-count", "3", "--artifact-dir", tmp_path / "run"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "profile_export_aiperf.json").exists()
