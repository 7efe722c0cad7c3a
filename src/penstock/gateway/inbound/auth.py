"""Authentication and authorization of callers.

    authenticate    401   header missing or malformed, key unknown, disabled, expired (in this order)
    authorize       400   no model named
                    404   no such model (existence comes before permission)
                    403   model not allowed for the key; address not allowed for the model

A key is hashed once and looked up by its hash, so the time does not depend on how much of a key is correct.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from functools import lru_cache

from penstock.gateway.ledger.entry import Entry
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import CallerKey, Model, Snapshot, allows
from penstock.secrets import REDACTED

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_MEMO_KEY = os.urandom(32)
_MAX_MEMO = 4096
_memo: dict[bytes, str] = {}
"""The SHA-256 of keys that were accepted, by their keyed BLAKE2s: OpenSSL looks up its algorithm for each SHA-256, which takes
5 µs of a request, and plain keys are not kept."""
_MAX_SHOWN_CHARS = 200
"""Characters of an unknown model name that a refusal or a ledger entry repeats."""


def authenticate(headers: Mapping[str, str], snapshot: Snapshot, entry: Entry) -> CallerKey:
    """Return the caller's key, or raise Refusal. A disabled or expired key is recorded in the entry, too."""
    presented = _presented_key(headers)
    if not presented:
        raise Refusal(
            401,
            "invalid_api_key",
            "The API key is missing or malformed: send it as 'Authorization: Bearer <key>' or in x-api-key.",
        )
    key = _find_key(presented, snapshot)
    if key is None:
        raise Refusal(401, "invalid_api_key", "The API key is not valid.")
    entry.api_key_id, entry.api_key_name, entry.team_id = key.id, key.name, key.team_id
    if key.disabled:
        raise Refusal(401, "invalid_api_key", "The API key is disabled.", code="api_key_disabled")
    if key.expires_at is not None and entry.at > key.expires_at:
        raise Refusal(401, "invalid_api_key", "The API key has expired.", code="api_key_expired")
    return key


def _presented_key(headers: Mapping[str, str]) -> str:
    """Return the key of the request. `x-api-key` is used only without an Authorization header."""
    authorization = headers.get("authorization")
    if authorization is not None:
        return authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
    return (headers.get("x-api-key") or "").strip()


def _find_key(plain: str, snapshot: Snapshot) -> CallerKey | None:
    data = plain.encode(errors="surrogatepass")
    name = hashlib.blake2s(data, key=_MEMO_KEY).digest()
    if name in _memo:
        return snapshot.caller_keys.get(_memo[name])
    digest = hashlib.sha256(data).hexdigest()
    key = snapshot.caller_keys.get(digest)
    if key is not None:
        if len(_memo) >= _MAX_MEMO:
            _memo.clear()
        _memo[name] = digest
    return key


def contains_api_key(text: str, headers: Mapping[str, str], snapshot: Snapshot) -> bool:
    """Return whether a text of the caller must not be recorded: it contains the caller's key, is another caller's key, or
    begins with `sk-`."""
    presented = _presented_key(headers)
    return (presented != "" and presented in text) or text.startswith("sk-") or _find_key(text, snapshot) is not None


def recorded_model_name(model_name: object, headers: Mapping[str, str], snapshot: Snapshot) -> str:
    """Return the requested model name for the ledger and the logs: redacted, printable and not too long."""
    name = str(model_name)
    if name in snapshot.models:
        return name
    if contains_api_key(name, headers, snapshot):
        return REDACTED
    return "".join(char for char in _truncate(name) if char.isprintable())


def authorize(key: CallerKey, model_name: object, snapshot: Snapshot, client_ip: str | None) -> Model:
    """Return the model, or raise Refusal. `model_name` is the value of `model` in the request body, of any type."""
    if not isinstance(model_name, str) or not model_name:
        raise Refusal(400, "invalid_request_error", "`model` must be a non-empty string.", param="model")
    model = snapshot.models.get(model_name)
    if model is None:
        raise Refusal(404, "model_not_found", f"The model `{_truncate(model_name)}` does not exist.")
    if not allows(key.allowed_models, model_name):
        raise Refusal(403, "permission_denied", f"This API key may not use the model `{model_name}`.")
    if not allows_address(model, client_ip):
        raise address_refused(model)
    return model


def allows_address(model: Model, client_ip: str | None) -> bool:
    """Return whether a model may be used from an address."""
    return not model.allowed_cidrs or _is_inside(client_ip, model.allowed_cidrs)


def address_refused(model: Model) -> Refusal:
    message = f"The model `{model.name}` may not be used from this address."
    return Refusal(403, "permission_denied", message, code="ip_restricted")


def client_ip(peer: str | None, forwarded_for: str | None, trusted: tuple[str, ...]) -> str | None:
    """Return the caller's address: the last one in X-Forwarded-For that is not a trusted proxy's.

    Each proxy appends the address that it saw, so the header is read from its end, and only as long as the addresses are
    those of trusted proxies. Without trusted proxies it is ignored. Addresses may have a port.
    """
    address = _parse_address(peer)
    if address is None or not trusted or not forwarded_for:
        return None if address is None else str(address)
    proxies = networks(trusted)
    for hop in reversed(forwarded_for.split(",")):
        if not any(address in proxy for proxy in proxies):
            break
        claimed = _parse_address(hop)
        if claimed is None:
            break
        address = claimed
    return str(address)


@lru_cache(maxsize=1024)
def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def _is_inside(client_ip: str | None, cidrs: tuple[str, ...]) -> bool:
    address = _parse_address(client_ip)
    return address is not None and any(address in network for network in networks(cidrs))


@lru_cache(maxsize=4096)
def _parse_address(text: str | None) -> Address | None:
    """Parse `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]` or `[::1]:80`. An IPv4-mapped address becomes IPv4."""
    if text is None:
        return None
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _truncate(name: str) -> str:
    name = name.encode(errors="replace").decode()
    return name if len(name) <= _MAX_SHOWN_CHARS else name[: _MAX_SHOWN_CHARS - 1] + "…"
