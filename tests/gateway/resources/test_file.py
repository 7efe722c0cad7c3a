"""Tests of valid resource files."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path
from typing import get_args

import pytest

from penstock.gateway.resources.file import ResourceErrors, load_resources, parse_resources
from penstock.gateway.resources.snapshot import Cooldown, Detector, RateLimit
from support.resource_files import Files

COMPLETE_FILE = """
_format_version: "1"

provider_keys:
  - display_name: openai-main
    provider: openai
    adapter: openai
    api_key: ${OPENAI_API_KEY}
    api_base: https://api.example.com/v1
    request:
      param_renames: {max_tokens: max_completion_tokens}
      default_headers: {x-team: platform}
      default_body_fields: {store: false, metadata: {via: gateway}}
    strip_headers: [authorization, cookie]
    tls: {verify: false}
  - display_name: deepseek
    secret: "pa$$word"
    api_base: https://api.deepseek.example

models:
  - display_name: gpt-4o-prod
    provider: openai
    model_name: gpt-4o-mini
    provider_key: openai-main
    timeout: 30000
    stream_timeout: 1500
    retries: 1
    rate_limit: {rpm: 600, tpm: 200000}
    allowed_cidrs: [10.0.0.0/8, "::1/128"]
    cooldown: {default_seconds: 5, trigger_statuses: [500]}
  - display_name: chat
    provider: deepseek
    model_name: deepseek-chat
    provider_key: deepseek
    timeout: 0
    stream_timeout: 0
  - {display_name: internal/small, provider: openai, model_name: gpt-4o-mini, provider_key: openai-main}
  - display_name: best
    routing:
      strategy: failover
      targets:
        - {model: chat, priority: -1}
        - {model: gpt-4o-prod, weight: 3}
      retry_on_429: true
      max_fallbacks: 1
      fallback_on_statuses: [408, 409]
      when_all_unavailable: try_anyway

api_keys:
  - display_name: ci
    key_env: CI_KEY
    allowed_models: [gpt-4o-prod, best, "internal/*"]
    rate_limit: {rps: 5, concurrency: 10}
    expires_at: 2030-01-31T12:00:00Z
    team_id: platform
    user_id: u-1
    user_name: Ada
  - display_name: old
    key_hash: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824
    allowed_models: []
    disabled: true

guardrails:
  - name: words
    kind: keyword
    hook_point: input
    patterns:
      - {kind: literal, value: no}
      - {kind: regex, value: '(?i)secret\\s+plan'}
  - name: private
    kind: pii
    created_at: 2026-02-01T00:00:00+01:00
    enforcement_mode: monitor
    fail_open: true
    mandatory: false
    default_action: block
    detectors: [{type: email}, {type: us_ssn, action: mask}]
    custom_patterns: [{name: ticket, regex: 'T-(\\d+)', action: mask, replacement: ""}]
  - {name: first, kind: keyword, enabled: false, created_at: "2026-01-01T00:00:00Z", patterns: []}

rate_limit_policies:
  - {name: ci-per-minute, scope: api_key, scope_ref: ci, window: minute, max_requests: 10}
  - {name: chat-a-day, scope: model, scope_ref: chat, window: day, max_tokens: 1000000, action: reject}
  - {name: everyone, scope: team_member, scope_ref: platform, window: hour, max_requests: 3, max_tokens: 9}

mcp_servers: []
cache_policies:
"""
ENVIRONMENT = {"OPENAI_API_KEY": "sk-upstream", "CI_KEY": "sk-ci"}
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/api7/aisix#resources-file")


def test_all_supported_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(COMPLETE_FILE)
    snapshot = load_resources(str(path), ENVIRONMENT)

    assert snapshot.hash == hashlib.sha256(COMPLETE_FILE.encode()).hexdigest()
    assert snapshot.source == str(path)
    assert snapshot.loaded_at > 0

    main, deepseek = snapshot.provider_keys["openai-main"], snapshot.provider_keys["deepseek"]
    assert main.secret.reveal() == "sk-upstream"
    assert main.api_base == "https://api.example.com/v1"
    assert [(name, value.reveal()) for name, value in main.default_headers] == [("x-team", "platform")]
    assert "platform" not in repr(main)  # any header may carry a credential
    assert main.default_body_fields == {"store": False, "metadata": {"via": "gateway"}}
    assert main.param_renames == {"max_tokens": "max_completion_tokens"}
    assert not main.verify_tls
    assert deepseek.secret.reveal() == "pa$word"
    assert (deepseek.adapter, deepseek.api_base, deepseek.verify_tls) == (
        "openai",
        "https://api.deepseek.example",
        True,
    )

    gpt, chat, best = (snapshot.models[name] for name in ("gpt-4o-prod", "chat", "best"))
    assert (gpt.provider, gpt.upstream, gpt.provider_key) == ("openai", "gpt-4o-mini", "openai-main")
    assert (gpt.timeout_s, gpt.stream_timeout_s, gpt.retries) == (30.0, 1.5, 1)
    assert gpt.rate_limit == RateLimit(rpm=600, tpm=200000)
    assert gpt.allowed_cidrs == ("10.0.0.0/8", "::1/128")
    assert gpt.cooldown == Cooldown(default_seconds=5, statuses=frozenset({500}))
    assert (chat.timeout_s, chat.stream_timeout_s) == (0.0, None)
    assert best.routing is not None
    assert best.routing.targets == ("gpt-4o-prod", "chat")
    assert best.routing.retry_on_429
    assert best.routing.max_fallbacks == 1
    assert best.routing.fallback_on_statuses == {408, 409}
    assert best.routing.when_all_unavailable == "try_anyway"

    ci = snapshot.caller_keys[hashlib.sha256(b"sk-ci").hexdigest()]
    assert (ci.name, ci.team_id, ci.user_id, ci.disabled) == ("ci", "platform", "u-1", False)
    assert ci.allowed_models == ("gpt-4o-prod", "best", "internal/*")
    assert ci.expires_at == 1896091200.0
    assert ci.rate_limit == RateLimit(rps=5, concurrency=10)
    old = snapshot.caller_keys[hashlib.sha256(b"hello").hexdigest()]
    assert (old.disabled, old.allowed_models, old.expires_at) == (True, (), None)

    assert [spec.name for spec in snapshot.guardrails] == ["first", "private", "words"]
    first, private, words = snapshot.guardrails
    assert not first.enabled
    assert (words.hook, words.enforcement) == ("input", "block")
    assert [(one.kind, one.value) for one in words.patterns] == [("literal", "no"), ("regex", r"(?i)secret\s+plan")]
    assert (private.hook, private.enforcement) == ("both", "monitor")
    assert private.detectors == (("email", "block"), ("us_ssn", "mask"))
    ticket = private.patterns[0]
    assert (ticket.name, ticket.value, ticket.action, ticket.replacement) == ("ticket", r"T-(\d+)", "mask", "")

    minute, day, hour = snapshot.policies
    assert (minute.scope, minute.scope_ref, minute.window, minute.max_requests) == ("api_key", ci.id, "minute", 10)
    assert (day.scope_ref, day.window, day.max_tokens, day.max_requests) == (chat.id, "day", 1_000_000, None)
    assert (hour.scope, hour.scope_ref, hour.max_requests, hour.max_tokens) == ("team_member", "platform", 3, 9)


def test_ids_follow_the_format(files: Files) -> None:
    snapshot = files.read(files.UP, files.GPT, files.ME)
    assert snapshot.models["gpt"].id == str(uuid.uuid5(NAMESPACE, "models/gpt"))
    assert snapshot.provider_keys["up"].id == str(uuid.uuid5(NAMESPACE, "provider_keys/up"))
    assert next(iter(snapshot.caller_keys.values())).id == str(uuid.uuid5(NAMESPACE, "api_keys/me"))


def test_model_may_refer_to_provider_key_by_id(files: Files) -> None:
    id_ = uuid.uuid5(NAMESPACE, "provider_keys/up")
    model = f"models: [{{display_name: a, provider: openai, model_name: b, provider_key_id: {id_}}}]\n"
    assert files.read(files.UP, model).models["a"].provider_key == "up"


def test_policy_may_refer_by_id_or_to_all(files: Files) -> None:
    id_ = uuid.uuid5(NAMESPACE, "models/gpt")
    policies = f"rate_limit_policies: [{{name: a, scope: model, scope_ref: {id_}, window: day, max_tokens: 1}}, "
    policies += "{name: b, scope: api_key, window: second, max_requests: 1}]\n"
    by_id, by_none = files.read(files.UP, files.GPT, files.ME, policies).policies
    assert by_id.scope_ref == str(id_)
    assert by_none.scope_ref is None


def test_guardrails_are_attached_in_the_order_of_their_priorities(files: Files) -> None:
    words = "kind: keyword, patterns: []"
    names = ("plain", "low", "off", "high")
    guardrails = f"guardrails: [{', '.join(f'{{name: {name}, {words}}}' for name in names)}]\n"
    attachments = """guardrail_attachments:
  - {guardrail: low, scope_type: model, scope_id: gpt}
  - {guardrail: low, scope_type: team, scope_id: search, enabled: false}
  - {guardrail: off, scope_type: env, priority: 9, enabled: false}
  - {guardrail: high, scope_type: api_key, scope_id: me, priority: 1}
"""
    specs = files.read(files.UP, files.GPT, files.ME, guardrails, attachments).guardrails
    model, key = (str(uuid.uuid5(NAMESPACE, name)) for name in ("models/gpt", "api_keys/me"))
    assert {spec.name: spec.attached_to for spec in specs} == {
        "high": (("api_key", key),),
        "low": (("model", model),),
        "plain": None,
        "off": (),
    }
    assert [spec.name for spec in specs][:2] == ["high", "low"]


def test_file_without_entries_gives_an_empty_snapshot(files: Files) -> None:
    snapshot = files.read("models:\napi_keys: []\nguardrails: null\n")
    assert (snapshot.models, snapshot.caller_keys, snapshot.guardrails) == ({}, {}, ())


def test_anthropic_provider_uses_the_anthropic_adapter(files: Files) -> None:
    keys = "provider_keys: [{display_name: a, provider: anthropic, api_key: k}, "
    keys += "{display_name: b, provider: anthropic, adapter: openai, api_key: k}]\n"
    snapshot = files.read(keys)
    assert [snapshot.provider_keys[name].adapter for name in "ab"] == ["anthropic", "openai"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${CALLER}", "sk-caller"),
        ("a${CALLER}b${UPSTREAM}c", "ask-callerbsk-upstreamc"),
        ("$$", "$"),
        ("$${CALLER}", "${CALLER}"),
        ("$$$${CALLER}", "$${CALLER}"),
        ("$CALLER and $5", "$CALLER and $5"),
        ("'${CALLER}'", "sk-caller"),
        ("2026-01-31", "2026-01-31"),
        ("12:30:45", "12:30:45"),
        ("no", "no"),
        ("0123", "0123"),
    ],
)
def test_strings_are_unchanged_except_for_variables(files: Files, text: str, value: str) -> None:
    snapshot = files.read(f"provider_keys:\n  - display_name: up\n    api_key: {text}\n")
    assert snapshot.provider_keys["up"].secret.reveal() == value


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    """As mounted by orchestrators: a file per secret, often with a line break at its end."""
    (tmp_path / "up.key").write_text("sk-from-file\n")
    (tmp_path / "caller.key").write_text("sk-caller\n")
    path = tmp_path / "resources.yaml"
    path.write_text(
        Files.HEAD
        + "provider_keys: [{display_name: up, provider: openai, key_file: up.key}]\n"
        + f"api_keys: [{{display_name: me, key_file: {tmp_path}/caller.key, allowed_models: ['*']}}]\n"
    )
    snapshot = load_resources(str(path), {})
    assert snapshot.provider_keys["up"].secret.reveal() == "sk-from-file"
    assert list(snapshot.caller_keys) == [hashlib.sha256(b"sk-caller").hexdigest()]
    assert snapshot.key_files == (str(tmp_path / "up.key"), str(tmp_path / "caller.key"))


def test_key_is_stripped_before_hashing() -> None:
    data = b'_format_version: "1"\napi_keys: [{display_name: a, key_env: KEY, allowed_models: []}]'
    snapshot = parse_resources(data, {"KEY": " sk-blank\n"})
    assert list(snapshot.caller_keys) == [hashlib.sha256(b"sk-blank").hexdigest()]


def test_printed_snapshot_hides_secrets(tmp_path: Path) -> None:
    snapshot = parse_resources(COMPLETE_FILE.encode(), ENVIRONMENT)
    for text in (repr(snapshot), str(snapshot)):
        assert "sk-upstream" not in text
        assert "sk-ci" not in text


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResourceErrors) as caught:
        load_resources(str(tmp_path / "none.yaml"), {})
    assert caught.value.errors == ["cannot be read: No such file or directory"]


def test_every_detector_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/gateway.md").read_text()
    assert [name for name in get_args(Detector) if f"`{name}`" not in page] == []
