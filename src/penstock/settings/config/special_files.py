"""Reads what a configuration file has of other files: inline records of a dataset, and files to write beside the results."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

from penstock.errors import UserError
from penstock.settings.config.document import Node, snake_case
from penstock.settings.config.templates import render_data, template_environment
from penstock.settings.schema import UserFile

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_NAMES = ("epoch", "job_name", "namespace", "model", "endpoint_url", "artifact_dir")
"""What templates of these files can use besides the variables."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def store_records(records: list[Any], name: str) -> str:
    """Write records to a file in the user's cache, whose name is that of its contents, and return its path. A later report or
    a run that is resumed finds it there."""
    data = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records).encode()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(cache, "penstock", f"records-{hashlib.sha256(data).hexdigest()[:16]}.jsonl")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        partial = f"{path}.{os.getpid()}"
        with open(partial, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        raise UserError(f"{name} cannot be stored in {os.path.dirname(path)}: {error.strerror}.") from None
    return path


def read_user_file(node: Node, variables: Mapping[str, Any]) -> UserFile:
    """Return an entry of `user_files`, or raise `UserError` with the words that follow the name of the node."""
    from jinja2 import TemplateError, meta

    fields = {snake_case(child.key): child.value() for child in node.children}
    path, content = fields.get("path"), fields.get("content")
    if not isinstance(path, str) or not path or "content" not in fields or content is None:
        raise UserError("needs a path and a content.")
    if os.path.isabs(path) or ".." in path.split("/") or _CONTROL.search(path):
        raise UserError(f"must have a path inside the artifact folder, not {path!r}.")
    format_: Any = fields.get("format") or ("text" if isinstance(content, str) else "json")
    if format_ not in ("json", "yaml", "text"):
        raise UserError(f"must have the format json, yaml or text, not {format_!r}.")
    if isinstance(content, str) is not (format_ == "text"):
        expected = "a text" if format_ == "text" else "a mapping or a list"
        raise UserError(f"needs {expected} as its content for the format {format_}.")
    environment = template_environment()
    known = {*variables, *RUN_NAMES}

    def check(text: str) -> str:
        try:
            unknown = sorted(meta.find_undeclared_variables(environment.parse(text)) - known)
        except TemplateError as error:
            raise UserError(f"has a template that is not valid: {str(error).rstrip('.')}.") from None
        if unknown:
            raise UserError(f"uses {unknown[0]}, which is no variable (known: {', '.join(sorted(known))}).")
        return text

    render_data(content, check)
    return UserFile(path, format_, content)
