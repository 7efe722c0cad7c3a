"""Reading of the entries of guardrails, guardrail_attachments and rate_limit_policies in the resource file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
import regex

from penstock.gateway.resources.config import Positive
from penstock.gateway.resources.fields import Entry, Fields
from penstock.gateway.resources.snapshot import (
    Action,
    AttachmentScope,
    Detector,
    GuardrailSpec,
    Pattern,
    Policy,
    PolicyScope,
    Priority,
    Text,
)

_REMOTE_GUARDRAILS: Final = (
    *("bedrock", "azure_content_safety", "azure_content_safety_text_moderation", "aliyun_text_moderation"),
    *("aliyun_ai_guardrail", "lakera", "openai_moderation", "presidio", "semantic", "custom"),
)
_SPEC_NAMES: Final = {"hook": "hook_point", "enforcement": "enforcement_mode"}
_BUFFER_BYTES: Final = 262144
_MAX_LITERAL: Final = 4096
"""Bounds the work per stream event, which compares the end of the text with the prefixes of the literals."""

References = Mapping[str, Mapping[str, str]]
"""For each scope, the ids of the entries that an attachment or a policy may refer to, by their names and ids."""


def guardrail(entry: Entry) -> tuple[float, GuardrailSpec] | None:
    """Return the guardrail with its sort key: its creation time, or infinity if it has none."""
    fields = entry.fields
    kind = fields.value("kind", Text, required=True)
    if kind not in ("keyword", "pii"):
        if kind is not None:
            reason = "is not supported" if kind in _REMOTE_GUARDRAILS else "is unknown"
            fields.error("kind", f"{fields.errors.show(kind)} {reason}; Penstock supports keyword and pii")
        return None
    detectors: tuple[tuple[Detector, Action], ...] = ()
    if kind == "keyword":
        patterns = _keyword_patterns(fields)
    else:
        default = fields.value("default_action", Action, "mask")
        detectors = _pii_detectors(fields, default)
        patterns = _pii_patterns(fields, default)
        if fields.value("on_buffer_exceeded", Literal["fail_closed", "fail_open"]) == "fail_open":
            fields.error(
                "on_buffer_exceeded", "cannot be fail_open: Penstock never forwards content that it did not inspect"
            )
        if fields.value("max_buffer_bytes", Positive, _BUFFER_BYTES) != _BUFFER_BYTES:
            fields.error("max_buffer_bytes", "is not supported here: set guardrails.max_buffer_bytes in gateway.yaml")
    created = fields.time("created_at")
    # these kinds run in this process and cannot be unreachable; the direction is descriptive
    fields.skip("fail_open", "mandatory", "direction")
    given: dict[str, Any] = {"patterns": patterns, "detectors": detectors, "attached_to": None}
    built = fields.struct(GuardrailSpec, _SPEC_NAMES, name=entry.name, kind=kind, **given)
    fields.finish()
    return (created if created is not None else float("inf")), built


class Attachment(NamedTuple):
    """The restriction of a guardrail to a key, a team or a model."""

    guardrail: str | None
    scope: AttachmentScope
    reference: str | None
    priority: int
    enabled: bool


def attachment(fields: Fields, names: Mapping[str, str], references: References) -> Attachment:
    """Read an attachment. `names` maps names and ids of guardrails to names."""
    given, name = fields.one_of("guardrail", "guardrail_id")
    scope = fields.value("scope_type", AttachmentScope, required=True)
    if scope == "env" and fields.has("scope_id"):
        fields.error("scope_id", "cannot be combined with the scope env")
    return Attachment(
        fields.reference(given, name, "guardrails", names),
        scope,
        _reference(fields, "scope_id", scope, references, required=scope not in (None, "env")),
        fields.value("priority", Priority, 0),
        fields.value("enabled", bool, True),
    )


def attachment_order(attachments: Sequence[Attachment]) -> tuple[float, int]:
    """Return the sort key of a guardrail: by descending priority, then by how specific its scope is; those without
    attachments last."""
    scopes = get_args(AttachmentScope)
    return min(
        ((-one.priority, scopes.index(one.scope)) for one in attachments if one.enabled), default=(float("inf"), 0)
    )


def attach(spec: GuardrailSpec, attachments: Sequence[Attachment]) -> GuardrailSpec:
    if not attachments:
        return spec
    attached_to = tuple((one.scope, one.reference) for one in attachments if one.enabled)
    return msgspec.structs.replace(spec, attached_to=attached_to)


def _keyword_patterns(fields: Fields) -> tuple[Pattern, ...]:
    if not fields.has("patterns"):
        fields.missing("patterns")
    patterns = []
    for item in fields.list("patterns"):
        pattern = item.struct(Pattern, name="", replacement=None, action=None)
        _check_pattern(item, "value", pattern)
        patterns.append(pattern)
    return tuple(patterns)


def _pii_detectors(fields: Fields, default: Action) -> tuple[tuple[Detector, Action], ...]:
    return tuple(
        (item.value("type", Detector, required=True), item.value("action", Action, default))
        for item in fields.list("detectors")
    )


def _pii_patterns(fields: Fields, default: Action) -> tuple[Pattern, ...]:
    patterns = []
    for item in fields.list("custom_patterns"):
        name, action = item.value("name", Text, "", required=True), item.value("action", Action, default)
        pattern = item.struct(Pattern, {"value": "regex"}, kind="regex", name=name, action=action)
        if pattern.replacement is not None and action == "block":
            item.error("replacement", "cannot be combined with the action block")
        _check_pattern(item, "regex", pattern)
        patterns.append(pattern)
    return tuple(patterns)


def policy(entry: Entry, references: References) -> Policy | None:
    fields = entry.fields
    fields.refuse("schedules")
    fields.value("action", Literal["reject"])
    conditional = [form for form in ("limits", "conditions", "group_by") if fields.has(form)]
    if conditional:
        fields.refuse(*conditional, because="belongs to conditional policies, which Penstock does not support")
        return None
    if not fields.has("max_requests") and not fields.has("max_tokens"):
        fields.errors.add(fields.path, "needs max_requests, max_tokens or both")
    scope = fields.value("scope", PolicyScope, required=True)
    built = fields.struct(
        Policy,
        id=entry.id,
        name=entry.name,
        scope=scope,
        scope_ref=_reference(fields, "scope_ref", scope, references),
    )
    fields.finish()
    return built


def _reference(
    fields: Fields, name: str, scope: str | None, references: References, *, required: bool = False
) -> str | None:
    """Return what a rule is restricted to: the id of a key or a model, or the name of a team or a member."""
    text: str | None = fields.value(name, Text, required=required)
    if scope is None or scope not in references:
        return text
    return fields.reference(name, text, "api_keys" if scope == "api_key" else "models", references[scope])


def _check_pattern(fields: Fields, name: str, pattern: Pattern) -> None:
    if pattern.value is None:
        return
    if pattern.kind == "regex" and (error := _regex_error(pattern.value)) is not None:
        fields.error(name, error)
    if pattern.kind == "literal" and len(pattern.value) > _MAX_LITERAL:
        fields.error(name, f"has {len(pattern.value)} characters; a literal may have at most {_MAX_LITERAL}")


def _regex_error(pattern: str) -> str | None:
    """Return the error in a pattern, or None. The message does not quote the pattern."""
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        reason, _, position = str(error).partition(" at position")
        reason = reason.split(" \\")[0]  # "bad escape \\q" quotes the pattern
        position = f" at position{position}" if position else ""
        return f"is not a valid regular expression: {reason}{position}"
    except (ValueError, OverflowError, RecursionError):
        return "is not a valid regular expression"
    if compiled.search("") is not None:
        return "matches the empty text, so it would match everything"
    return None
