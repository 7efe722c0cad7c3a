"""The header of a run log: it keeps the settings, and no credential."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.cli.profile import COMMAND_LINE as PROFILE
from penstock.errors import UserError
from penstock.records.header import RunHeader, decode_header, encode_header, new_header
from penstock.records.log import RunLog
from penstock.secrets import RedactedSecret, Secret
from penstock.settings import schema
from penstock.settings.input_config import input_config
from penstock.settings.parse import parse
from penstock.settings.redact import redacted
from penstock.settings.resolve import resolve
from penstock.settings.schema import EndpointSettings, Settings

BASE64 = ("aHVudGVyMg", "bWU6aHVudGVyMg")
"""`hunter2` and `me:hunter2`."""
PLACES = {
    "API key": ("--api-key", "hunter2"),
    "header": ("-H", "Authorization: Bearer hunter2"),
    "JSON headers": ("--header", '{"X-A":"hunter2"}'),
    "password in the URL": ("-u", "http://me:hunter2@host:1/v1", "https://me:hunter2@other"),
    "query of the URL": ("-u", "http://host/v1?api-key=hunter2&v=1"),
    "path": ("--endpoint", "/v1?api_key=hunter2&n=1"),
    "body field": ("--extra-inputs", "n:1,api_key:hunter2"),
    "nested body field": ("--extra-inputs", '{"a": {"token": "hunter2", "b": [{"password": "hunter2"}]}}'),
    "proxy": ("--proxy", "http://me:hunter2@proxy:3128"),
}


def settings_for(*words: str) -> Settings:
    return resolve(parse(PROFILE, ("-m", "m", *words), "aiperf"))


def header_for(settings: Settings, **changes: Any) -> RunHeader:
    facts: dict[str, Any] = {
        "epoch": 0,
        "dataset": "synthetic",
        "context_mode": "deltas_without_responses",
        "payload_files": [],
        "conversations": 1,
        "seed": 1,
        "concurrency": 1,
        "requests": 2,
        "workers": 1,
        "prompt_tokenizer": ("words", "builtin"),
    }
    return new_header(settings, **facts | changes)


@pytest.mark.parametrize("place", PLACES)
def test_credentials_are_not_in_the_header(place: str) -> None:
    settings = settings_for(*PLACES[place])
    data = encode_header(header_for(settings)).decode()
    assert "<redacted>" in data
    assert [text for text in ("hunter2", *BASE64) if text in data] == []


@pytest.mark.parametrize("place", PLACES)
def test_settings_of_the_header_give_the_same_input_config(place: str) -> None:
    settings = settings_for(*PLACES[place])
    header = decode_header(encode_header(header_for(settings)))
    assert input_config(header.settings) == input_config(settings)


def test_secret_that_was_not_redacted_is_not_encoded() -> None:
    settings = settings_for("--api-key", "hunter2", "-H", "X-A:hunter2", "--proxy", "http://me:hunter2@proxy:3128")
    data = encode_header(msgspec.structs.replace(header_for(settings), settings=settings)).decode()
    assert "hunter2" not in data


def test_every_secret_of_the_settings_is_redacted() -> None:
    structs = [
        struct for struct in vars(schema).values() if isinstance(struct, type) and struct.__module__ == schema.__name__
    ]
    fields = [
        field.name for struct in structs for field in msgspec.structs.fields(struct) if "Secret" in str(field.type)
    ]
    assert fields == ["api_key", "headers", "proxy"]
    secret = Secret("http://me:hunter2@host")
    endpoint = EndpointSettings(api_key=secret, headers=(("Name", secret),), proxy=secret)
    kept = redacted(msgspec.structs.replace(settings_for(), endpoint=endpoint)).endpoint
    shown = f"{kept.api_key} {kept.headers} {kept.proxy}"
    assert shown == "<redacted> (('Name', <redacted>),) http://<redacted>@host"
    assert isinstance(kept.api_key, RedactedSecret)


def test_header_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings = settings_for(
        *("--request-rate", "5", "--benchmark-duration", "9", "--benchmark-grace-period", "inf"),
        *("--random-seed", "3", "--extra-inputs", '{"temperature": 0.5, "stop": ["inf", null]}', "-H", "X-A:b"),
        *("--proxy", "http://me:hunter2@proxy:3128", "--image-width-mean", "5", "--image-height-mean", "5"),
    )
    header = header_for(settings, payload_files=["a.jsonl"])
    RunLog.write_header(str(tmp_path), header)
    assert RunLog.read_header(str(tmp_path)) == header
    assert header.settings.load == settings.load
    assert header.settings.endpoint.proxy == RedactedSecret("http://<redacted>@proxy:3128")


@pytest.mark.parametrize("log_format", [None, 3])
def test_header_of_another_version_is_refused_with_its_version(tmp_path: Path, log_format: int | None) -> None:
    fields = {"penstock_version": "0.1.7", "log_format": log_format, "urls": ["http://localhost:8000"]}
    text = json.dumps({name: value for name, value in fields.items() if value is not None})
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(
        UserError, match=r"was written by Penstock 0\.1\.7, whose log format this version does not read"
    ):
        RunLog.read_header(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"penstock_version": "0.2", "log_format": 4}'])
def test_unreadable_header_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json is not readable as a run of this version: "):
        RunLog.read_header(str(tmp_path))
