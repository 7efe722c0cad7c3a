"""`profile --resume`: go on with a run that was killed, interrupted or lost a worker."""

from __future__ import annotations

import os

from msgspec.structs import replace

from penstock.cli.open_run import is_experiment, open_run
from penstock.cli.run import TerminalObserver, check_remote, copy_results, explain_early_interrupt, open_folder
from penstock.cli.run_report import report_run
from penstock.errors import UserError
from penstock.runs.execute import execute_phases
from penstock.runs.resume import check_resumable, find_resume_point, open_resumed_run, resumed_settings
from penstock.secrets import REDACTED, redact_url
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.resolve import resolve
from penstock.settings.schema import EndpointSettings, OutputSettings

__all__ = ["results_url", "resume"]

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
    if not os.path.isdir(folder):
        raise UserError(f"There is no folder {folder}, so there is nothing to resume.")
    if is_experiment(folder):
        raise UserError(f"{folder} holds an experiment with several runs; --resume goes on with a single run.")
    with open_folder(folder, resume=True) as run_folder:
        log = open_run(folder)
        check_resumable(log, folder)
        header = log.header
        settings = resumed_settings(
            header, folder, _given(parsed, header.settings.endpoint.type), urls="endpoint.urls" in parsed.values
        )
        point = find_resume_point(log, folder)
        output = {field: parsed.values[target] for target, field in _OUTPUT.items() if target in parsed.values}
        output["remote"] = results_url(parsed, settings.output, folder)
        cluster = parsed.values.get("cluster", settings.cluster)
        settings = replace(settings, cluster=cluster, output=replace(settings.output, **output))
        check_remote(settings)
        observer = TerminalObserver(settings, run_folder)
        with explain_early_interrupt(run_folder):
            done = execute_phases(open_resumed_run(settings, run_folder, observer, point), run_folder, point.position)
        status = report_run(done)
        copy_results(settings)
        return status


def results_url(parsed: ParsedArguments, logged: OutputSettings, folder: str) -> str | None:
    """Return the URL to which the results are copied. Raise UserError if the log does not contain it in full."""
    url: str | None = parsed.values.get("output.remote", logged.remote)
    if url is not None and REDACTED in url:
        raise UserError(
            f"The run in {folder} copies its results to {url}, whose secret its log does not contain; give it again with "
            "--results-url."
        )
    return url


def _given(parsed: ParsedArguments, endpoint_type: str) -> EndpointSettings:
    """Return the endpoint settings with what the user gives again."""
    values = {target: parsed.values[target] for target in ("endpoint.urls", *_CREDENTIALS) if target in parsed.values}
    again = ParsedArguments({**values, "models": ["m"], "endpoint.type": endpoint_type}, parsed.spellings)
    return resolve(again).endpoint
