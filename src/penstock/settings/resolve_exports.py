"""The settings of exports to other systems, from the flags for them."""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

from penstock.errors import UserError
from penstock.extras import require_extra
from penstock.secrets import redact_url
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.schema import ExportSettings

_METRICS_PATH = "/v1/metrics"
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+\Z")
_EXTRAS = (
    ("otel_url", "--otel-url", "otel", ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")),
    ("mlflow_uri", "--mlflow-tracking-uri", "mlflow", ("mlflow",)),
    ("wandb_project", "--wandb-project", "wandb", ("wandb",)),
)
"""The field that turns an export on, its flag, its extra, and the modules that it needs."""


def exports(parsed: ParsedArguments) -> ExportSettings:
    """Return the settings, or raise UserError."""
    fields = parsed.section("exports")
    if "otel_url" in fields:
        fields["otel_url"] = _otel_url(fields["otel_url"], _name(parsed, "otel_url"))
    if "mlflow_uri" in fields and _HOST_AND_PORT.match(fields["mlflow_uri"]):
        fields["mlflow_uri"] = f"http://{fields['mlflow_uri']}"
    for field, separator in (("otel_attributes", "="), ("mlflow_tags", ":")):
        if field in fields:
            fields[field] = _pairs(fields[field], separator, _name(parsed, field))
    for field in ("mlflow_globs", "wandb_tags"):
        if field in fields:
            words = [word.strip() for text in fields[field] for word in text.split(",")]
            fields[field] = tuple(dict.fromkeys(filter(None, words)))
    settings = ExportSettings(**fields)
    check_extras(settings)
    return settings


def check_extras(settings: ExportSettings) -> None:
    """Raise UserError if an extra that the exports need is not installed."""
    for field, flag, extra, modules in _EXTRAS:
        if getattr(settings, field) is not None:
            require_extra(extra, flag, *modules)


def _name(parsed: ParsedArguments, field: str) -> str:
    return str(parsed.spellings.get(f"exports.{field}"))


def _otel_url(text: str, name: str) -> str:
    """Return the URL for metrics. A host, a host with a port and a URL without a path are those of a receiver."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port_is_valid = parts.port != 0
    except ValueError:
        port_is_valid = False
    if not port_is_valid or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{name} {redact_url(text)!r} must be the URL of an OTLP/HTTP receiver, such as http://localhost:4318."
        )
    return parts._replace(path=_METRICS_PATH if parts.path in ("", "/") else parts.path).geturl()


def _pairs(texts: list[str], separator: str, name: str) -> tuple[tuple[str, str], ...]:
    """Parse pairs of a key and a value, or JSON objects; the last value of a key counts."""
    pairs: dict[str, str] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                pairs |= {
                    key: value if isinstance(value, str) else json.dumps(value)
                    for key, value in json.loads(text).items()
                }
            except ValueError as error:
                raise UserError(f"{name} {text!r} begins like a JSON object, but is none: {error}.") from None
            continue
        key, found, value = text.partition(separator)
        if not found or not key.strip():
            raise UserError(f"{name} {text!r} must be key{separator}value, or a JSON object.")
        pairs[key.strip()] = value.strip()
    return tuple(pairs.items())
