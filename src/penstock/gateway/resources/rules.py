"""Reading of the entries of guardrails and rate_limit_policies in the resource file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from penstock.gateway.resources.fields import Fields
from penstock.gateway.resources.guardrail_patterns import DETECTOR_NAMES, regex_error
from penstock.gateway.resources.snapshot import AttachmentScope, GuardrailSpec, Pattern, Policy

_REMOTE_GUARDRAILS: Final = (
    "bedrock",
    "azure_content_safety",
    "azure_content_safety_text_moderation",
    "aliyun_text_moderation",
    "aliyun_ai_guardrail",
    "lakera",
    "openai_moderation",
    "presidio",
    "semantic",
    "custom",
)
_BUFFER_BYTES: Final = 262144

Action = Literal["mask", "block"]
_ACTIONS: Final[tuple[Action, ...]] = ("mask", "block")
_HOOKS: Final[tuple[Literal["input", "output", "both"], ...]] = ("input", "output", "both")
_MODES: Final[tuple[Literal["block", "monitor"], ...]] = ("block", "monitor")
_KINDS: Final[tuple[Literal["literal", "regex"], ...]] = ("literal", "regex")
_WINDOWS: Final[tuple[Literal["second", "minute", "hour", "day"], ...]] = ("second", "minute", "hour", "day")
_ATTACHMENT_SCOPES: Final[tuple[AttachmentScope, ...]] = ("api_key", "team", "model", "env")
_SCOPES: Final[tuple[Literal["api_key", "model", "team", "member", "team_member"], ...]] = (
    "api_key",
    "model",
    "team",
    "member",
    "team_member",
)


def guardrail(fields: Fields, name: str) -> tuple[float, GuardrailSpec] | None:
    """Return the guardrail with its sort key: its creation time, or infinity if it has none."""
    kind = fields.string("kind", required=True)
    if kind not in ("keyword", "pii"):
        if kind is not None:
            reason = "is not supported" if kind in _REMOTE_GUARDRAILS else "is unknown"
            fields.error("kind", f"{fields.errors.show(kind)} {reason}; Penstock supports keyword and pii")
        return None
    patterns: tuple[Pattern, ...] = ()
    detectors: tuple[tuple[str, Action], ...] = ()
    if kind == "keyword":
        patterns = _keyword_patterns(fields)
    else:
        default = fields.choice("default_action", _ACTIONS) or "mask"
        detectors = _pii_detectors(fields, default)
        patterns = _pii_patterns(fields, default)
        if fields.choice("on_buffer_exceeded", ("fail_closed", "fail_open")) == "fail_open":
            fields.error(
                "on_buffer_exceeded", "cannot be fail_open: Penstock never forwards content that it did not inspect"
            )
        if fields.integer("max_buffer_bytes", 1, default=_BUFFER_BYTES) != _BUFFER_BYTES:
            fields.error("max_buffer_bytes", "is not supported here: set guardrails.max_buffer_bytes in gateway.yaml")
    created = fields.time("created_at")
    # these kinds run in this process and cannot be unreachable; the direction is descriptive
    fields.skip("fail_open", "mandatory", "direction")
    built = GuardrailSpec(
        name=name,
        kind="keyword" if kind == "keyword" else "pii",
        enabled=fields.flag("enabled", True),
        hook=fields.choice("hook_point", _HOOKS) or "both",
        enforcement=fields.choice("enforcement_mode", _MODES) or "block",
        patterns=patterns,
        detectors=detectors,
    )
    return (created if created is not None else float("inf")), built


class Attachment(NamedTuple):
    """The restriction of a guardrail to a key, a team or a model."""

    guardrail: str
    scope: AttachmentScope
    reference: str | None
    priority: int
    enabled: bool


def attachment(
    fields: Fields, names: Mapping[str, str], references: Mapping[str, Mapping[str, str]]
) -> Attachment | None:
    """Read an attachment. `names` maps names and ids of guardrails to names, and `references` is that of `policy`."""
    name = fields.one_of("guardrail", "guardrail_id")
    if name is not None and name not in names:
        field = "guardrail" if fields.has("guardrail") else "guardrail_id"
        fields.error(field, f"names {fields.errors.show(name)}, which is not in guardrails")
    scope = fields.choice("scope_type", _ATTACHMENT_SCOPES, required=True)
    reference = fields.string("scope_id", required=scope is not None and scope != "env")
    if scope == "env" and reference is not None:
        fields.error("scope_id", "cannot be combined with the scope env")
    if reference is not None and scope is not None and scope in references:
        if reference not in references[scope]:
            kind = "api_keys" if scope == "api_key" else "models"
            fields.error("scope_id", f"names {fields.errors.show(reference)}, which is not in {kind}")
        reference = references[scope].get(reference)
    priority = fields.integer("priority", -(2**31), 2**31 - 1, default=0) or 0
    enabled = fields.flag("enabled", True)
    if name is None or scope is None:
        return None
    return Attachment(names.get(name, name), scope, reference, priority, enabled)


def attachment_order(attachments: Sequence[Attachment]) -> tuple[float, int]:
    """Return the sort key of a guardrail: by descending priority, then by how specific its scope is; those without
    attachments last."""
    return min(
        ((-one.priority, _ATTACHMENT_SCOPES.index(one.scope)) for one in attachments if one.enabled),
        default=(float("inf"), 0),
    )


def attach(spec: GuardrailSpec, attachments: Sequence[Attachment] | None) -> GuardrailSpec:
    if attachments is None:
        return spec
    attached_to = tuple((one.scope, one.reference) for one in attachments if one.enabled)
    return msgspec.structs.replace(spec, attached_to=attached_to)


def _keyword_patterns(fields: Fields) -> tuple[Pattern, ...]:
    if not fields.has("patterns"):
        fields.missing("patterns")
    patterns = []
    for item in fields.list("patterns"):
        kind = item.choice("kind", _KINDS, required=True)
        value = item.string("value", required=True)
        item.finish()
        if kind is None or value is None:
            continue
        if kind == "regex":
            _check_regex(item, "value", value)
        patterns.append(Pattern(kind=kind, value=value))
    return tuple(patterns)


def _pii_detectors(fields: Fields, default: Action) -> tuple[tuple[str, Action], ...]:
    detectors = []
    for item in fields.list("detectors"):
        detector = item.choice("type", DETECTOR_NAMES, required=True)
        action = item.choice("action", _ACTIONS) or default
        item.finish()
        if detector is not None:
            detectors.append((detector, action))
    return tuple(detectors)


def _pii_patterns(fields: Fields, default: Action) -> tuple[Pattern, ...]:
    patterns = []
    for item in fields.list("custom_patterns"):
        name = item.string("name", required=True)
        regex = item.string("regex", required=True)
        action = item.choice("action", _ACTIONS) or default
        replacement = item.raw("replacement")
        if replacement is not None and not isinstance(replacement, str):
            item.error("replacement", "must be a string")
            replacement = None
        if replacement is not None and action == "block":
            item.error("replacement", "cannot be combined with the action block")
        item.finish()
        if name is None or regex is None:
            continue
        _check_regex(item, "regex", regex)
        patterns.append(Pattern(kind="regex", value=regex, name=name, replacement=replacement, action=action))
    return tuple(patterns)


def policy(fields: Fields, id_: str, name: str, references: Mapping[str, Mapping[str, str]]) -> Policy | None:
    """Read a policy. `references` maps, for the scopes api_key and model, names and ids to ids."""
    conditional = [form for form in ("limits", "conditions", "group_by") if fields.has(form)]
    for form in conditional:
        fields.refuse(form, "belongs to conditional policies, which Penstock does not support")
    fields.refuse("schedules", "is not supported")
    fields.choice("action", ("reject",))
    required = not conditional
    scope = fields.choice("scope", _SCOPES, required=required)
    window = fields.choice("window", _WINDOWS, required=required)
    reference = fields.string("scope_ref")
    max_requests = fields.integer("max_requests", 1)
    max_tokens = fields.integer("max_tokens", 1)
    if required and not fields.has("max_requests") and not fields.has("max_tokens"):
        fields.errors.add(fields.path, "needs max_requests, max_tokens or both")
    if reference is not None and scope is not None and scope in references:
        resource = references[scope].get(reference)
        if resource is None:
            kind = "api_keys" if scope == "api_key" else "models"
            fields.error("scope_ref", f"names {fields.errors.show(reference)}, which is not in {kind}")
        reference = resource
    if scope is None or window is None:
        return None
    return Policy(
        id=id_,
        name=name,
        scope=scope,
        scope_ref=reference,
        window=window,
        max_requests=max_requests,
        max_tokens=max_tokens,
    )


def _check_regex(fields: Fields, name: str, value: str) -> None:
    message = regex_error(value)
    if message is not None:
        fields.error(name, message)
