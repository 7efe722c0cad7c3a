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
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.errors import UserError
from penstock.gateway.resources.entries import caller_key, model, provider_key
from penstock.gateway.resources.fields import Fields, entries
from penstock.gateway.resources.rules import Attachment, attach, attachment, attachment_order, guardrail, policy
from penstock.gateway.resources.snapshot import CallerKey, GuardrailSpec, Model, Policy, ProviderKey, Snapshot
from penstock.gateway.resources.yaml_tree import INVALID, ConfigErrors, read_tree
from penstock.gateway.routes import DEFAULT_BASES

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/api7/aisix#resources-file")
"""Defined by the format, so that ids in a file mean the same to all its readers."""

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
    snapshot = _Reader(Fields(tree or {}, "", errors), environment, os.path.dirname(source)).snapshot(data, source)
    if errors:
        raise ResourceErrors(source, errors.lines(), errors.files)
    return snapshot


def resource_id(kind: str, name: str) -> str:
    """Return the id of a resource. It is stable across processes and reloads, so counters and references stay valid."""
    return str(uuid.uuid5(_NAMESPACE, f"{kind}/{name}"))


class _Reader:
    def __init__(self, top: Fields, environment: Mapping[str, str], folder: str) -> None:
        self._top = top
        self._environment = environment
        self._folder = folder
        self.provider_keys: dict[str, ProviderKey] = {}
        self.models: dict[str, Model] = {}
        self.caller_keys: dict[str, CallerKey] = {}
        self.guardrails: list[tuple[Any, GuardrailSpec]] = []
        """With their sort keys."""
        self.policies: list[Policy] = []
        self._names: dict[str, set[str]] = {}

    def snapshot(self, data: bytes, source: str) -> Snapshot:
        self._version()
        self._provider_keys()
        self._models()
        self._caller_keys()
        self._guardrails()
        self._policies()
        for name in _UNSUPPORTED:
            self._top.refuse(name, "is a collection that Penstock does not support")
        self._top.finish()
        return Snapshot(
            models=self.models,
            provider_keys=self.provider_keys,
            caller_keys=self.caller_keys,
            guardrails=tuple(spec for _, spec in sorted(self.guardrails, key=lambda item: item[0])),
            policies=tuple(self.policies),
            hash=hashlib.sha256(data).hexdigest(),
            loaded_at=time.time(),
            source=source,
            key_files=tuple(self._top.errors.files),
        )

    def _version(self) -> None:
        version = self._top.raw("_format_version")
        if version is None:
            self._top.missing("_format_version")
        elif version is not INVALID and version != "1":
            self._top.error("_format_version", 'must be the string "1", in quotes')

    def _provider_keys(self) -> None:
        names = self._names["provider_keys"] = set()
        for fields, name in entries(self._top, "provider_keys", "display_name"):
            names.add(name or "")
            built = provider_key(fields, resource_id("provider_keys", name or ""), name or "", self._folder)
            self.provider_keys.setdefault(built.name, built)
            fields.finish()

    def _models(self) -> None:
        key_ids = {resource_id("provider_keys", name): name for name in self._names["provider_keys"]}
        built: list[tuple[Fields, Model]] = []
        for fields, name in entries(self._top, "models", "display_name"):
            built_model = model(fields, resource_id("models", name or ""), name or "", key_ids)
            built.append((fields, built_model))
            self.models.setdefault(built_model.name, built_model)
            fields.finish()
        self._names["models"] = {built_model.name for _, built_model in built}
        for fields, built_model in built:
            self._check_base(fields, built_model)
            for target in built_model.routing.targets if built_model.routing is not None else ():
                target_model = self.models.get(target)
                shown = fields.errors.show(target)
                if target_model is None:
                    fields.error("routing.targets", f"names {shown}, which is not in models")
                elif target_model.routing is not None:
                    fields.error("routing.targets", f"names {shown}, which is itself a routing model")

    def _check_base(self, fields: Fields, direct: Model) -> None:
        key = self.provider_keys.get(direct.provider_key or "")
        if key is not None and not key.api_base and not {direct.provider, key.provider} & DEFAULT_BASES.keys():
            field = "provider_key" if fields.has("provider_key") else "provider_key_id"
            fields.error(field, f"names {fields.errors.show(key.name)}, which needs an api_base for this provider")

    def _caller_keys(self) -> None:
        names = self._names["api_keys"] = set()
        hashes: dict[str, str] = {}
        for fields, name in entries(self._top, "api_keys", "display_name"):
            names.add(name or "")
            id_ = resource_id("api_keys", name or "")
            built = caller_key(fields, id_, name or "", self._environment, self.models, self._folder)
            fields.finish()
            if not built.hash:
                continue
            first = hashes.setdefault(built.hash, fields.path)
            if first != fields.path:
                fields.errors.add(fields.path, f"has the same key as {first}")
            self.caller_keys.setdefault(built.hash, built)

    def _guardrails(self) -> None:
        self._names["guardrails"] = set()
        for fields, name in entries(self._top, "guardrails", "name"):
            built = guardrail(fields, name or "")
            if built is not None:
                self.guardrails.append(built)
                fields.finish()
            self._names["guardrails"].add(name or "")
        self._attach_guardrails()

    def _attach_guardrails(self) -> None:
        attachments: dict[str, list[Attachment]] = {}
        for fields in self._top.list("guardrail_attachments"):
            built = attachment(fields, self._guardrail_names(), self._references())
            fields.finish()
            if built is not None:
                attachments.setdefault(built.guardrail, []).append(built)
        self.guardrails = [
            ((*attachment_order(attachments.get(spec.name, [])), created), attach(spec, attachments.get(spec.name)))
            for created, spec in self.guardrails
        ]

    def _guardrail_names(self) -> dict[str, str]:
        names = self._names["guardrails"]
        return {**{resource_id("guardrails", name): name for name in names}, **{name: name for name in names}}

    def _references(self) -> dict[str, dict[str, str]]:
        """Return, for the scopes api_key and model, a mapping of names and ids to ids."""
        return {
            scope: {
                **{resource_id(kind, name): resource_id(kind, name) for name in self._names[kind]},
                **{name: resource_id(kind, name) for name in self._names[kind]},
            }
            for scope, kind in (("api_key", "api_keys"), ("model", "models"))
        }

    def _policies(self) -> None:
        references = self._references()
        for fields, name in entries(self._top, "rate_limit_policies", "name"):
            built = policy(fields, resource_id("rate_limit_policies", name or ""), name or "", references)
            if built is not None:
                self.policies.append(built)
            fields.finish()
