"""Requests that are forms (multipart/form-data).

`build` returns the fields of the form, in which files are objects with base64 data; a list of files is sent as a part for each.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import orjson

from penstock.endpoints.base import Body, Endpoint

_BOUNDARY = "penstock-58f1d0c3a94e4b6f8a27c6e5b1d93f40"
"""128 random bits after the name, so that no file contains it."""
CONTENT_TYPE = f"multipart/form-data; boundary={_BOUNDARY}"
_FILE = {"filename", "type", "data"}


def form_file(filename: str, type_: str, data: str) -> dict[str, str]:
    """Return the field of a file. `data` is base64."""
    return {"filename": filename, "type": type_, "data": data}


class FormEndpoint(Endpoint):
    """The encoding of forms. The declaration of an endpoint has to name `CONTENT_TYPE`."""

    def encode(self, body: Body) -> bytes:
        parts: list[bytes] = []
        for name, value in body.items():
            for each in value if _is_list_of_files(value) else [value]:
                parts += [b"--%b\r\n" % _BOUNDARY.encode(), *_part(name, each), b"\r\n"]
        return b"".join([*parts, b"--%b--\r\n" % _BOUNDARY.encode()])

    def decode(self, body: bytes) -> Any:
        boundary = b"--" + _BOUNDARY.encode()
        fields: dict[str, Any] = {}
        for part in body.removeprefix(boundary).split(b"\r\n" + boundary)[:-1]:
            head, _, value = part.partition(b"\r\n\r\n")
            _, name, *rest = head.decode().split('"')
            if len(rest) < 3:
                fields[name] = value.decode()
                continue
            file = form_file(rest[1], head.decode().rpartition("Content-Type: ")[2], b64encode(value).decode())
            if name.endswith("[]"):
                fields.setdefault(name, []).append(file)
            else:
                fields[name] = file
        if not fields:
            raise ValueError("the body is not a form")
        return fields


def _is_list_of_files(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) and v.keys() == _FILE for v in value)


def _part(name: str, value: Any) -> list[bytes]:
    if isinstance(value, dict) and value.keys() == _FILE:
        head = f'Content-Disposition: form-data; name="{name}"; filename="{value["filename"]}"\r\n'
        return [f"{head}Content-Type: {value['type']}\r\n\r\n".encode(), b64decode(value["data"])]
    text = value.encode() if isinstance(value, str) else orjson.dumps(value)
    return [f'Content-Disposition: form-data; name="{name}"\r\n\r\n'.encode(), text]
