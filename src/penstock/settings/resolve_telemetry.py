"""The settings of telemetry, from the flags for it."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.errors import UserError
from penstock.extras import require_extra
from penstock.secrets import redact_url
from penstock.settings.flag_values import ParsedArguments
from penstock.settings.schema import TelemetrySettings
from penstock.settings.urls import normalize_urls

_NVML = "pynvml"
_DCGM_DEFAULTS = ("http://localhost:9400/metrics", "http://localhost:9401/metrics")
_FORMATS = ("json", "csv", "jsonl", "parquet")


def telemetry(parsed: ParsedArguments) -> TelemetrySettings:
    """Return the settings, or raise UserError."""
    fields = parsed.section("telemetry")
    spelling = parsed.spellings.get
    if "server_metrics" in fields:
        name = str(spelling("telemetry.server_metrics"))
        fields["server_metrics"] = tuple(dict.fromkeys(metrics_url(text, name) for text in fields["server_metrics"]))
    if "server_metrics_formats" in fields:
        name = str(spelling("telemetry.server_metrics_formats"))
        fields["server_metrics_formats"] = _formats(fields["server_metrics_formats"], name)
    if "gpu" in fields:
        fields["gpu"] = _gpu_sources(fields["gpu"], str(spelling("telemetry.gpu")))
    if "interval_s" in fields and "server_metrics" not in fields and "gpu" not in fields:
        raise UserError(
            f"{spelling('telemetry.interval_s')} adjusts --server-metrics and --gpu-telemetry, but both are missing."
        )
    if "network_ms" in fields and fields.get("probe_network"):
        raise UserError(
            f"{spelling('telemetry.network_ms')} gives the round trip, which {spelling('telemetry.probe_network')} measures; "
            "keep one of them."
        )
    return TelemetrySettings(**fields)


def metrics_url(text: str, spelling: str) -> str:
    """Return the URL of a Prometheus endpoint; its default path is /metrics."""
    (url,), credential = normalize_urls([text], spelling, keep_path=True)
    if credential is not None:
        raise UserError(f"{spelling} {redact_url(text)!r} has a user name, which is not supported for metrics.")
    parts = urlsplit(url)
    if parts.scheme == "mock":
        raise UserError(
            f"{spelling} takes the URL of a server that runs; the mock of --url mock:// is scraped by itself."
        )
    return url if parts.path not in ("", "/") else parts._replace(path="/metrics").geturl()


def _gpu_sources(texts: list[str], spelling: str) -> tuple[str, ...]:
    for text in texts:
        if text.lower() in ("amdsmi", "dashboard") or text.endswith(".csv"):
            raise UserError(
                f"{spelling} {text} is not supported yet; this version of Penstock has pynvml and URLs of DCGM exporters."
            )
    if any(text.lower() == _NVML for text in texts):
        require_extra("gpu", f"{spelling} {_NVML}", _NVML)
    names = [_NVML if text.lower() == _NVML else metrics_url(text, spelling) for text in texts]
    return tuple(dict.fromkeys(names or _DCGM_DEFAULTS))


def _formats(texts: list[str], spelling: str) -> tuple[str, ...]:
    names = [name.strip().lower() for text in texts for name in text.split(",")]
    for name in names:
        if name not in _FORMATS:
            raise UserError(f"{spelling} must be json, csv, jsonl or parquet, not {name!r}.")
    if "parquet" in names:
        require_extra("parquet", f"{spelling} parquet", "pyarrow")
    return tuple(dict.fromkeys(names))
