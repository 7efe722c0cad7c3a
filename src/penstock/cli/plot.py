"""`plot`: write the charts of runs as PNG and SVG."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from penstock.errors import UserError
from penstock.extras import require_extra
from penstock.plural import counted
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.flags.flag import Positional

_FORMATS = ("png", "svg")
_OPTIONS = """
--paths RUN | list runs
    The same as RUN, as in AIPerf.
--output-dir FOLDER | path output_dir
    Write the charts into this folder; with several runs, into a subfolder for each. [default: RUN/plots]
--format FORMAT | list formats comma_separated
    Formats of the files: png, svg. [default: png,svg]
"""
COMMAND_LINE = CommandLine(
    "plot",
    "Write the charts of a run as PNG and SVG, without a browser.",
    groups=options(_OPTIONS),
    positionals=(Positional("RUN", "the artifact folders of runs or sweeps", "runs", repeated=True),),
    usage=("RUN... [options]",),
    details="""\
The charts are those of report.html, each in a file of its own that has the name of the chart, such as ttft-cdf.png. They come
from the report.html of the run, or from its log if there is none. If a folder contains runs, the charts of all of them are
written. With several runs, the distributions are also drawn on top of each other. This needs matplotlib:
`pip install 'penstock[plot]'`.
""",
    examples=(
        ("The charts of a run", "plot artifacts/demo"),
        ("Two runs, as SVG only", "plot artifacts/before artifacts/after --output-dir plots --format svg"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    require_extra("plot", f"{parsed.program} plot", "matplotlib")
    from penstock.reports.plot import charts_of, write_plots

    formats = parsed.values.get("formats") or list(_FORMATS)
    for name in formats:
        if name not in _FORMATS:
            raise UserError(f"--format must be png or svg, not {name!r}.")
    folders = [run for folder in parsed.values["runs"] for run in _runs_in(os.path.expanduser(folder))]
    pages = [(folder, _page(folder)) for folder in folders]
    output = parsed.values.get("output_dir")
    for (folder, page), name in zip(pages, _names(folders), strict=True):
        into = os.path.join(folder, "plots") if output is None else output
        if output is not None and len(pages) > 1:
            into = os.path.join(output, name)
        _report(into, list(write_plots(charts_of(page), into, formats)))
    if len(pages) > 1:
        _report(output or "plots", list(write_plots(_overlays(pages), output or "plots", formats)))
    return 0


def _runs_in(folder: str) -> list[str]:
    """Return the runs below a folder that is none itself, as AIPerf plots them; otherwise the folder."""
    from penstock.reports.report_html import PAGE_NAME
    from penstock.runs.list_runs import list_runs
    from penstock.runs.point_folder import find_log

    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, PAGE_NAME)) or find_log(folder) is not None:
        return [folder]
    return [run.folder for run in list_runs(folder)] or [folder]


def _names(folders: list[str]) -> list[str]:
    """Return the names of the folders or, if several have the same name, their paths below the folder that contains all."""
    paths = [os.path.abspath(folder) for folder in folders]
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(set(paths)):
        return names
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, common) for path in paths]


def _report(folder: str, paths: list[str]) -> None:
    print(f"{counted(len(paths), 'file')} written to {os.path.join(folder, '')}")


def _page(folder: str) -> dict[str, Any]:
    """Return the data of the page of a run: from its report.html, or from its log."""
    from penstock.cli.open_log import open_log
    from penstock.records.read_sections import most_processes
    from penstock.reports.report_html import PAGE_NAME, read_page
    from penstock.runs.report_point import report_point

    path = os.path.join(folder, PAGE_NAME)
    if os.path.exists(path):
        try:
            return read_page(path)
        except ValueError:
            raise UserError(f"{path} is not a page of Penstock; `penstock report {folder}` writes it again.") from None
    with tempfile.TemporaryDirectory() as scratch:
        report_point(open_log(folder).with_output(html=True), scratch, processes=most_processes())
        return read_page(os.path.join(scratch, PAGE_NAME))


def _overlays(pages: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    import msgspec

    from penstock.reports.runs_page import overlay_pages

    return [msgspec.to_builtins(chart) for chart in overlay_pages(pages)]
