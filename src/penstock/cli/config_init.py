"""`config init`: print a configuration file to begin with."""

from __future__ import annotations

import json
import os
import re
import sys

from penstock.errors import UserError
from penstock.settings import config
from penstock.settings.command_line import CommandLine, options
from penstock.settings.flag_values import ParsedArguments

TEMPLATES = {
    "minimal": "a fixed number of requests in flight",
    "rate": "a rate of requests, with ramp, duration and limits of time",
    "warmup": "a warmup before the measurement",
    "replay": "requests from a file, byte for byte",
    "goodput": "service level objectives, and an exit status for CI",
}
"""Name -> what it shows. The texts are in the folder `settings/config/templates`."""
COMMAND_LINE = CommandLine(
    "config init",
    "Print a configuration file with comments. It can be run as it is: its server is mock://, inside Penstock.",
    groups=options(f"""
--template, -t | enum template choices={"|".join(TEMPLATES)}
    The load to begin with. [default: minimal]
--list, -l | bool list
    List the templates.
--model, -m NAME | str model
    Name of the model in the file.
--url, -u URL | str url url
    URL of the server in the file.
--output, -o FILE | path output
    Write to this file, which must be new.
"""),
    exit_statuses=(("0", "the file was printed or written"), ("2", "the file exists or cannot be written")),
    examples=(
        ("Print the smallest file", "config init"),
        ("Write a file with a request rate", "config init --template rate --output run.yaml"),
    ),
)


def run(parsed: ParsedArguments) -> int:
    values = parsed.values
    if values.get("list"):
        width = max(map(len, TEMPLATES))
        sys.stdout.writelines(f"{name:{width}}  {about}\n" for name, about in TEMPLATES.items())
        return 0
    text = template_text(values.get("template", "minimal"))
    for key in ("model", "url"):
        if key in values:
            text = _with_value(text, key, values[key])
    if "output" not in values:
        sys.stdout.write(text)
        return 0
    _write_new(values["output"], text, parsed.spellings["output"])
    print(f"Wrote {values['output']}; run it with `{parsed.program} profile --config {values['output']}`.")
    return 0


def template_text(name: str) -> str:
    path = os.path.join(os.path.dirname(config.__file__), "templates", f"{name}.yaml")
    with open(path, encoding="utf-8") as file:
        return file.read()


def _with_value(text: str, key: str, value: str) -> str:
    """Replace the value of the first line with this key."""
    line = re.search(rf"(?m)^ *{key}: (.*)$", text)
    return text if line is None else text[: line.start(1)] + json.dumps(value) + text[line.end(1) :]


def _write_new(path: str, text: str, spelling: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise UserError(f"{spelling} {path!r} exists already; choose another name.") from None
    except OSError as error:
        raise UserError(f"{spelling} {path!r} cannot be written: {error.strerror}.") from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
