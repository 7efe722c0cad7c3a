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
from penstock.settings.resolve_exports import check_extras, exports
from penstock.settings.schema import Settings

_CREDENTIALS = (
    "endpoint.api_key",
    "endpoint.api_key_file",
    "endpoint.api_key_env",
    "endpoint.headers",
    "endpoint.proxy",
)
_OUTPUT = {"output.quiet": "quiet", "output.ui": "ui", "output.verbose": "verbose"}
_DESTINATIONS = {
    "output.remote": "--results-url",
    "exports.otel_url": "--otel-url",
    "exports.mlflow_uri": "--mlflow-tracking-uri",
}
_ACCEPTED = {"resume", "endpoint.urls", "cluster", *_DESTINATIONS, *_CREDENTIALS, *_OUTPUT}


def resume(parsed: ParsedArguments) -> int:
    if "://" in parsed.values["resume"]:
        raise UserError(
            f"--resume {redact_url(parsed.values['resume'])} is a URL; copy the run to a folder of this machine, and name that."
        )
    folder = os.path.normpath(parsed.values["resume"])
    if other := [target for target in parsed.values if target not in _ACCEPTED]:
        raise UserError(
            f"--resume takes the load from the run in {folder}; leave out {parsed.spellings[other[0]]}. Only --url, "
            f"credentials, --cluster, {', '.join(_DESTINATIONS.values())} and --quiet, --ui and --verbose can be given with it."
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


def with_destinations(parsed: ParsedArguments, settings: Settings, folder: str) -> Settings:
    """Return the settings with the URLs to which results are sent, in full. Raise UserError if the log does not contain one
    with its secret."""
    given = exports(parsed)
    output, logged = settings.output, settings.exports
    if "output.remote" in parsed.values:
        output = replace(output, remote=parsed.values["output.remote"])
    logged = replace(
        logged, otel_url=given.otel_url or logged.otel_url, mlflow_uri=given.mlflow_uri or logged.mlflow_uri
    )
    check_extras(logged)
    urls = (output.remote, logged.otel_url, logged.mlflow_uri)
    for url, flag in zip(urls, _DESTINATIONS.values(), strict=True):
        if url is not None and REDACTED in url:
            raise UserError(
                f"The run in {folder} sends its results to {url}, whose secret its log does not contain; give it again with "
                f"{flag}."
            )
    return replace(settings, output=output, exports=logged)


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
    settings = with_destinations(parsed, settings, folder)
    cluster = parsed.values.get("cluster", settings.cluster)
    return replace(settings, cluster=cluster, output=replace(settings.output, **output))
