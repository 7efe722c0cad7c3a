"""`profile --resume`: go on with a run that was killed, interrupted or lost a worker."""

from __future__ import annotations

import os

from msgspec.structs import replace

from penstock.cli.open_log import open_log
from penstock.cli.run import open_folder, report_finished, run_on_terminal
from penstock.errors import UserError
from penstock.records.log import RunLog
from penstock.runs.point_folder import find_log
from penstock.runs.resume import LoggedRun, check_resumable, resumed_experiment, resumed_settings
from penstock.secrets import REDACTED, redact_url
from penstock.settings.endpoint_types import load_endpoint
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.resolve import resolve_endpoint
from penstock.settings.schema import OutputSettings, Settings

_CREDENTIALS = (
    "endpoint.api_key",
    "endpoint.api_key_file",
    "endpoint.api_key_env",
    "endpoint.headers",
    "endpoint.proxy",
)
_OUTPUT = {"output.quiet": "quiet", "output.ui": "ui", "output.verbose": "verbose"}
_ACCEPTED = {"resume", "endpoint.urls", "cluster", "output.remote", *_CREDENTIALS, *_OUTPUT}


def resume(parsed: ParsedArguments) -> int:
    if "://" in parsed.values["resume"]:
        raise UserError(
            f"--resume {redact_url(parsed.values['resume'])} is a URL; copy the run to a folder of this machine, and name that."
        )
    folder = os.path.normpath(parsed.values["resume"])
    if other := [target for target in parsed.values if target not in _ACCEPTED]:
        raise UserError(
            f"--resume takes the load from the run in {folder}; leave out {parsed.spellings[other[0]]}. Only --url, "
            "credentials, --cluster, --results-url and --quiet, --ui and --verbose can be given with it."
        )
    settings = _settings(parsed, folder)
    with open_folder(settings, resume=True) as run_folder:
        log = RunLog(run_folder.log)
        check_resumable(log, folder)
        logged = LoggedRun(log, folder)
        experiment = resumed_experiment(logged.header, settings)
        done = run_on_terminal(experiment, run_folder, logged)
        if experiment.servers > 1:
            from penstock.cli.compare import report_servers

            return report_servers(settings, done)
        return report_finished(experiment, done)


def results_url(parsed: ParsedArguments, logged: OutputSettings, folder: str) -> str | None:
    """Return the URL to which the results are copied. Raise UserError if the log does not contain it in full."""
    url: str | None = parsed.values.get("output.remote", logged.remote)
    if url is not None and REDACTED in url:
        raise UserError(
            f"The run in {folder} copies its results to {url}, whose secret its log does not contain; give it again with "
            "--results-url."
        )
    return url


def _settings(parsed: ParsedArguments, folder: str) -> Settings:
    """Return the settings of the run in a folder, with what the user gives again."""
    if not os.path.isdir(folder):
        raise UserError(f"There is no folder {folder}, so there is nothing to resume.")
    found = find_log(folder)
    if found is None:
        open_log(folder)  # raises UserError
    assert found is not None
    if found[1] is not None:
        raise UserError(f"{folder} holds a point of an experiment; resume that in {os.path.dirname(found[0])}.")
    header = RunLog.read_header(found[0])
    given = resolve_endpoint(parsed, load_endpoint(header.settings.endpoint.type))
    settings = resumed_settings(header, folder, given, urls="endpoint.urls" in parsed.values)
    output = {field: parsed.values[target] for target, field in _OUTPUT.items() if target in parsed.values}
    output["remote"] = results_url(parsed, settings.output, folder)
    cluster = parsed.values.get("cluster", settings.cluster)
    return replace(settings, cluster=cluster, output=replace(settings.output, **output))
