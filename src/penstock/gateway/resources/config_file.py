"""Reading of gateway.yaml into `GatewayConfig`. Strings may contain `${VAR}`; relative paths are relative to the file."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock.errors import UserError
from penstock.gateway.resources.config import GatewayConfig, Port
from penstock.gateway.resources.yaml_tree import INVALID, ConfigErrors, read_tree

_T = TypeVar("_T")
_SQLITE: Final = "sqlite:///"
_ORIGIN: Final = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def load_config(path: str | None, environment: Mapping[str, str] | None = None) -> GatewayConfig:
    if path is None:
        return GatewayConfig()
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"The configuration {path} cannot be read: {reason}.") from None
    errors = ConfigErrors()
    tree = read_tree(data, os.environ if environment is None else environment, errors)
    config = GatewayConfig()
    if isinstance(tree, dict):
        config = _section(GatewayConfig, tree, "", errors)
        _check(config, errors)
    elif tree is not None and tree is not INVALID:
        errors.add("", "the file must be a mapping of settings")
    if errors:
        raise UserError(f"The configuration {path} cannot be used: {'; '.join(errors.lines())}.")
    return _resolve(config, os.path.dirname(os.path.abspath(path)))


def _section(type_: type[_T], mapping: dict[str, Any], section: str, errors: ConfigErrors) -> _T:
    """Convert each field separately, so that all errors are found."""
    values: dict[str, Any] = {}
    fields = {field.name: field for field in msgspec.structs.fields(type_)}  # type: ignore[arg-type]
    for name, value in mapping.items():
        path = f"{section}.{name}" if section else name
        field = fields.get(name)
        if field is None:
            errors.add(path, f"is not a setting (known settings: {', '.join(fields)})")
        elif value is None or value is INVALID:
            continue
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            if isinstance(value, dict):
                values[name] = _section(field.type, value, path, errors)
            else:
                errors.add(path, "must be a mapping")
        else:
            try:
                values[name] = msgspec.convert(value, field.type, strict=path not in errors.interpolated)
            except msgspec.ValidationError as error:
                errors.add(path, _message(str(error), field.type))
    return type_(**values)


def _message(error: str, type_: Any) -> str:
    if "enum value" in error:  # only this message contains the value
        return "must be one of " + ", ".join(str(choice) for choice in getattr(type_, "__args__", ()))
    if type_ == Port and "got" not in error:
        return "must be a port from 0 to 65535"
    minimum = re.search(r">= ([0-9.]+)", error)
    return f"is invalid: {error}" if minimum is None else f"must be at least {float(minimum[1]):g}"


def _check(config: GatewayConfig, errors: ConfigErrors) -> None:
    listen = config.listen
    if (listen.tls_cert is None) != (listen.tls_key is None):
        errors.add("listen", "needs tls_cert and tls_key together")
    for index, network in enumerate(listen.trusted_proxies):
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            errors.add(f"listen.trusted_proxies[{index}]", "is not a network such as 10.0.0.0/8")
    for index, origin in enumerate(listen.cors_origins):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            errors.add(f"listen.cors_origins[{index}]", "is neither * nor an origin such as https://app.example")
    if config.limits.redis_url is not None and (error := _redis_url_error(config.limits.redis_url)) is not None:
        errors.add("limits.redis_url", error)
    if _scheme(config.ledger.url) not in ("sqlite", "postgresql", "postgres"):
        errors.add("ledger.url", "must begin with sqlite:/// or postgresql://")
    if config.responses.id_url is not None and _scheme(config.responses.id_url) not in ("postgresql", "postgres"):
        errors.add("responses.id_url", "must begin with postgresql://")
    for name, length in config.guardrails.max_lengths.items():
        if length < 1:
            errors.add(f"guardrails.max_lengths.{name}", "must be at least 1")


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _redis_url_error(url: str) -> str | None:
    """Return why a URL does not name a Redis server, or None. The message does not quote the URL: it has a password."""
    if _scheme(url) not in ("redis", "rediss", "unix"):
        return "must begin with redis://, rediss:// or unix://"
    from redis.asyncio.connection import parse_url  # takes 0.1 to 0.2 s

    try:
        parse_url(url)
    except ValueError:
        return "cannot be read; write @ / : # % in the user name or the password as %40 %2F %3A %23 %25"
    return None


def _resolve(config: GatewayConfig, folder: str) -> GatewayConfig:
    def absolute(path: str) -> str:
        return os.path.normpath(os.path.join(folder, path))

    listen, ledger = config.listen, config.ledger
    if listen.tls_cert is not None and listen.tls_key is not None:
        listen = msgspec.structs.replace(listen, tls_cert=absolute(listen.tls_cert), tls_key=absolute(listen.tls_key))
    url = ledger.url
    if url.startswith(_SQLITE):
        file = url.removeprefix(_SQLITE)
        # a path that begins with a fourth slash is absolute
        url = _SQLITE + absolute(file) if file and file != ":memory:" else url
    ledger = msgspec.structs.replace(ledger, url=url, spool=absolute(ledger.spool))
    log = absolute(config.access_log_file) if config.access_log_file is not None else None
    return msgspec.structs.replace(config, listen=listen, ledger=ledger, access_log_file=log)
