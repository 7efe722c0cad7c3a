"""The templates of `config init`."""

from __future__ import annotations

import os

__all__ = ["TEMPLATES", "template_text"]

TEMPLATES = {
    "minimal": "a fixed number of requests in flight",
    "rate": "a rate of requests, with ramp, duration and limits of time",
    "warmup": "a warmup before the measurement",
    "replay": "requests from a file, byte for byte",
    "goodput": "service level objectives, and an exit status for CI",
}
"""Name -> what it shows. The texts are in the folder `templates`."""


def template_text(name: str) -> str:
    path = os.path.join(os.path.dirname(__file__), "templates", f"{name}.yaml")
    with open(path, encoding="utf-8") as file:
        return file.read()
