"""The resource file, in version 1 of the AISIX format. Penstock supports these collections:

    provider_keys          upstream credentials
    models                 aliases: direct, or routing by failover or round_robin
    api_keys               the callers
    guardrails             kinds keyword and pii
    guardrail_attachments  restrict guardrails to keys, teams and models
    rate_limit_policies    the form with scope and window

Everything else is an error. All errors are reported together, and a file with an error is not loaded: a limit or filter in
it must never be ignored silently. Fields that are descriptive, or that have no effect in Penstock, are accepted.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.errors import UserError
from penstock.gateway.resources.entries import caller_key, model, provider_key
from penstock.gateway.resources.fields import Entry, Fields, entries
from penstock.gateway.resources.rules import Attachment, attach, attachment, attachment_order, guardrail, policy
from penstock.gateway.resources.snapshot import CallerKey, GuardrailSpec, Model, ProviderKey, Snapshot
from penstock.gateway.resources.yaml_tree import INVALID, ConfigErrors, read_tree
from penstock.gateway.routes import DEFAULT_BASES

_UNSUPPORTED: Final = (
    "a2a_agents",
    "cache_policies",
    "claim_mappings",
    "mcp_auth_settings",
    "mcp_policies",
    "mcp_servers",
    "observability_exporters",
    "oidc_providers",
    "passthrough_routes",
)


class ResourceErrors(UserError):
    """The errors because of which a resource file was not loaded."""

    def __init__(self, path: str, errors: list[str], key_files: Sequence[str] = ()) -> None:
        count = f"{len(errors)} errors" if len(errors) > 1 else "an error"
        super().__init__("\n".join((f"{path} has {count} and was not loaded:", *(f"  {error}" for error in errors))))
        self.path = path
        self.errors = errors
        self.key_files = tuple(key_files)


def load_resources(path: str, environment: Mapping[str, str]) -> Snapshot:
    return parse_resources(read_resources(path), environment, source=path)


def read_resources(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ResourceErrors(path, [f"cannot be read: {error.strerror or type(error).__name__}"]) from None


def parse_resources(data: bytes, environment: Mapping[str, str], *, source: str = "resources") -> Snapshot:
    errors = ConfigErrors()
    tree = read_tree(data, environment, errors)
    if tree is INVALID or not isinstance(tree, dict | None):
        if tree is not INVALID:
            errors.add("", "the file must be a mapping of collections")
        raise ResourceErrors(source, errors.lines())
    top = Fields(tree or {}, "", errors)
    _check_version(top)
    provider_keys, provider_key_names = _provider_keys(top, os.path.dirname(source))
    models, model_ids = _models(top, provider_keys, provider_key_names)
    caller_keys, key_ids = _caller_keys(top, environment, models, os.path.dirname(source))
    references = {"api_key": key_ids, "model": model_ids}
    guardrails, attachments = _guardrails(top, references)
    policies = [policy(entry, references) for entry in entries(top, "rate_limit_policies", "name")]
    top.refuse(*_UNSUPPORTED, because="is a collection that Penstock does not support")
    top.finish()
    if errors:
        raise ResourceErrors(source, errors.lines(), errors.files)
    return Snapshot(
        models=models,
        provider_keys=provider_keys,
        caller_keys=caller_keys,
        guardrails=_attached(guardrails, attachments),
        policies=tuple(filter(None, policies)),
        hash=hashlib.sha256(data).hexdigest(),
        loaded_at=time.time(),
        source=source,
        key_files=tuple(errors.files),
    )


def _check_version(top: Fields) -> None:
    version = top.raw("_format_version")
    if version is None:
        top.missing("_format_version")
    elif version is not INVALID and version != "1":
        top.error("_format_version", 'must be the string "1", in quotes')


def _names(collection: Sequence[Entry]) -> dict[str, str]:
    """Return the names of entries by their names and ids."""
    return {**{entry.id: entry.name for entry in collection}, **{entry.name: entry.name for entry in collection}}


def _ids(collection: Sequence[Entry]) -> dict[str, str]:
    """Return the ids of entries by their names and ids."""
    return {**{entry.id: entry.id for entry in collection}, **{entry.name: entry.id for entry in collection}}


def _provider_keys(top: Fields, folder: str) -> tuple[dict[str, ProviderKey], dict[str, str]]:
    found = entries(top, "provider_keys", "display_name")
    keys: dict[str, ProviderKey] = {}
    for entry in found:
        keys.setdefault(entry.name, provider_key(entry, folder))
        entry.fields.finish()
    return keys, _names(found)


def _models(
    top: Fields, keys: Mapping[str, ProviderKey], key_names: Mapping[str, str]
) -> tuple[dict[str, Model], dict[str, str]]:
    found = entries(top, "models", "display_name")
    models: dict[str, Model] = {}
    built = [(entry.fields, model(entry, key_names)) for entry in found]
    for fields, one in built:
        models.setdefault(one.name, one)
        fields.finish()
    for fields, one in built:
        _check_base(fields, one, keys.get(one.provider_key or ""))
        for target in one.routing.targets if one.routing is not None else ():
            target_model = models.get(target)
            shown = fields.errors.show(target)
            if target_model is None:
                fields.error("routing.targets", f"names {shown}, which is not in models")
            elif target_model.routing is not None:
                fields.error("routing.targets", f"names {shown}, which is itself a routing model")
    return models, _ids(found)


def _check_base(fields: Fields, direct: Model, key: ProviderKey | None) -> None:
    if key is not None and not key.api_base and not {direct.provider, key.provider} & DEFAULT_BASES.keys():
        field = "provider_key" if fields.has("provider_key") else "provider_key_id"
        fields.error(field, f"names {fields.errors.show(key.name)}, which needs an api_base for this provider")


def _caller_keys(
    top: Fields, environment: Mapping[str, str], models: Mapping[str, Model], folder: str
) -> tuple[dict[str, CallerKey], dict[str, str]]:
    found = entries(top, "api_keys", "display_name")
    keys: dict[str, CallerKey] = {}
    paths: dict[str, str] = {}
    for entry in found:
        fields, built = entry.fields, caller_key(entry, environment, models, folder)
        fields.finish()
        if built.hash:
            first = paths.setdefault(built.hash, fields.path)
            if first != fields.path:
                fields.errors.add(fields.path, f"has the same key as {first}")
            keys.setdefault(built.hash, built)
    return keys, _ids(found)


def _guardrails(
    top: Fields, references: Mapping[str, Mapping[str, str]]
) -> tuple[list[tuple[float, GuardrailSpec]], list[Attachment]]:
    found = entries(top, "guardrails", "name")
    guardrails = [guardrail(entry) for entry in found]
    attachments = [attachment(fields, _names(found), references) for fields in top.list("guardrail_attachments")]
    return [built for built in guardrails if built is not None], attachments


def _attached(
    guardrails: Sequence[tuple[float, GuardrailSpec]], attachments: Sequence[Attachment]
) -> tuple[GuardrailSpec, ...]:
    """Return the guardrails in their order, with their attachments."""
    sorted_: list[tuple[tuple[float, ...], GuardrailSpec]] = []
    for created, spec in guardrails:
        own = [one for one in attachments if one.guardrail == spec.name]
        sorted_.append(((*attachment_order(own), created), attach(spec, own)))
    return tuple(spec for _, spec in sorted(sorted_, key=lambda item: item[0]))
