"""Settings without credentials, for the log."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.secrets import RedactedSecret, redact_fields, redact_url
from penstock.settings.schema import EndpointSettings, Settings


def redacted(settings: Settings) -> Settings:
    """Return the settings with every credential redacted. All other values are the same."""
    output, exports = settings.output, settings.exports
    if output.remote is not None:
        output = replace(output, remote=redact_url(output.remote))
    if exports.otel_url is not None:
        exports = replace(exports, otel_url=redact_url(exports.otel_url))
    if exports.mlflow_uri is not None:
        exports = replace(exports, mlflow_uri=redact_url(exports.mlflow_uri))
    return replace(settings, endpoint=_endpoint(settings.endpoint), output=output, exports=exports)


def _endpoint(endpoint: EndpointSettings) -> EndpointSettings:
    return replace(
        endpoint,
        urls=tuple([redact_url(url) for url in endpoint.urls]),
        path=None if endpoint.path is None else redact_url(endpoint.path),
        api_key=None if endpoint.api_key is None else RedactedSecret(),
        headers=tuple([(name, RedactedSecret()) for name, _ in endpoint.headers]),
        extra=redact_fields(endpoint.extra),
        proxy=None if endpoint.proxy is None else RedactedSecret(redact_url(endpoint.proxy.reveal())),
    )
