"""Tests of invalid resource files: all errors are reported with their paths, and no secret is shown."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.resources.file import ResourceErrors, parse_resources
from support.resource_files import Files

MODEL = "display_name: m, provider: openai, model_name: x, provider_key: up"
KEY = "display_name: k, key_env: CALLER, allowed_models: []"


def test_all_errors_are_listed_with_their_entries(files: Files) -> None:
    errors = files.errors(
        """
provider_keys:
  - {display_name: up, api_key: "${UPSTREAM}"}
  - {display_name: up, api_key: "${NOT_THERE}"}
models:
  - {display_name: ok, provider: openai, model_name: x, provider_key: up}
  - {provider: openai, model_name: x, provider_key: up}
  - {display_name: gpt-4o, provider: openai, model_name: x, provider_key: down}
colour: blue
cache_policies: [{name: c}]
"""
    )
    assert errors == [
        "provider_keys[1] 'up': api_key needs the environment variable NOT_THERE, which is unset or empty",
        "provider_keys[1] 'up': display_name is already used by provider_keys[0]",
        "models[1]: display_name is missing",
        "models[2] 'gpt-4o': provider_key names 'down', which is not in provider_keys",
        "cache_policies is a collection that Penstock does not support",
        "colour is not a known field",
    ]


@pytest.mark.parametrize(
    ("head", "error"),
    [
        ("", "_format_version is missing"),
        ("_format_version: 1\n", '_format_version must be the string "1", in quotes'),
        ("_format_version: '2'\n", '_format_version must be the string "1", in quotes'),
    ],
)
def test_format_version_must_be_the_string_1(files: Files, head: str, error: str) -> None:
    assert files.errors(head=head) == [error]


@pytest.mark.parametrize(
    "collection",
    [
        "mcp_servers",
        "a2a_agents",
        "cache_policies",
        "observability_exporters",
        "oidc_providers",
        "claim_mappings",
        "passthrough_routes",
        "mcp_auth_settings",
    ],
)
def test_unsupported_collection_is_an_error(files: Files, collection: str) -> None:
    assert files.errors(f"{collection}: [{{name: x}}]\n") == [
        f"{collection} is a collection that Penstock does not support"
    ]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("display_name: x", "needs api_key or secret"),
        ("display_name: x, api_key: sk-1, secret: sk-2", "secret cannot be combined with api_key"),
        ("display_name: x, api_key: ''", "api_key must be a non-empty string"),
        ("display_name: x, api_key: 5", "api_key must be a non-empty string"),
        ("display_name: x, api_key: sk-1, api_base: '${LEAK}'", "api_base must be a URL"),
        ("display_name: x, api_key: sk-1, api_base: 'ftp://h'", "api_base must be a URL"),
        ("display_name: x, api_key: sk-1, api_base: 'http://h:99999'", "api_base must be a URL"),
        ("display_name: x, api_key: sk-1, api_base: 'http://a..b/v1'", "api_base has an invalid host name"),
        (
            "display_name: x, api_key: sk-1, api_base: 'http://sk-2:sk-3@h'",
            "api_base contains a user name or a password",
        ),
        ("display_name: x, api_key: sk-1, api_base: 'http://h/v1#x'", "api_base has a fragment"),
        ("display_name: x, api_key: sk-1, api_base: 'http://h/v 1'", "api_base contains characters"),
        ("display_name: x, api_key: sk-1, adapter: gopher", "adapter must be one of openai, anthropic"),
        ("display_name: x, api_key: sk-1, adapter: bedrock", "adapter must be one of openai, anthropic"),
        ("display_name: x, api_key: sk-1, key_file: y", "key_file cannot be combined with api_key"),
        ("display_name: x, key_file: /none", "key_file names a file that cannot be read: No such file or directory"),
        ("display_name: x, key_file: /dev/null", "key_file names an empty file"),
        ('display_name: x, api_key: "sk-1\\n"', "api_key contains a line break"),
        (
            'display_name: x, api_key: sk-1, request: {default_headers: {a: "b\\r\\nc: d"}}',
            "default_headers.a contains",
        ),
        ('display_name: x, api_key: sk-1, request: {default_headers: {"a\\r\\nb": c}}', "not an HTTP header name"),
        ("display_name: x, api_key: sk-1, id: 7", "id is not a known field"),
        (
            "display_name: x, api_key: sk-1, request: {forward_client_headers: [OpenAI-Beta, x]}",
            "forward_client_headers[1]",
        ),
        ("display_name: x, api_key: sk-1, request: {param_constraints: {a: 1}}", "request.param_constraints is not"),
        ("display_name: x, api_key: sk-1, request: {default_headers: {a: 1}}", "request.default_headers must be"),
        ("display_name: x, api_key: sk-1, request: {default_headers: {a: '$${x}'}}", "request.default_headers.a is a"),
        ("display_name: x, api_key: sk-1, response: {reasoning_field: a}", "response.reasoning_field is not supported"),
        ("display_name: x, api_key: sk-1, tls: {ca_cert: PEM}", "tls.ca_cert is not supported"),
        ("display_name: x, api_key: sk-1, telemetry_tags: {pk_label: a}", "telemetry_tags is not supported"),
    ],
)
def test_invalid_provider_key_is_reported(files: Files, fields: str, error: str) -> None:
    (reported,) = files.errors(f"provider_keys: [{{{fields}}}]\n")
    assert reported.startswith("provider_keys[0] 'x': ")
    assert error in reported


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("display_name: m, model_name: x, provider_key: up", "provider is missing"),
        ("display_name: m, provider: openai, provider_key: up", "model_name is missing"),
        ("display_name: m, provider: openai, model_name: x", "needs provider_key or provider_key_id"),
        (f"{MODEL}, provider_key_id: up", "provider_key_id cannot be combined with provider_key"),
        ("display_name: m, provider: Open AI, model_name: x, provider_key: up", "provider must be 1 to 64"),
        (
            "display_name: m, provider: openai, model_name: x, provider_key: '${LEAK}'",
            "names '…' (from the environment)",
        ),
        ("display_name: 'a/*', provider: openai, model_name: x, provider_key: up", "does not support wildcard aliases"),
        (f"{MODEL}, timeout: -1", "timeout must be a whole number of at least 0"),
        (f"{MODEL}, timeout: 1.5", "timeout must be a whole number of at least 0"),
        (f"{MODEL}, timeout: true", "timeout must be a whole number of at least 0"),
        (f"{MODEL}, allowed_cidrs: [10.0.0.0/33]", "allowed_cidrs[0] is not a network"),
        (f"{MODEL}, rate_limit: {{rpm: '5'}}", "rate_limit.rpm must be a whole number"),
        (f"{MODEL}, rate_limit: {{rpy: 5}}", "rate_limit.rpy is not a known field"),
        (f"{MODEL}, cooldown: {{trigger_statuses: [99]}}", "cooldown.trigger_statuses must be a list of HTTP statuses"),
        (f"{MODEL}, cost: {{input_per_1k: 1, output_per_1k: 1}}", "cost is not supported"),
        (f"{MODEL}, background_model_check: {{enabled: true}}", "background_model_check is not supported"),
        (f"{MODEL}, auto_prompt_caching: {{enabled: true}}", "auto_prompt_caching is not supported"),
        ("display_name: m, ensemble: {panel: []}", "ensemble is a model type that Penstock does not support"),
        ("display_name: m, semantic: {routes: []}", "semantic is a model type that Penstock does not support"),
        ("display_name: m, routing: {}", "routing.targets is missing"),
        ("display_name: m, routing: {targets: []}", "routing.targets is missing"),
        ("display_name: m, routing: {targets: x}", "routing.targets must be a list"),
        ("display_name: m, routing: 5", "routing must be a mapping"),
        ("display_name: m, routing: {targets: [{model: gone}]}", "routing.targets names 'gone', which is not in"),
        ("display_name: m, routing: {targets: [{model: m}]}", "routing.targets names 'm', which is itself a routing"),
        ("display_name: m, routing: {targets: [{model: ok}]}, provider: openai", "provider cannot be combined with"),
        ("display_name: m, routing: {targets: [{model: ok, tags: [a]}]}", "routing.targets[0].tags is not supported"),
        ("display_name: m, routing: {targets: [{model: ok}], hash_on: [{type: header}]}", "routing.hash_on is not"),
        ("display_name: m, routing: {targets: [{model: ok}], fallback_on_statuses: [200]}", "statuses from 400 to 599"),
        (
            "display_name: m, routing: {strategy: round_robin, targets: [{model: ok, weight: 2}, {model: ok}]}",
            "routing.targets have different weights",
        ),
        (
            "display_name: m, routing: {strategy: round_robin, targets: [{model: ok, priority: 2}, {model: ok}]}",
            "routing.targets have different priorities",
        ),
        *(
            (
                f"display_name: m, routing: {{strategy: {name}, targets: [{{model: ok}}]}}",
                f"routing.strategy is '{name}'",
            )
            for name in ("weighted", "consistent_hash", "least_cost", "least_latency", "least_busy")
        ),
    ],
)
def test_invalid_model_is_reported(files: Files, fields: str, error: str) -> None:
    ok = MODEL.replace("display_name: m", "display_name: ok")
    (reported,) = files.errors(files.UP, f"models: [{{{fields}}}, {{{ok}}}]\n")
    assert reported.startswith("models[0] ")
    assert error in reported


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("display_name: k, key_env: CALLER", "allowed_models is missing"),
        ("display_name: k, allowed_models: []", "needs key_env or key_hash"),
        (f"{KEY}, key_hash: {'a' * 64}", "key_hash cannot be combined with key_env"),
        ("display_name: k, key_hash: sk-oops, allowed_models: []", "key_hash must be a SHA-256"),
        (f"display_name: k, key_hash: {'A' * 64}, allowed_models: []", "key_hash must be a SHA-256"),
        ("display_name: k, key_env: GONE, allowed_models: []", "the environment variable GONE, which is unset"),
        (
            "display_name: k, key_env: sk-oops, allowed_models: []",
            "key_env names an environment variable, which is unset",
        ),
        (
            "display_name: k, key_env: hushhush, allowed_models: []",
            "key_env names an environment variable, which is unset",
        ),
        ("display_name: k, key_env: CALLER, allowed_models: gpt", "allowed_models must be a list of strings"),
        ("display_name: k, key_env: CALLER, allowed_models: ['a*b*']", "allowed_models[0] may contain only one *"),
        ("display_name: k, key_env: CALLER, allowed_models: [gpd]", "allowed_models[0] is 'gpd', which matches no"),
        ("display_name: k, key_env: CALLER, allowed_models: ['gpd*']", "allowed_models[0] is 'gpd*', which matches no"),
        ("display_name: k, key_file: /none, allowed_models: []", "key_file names a file that cannot be read"),
        (f"{KEY}, expires_at: tomorrow", "expires_at must be a time with a time zone"),
        (f"{KEY}, expires_at: 2030-01-01T00:00:00", "expires_at must be a time with a time zone"),
        (f"{KEY}, expires_at: 2030-13-01T00:00:00Z", "expires_at must be a time with a time zone"),
        (f"{KEY}, disabled: 'yes'", "disabled must be true or false"),
        (f"{KEY}, jwt_subject: a", "jwt_subject is not supported"),
        (f"{KEY}, mcp_access: {{allow: ['*']}}", "mcp_access is not supported"),
        (f"{KEY}, allowed_routes: [a]", "allowed_routes is not supported"),
        (f"{KEY}, allowed_agents: [a]", "allowed_agents is not supported"),
    ],
)
def test_invalid_caller_key_is_reported(files: Files, fields: str, error: str) -> None:
    reported = files.errors(f"api_keys: [{{{fields}}}]\n")
    assert reported[0].startswith("api_keys[0] 'k': ")
    assert any(error in line for line in reported)


def test_errors_name_their_lines(files: Files) -> None:
    errors = files.numbered_errors(
        """
provider_keys:
  - display_name: up
    api_key: sk-up
models:
  - display_name: gpt
    provider: cohere
    model_name: x
    provider_key: up
  - display_name: "two\\nlines"
    provider: openai
    model_name: x
    provider_key: up
    rate_limit:
      rpm: 5
      tmp: 5
"""
    )
    assert errors == [
        "models[1] 'two\\nlines': display_name contains a line break or control character (line 11)",
        "models[1] 'two\\nlines': rate_limit.tmp is not a known field (line 17)",
        "models[0] 'gpt': provider_key names 'up', which needs an api_base for this provider (line 10)",
    ]


def test_same_key_for_two_callers_is_an_error(files: Files) -> None:
    assert files.errors(f"api_keys: [{{{KEY}}}, {{{KEY.replace(': k', ': other')}}}]\n") == [
        "api_keys[1] 'other': has the same key as api_keys[0]"
    ]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("kind: lakera, api_key: sk-1", "kind 'lakera' is not supported; Penstock supports keyword and pii"),
        ("kind: keywords", "kind 'keywords' is unknown; Penstock supports keyword and pii"),
        ("patterns: []", "kind is missing"),
        ("kind: keyword", "patterns is missing"),
        ("kind: keyword, patterns: [{kind: regex, value: '(hush'}]", "patterns[0].value is not a valid regular"),
        ("kind: keyword, patterns: [{kind: glob, value: x}]", "patterns[0].kind must be one of literal, regex"),
        ("kind: keyword, patterns: [{kind: literal}]", "patterns[0].value is missing"),
        ("kind: keyword, patterns: [{kind: literal, value: ''}]", "patterns[0].value must be a non-empty string"),
        ("kind: keyword, patterns: [], hook_point: middle", "hook_point must be one of input, output, both"),
        ("kind: keyword, patterns: [], enforcement_mode: warn", "enforcement_mode must be one of block, monitor"),
        ("kind: keyword, patterns: [], detectors: []", "detectors is not a known field"),
        ("kind: pii, detectors: [{type: passport}]", "detectors[0].type must be one of"),
        ("kind: pii, detectors: [{type: email, action: eat}]", "detectors[0].action must be one of mask, block"),
        ("kind: pii, custom_patterns: [{name: a, regex: '['}]", "custom_patterns[0].regex is not a valid regular"),
        (
            "kind: pii, custom_patterns: [{name: a, regex: x, action: block, replacement: y}]",
            "custom_patterns[0].replacement cannot be combined with the action block",
        ),
        ("kind: pii, on_buffer_exceeded: fail_open", "on_buffer_exceeded cannot be fail_open"),
        ("kind: pii, max_buffer_bytes: 10", "set guardrails.max_buffer_bytes in gateway.yaml"),
    ],
)
def test_invalid_guardrail_is_reported(files: Files, fields: str, error: str) -> None:
    (reported,) = files.errors(f"guardrails: [{{name: g, {fields}}}]\n")
    assert reported.startswith("guardrails[0] 'g': ")
    assert error in reported


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("scope: api_key, window: minute", "needs max_requests, max_tokens or both"),
        ("scope: api_key, window: minute, max_requests: 0", "max_requests must be a whole number of at least 1"),
        ("window: minute, max_requests: 1", "scope is missing"),
        ("scope: planet, window: minute, max_requests: 1", "scope must be one of api_key, model, team"),
        ("scope: team, window: week, max_requests: 1", "window must be one of second, minute, hour, day"),
        ("scope: api_key, scope_ref: nobody, window: day, max_requests: 1", "which is not in api_keys"),
        ("scope: model, scope_ref: nothing, window: day, max_requests: 1", "which is not in models"),
        ("limits: {rpm: 1}", "limits belongs to conditional policies"),
        ("conditions: [{dimension: team}], group_by: [team]", "conditions belongs to conditional policies"),
        ("scope: team, window: day, max_requests: 1, schedules: [{}]", "schedules is not supported"),
        ("scope: team, window: day, max_requests: 1, action: warn", "action must be one of reject"),
    ],
)
def test_invalid_policy_is_reported(files: Files, fields: str, error: str) -> None:
    reported = files.errors(f"rate_limit_policies: [{{name: p, {fields}}}]\n")
    assert all(line.startswith("rate_limit_policies[0] 'p': ") for line in reported)
    assert any(error in line for line in reported)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ("scope_type: team, scope_id: a", "needs guardrail or guardrail_id"),
        ("guardrail: h, scope_type: team, scope_id: a", "guardrail names 'h', which is not in guardrails"),
        ("guardrail: g, scope_id: a", "scope_type is missing"),
        ("guardrail: g, scope_type: mcp_server, scope_id: a", "scope_type must be one of api_key, team, model, env"),
        ("guardrail: g, scope_type: team", "scope_id is missing"),
        ("guardrail: g, scope_type: env, scope_id: a", "scope_id cannot be combined with the scope env"),
        ("guardrail: g, scope_type: api_key, scope_id: a", "scope_id names 'a', which is not in api_keys"),
        ("guardrail: g, scope_type: model, scope_id: a", "scope_id names 'a', which is not in models"),
        ("guardrail: g, scope_type: team, scope_id: a, priority: x", "priority must be a whole number"),
    ],
)
def test_invalid_attachment_is_reported(files: Files, fields: str, error: str) -> None:
    guardrail = "guardrails: [{name: g, kind: keyword, patterns: []}]\n"
    (reported,) = files.errors(guardrail, f"guardrail_attachments: [{{{fields}}}]\n")
    assert reported.startswith("guardrail_attachments[0]: ")
    assert error in reported


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("models: [\n", "not valid YAML at line 3"),
        ("models: {a: b}\n", "models must be a list"),
        ("models: [7]\n", "models[0]: must be a mapping"),
        (
            "models: [{display_name: a, display_name: b}]\n",
            "models[0] 'a': repeats the key 'display_name' on line 2",
        ),
        ("models: []\nmodels: []\n", "repeats the key 'models' on line 3"),
        ("models: !!python/object:os.system [a]\n", "models has the tag python/object:os.system"),
        ("models: !!int x\n", "models does not match its YAML tag"),
        ("x: !!python/name:os.system a\n", "has the tag python/name:os.system, which is not allowed"),
        ("x: &a [*a]\n", "nested too deeply or refers to itself"),
        ("x: '${A B}'\n", "x contains ${ without a variable name; write $$ for a dollar sign"),
        ("x: *unknown\n", "not valid YAML at line 2"),
        ("---\na: 1\n", "not valid YAML at line 2"),
        ("api_key: 'hush\n", "not valid YAML at line"),
    ],
)
def test_invalid_or_unsafe_yaml_is_reported(files: Files, text: str, error: str) -> None:
    assert any(error in line for line in files.errors(text)), files.errors(text)


def test_alias_expansion_is_limited(files: Files) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert any("refers to itself" in error for error in files.errors("\n".join(lines)))


@pytest.mark.parametrize("text", ["7", "[]", "text", "\xff"])
def test_file_without_a_mapping_is_an_error(text: str) -> None:
    with pytest.raises(ResourceErrors):
        parse_resources(text.encode("latin-1"), {})


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: ('_format_version: "1"\n' + text).encode()))
def test_any_bytes_give_a_snapshot_or_errors(data: bytes) -> None:
    with contextlib.suppress(ResourceErrors):
        parse_resources(data, {})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "display_name",
    "name",
    "provider",
    "adapter",
    "api_key",
    "secret",
    "request",
    "response",
    "tls",
    "model_name",
    "provider_key",
    "provider_key_id",
    "timeout",
    "routing",
    "rate_limit",
    "allowed_cidrs",
    "cooldown",
    "key_hash",
    "key_env",
    "allowed_models",
    "expires_at",
    "kind",
    "patterns",
    "detectors",
    "custom_patterns",
    "scope",
    "scope_ref",
    "window",
    "max_requests",
    "limits",
    "created_at",
    "embedding",
    "cost",
]


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(
            ["provider_keys", "models", "api_keys", "guardrails", "rate_limit_policies", "_format_version"]
        ),
        values | st.lists(st.dictionaries(st.sampled_from(FIELDS), values, max_size=8), max_size=3),
    )
)
def test_any_field_values_give_a_snapshot_or_errors(tree: dict[str, object]) -> None:
    with contextlib.suppress(ResourceErrors):
        parse_resources(yaml.safe_dump(tree, allow_unicode=True).encode(), {})
