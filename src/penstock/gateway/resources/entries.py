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

from penstock.gateway.resources.fields import Fields
from penstock.gateway.resources.snapshot import (
    CallerKey,
    Cooldown,
    Model,
    ProviderKey,
    RateLimit,
    Routing,
    allows,
)
from penstock.secrets import Secret

_ADAPTERS: Final = ("openai", "anthropic")
_FORWARDABLE: Final = ("openai-beta", "anthropic-beta", "anthropic-version")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_UNAVAILABLE: Final[tuple[Literal["fail", "try_anyway"], ...]] = ("fail", "try_anyway")
_DONE_MARKERS: Final[tuple[Literal["required", "optional", "none"], ...]] = ("required", "optional", "none")
_PROVIDER: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*\Z")
_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")


def provider_key(fields: Fields, id_: str, name: str, folder: str) -> ProviderKey:
    """Read a provider key. `folder` is that of the resource file."""
    secret = fields.one_of("api_key", "secret", "key_file")
    if fields.has("key_file") and not fields.has("api_key") and not fields.has("secret"):
        secret = fields.secret("key_file", folder)
    for field in ("api_key", "secret", "key_file"):
        if fields.has(field):
            fields.check_printable(field, secret)
    api_base = (fields.string("api_base") if fields.raw("api_base") != "" else None) or None
    if api_base is not None and (error := _api_base_error(api_base.strip())) is not None:
        fields.error("api_base", error)
    provider = (fields.string("provider") if fields.raw("provider") != "" else None) or ""
    marker = _done_marker(fields)
    # only the headers in forward_client_headers are forwarded, so there is nothing to strip
    fields.skip("strip_headers")
    fields.refuse("telemetry_tags", "is not supported")
    return ProviderKey(
        id=id_,
        name=name,
        secret=Secret(secret or ""),
        api_base=api_base.strip() if api_base is not None else None,
        provider=provider,
        adapter=fields.choice("adapter", _ADAPTERS) or ("anthropic" if provider == "anthropic" else "openai"),
        verify_tls=_verify_tls(fields),
        stream_done_marker=marker,
        **_request_changes(fields),
    )


def _request_changes(fields: Fields) -> dict[str, Any]:
    """Return the changes that the provider key makes to every request."""
    request = fields.mapping("request")
    if request is None:
        return {}
    headers = request.string_mapping("default_headers")
    for header, value in headers.items():
        if "${" in value:
            request.error(f"default_headers.{header}", "is a template, which Penstock does not support")
        if not _HEADER_NAME.match(header):
            request.error("default_headers", "contains a name that is not an HTTP header name")
        request.check_printable(f"default_headers.{header}", value)
    body = request.raw("default_body_fields")
    if body is not None and not isinstance(body, dict):
        request.error("default_body_fields", "must be a mapping")
    renames = request.string_mapping("param_renames")
    request.refuse("param_constraints", "is not supported")
    forwarded = tuple(header.lower() for header in request.strings("forward_client_headers"))
    for index, header in enumerate(forwarded):
        if header not in _FORWARDABLE:
            names = ", ".join(_FORWARDABLE)
            request.error(f"forward_client_headers[{index}]", f"is a header that is never forwarded (allowed: {names})")
    request.finish()
    return {
        "default_headers": tuple((header, Secret(value)) for header, value in headers.items()),
        "default_body_fields": body or {},
        "param_renames": renames,
        "forward_client_headers": forwarded,
    }


def _done_marker(fields: Fields) -> Literal["required", "optional", "none"]:
    response = fields.mapping("response")
    if response is None:
        return "required"
    marker = response.choice("stream_done_marker", _DONE_MARKERS) or "required"
    response.skip("error_envelope")
    response.refuse("content_list_to_string", "is not supported")
    response.refuse("reasoning_field", "is not supported")
    response.finish()
    return marker


def _verify_tls(fields: Fields) -> bool:
    tls = fields.mapping("tls")
    if tls is None:
        return True
    verify = tls.flag("verify", True)
    tls.refuse("ca_cert", "is not supported: add the authority to the system's trust store")
    tls.finish()
    return verify


def model(fields: Fields, id_: str, name: str, key_ids: Mapping[str, str]) -> Model:
    """Read a model. `key_ids` maps the ids of the provider keys to their names."""
    if "*" in name:
        fields.error("display_name", "contains *: Penstock does not support wildcard aliases")
    _refuse_unsupported(fields)
    timeout = fields.integer("timeout")
    stream_timeout = fields.integer("stream_timeout") or None
    common: dict[str, Any] = {
        "id": id_,
        "name": name,
        "timeout_s": timeout / 1000 if timeout is not None else None,
        "stream_timeout_s": stream_timeout / 1000 if stream_timeout is not None else None,
        "rate_limit": _rate_limit(fields),
        "allowed_cidrs": _cidrs(fields),
    }
    if fields.has("routing"):
        for field in (
            "provider",
            "model_name",
            "provider_key",
            "provider_key_id",
            "cooldown",
            "retries",
            "on_disconnect",
            "embedding",
        ):
            if fields.raw(field) is not None:
                fields.error(field, "cannot be combined with routing")
        return Model(routing=_routing(fields), **common)
    direct = not fields.has("ensemble") and not fields.has("semantic")
    provider = fields.string("provider", required=direct) or ""
    if provider and not _PROVIDER.match(provider):
        fields.error("provider", "must be 1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit")
    return Model(
        provider=provider,
        upstream=fields.string("model_name", required=direct) or "",
        provider_key=_provider_key_name(fields, key_ids, required=direct),
        retries=fields.integer("retries"),
        on_disconnect=fields.choice("on_disconnect", ("read", "cancel")),
        cooldown=_cooldown(fields),
        **common,
    )


def _refuse_unsupported(fields: Fields) -> None:
    for kind in ("ensemble", "semantic"):
        fields.refuse(kind, "is a model type that Penstock does not support")
    fields.refuse("cost", "is not supported: Penstock counts tokens, not money")
    for switch in ("background_model_check", "auto_prompt_caching"):
        value = fields.raw(switch)
        if not (isinstance(value, dict) and value.get("enabled") is False):
            fields.refuse(switch, "is not supported")
    fields.skip("embedding")


def _provider_key_name(fields: Fields, key_ids: Mapping[str, str], *, required: bool) -> str | None:
    """Return the name of the provider key that the model refers to by name or id."""
    reference = fields.one_of("provider_key", "provider_key_id", required=required)
    if reference is None:
        return None
    if reference not in key_ids and reference not in key_ids.values():
        field = "provider_key" if fields.has("provider_key") else "provider_key_id"
        fields.error(field, f"names {fields.errors.show(reference)}, which is not in provider_keys")
    return key_ids.get(reference, reference)


def _routing(fields: Fields) -> Routing | None:
    routing = fields.mapping("routing")
    assert routing is not None
    strategy = routing.string("strategy") or "failover"
    if strategy not in ("failover", "round_robin"):
        routing.error("strategy", f"is {fields.errors.show(strategy)}; Penstock supports failover and round_robin")
    routing.refuse("hash_on", "is not supported")
    targets: list[tuple[str, int]] = []
    weights: set[int] = set()
    for target in routing.list("targets"):
        alias = target.string("model", required=True)
        targets.append((alias or "", -(target.integer("priority", -(2**31), 2**31 - 1) or 0)))
        weights.add(target.integer("weight", default=1) or 0)
        target.refuse("tags", "is not supported")
        target.finish()
    if not routing.has("targets") or routing.raw("targets") == []:
        routing.missing("targets")
    if strategy == "round_robin" and len(weights) > 1:
        routing.error("targets", "have different weights, which Penstock does not support")
    if strategy == "round_robin" and len({priority for _, priority in targets}) > 1:
        routing.error("targets", "have different priorities, which Penstock supports with failover only")
    built = Routing(
        strategy="round_robin" if strategy == "round_robin" else "failover",
        targets=tuple(alias for alias, _ in sorted(targets, key=lambda target: target[1]) if alias),
        retries=routing.integer("retries"),
        max_fallbacks=routing.integer("max_fallbacks"),
        retry_on_429=routing.flag("retry_on_429", False),
        fallback_on_statuses=routing.statuses("fallback_on_statuses", 400) or frozenset(),
        when_all_unavailable=routing.choice("when_all_unavailable", _UNAVAILABLE) or "fail",
    )
    routing.finish()
    return built


def _cooldown(fields: Fields) -> Cooldown:
    mapping = fields.mapping("cooldown")
    defaults = Cooldown()
    if mapping is None:
        return defaults
    statuses = mapping.statuses("trigger_statuses", 100)
    built = Cooldown(
        enabled=mapping.flag("enabled", defaults.enabled),
        min_failures=_or_default(mapping.integer("min_failures", 1), defaults.min_failures),
        default_seconds=_or_default(mapping.integer("default_seconds"), defaults.default_seconds),
        max_seconds=_or_default(mapping.integer("max_seconds", 1), defaults.max_seconds),
        honor_retry_after=mapping.flag("honor_retry_after", defaults.honor_retry_after),
        statuses=defaults.statuses if statuses is None else statuses,
        on_timeout=mapping.flag("trigger_on_timeout", defaults.on_timeout),
        on_transport=mapping.flag("trigger_on_transport", defaults.on_transport),
    )
    mapping.finish()
    return built


def caller_key(
    fields: Fields, id_: str, name: str, environment: Mapping[str, str], aliases: Collection[str], folder: str
) -> CallerKey:
    """Read a caller key. `aliases` are the names of the models, and `folder` is that of the resource file."""
    for field in ("jwt_subject", "jwt_provider", "allowed_routes", "allowed_agents", "allowed_tools"):
        fields.refuse(field, "is not supported")
    fields.refuse("mcp_access", "is not supported")
    fields.refuse("mcp_rate_limits", "is not supported")
    fields.skip("user_name")
    allowed = fields.strings("allowed_models", required=True)
    for index, pattern in enumerate(allowed):
        if pattern.count("*") > 1:
            fields.error(f"allowed_models[{index}]", "may contain only one *")
        elif pattern != "*" and not any(allows((pattern,), alias) for alias in aliases):
            fields.error(f"allowed_models[{index}]", f"is {fields.errors.show(pattern)}, which matches no model")
    return CallerKey(
        id=id_,
        name=name,
        hash=_key_hash(fields, environment, folder),
        allowed_models=allowed,
        rate_limit=_rate_limit(fields),
        expires_at=fields.time("expires_at"),
        disabled=fields.flag("disabled", False),
        team_id=fields.string("team_id"),
        user_id=fields.string("user_id"),
    )


def _key_hash(fields: Fields, environment: Mapping[str, str], folder: str) -> str:
    """Return the hash of the caller's key, or an empty string after recording an error."""
    if fields.one_of("key_env", "key_hash", "key_file") is None:
        return ""
    if fields.has("key_file"):
        key = fields.secret("key_file", folder)
        return hashlib.sha256(key.encode()).hexdigest() if key is not None else ""
    hashed = fields.string("key_hash")
    if hashed is not None:
        if not _HASH.match(hashed):
            fields.error("key_hash", "must be a SHA-256 in 64 lower-case hexadecimal digits")
        return hashed
    variable = fields.string("key_env") or ""
    # the key in a request is stripped, so a key with spaces around it would never match
    key = environment.get(variable, "").strip()
    if not key:
        # the field may contain the key itself by mistake, so only a plausible name is shown
        variable_name = (
            f"the environment variable {variable}" if _VARIABLE.match(variable) else "an environment variable"
        )
        fields.error("key_env", f"names {variable_name}, which is unset or empty")
        return ""
    return hashlib.sha256(key.encode()).hexdigest()


def _rate_limit(fields: Fields) -> RateLimit:
    mapping = fields.mapping("rate_limit")
    if mapping is None:
        return RateLimit()
    built = RateLimit(**{name: mapping.integer(name) for name in RateLimit.__struct_fields__})
    mapping.finish()
    return built


def _cidrs(fields: Fields) -> tuple[str, ...]:
    networks = fields.strings("allowed_cidrs")
    for index, network in enumerate(networks):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            fields.error(f"allowed_cidrs[{index}]", "is not a network such as 10.0.0.0/8")
    return networks


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value


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
