"""Writes the files of the user that a configuration file describes, beside the results of a point."""

from __future__ import annotations

import json
import os
from typing import Any

from penstock.errors import UserError
from penstock.secrets import redact_url
from penstock.settings.config.templates import render_data, template_environment, typed
from penstock.settings.schema import Settings


def write_user_files(settings: Settings, epoch_s: int) -> None:
    """Write the files into the artifact folder, or raise `UserError`. `epoch_s` is when the run began."""
    from jinja2 import TemplateError

    folder = os.path.realpath(settings.output.folder)
    names = {
        "epoch": str(epoch_s),
        "job_name": os.path.basename(folder),
        "namespace": "",
        "model": settings.models[0],
        "endpoint_url": redact_url(settings.endpoint.urls[0]),
        "artifact_dir": folder,
    }
    context = settings.output.variables | names
    environment = template_environment()
    for file in settings.output.user_files:
        path = os.path.join(folder, file.path)

        def render(text: str, *, is_text: bool = file.format == "text") -> Any:
            rendered = environment.from_string(text).render(context)
            return rendered if is_text else typed(rendered)

        try:
            if os.path.commonpath([folder, os.path.realpath(path)]) != folder:
                raise UserError(f"The user file {file.path} would be outside the artifact folder.")
            text = _text(render_data(file.content, render), file.format)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as output:
                output.write(text)
        except (TemplateError, TypeError, ValueError, ArithmeticError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
            raise UserError(f"The user file {file.path} cannot be written: {reason}.") from None


def _text(content: Any, format_: str) -> str:
    if format_ == "text":
        return str(content)
    if format_ == "json":
        return json.dumps(content, indent=2, ensure_ascii=False)
    import yaml

    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
