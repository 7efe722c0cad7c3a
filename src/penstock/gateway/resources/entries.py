"""Reading of the entries of provider_keys, models and api_keys in the resource file.

Each function reads all fields that it knows, so that one pass finds every error. The caller passes in what is needed to
check references to other entries.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from penstock.gateway.resources.config import Count
from penstock.gateway.resources.fields import Entry, Fields
from penstock.gateway.resources.snapshot import (
    CallerKey,
    Cooldown,
    Model,
    Priority,
    ProviderKey,
    RateLimit,
    Routing,
    Text,
    allows,
)
from penstock.secrets import Secret

_FORWARDABLE: Final = ("openai-beta", "anthropic-beta", "anthropic-version")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*\Z")
_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")
_DIRECT_ONLY: Final = (
    *("provider", "model_name", "provider_key", "provider_key_id", "cooldown", "retries", "on_disconnect", "embedding"),
)
_COOLDOWN_NAMES: Final = {
    "statuses": "trigger_statuses",
    "on_timeout": "trigger_on_timeout",
    "on_transport": "trigger_on_transport",
}


def provider_key(entry: Entry, folder: str) -> ProviderKey:
    """Read a provider key. `folder` is that of the resource file."""
    fields = entry.fields
    given, secret = fields.one_of("api_key", "secret", "key_file")
    if given == "key_file":
        secret = fields.secret(given, secret, folder)
    fields.check_printable(given, secret)
    api_base = fields.value("api_base", str, "").strip()
    if api_base and (error := _api_base_error(api_base)) is not None:
        fields.error("api_base", error)
    provider = fields.value("provider", str, "")
    # only the headers in forward_client_headers are forwarded, so there is nothing to strip
    fields.skip("strip_headers")
    fields.refuse("telemetry_tags")
    default = "anthropic" if provider == "anthropic" else "openai"
    return ProviderKey(
        id=entry.id,
        name=entry.name,
        secret=Secret(secret or ""),
        api_base=api_base or None,
        provider=provider,
        adapter=fields.value("adapter", Literal["openai", "anthropic"], default),
        verify_tls=_verify_tls(fields),
        stream_done_marker=_done_marker(fields),
        **_request_changes(fields),
    )


def _request_changes(fields: Fields) -> dict[str, Any]:
    """Return the changes that the provider key makes to every request."""
    request = fields.mapping("request")
    if request is None:
        return {}
    headers: dict[str, str] = request.value("default_headers", dict[str, str], {})
    for header, value in headers.items():
        if "${" in value:
            request.error(f"default_headers.{header}", "is a template, which Penstock does not support")
        if not _HEADER_NAME.match(header):
            request.error("default_headers", "contains a name that is not an HTTP header name")
        request.check_printable(f"default_headers.{header}", value)
    request.refuse("param_constraints")
    forwarded = tuple(header.lower() for header in request.value("forward_client_headers", tuple[Text, ...], ()))
    for index, header in enumerate(forwarded):
        if header not in _FORWARDABLE:
            names = ", ".join(_FORWARDABLE)
            request.error(f"forward_client_headers[{index}]", f"is a header that is never forwarded (allowed: {names})")
    changes = {
        "default_headers": tuple((header, Secret(value)) for header, value in headers.items()),
        "default_body_fields": request.value("default_body_fields", dict, {}),
        "param_renames": request.value("param_renames", dict[str, str], {}),
        "forward_client_headers": forwarded,
    }
    request.finish()
    return changes


def _done_marker(fields: Fields) -> Literal["required", "optional", "none"]:
    response = fields.mapping("response")
    if response is None:
        return "required"
    response.skip("error_envelope")
    response.refuse("content_list_to_string", "reasoning_field")
    marker: Literal["required", "optional", "none"]
    marker = response.value("stream_done_marker", Literal["required", "optional", "none"], "required")
    response.finish()
    return marker


def _verify_tls(fields: Fields) -> bool:
    tls = fields.mapping("tls")
    if tls is None:
        return True
    tls.refuse("ca_cert", because="is not supported: add the authority to the system's trust store")
    verify: bool = tls.value("verify", bool, True)
    tls.finish()
    return verify


def model(entry: Entry, provider_keys: Mapping[str, str]) -> Model:
    """Read a model. `provider_keys` maps the names and ids of the provider keys to their names."""
    fields = entry.fields
    if "*" in entry.name:
        fields.error("display_name", "contains *: Penstock does not support wildcard aliases")
    _refuse_unsupported(fields)
    timeout = fields.value("timeout", Count)
    stream_timeout = fields.value("stream_timeout", Count)
    common: dict[str, Any] = {
        "id": entry.id,
        "name": entry.name,
        "timeout_s": timeout / 1000 if timeout is not None else None,
        "stream_timeout_s": stream_timeout / 1000 if stream_timeout else None,
        "rate_limit": _rate_limit(fields),
        "allowed_cidrs": _cidrs(fields),
    }
    if fields.has("routing"):
        for field in _DIRECT_ONLY:
            if fields.raw(field) is not None:
                fields.error(field, "cannot be combined with routing")
        return Model(routing=_routing(fields), **common)
    direct = not fields.has("ensemble") and not fields.has("semantic")
    provider = fields.value("provider", Text, "", required=direct)
    if provider and not _PROVIDER.match(provider):
        fields.error("provider", "must be 1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit")
    given, key = fields.one_of("provider_key", "provider_key_id", required=direct)
    return fields.struct(
        Model,
        provider=provider,
        upstream=fields.value("model_name", Text, "", required=direct),
        provider_key=fields.reference(given, key, "provider_keys", provider_keys),
        cooldown=_cooldown(fields),
        routing=None,
        **common,
    )


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse("ensemble", "semantic", because="is a model type that Penstock does not support")
    fields.refuse("cost", because="is not supported: Penstock counts tokens, not money")
    for switch in ("background_model_check", "auto_prompt_caching"):
        value = fields.raw(switch)
        if not (isinstance(value, dict) and value.get("enabled") is False):
            fields.refuse(switch)
    fields.skip("embedding")


def _routing(fields: Fields) -> Routing | None:
    routing = fields.mapping("routing")
    assert routing is not None
    strategy = routing.value("strategy", Text, "failover")
    if strategy not in ("failover", "round_robin"):
        routing.error("strategy", f"is {fields.errors.show(strategy)}; Penstock supports failover and round_robin")
    routing.refuse("hash_on")
    targets: list[tuple[str, int]] = []
    weights: set[int] = set()
    for target in routing.list("targets"):
        alias = target.value("model", Text, "", required=True)
        targets.append((alias, -target.value("priority", Priority, 0)))
        weights.add(target.value("weight", Count, 1))
        target.refuse("tags")
    if not routing.has("targets") or routing.raw("targets") == []:
        routing.missing("targets")
    if strategy == "round_robin" and len(weights) > 1:
        routing.error("targets", "have different weights, which Penstock does not support")
    if strategy == "round_robin" and len({priority for _, priority in targets}) > 1:
        routing.error("targets", "have different priorities, which Penstock supports with failover only")
    by_priority = sorted(targets, key=lambda target: target[1])
    built = routing.struct(Routing, strategy=strategy, targets=tuple(alias for alias, _ in by_priority if alias))
    routing.finish()
    return built


def _cooldown(fields: Fields) -> Cooldown:
    mapping = fields.mapping("cooldown")
    if mapping is None:
        return Cooldown()
    built = mapping.struct(Cooldown, _COOLDOWN_NAMES)
    mapping.finish()
    return built


def caller_key(entry: Entry, environment: Mapping[str, str], aliases: Collection[str], folder: str) -> CallerKey:
    """Read a caller key. `aliases` are the names of the models, and `folder` is that of the resource file."""
    fields = entry.fields
    fields.refuse("jwt_subject", "jwt_provider", "allowed_routes", "allowed_agents", "allowed_tools")
    fields.refuse("mcp_access", "mcp_rate_limits")
    fields.skip("user_name")
    allowed = fields.value("allowed_models", tuple[Text, ...], (), required=True)
    for index, pattern in enumerate(allowed):
        if pattern.count("*") > 1:
            fields.error(f"allowed_models[{index}]", "may contain only one *")
        elif pattern != "*" and not any(allows((pattern,), alias) for alias in aliases):
            fields.error(f"allowed_models[{index}]", f"is {fields.errors.show(pattern)}, which matches no model")
    return fields.struct(
        CallerKey,
        id=entry.id,
        name=entry.name,
        hash=_key_hash(fields, environment, folder),
        allowed_models=allowed,
        rate_limit=_rate_limit(fields),
        expires_at=fields.time("expires_at"),
    )


def _key_hash(fields: Fields, environment: Mapping[str, str], folder: str) -> str:
    """Return the hash of the caller's key, or an empty string after recording an error."""
    given, value = fields.one_of("key_env", "key_hash", "key_file")
    if value is None:
        return ""
    if given == "key_hash":
        if not _HASH.match(value):
            fields.error("key_hash", "must be a SHA-256 in 64 lower-case hexadecimal digits")
        return value
    if given == "key_file":
        key = fields.secret(given, value, folder)
    else:
        # the key in a request is stripped, so a key with spaces around it would never match
        key = environment.get(value, "").strip()
        if not key:
            # the field may contain the key itself by mistake, so only a plausible name is shown
            variable = f"the environment variable {value}" if _VARIABLE.match(value) else "an environment variable"
            fields.error("key_env", f"names {variable}, which is unset or empty")
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def _rate_limit(fields: Fields) -> RateLimit:
    mapping = fields.mapping("rate_limit")
    if mapping is None:
        return RateLimit()
    built = mapping.struct(RateLimit)
    mapping.finish()
    return built


def _cidrs(fields: Fields) -> tuple[str, ...]:
    networks: tuple[str, ...] = fields.value("allowed_cidrs", tuple[Text, ...], ())
    for index, network in enumerate(networks):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            fields.error(f"allowed_cidrs[{index}]", "is not a network such as 10.0.0.0/8")
    return networks


def _api_base_error(text: str) -> str | None:
    """Return why a URL cannot be an api_base, or None. The message does not quote the URL: it may contain a credential."""
    try:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            return "must be a URL that begins with http:// or https://"
        parts.hostname.encode("idna")
    except UnicodeError:
        return "has an invalid host name"
    except ValueError:
        return "must be a URL that begins with http:// or https://"
    if "@" in parts.netloc:
        return "contains a user name or a password: put the credential into api_key"
    if "#" in text:
        return "has a fragment (#), which is never sent"
    if not text.isascii() or not text.isprintable() or " " in text:
        return "contains characters that must be percent-encoded"
    return None
